"""A frozen spec → cells → store: measured in parallel, written atomically, resumed after any interruption."""

from kontrast.sweep.execute import Interrupted, default_workers, run_cells
from kontrast.sweep.findings import (
    FLAT,
    RUNAWAY,
    TOLERANCE,
    Findings,
    SimilarityFindings,
    Verdict,
    check_tolerance,
    find,
)
from kontrast.sweep.spec import StudySpec, data_digest, load_data, parse_cell, prepare
from kontrast.sweep.store import Store, write_atomic
from kontrast.sweep.study import MEASURES, consolidate, measure, run_study

__all__ = [
    "FLAT",
    "MEASURES",
    "RUNAWAY",
    "TOLERANCE",
    "Findings",
    "Interrupted",
    "SimilarityFindings",
    "Store",
    "StudySpec",
    "Verdict",
    "check_tolerance",
    "consolidate",
    "data_digest",
    "default_workers",
    "find",
    "load_data",
    "measure",
    "parse_cell",
    "prepare",
    "run_cells",
    "run_study",
    "write_atomic",
]
