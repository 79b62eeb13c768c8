"""The cells of a map on the page: for each its numbers, its reason and its curves, of which the reader chooses one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import xarray as xr
from markupsafe import Markup

from kontrast.report.axes import BLUE, ORANGE
from kontrast.report.small_plots import Curve, small_plot
from kontrast.report.study.regimes import COLORS, cell_id, cell_words, regime_words
from kontrast.study import Estimate, Findings, MapCell, MapFindings
from kontrast.study import map as regime_map

NUMBERS = (*regime_map.QUANTITIES, *regime_map.OF_RUNS)
GAIN = "difference of the test accuracies of two probes with the same samples and seed: the trained network's less"
GAINS = {
    "start": ("gain over its start", f"{GAIN} that of the network before training"),
    "kernel": ("gain over its kernel twin", f"{GAIN} that of its linearised twin, trained on the same batches"),
    "closed form": ("gain over the best closed form", f"{GAIN} that of the best closed form at the same width"),
}


@dataclass(frozen=True)
class Number:
    """A number of a cell: its name, its definition, its mean and its interval over the seeds."""

    name: str
    definition: str
    mean: str
    interval: str


@dataclass(frozen=True)
class Card:
    """What the page says of one cell.

    Attributes:
        id: to which the map and its neighbours link.
        words: where it lies.
        regime: what it is, and whether that is sure.
        color: of that regime.
        cell: the cell.
        endings: how its runs ended, in words.
        numbers: gains first.
        curves: its loss and its kernel gap over the steps, as pictures.
        neighbours: which way, and the id of the cell there.
        is_setting: whether the verdict is about it.
    """

    id: str
    words: str
    regime: str
    color: str
    cell: MapCell
    endings: str
    numbers: tuple[Number, ...]
    curves: tuple[Markup, ...]
    neighbours: tuple[tuple[str, str], ...]
    is_setting: bool


def cards(result: xr.Dataset, findings: Findings) -> list[Card]:
    """A card for every cell of the map."""
    found = findings.map
    assert found is not None
    return [
        Card(
            cell_id(cell),
            cell_words(cell),
            regime_words(cell),
            COLORS[cell.regime],
            cell,
            _endings(cell),
            tuple(_numbers(cell, found)),
            _curves(result, cell, _column(cell, found).index(cell), findings.thresholds.gap_tolerance),
            tuple(_neighbours(cell, found)),
            cell is found.setting,
        )
        for cell in found.cells
    ]


def _column(cell: MapCell, found: MapFindings) -> list[MapCell]:
    """The cells of its loss and size, in the order of their rates."""
    return [it for it in found.panel(cell.loss) if it.size == cell.size]


def _endings(cell: MapCell) -> str:
    counts = Counter(cell.endings)
    return "; ".join(f"{n} of {counts.total()}: {it.value.replace('`', '')}" for it, n in counts.items())


def _numbers(cell: MapCell, found: MapFindings) -> Iterator[Number]:
    for probe, gains in (("a linear probe", cell.gains), ("20 nearest neighbours", cell.knn_gains)):
        for name, gain in gains.items():
            heading, definition = GAINS[name]
            best = f", {found.best_closed_form[cell.size]}," if name == "closed form" else ""
            words = f"{heading}{best} by {probe}, in points"
            yield Number(words, definition, *_written(gain, lambda value: f"{100 * value:+.1f}"))
    for quantity in NUMBERS:
        if math.isfinite((estimate := cell.numbers[quantity.name]).mean):
            yield Number(quantity.heading, quantity.long_name, *_written(estimate, quantity.write))


def _written(estimate: Estimate, write: Callable[[float], str]) -> tuple[str, str]:
    interval = f"[{write(estimate.low)}, {write(estimate.high)}]" if math.isfinite(estimate.error) else "one seed"
    return write(estimate.mean), interval


def _neighbours(cell: MapCell, found: MapFindings) -> Iterator[tuple[str, str]]:
    row = [it for it in found.panel(cell.loss) if it.rate == cell.rate]
    sizes = ("narrower", "wider") if cell.width is not None else ("fewer steps", "more steps")
    for names, line in ((sizes, row), (("lower rate", "higher rate"), _column(cell, found))):
        at = line.index(cell)
        for name, k in zip(names, (at - 1, at + 1), strict=True):
            if 0 <= k < len(line):
                yield name, cell_id(line[k])


def _curves(result: xr.Dataset, cell: MapCell, rate: int, tolerance: float) -> tuple[Markup, ...]:
    """Held-out losses of the network and its twin, and the gap between the two."""
    seen = result.sel(panel=cell.loss, width=cell.size).isel(rate=rate)
    seen = seen.isel(checkpoint=np.isfinite(seen.map_checkpoint.values[0]))
    steps = seen.map_checkpoint.values[0]
    loss, twin, gap = (
        seen[name].transpose("seed", "checkpoint").values for name in ("map_loss", "map_twin_loss", "map_gap_curve")
    )
    words = cell_words(cell)
    return (
        small_plot(
            "held-out loss",
            f"Held-out loss of the network and of its kernel twin over the steps: {words}",
            steps,
            [Curve(twin, BLUE, dashed=True), Curve(loss, ORANGE)],
        ),
        small_plot(
            "kernel gap",
            f"Kernel gap at held-out samples over the steps: {words}",
            steps,
            [Curve(gap, ORANGE)],
            level=tolerance,
            floor=0.0,
        ),
    )
