"""Paper B: learning dynamics of self-supervised models."""

# In the order of the paper, which is the order of `kontrast verify`.
# isort: off
from kontrast.claims.b import collapse
from kontrast.claims.b import interaction
from kontrast.claims.b import frobenius
from kontrast.claims.b import constraints
from kontrast.claims.b import half_moons
from kontrast.claims.b import nonlinear
from kontrast.claims.b import flows
from kontrast.claims.b import limits
from kontrast.claims.b import downstream
from kontrast.claims.b import non_contrastive

__all__ = [
    "collapse",
    "constraints",
    "downstream",
    "flows",
    "frobenius",
    "half_moons",
    "interaction",
    "limits",
    "non_contrastive",
    "nonlinear",
]
