"""Paper C: Tian, "On the Role of Nonlinearity in Training Dynamics of Contrastive Learning on One-layer Network".

2022, https://arxiv.org/abs/2206.01342. A contrastive loss weighs pairs of samples by their importance α. A filter w
then climbs the energy of the contrastive covariance, driven by A(w), until it rests at a locally maximal eigenvector:
a pattern.
"""

from kontrast.patterns.bounds import (
    Guarantee,
    GuaranteeCheck,
    check_guarantee,
    estimate_constants,
    gaussian_z0,
    guarantee,
    irregularity,
    positive_definite,
    roughness_bound,
)
from kontrast.patterns.contrastive_covariance import (
    PairLaplacian,
    adjusted_covariance,
    contrastive_covariance,
    gaussian_features,
    pair_laplacian,
)
from kontrast.patterns.gated_covariance import BatchNormalized, GatedCovariance
from kontrast.patterns.homogeneous import Homogeneous
from kontrast.patterns.importance import (
    GaussianImportance,
    ImportanceRule,
    ImportanceWeights,
    InfoNCEImportance,
    SpectralImportance,
    TripletImportance,
    UniformImportance,
)
from kontrast.patterns.latent_models import (
    THRESHOLD_Q,
    LatentCategorical,
    LatentSummation,
    nearly_orthogonal_patterns,
    orthonormal_patterns,
)
from kontrast.patterns.lmes import LMEs, find_lmes
from kontrast.patterns.one_layer import Ending, OneLayerField, one_layer_flow, power_iteration
from kontrast.patterns.population import MixtureCovariance

__all__ = [
    "THRESHOLD_Q",
    "BatchNormalized",
    "Ending",
    "GatedCovariance",
    "GaussianImportance",
    "Guarantee",
    "GuaranteeCheck",
    "Homogeneous",
    "ImportanceRule",
    "ImportanceWeights",
    "InfoNCEImportance",
    "LMEs",
    "LatentCategorical",
    "LatentSummation",
    "MixtureCovariance",
    "OneLayerField",
    "PairLaplacian",
    "SpectralImportance",
    "TripletImportance",
    "UniformImportance",
    "adjusted_covariance",
    "check_guarantee",
    "contrastive_covariance",
    "estimate_constants",
    "find_lmes",
    "gaussian_features",
    "gaussian_z0",
    "guarantee",
    "irregularity",
    "nearly_orthogonal_patterns",
    "one_layer_flow",
    "orthonormal_patterns",
    "pair_laplacian",
    "positive_definite",
    "power_iteration",
    "roughness_bound",
]
