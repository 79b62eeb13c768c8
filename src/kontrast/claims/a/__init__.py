"""Paper A: wide contrastive models, their tangent kernels, and PCA."""

# In the order of the paper, which is the order of `kontrast verify`.
# isort: off
from kontrast.claims.a import kernels
from kontrast.claims.a import bounds
from kontrast.claims.a import pca
from kontrast.claims.a import further
from kontrast.claims.a import beyond

__all__ = ["beyond", "bounds", "further", "kernels", "pca"]
