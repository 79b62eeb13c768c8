"""Paper C: nonlinearity in one-layer contrastive learning."""

# In the order of the paper, which is the order of `kontrast verify`.
# isort: off
from kontrast.claims.c import covariance
from kontrast.claims.c import patterns
from kontrast.claims.c import stability
from kontrast.claims.c import bounds
from kontrast.claims.c import importance
from kontrast.claims.c import digits

__all__ = ["bounds", "covariance", "digits", "importance", "patterns", "stability"]
