"""Numbers of embeddings, each under the name of its convention: functions, and accumulators for batches."""

from kontrast.diagnosis.metrics.bootstrap import bootstrapped, bootstrapped_lidar
from kontrast.diagnosis.metrics.lidar import LIDAR_DEFINITION, LIDAR_WORDS, ViewGroups, lidar
from kontrast.diagnosis.metrics.pairs import Alignment, Uniformity, alignment, uniformity
from kontrast.diagnosis.metrics.similarities import (
    Similarities,
    SimilarityHistogram,
    effective_negatives,
    neighbor_agreement,
)
from kontrast.diagnosis.metrics.spectra import (
    SPECTRAL_METRICS,
    Moments,
    SpectralMetric,
    Spectrum,
    alpha_req,
    centered_rank,
    metrics_of,
    nesum,
    participation_ratio,
    rankme,
    spectrum_of,
    spread,
    stable_rank,
    std_sqrt_d,
)

__all__ = [
    "LIDAR_DEFINITION",
    "LIDAR_WORDS",
    "SPECTRAL_METRICS",
    "Alignment",
    "Moments",
    "Similarities",
    "SimilarityHistogram",
    "SpectralMetric",
    "Spectrum",
    "Uniformity",
    "ViewGroups",
    "alignment",
    "alpha_req",
    "bootstrapped",
    "bootstrapped_lidar",
    "centered_rank",
    "effective_negatives",
    "lidar",
    "metrics_of",
    "neighbor_agreement",
    "nesum",
    "participation_ratio",
    "rankme",
    "spectrum_of",
    "spread",
    "stable_rank",
    "std_sqrt_d",
    "uniformity",
]
