"""Spectra: contrastive PCA in all its forms, patterns of one-layer networks, whether a representation collapsed."""

from kontrast.spectral.alternating import Alternation, alternating_pca
from kontrast.spectral.collapse import Collapse, effective_rank, kernel_collapse, linear_collapse, relative_spread
from kontrast.spectral.constrained import ConstrainedOptimum, Constraint, constrained_descent, constrained_optimum
from kontrast.spectral.contrastive_covariance import (
    GaussianFeatures,
    PairLaplacian,
    adjusted_covariance,
    contrastive_covariance,
    gaussian_features,
    pair_laplacian,
)
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
from kontrast.spectral.data_matrix import data_matrix, expected_data_matrix, pair_weights
from kontrast.spectral.domains import (
    Parities,
    circle,
    circle_spectrum,
    hypercube,
    hypercube_spectrum,
    parities,
    sphere_spectrum,
    zonal_polynomials,
)
from kontrast.spectral.eigenlearning import Prediction, Spectrum, kappa, predict_learning
from kontrast.spectral.gated import BatchNormalised, GatedCovariance
from kontrast.spectral.kernel_functions import (
    CosineKernel,
    FeatureKernel,
    GaussianKernel,
    Kernel,
    NetworkKernel,
    TangentKernel,
)
from kontrast.spectral.kernel_pca import KernelFeatures, kernel_contrastive_pca, nystrom_features
from kontrast.spectral.learnability import (
    Eigensystem,
    MeasuredLearning,
    eigensystem,
    learnability,
    measure_learning,
    transfer_derivative,
    transfer_matrix,
)
from kontrast.spectral.lmes import FilterMatch, LMEs, find_lmes
from kontrast.spectral.moments import PairMoments, ViewMoments
from kontrast.spectral.pair_matrix import pair_matrix
from kontrast.spectral.pointwise import PointPrediction, predict_at_points
from kontrast.spectral.population import MixtureCovariance
from kontrast.spectral.regression import KernelRegression, kernel_regression
from kontrast.spectral.whitened import (
    WhitenedSolution,
    require_components,
    require_positive_values,
    require_ridge,
    spectral_contrastive,
)

__all__ = [
    "Alternation",
    "BatchNormalised",
    "Collapse",
    "ConstrainedOptimum",
    "Constraint",
    "CosineKernel",
    "Eigensystem",
    "FeatureKernel",
    "FilterMatch",
    "GatedCovariance",
    "GaussianFeatures",
    "GaussianKernel",
    "Kernel",
    "KernelFeatures",
    "KernelRegression",
    "LMEs",
    "MeasuredLearning",
    "MixtureCovariance",
    "NetworkKernel",
    "PCASolution",
    "PairLaplacian",
    "PairMoments",
    "Parities",
    "PointPrediction",
    "Prediction",
    "Spectrum",
    "TangentKernel",
    "ViewMoments",
    "WhitenedSolution",
    "adjusted_covariance",
    "alternating_pca",
    "circle",
    "circle_spectrum",
    "constrained_descent",
    "constrained_optimum",
    "contrastive_covariance",
    "contrastive_drift",
    "contrastive_matrix",
    "contrastive_pca",
    "data_matrix",
    "effective_rank",
    "eigensystem",
    "expected_data_matrix",
    "find_lmes",
    "gaussian_features",
    "hidden_features",
    "hypercube",
    "hypercube_spectrum",
    "kappa",
    "kernel_collapse",
    "kernel_contrastive_pca",
    "kernel_regression",
    "learnability",
    "linear_collapse",
    "measure_learning",
    "nystrom_features",
    "orthonormal_start",
    "pair_features",
    "pair_laplacian",
    "pair_matrix",
    "pair_weights",
    "parities",
    "pca_network",
    "predict_at_points",
    "predict_learning",
    "relative_spread",
    "require_components",
    "require_positive_values",
    "require_ridge",
    "row_difference",
    "spectral_contrastive",
    "sphere_spectrum",
    "train_pca_network",
    "transfer_derivative",
    "transfer_matrix",
    "zonal_polynomials",
]
