"""Cells of a hashed spec: run here or in processes, stored atomically, resumed after any interruption."""

from kontrast.runs.execute import Interrupted, default_workers, run_cells
from kontrast.runs.records import generator_for, padded
from kontrast.runs.store import Store, write_atomic

__all__ = [
    "Interrupted",
    "Store",
    "default_workers",
    "generator_for",
    "padded",
    "run_cells",
    "write_atomic",
]
