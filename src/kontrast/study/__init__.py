"""The main job: kernel, PCA or learning, measured over widths and seeds."""

from kontrast.study.findings import FLAT, RUNAWAY, Findings, SimilarityFindings, Verdict, find
from kontrast.study.label_findings import SHARE, LabelFindings
from kontrast.study.label_findings import SHARE as LABEL_SHARE
from kontrast.study.labels import LABEL_MEASURES, REPRESENTATIONS
from kontrast.study.pca_findings import PCAFindings, PCAVerdict
from kontrast.study.pca_view import PCA_MEASURES
from kontrast.study.probe_findings import Gain, ProbeFindings
from kontrast.study.probes import CLOSED_FORM, EMBEDDINGS, OF_THE_INPUT, input_embeddings
from kontrast.study.spec import StudySpec, parse_cell, prepare
from kontrast.study.study import MEASURES, consolidate, measure, run_study
from kontrast.study.thresholds import Thresholds

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
    "SHARE",
    "Findings",
    "Gain",
    "LabelFindings",
    "PCAFindings",
    "PCAVerdict",
    "ProbeFindings",
    "SimilarityFindings",
    "StudySpec",
    "Thresholds",
    "Verdict",
    "consolidate",
    "find",
    "input_embeddings",
    "measure",
    "parse_cell",
    "prepare",
    "run_study",
]
