"""Paper C: nonlinearity in one-layer contrastive learning."""

# In the order of the paper, which is the order of `kontrast verify`.
# isort: off
from kontrast.claims.c import covariance
from kontrast.claims.c import patterns
from kontrast.claims.c import stability
from kontrast.claims.c import bounds

__all__ = ["bounds", "covariance", "patterns", "stability"]
