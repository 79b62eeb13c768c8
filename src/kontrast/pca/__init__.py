"""Paper A, second half: contrastive PCA at finite and infinite width, whitened, and alternating with gradient steps.

Paper A is Anil, Esser, Ghoshdastidar, "When can we Approximate Wide Contrastive Models with Neural Tangent Kernels and
Principal Component Analysis?" (2024, https://arxiv.org/abs/2403.08673). Its first half is `kontrast.lazy`, where the
bounds of Lemmas 16 and 17 on contrastive PCA are too: `kontrast.lazy.pca_bounds`.
"""

from kontrast.pca.alternating import Alternation, alternating_pca
from kontrast.pca.contrastive_pca import (
    PCASolution,
    contrastive_drift,
    contrastive_matrix,
    contrastive_pca,
    hidden_features,
    orthonormal_start,
    pair_features,
    pca_network,
    row_difference,
    train_pca_network,
)
from kontrast.pca.frozen_descent import FrozenDescent
from kontrast.pca.kernel_pca import KernelFeatures, kernel_contrastive_pca, nystrom_features
from kontrast.pca.moments import PairMoments, ViewMoments
from kontrast.pca.whitened import WhitenedPCA, require_positive_values, whitened_pca

__all__ = [
    "Alternation",
    "FrozenDescent",
    "KernelFeatures",
    "PCASolution",
    "PairMoments",
    "ViewMoments",
    "WhitenedPCA",
    "alternating_pca",
    "contrastive_drift",
    "contrastive_matrix",
    "contrastive_pca",
    "hidden_features",
    "kernel_contrastive_pca",
    "nystrom_features",
    "orthonormal_start",
    "pair_features",
    "pca_network",
    "require_positive_values",
    "row_difference",
    "train_pca_network",
    "whitened_pca",
]
