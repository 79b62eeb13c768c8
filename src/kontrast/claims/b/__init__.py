"""Paper B: Esser, Mukherjee and Ghoshdastidar, "Representation Learning Dynamics of Self-Supervised Models"."""

# In the order of the paper, which is the order of `kontrast verify`.
# isort: off
from kontrast.claims.b import prop1
from kontrast.claims.b import lem1
from kontrast.claims.b import prop2
from kontrast.claims.b import prop3
from kontrast.claims.b import ex1
from kontrast.claims.b import thm1
from kontrast.claims.b import fig2
from kontrast.claims.b import thm2
from kontrast.claims.b import fig3
from kontrast.claims.b import fig6
from kontrast.claims.b import thm3
from kontrast.claims.b import conj2
from kontrast.claims.b import fig5
from kontrast.claims.b import nc

__all__ = [
    "conj2",
    "ex1",
    "fig2",
    "fig3",
    "fig5",
    "fig6",
    "lem1",
    "nc",
    "prop1",
    "prop2",
    "prop3",
    "thm1",
    "thm2",
    "thm3",
]
