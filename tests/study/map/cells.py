"""Cells of a map made by hand."""

from __future__ import annotations

import math
from typing import Any

from kontrast.dynamics import Ending
from kontrast.study.map import Estimate, MapCell
from kontrast.study.map.findings import NUMBERS
from kontrast.study.map.measures import DIVERGED_AT


def exact(mean: float, error: float = 0.0) -> Estimate:
    return Estimate(mean, mean - error, mean + error)


LEARNS = {
    "map_gap": 0.5,
    "map_pca_first": 0.9,
    "map_rank": 8.0,
    "map_first_rank": 9.0,
    "map_spread": 0.9,
    "map_first_spread": 0.5,
    "map_still_falling": 0.02,
}
GAINS = {"start": 0.1, "kernel": 0.05, "closed form": 0.01}


def cell(
    *,
    endings: tuple[Ending, ...] = (Ending.SETTLED,) * 3,
    gains: dict[str, float] | None = None,
    labels: bool = True,
    error: float = 0.0,
    loss: str = "nt_xent",
    width: int | None = 64,
    size: int | None = None,
    rate: float = 1.0,
    **numbers: Any,
) -> MapCell:
    """A cell that learns, but for what is given; `gap=0.1` sets map_gap, with no error where it is a number."""
    found = {name: exact(LEARNS.get(name, 0.5), error) for name in NUMBERS} | {DIVERGED_AT.name: exact(math.nan)}
    for name, value in numbers.items():
        found[f"map_{name}"] = value if isinstance(value, Estimate) else exact(value, error)
    gained = {name: exact(value, error) for name, value in (GAINS | (gains or {})).items()} if labels else {}
    return MapCell(loss, size or width or 0, width, rate, 0.3 * rate, 100, endings, found, gained, gained)
