"""Claims of paper C.

Yuandong Tian: On the Role of Nonlinearity in Training Dynamics of Contrastive Learning on One-layer Network (2022).
"""

# In the order of the paper, which is the order of `kontrast verify`.
# isort: off
from kontrast.claims.c import cov
from kontrast.claims.c import alpha
from kontrast.claims.c import lem2
from kontrast.claims.c import lme
from kontrast.claims.c import thm1
from kontrast.claims.c import thm2
from kontrast.claims.c import thm3
from kontrast.claims.c import cor2
from kontrast.claims.c import width

__all__ = ["alpha", "cor2", "cov", "lem2", "lme", "thm1", "thm2", "thm3", "width"]
