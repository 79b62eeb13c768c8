"""A study in a given time: which of its cells fit, judged by the times of the first ones."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kontrast.checks import is_number
from kontrast.errors import InputError
from kontrast.study.spec import StudySpec, cell_name, parse_cell

UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
FEWEST_SEEDS = 2  # below it no number has an interval
RESERVE = 0.9  # share of the time that is planned; the rest is for the page and for what varies


@dataclass(frozen=True)
class Plan:
    """The cells that are run, and those that are left out."""

    cells: tuple[str, ...]
    left_out: tuple[str, ...]
    sentence: str


def seconds_from(budget: str | float) -> float:
    """A time as people write it, "90s", "2m", "1.5h" or a number of seconds, in seconds."""
    if is_number(budget) and not isinstance(budget, str):
        seconds = float(budget)
    else:
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]*)\s*", str(budget))
        if match is None or match[2] not in UNITS:
            raise InputError(f"budget must be a time such as 90s, 2m or 1h, got {budget!r}")
        seconds = float(match[1]) * UNITS[match[2]]
    if not 0 < seconds < float("inf"):
        raise InputError(f"budget must be more than no time, got {budget!r}; write 90s, 2m or 1h")
    return seconds


def first_cells(missing: Sequence[str]) -> list[str]:
    """The cells whose times tell those of the others: the first seed of the two narrowest networks."""
    first: dict[int, str] = {}
    for cell in sorted(missing):
        first.setdefault(parse_cell(cell)[0], cell)
    return list(first.values())[:2]


def plan(spec: StudySpec, missing: Sequence[str], times: Mapping[str, float], seconds: float, workers: int) -> Plan:
    """The largest grid of widths and seeds that fits: the widest networks are left out last, after seeds beyond two.

    Args:
        spec: of the study.
        missing: the cells that are not stored.
        times: seconds that the first cells took; a cell's time is taken to be a straight line in its width.
        seconds: that are left.
        workers: processes.
    """
    widths = sorted(spec.widths)
    needed = _line({parse_cell(cell)[0]: time for cell, time in times.items()})
    for n_widths in range(len(widths), 0, -1):
        for n_seeds in range(spec.n_seeds, 0, -1):
            grid = [cell_name(width, seed) for width in widths[:n_widths] for seed in spec.seeds[:n_seeds]]
            cells = [cell for cell in missing if cell in grid]
            last_resort = n_widths == 1 or spec.n_seeds < FEWEST_SEEDS
            if n_seeds < FEWEST_SEEDS and not last_resort:
                continue
            longest = [needed(parse_cell(cell)[0]) for cell in cells]
            if max(sum(longest) / max(1, workers), max(longest, default=0.0)) <= RESERVE * seconds:
                left_out = tuple(cell for cell in missing if cell not in grid)
                return Plan(tuple(cells), left_out, _sentence(spec, left_out))
    return Plan((), tuple(missing), _sentence(spec, missing))  # the first cells are all that the time allows


def whole_grid(spec: StudySpec, stored: Container[str]) -> tuple[list[int], list[int]]:
    """The widths and seeds of the largest grid of cells that are all stored; both are empty where none is."""
    grids = []
    for n_seeds in range(spec.n_seeds, 0, -1):
        seeds = list(spec.seeds[:n_seeds])
        widths = [width for width in sorted(spec.widths) if all(cell_name(width, seed) in stored for seed in seeds)]
        grids.append((widths, seeds if widths else []))
    return max(grids, key=lambda grid: len(grid[0]) * len(grid[1]))


def require_time_for_one(spec: StudySpec, seconds: float, step: float) -> None:
    """Refuse a budget in which not even the shortest cell can be trained, from the seconds that one step takes."""
    least = min(spec.widths)
    needed = step * (spec.max_steps if spec.has_width else least)
    if needed > seconds:
        raise InputError(
            f"a budget of {seconds:.2g} s is too small for one cell, which takes about {needed:.2g} s "
            f"{f'at width {least}' if spec.has_width else f'for {least} steps'}; give more time, fewer rates or a "
            "smaller max_steps"
        )


def _line(times: Mapping[int, float]) -> np.poly1d:
    """Seconds against width; with one time, in proportion to the width beyond it."""
    if len(times) == 1:
        ((width, time),) = times.items()
        return np.poly1d([time / width, 0.0])
    (w, t), (v, u) = sorted(times.items())[:2]
    slope = max((u - t) / (v - w), 0.0)
    return np.poly1d([slope, t - slope * w])


def _sentence(spec: StudySpec, left_out: Sequence[str]) -> str:
    """What the result is without: the widths and seeds beyond the largest grid that is whole."""
    if not left_out:
        return "the whole study fits into the budget"
    widths, seeds = whole_grid(spec, set(spec.cells) - set(left_out))
    without = {
        "widths": [width for width in sorted(spec.widths) if width not in widths],
        "seeds": [seed for seed in spec.seeds if seed not in seeds],
    }
    named = " and ".join(f"{name} {', '.join(map(str, those))}" for name, those in without.items() if those)
    return f"the budget leaves out {named}; resume the study without a budget to add them"
