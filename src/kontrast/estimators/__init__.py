"""Contrastive embeddings without training, as scikit-learn transformers.

::

    embedding = kt.estimators.SpectralContrastive(128, width=8192).fit(images)   # no labels, no training loop
    Z = embedding.transform(new_images)
"""

from kontrast.estimators.base import ClosedFormEmbedding
from kontrast.estimators.contrastive_pca import ContrastivePCA
from kontrast.estimators.deep_linear_ssl import DeepLinearSSL
from kontrast.estimators.features import Fourier, Patches
from kontrast.estimators.kernel_learnability import (
    KernelLearnability,
    LearningCurve,
    LeaveOneOutScore,
    SamplesNeeded,
    linear_kernel,
)
from kontrast.estimators.model_files import load_model, save_model
from kontrast.estimators.most_components import fit_most_components
from kontrast.estimators.probes import (
    Probed,
    compare_with_input,
    knn_probe,
    linear_predictions,
    linear_probe,
    probe_embeddings,
    ridge_probe,
)
from kontrast.estimators.spectral_contrastive import SpectralContrastive

# The methods of `kontrast embed`, by the word that chooses them; the first is the default.
METHODS = {"spectral": "SpectralContrastive", "pca": "ContrastivePCA", "linear": "DeepLinearSSL"}

__all__ = [
    "METHODS",
    "ClosedFormEmbedding",
    "ContrastivePCA",
    "DeepLinearSSL",
    "Fourier",
    "KernelLearnability",
    "LearningCurve",
    "LeaveOneOutScore",
    "Patches",
    "Probed",
    "SamplesNeeded",
    "SpectralContrastive",
    "compare_with_input",
    "fit_most_components",
    "knn_probe",
    "linear_kernel",
    "linear_predictions",
    "linear_probe",
    "load_model",
    "probe_embeddings",
    "ridge_probe",
    "save_model",
]
