"""Paper A: wide contrastive models, their tangent kernels, and PCA."""

# In the order of the paper, which is the order of `kontrast verify`.
# isort: off
from kontrast.claims.a import kernels
from kontrast.claims.a import bounds
from kontrast.claims.a import pca
from kontrast.claims.a import further
from kontrast.claims.a import beyond
from kontrast.claims.a import closed_form

__all__ = ["beyond", "bounds", "closed_form", "further", "kernels", "pca"]
