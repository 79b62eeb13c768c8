"""Paper B: Esser, Mukherjee and Ghoshdastidar, "Representation Learning Dynamics of Self-Supervised Models"."""

# Every file registers its claim, in the order of the paper, which is the order of `kontrast verify`.
# ruff: noqa: F401, I001
from kontrast.claims.b import prop1, lem1, prop2, prop3, ex1, thm1, fig2, thm2, fig3, fig6, thm3, conj2, fig5, nc
