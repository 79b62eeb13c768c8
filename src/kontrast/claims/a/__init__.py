"""The claims of paper A, one file per claim, named by its id.

Paper A is Anil, Esser and Ghoshdastidar, "When can we Approximate Wide Contrastive Models with Neural Tangent Kernels
and Principal Component Analysis?" (2024), https://arxiv.org/abs/2403.08673.
"""

# Every file registers its claim, in the order of the paper, which is the order of `kontrast verify`.
# ruff: noqa: F401, I001
from kontrast.claims.a import lem9, fig1, init, prop10, fig2, fig3, lem7, lem8, lem11, lem12, thm13, cert
from kontrast.claims.a import eq8, eq10, eq9, lem16, fig4, lem17, pca, rem15, prop18, fig5, forever
from kontrast.claims.a import closed, variants, inf, spec
