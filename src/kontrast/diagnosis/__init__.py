"""What a user's model is doing: lazy or learning, collapsed or not, whether training pays; a monitor for any loop."""

from kontrast.diagnosis.inputs import Encoder, read_checkpoint, read_checkpoints, read_views
from kontrast.diagnosis.loggers import TensorBoardLogger, WandbLogger, lightning_callback
from kontrast.diagnosis.metrics import (
    SPECTRAL_METRICS,
    Alignment,
    Similarities,
    Spectrum,
    Uniformity,
    ViewGroups,
    alignment,
    alpha_req,
    centered_rank,
    effective_negatives,
    lidar,
    metrics_of,
    neighbor_agreement,
    nesum,
    participation_ratio,
    rankme,
    spread,
    stable_rank,
    std_sqrt_d,
    uniformity,
)
from kontrast.diagnosis.monitor import CollapseWarning, Monitor, read_monitor
from kontrast.diagnosis.result import Diagnosis
from kontrast.diagnosis.run import diagnose
from kontrast.diagnosis.settings import Limits, Settings

__all__ = [
    "SPECTRAL_METRICS",
    "Alignment",
    "CollapseWarning",
    "Diagnosis",
    "Encoder",
    "Limits",
    "Monitor",
    "Settings",
    "Similarities",
    "Spectrum",
    "TensorBoardLogger",
    "Uniformity",
    "ViewGroups",
    "WandbLogger",
    "alignment",
    "alpha_req",
    "centered_rank",
    "diagnose",
    "effective_negatives",
    "lidar",
    "lightning_callback",
    "metrics_of",
    "neighbor_agreement",
    "nesum",
    "participation_ratio",
    "rankme",
    "read_checkpoint",
    "read_checkpoints",
    "read_monitor",
    "read_views",
    "spread",
    "stable_rank",
    "std_sqrt_d",
    "uniformity",
]
