"""A frozen spec → cells → store: measured in parallel, written atomically, resumed after any interruption."""

from kontrast.estimators import linear_probe
from kontrast.sweep.execute import Interrupted, default_workers, run_cells
from kontrast.sweep.findings import (
    FLAT,
    RUNAWAY,
    Findings,
    SimilarityFindings,
    Verdict,
    find,
)
from kontrast.sweep.label_findings import SHARE as LABEL_SHARE
from kontrast.sweep.label_findings import LabelFindings
from kontrast.sweep.labels import LABEL_MEASURES, REPRESENTATIONS
from kontrast.sweep.pca_findings import PCAFindings, PCAVerdict
from kontrast.sweep.pca_view import PCA_MEASURES
from kontrast.sweep.probe_findings import Gain, ProbeFindings
from kontrast.sweep.probes import CLOSED_FORM, EMBEDDINGS, OF_THE_INPUT, input_embeddings
from kontrast.sweep.records import generator_for, padded
from kontrast.sweep.spec import StudySpec, data_digest, load_data, parse_cell, prepare, require_contrast
from kontrast.sweep.store import Store, write_atomic
from kontrast.sweep.study import MEASURES, consolidate, measure, run_study
from kontrast.sweep.thresholds import Thresholds

__all__ = [
    "CLOSED_FORM",
    "EMBEDDINGS",
    "FLAT",
    "LABEL_MEASURES",
    "LABEL_SHARE",
    "MEASURES",
    "OF_THE_INPUT",
    "PCA_MEASURES",
    "REPRESENTATIONS",
    "RUNAWAY",
    "Findings",
    "Gain",
    "Interrupted",
    "LabelFindings",
    "PCAFindings",
    "PCAVerdict",
    "ProbeFindings",
    "SimilarityFindings",
    "Store",
    "StudySpec",
    "Thresholds",
    "Verdict",
    "consolidate",
    "data_digest",
    "default_workers",
    "find",
    "generator_for",
    "input_embeddings",
    "linear_probe",
    "load_data",
    "measure",
    "padded",
    "parse_cell",
    "prepare",
    "require_contrast",
    "run_cells",
    "run_study",
    "write_atomic",
]
