"""Contrastive embeddings without training, as scikit-learn transformers.

::

    embedding = kt.estimators.SpectralContrastive(128, width=8192).fit(images)   # no labels, no training loop
    Z = embedding.transform(new_images)
"""

from kontrast.estimators.contrastive_pca import ContrastivePCA
from kontrast.estimators.features import Fourier, Patches
from kontrast.estimators.model_files import load_model, save_model
from kontrast.estimators.spectral_contrastive import SpectralContrastive

__all__ = ["ContrastivePCA", "Fourier", "Patches", "SpectralContrastive", "load_model", "save_model"]
