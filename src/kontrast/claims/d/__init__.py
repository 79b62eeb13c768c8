"""Paper D: linearised wide networks, and what a kernel can learn."""

# In the order of the paper, which is the order of `kontrast verify`.
# isort: off
from kontrast.claims.d import linearized
from kontrast.claims.d import bounds
from kontrast.claims.d import gaussian
from kontrast.claims.d import learnability
from kontrast.claims.d import prediction

__all__ = ["bounds", "gaussian", "learnability", "linearized", "prediction"]
