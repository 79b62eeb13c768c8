"""Paper A, second half: contrastive PCA, finite and infinite, whitened and in turns."""

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
from kontrast.pca.kernel_pca import KernelFeatures, kernel_contrastive_pca, nystrom_features
from kontrast.pca.moments import PairMoments, ViewMoments
from kontrast.pca.whitened import (
    WhitenedPCA,
    require_components,
    require_positive_values,
    require_ridge,
    whitened_pca,
)

__all__ = [
    "Alternation",
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
    "require_components",
    "require_positive_values",
    "require_ridge",
    "row_difference",
    "train_pca_network",
    "whitened_pca",
]
