"""Runs that can be stopped and resumed: cells of a hashed spec, computed here or in processes, stored one by one.

A run is all the work of one spec: a frozen set of choices with a hash. A cell is the part of it that is computed and
stored at once, a width and a seed of a study or one claim. A store is the folder that holds the spec, one file per
finished cell, and the result made from them; killing the run at any moment loses only the cells under way.
"""

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
