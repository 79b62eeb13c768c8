"""What users bring: an encoder of any kind, its checkpoints, the statistics of its BatchNorm, and views of samples."""

from kontrast.diagnosis.inputs.checkpoints import (
    Checkpoint,
    Source,
    find_checkpoints,
    natural_order,
    read_checkpoint,
    read_checkpoints,
)
from kontrast.diagnosis.inputs.encoder import Encoder, State
from kontrast.diagnosis.inputs.samples import as_samples
from kontrast.diagnosis.inputs.statistics import has_statistics, recalibrated, statistics_in_words, with_statistics
from kontrast.diagnosis.inputs.views import Views, read_views
from kontrast.nets import Select

__all__ = [
    "Checkpoint",
    "Encoder",
    "Select",
    "Source",
    "State",
    "Views",
    "as_samples",
    "find_checkpoints",
    "has_statistics",
    "natural_order",
    "read_checkpoint",
    "read_checkpoints",
    "read_views",
    "recalibrated",
    "statistics_in_words",
    "with_statistics",
]
