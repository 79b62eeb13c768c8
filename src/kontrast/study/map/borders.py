"""Where one regime ends and the next begins: the rate of a border at every width, and its power law in the width."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kontrast.dynamics import SETTLED_SHARE
from kontrast.linalg import PowerLaw, fit_power_law
from kontrast.study.map.regimes import MapCell
from kontrast.study.thresholds import Thresholds


@dataclass(frozen=True)
class Border:
    """A border of the map: a rate at every width (or number of steps) where it lies between two rates that were run.

    Attributes:
        loss: the loss.
        name: "kernel" (the gap reaches its tolerance), "settled" (the loss stops falling) or "diverged".
        words: what lies below and above it.
        sizes: the widths, or steps, at which it was found.
        rates: there, in units of the critical rate.
        law: rate ∝ size^exponent, with its interval; None for fewer than two sizes.
    """

    loss: str
    name: str
    words: str
    sizes: tuple[int, ...]
    rates: tuple[float, ...]
    law: PowerLaw | None

    def at(self, size: float) -> float:
        """The rate of the border at a width, by its law; NaN without one."""
        return math.nan if self.law is None else self.law(size)

    def size_at(self, rate: float) -> float:
        """The width from which on the border lies above a rate, by its law; infinite where it never does."""
        return math.inf if self.law is None or self.law.exponent <= 0 else self.law.solve(rate)


def borders_of(cells: Sequence[MapCell], thresholds: Thresholds, max_steps: int) -> tuple[Border, ...]:
    """The borders of one panel."""
    loss = cells[0].loss
    rows: dict[int, list[MapCell]] = {}
    for cell in cells:
        rows.setdefault(cell.size, []).append(cell)
    kinds: dict[str, tuple[str, Callable[[Sequence[MapCell]], float]]] = {
        "settled": (
            "below, the loss still falls when the steps end",
            lambda row: crossing(row, "map_still_falling", SETTLED_SHARE),
        ),
        "kernel": (
            "below, a fixed kernel predicts the run; above, features move",
            lambda row: crossing(row, "map_gap", thresholds.gap_tolerance),
        ),
        "diverged": ("above, training diverges", lambda row: divergence(row, max_steps)),
    }
    found = []
    for name, (words, where) in kinds.items():
        places = {size: where(sorted(row, key=lambda cell: cell.rate)) for size, row in sorted(rows.items())}
        there = {size: rate for size, rate in places.items() if math.isfinite(rate)}
        if there:
            law = fit_power_law(list(there), list(there.values())) if len(there) > 1 else None
            found.append(Border(loss, name, words, tuple(there), tuple(there.values()), law))
    return tuple(found)


def crossing(row: Sequence[MapCell], name: str, level: float) -> float:
    """The first rate at which a quantity crosses a level, on straight lines between neighbours on logarithmic axes.

    Where it crosses just outside the rates, by at most half a step between two of them, the line is carried on; NaN
    where it crosses nowhere. A share that is zero or negative counts as far below any level.
    """
    points = [(cell.rate, cell.numbers[name].mean) for cell in row]
    there = list(itertools.takewhile(lambda point: math.isfinite(point[1]), points))
    logs = [(math.log(rate), math.log(max(value, 1e-6) / level)) for rate, value in there]
    pairs = list(itertools.pairwise(logs))
    for (x, u), (y, v) in pairs:
        if u * v <= 0 and u != v:
            return math.exp(x + (y - x) * u / (u - v))
    ends = [(pairs[0], -0.5, 0.0)] if pairs else []
    if pairs and len(there) == len(points):  # not carried on into rates that diverge
        ends.append((pairs[-1], 1.0, 1.5))
    for ((x, u), (y, v)), low, high in ends:
        part = u / (u - v) if u != v else math.nan
        if low <= part <= high:
            return math.exp(x + (y - x) * part)
    return math.nan


def divergence(row: Sequence[MapCell], max_steps: int) -> float:
    """The rate at which divergence takes all the steps there are: the step of divergence against the rate, carried on.

    Where it cannot be carried on, the middle of the two rates; never outside them. NaN where all or none diverge.
    """
    steps = [cell.numbers["map_diverged_at"].mean for cell in row]  # NaN where a run did not
    first = next((i for i, step in enumerate(steps) if math.isfinite(step)), None)
    if not first:
        return math.nan
    low, high = row[first - 1].rate, row[first].rate
    middle = math.sqrt(low * high)
    if first + 1 >= len(row) or not steps[first + 1] < steps[first]:
        return middle
    slope = math.log(row[first + 1].rate / high) / math.log(steps[first + 1] / steps[first])
    carried: float = high * (max_steps / steps[first]) ** slope
    return min(max(carried, low), high)
