"""The main job: kernel, PCA or learning, measured over widths and seeds.

A study is a `StudySpec`; `run_study` measures its cells, one per width and seed, and `find` judges the result. Each
question has a section of its own (`kernel`, `pca`, `probes`, `labels`) that declares its `QUANTITIES` once and has a
`measure` and a `judge`.
"""

from kontrast.study import kernel, labels, map, pca, probes, tables
from kontrast.study.budget import seconds_from
from kontrast.study.in_python import run
from kontrast.study.kernel import KernelVerdict, SimilarityFindings
from kontrast.study.labels import REPRESENTATIONS, LabelFindings
from kontrast.study.map import Border, Estimate, MapCell, MapFindings, Regime
from kontrast.study.pca import PCAFindings, PCAVerdict
from kontrast.study.prepare import prepare
from kontrast.study.probes import EMBEDDINGS, OF_THE_INPUT, Gain, ProbeFindings, input_embeddings
from kontrast.study.quantities import Drawing, Plot, Quantity
from kontrast.study.rules import Rule
from kontrast.study.running import SECTIONS, consolidate, measure_cell, run_study
from kontrast.study.spec import PRESETS, StudySpec, parse_cell
from kontrast.study.summary import Findings, find
from kontrast.study.tables import Table, terminal_tables
from kontrast.study.thresholds import Thresholds

__all__ = [
    "EMBEDDINGS",
    "OF_THE_INPUT",
    "PRESETS",
    "REPRESENTATIONS",
    "SECTIONS",
    "Border",
    "Drawing",
    "Estimate",
    "Findings",
    "Gain",
    "KernelVerdict",
    "LabelFindings",
    "MapCell",
    "MapFindings",
    "PCAFindings",
    "PCAVerdict",
    "Plot",
    "ProbeFindings",
    "Quantity",
    "Regime",
    "Rule",
    "SimilarityFindings",
    "StudySpec",
    "Table",
    "Thresholds",
    "consolidate",
    "find",
    "input_embeddings",
    "kernel",
    "labels",
    "map",
    "measure_cell",
    "parse_cell",
    "pca",
    "prepare",
    "probes",
    "run",
    "run_study",
    "seconds_from",
    "tables",
    "terminal_tables",
]
