"""Spectra: contrastive PCA, the closed form of paper A's networks, and whether a representation has collapsed."""

from kontrast.spectral.alternating import Alternation, alternating_pca
from kontrast.spectral.collapse import effective_rank, relative_spread
from kontrast.spectral.contrastive_pca import (
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
from kontrast.spectral.pair_matrix import pair_matrix

__all__ = [
    "Alternation",
    "PCASolution",
    "alternating_pca",
    "contrastive_drift",
    "contrastive_matrix",
    "contrastive_pca",
    "effective_rank",
    "hidden_features",
    "orthonormal_start",
    "pair_features",
    "pair_matrix",
    "pca_network",
    "relative_spread",
    "row_difference",
    "train_pca_network",
]
