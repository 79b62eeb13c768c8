"""Paper B: learning dynamics of self-supervised models."""

# In the order of the paper, which is the order of `kontrast verify`.
# isort: off
from kontrast.claims.b import half_moons
from kontrast.claims.b import nonlinear
from kontrast.claims.b import flows
from kontrast.claims.b import limits
from kontrast.claims.b import downstream

__all__ = ["downstream", "flows", "half_moons", "limits", "nonlinear"]
