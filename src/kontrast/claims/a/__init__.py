"""The claims of paper A, one file per claim, named by its id.

Paper A is Anil, Esser and Ghoshdastidar, "When can we Approximate Wide Contrastive Models with Neural Tangent Kernels
and Principal Component Analysis?" (2024), https://arxiv.org/abs/2403.08673.
"""

# In the order of the paper, which is the order of `kontrast verify`.
# isort: off
from kontrast.claims.a import lem9
from kontrast.claims.a import fig1
from kontrast.claims.a import init
from kontrast.claims.a import prop10
from kontrast.claims.a import fig2
from kontrast.claims.a import fig3
from kontrast.claims.a import lem7
from kontrast.claims.a import lem8
from kontrast.claims.a import lem11
from kontrast.claims.a import lem12
from kontrast.claims.a import thm13
from kontrast.claims.a import cert
from kontrast.claims.a import eq8
from kontrast.claims.a import eq10
from kontrast.claims.a import eq9
from kontrast.claims.a import lem16
from kontrast.claims.a import fig4
from kontrast.claims.a import lem17
from kontrast.claims.a import pca
from kontrast.claims.a import rem15
from kontrast.claims.a import prop18
from kontrast.claims.a import fig5
from kontrast.claims.a import forever
from kontrast.claims.a import closed
from kontrast.claims.a import variants
from kontrast.claims.a import inf
from kontrast.claims.a import spec

__all__ = [
    "cert",
    "closed",
    "eq8",
    "eq9",
    "eq10",
    "fig1",
    "fig2",
    "fig3",
    "fig4",
    "fig5",
    "forever",
    "inf",
    "init",
    "lem7",
    "lem8",
    "lem9",
    "lem11",
    "lem12",
    "lem16",
    "lem17",
    "pca",
    "prop10",
    "prop18",
    "rem15",
    "spec",
    "thm13",
    "variants",
]
