"""The map of regimes as a picture, and beside it whether training pays."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import FigureBase
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from kontrast.report import axes
from kontrast.report.axes import Array, Entry
from kontrast.report.plates import Picture, Plate
from kontrast.report.study.curves import wrapped
from kontrast.study import Border, Estimate, MapCell, MapFindings, Regime

SIZE = (4.6, 5.2)  # inches of a map
GAPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # of the lines of equal kernel gap

# Apart from one another by at least 30 of CIE's L*a*b*, for every common colour blindness too (a test). In grey, kernel
# and collapsed are 9 apart: there the words of each cell say what it is.
COLORS = {
    Regime.KERNEL: "#2f5bd7",
    Regime.PCA: "#17b26a",
    Regime.LEARNING: "#ecb421",
    Regime.UNDERTRAINED: "#e2e5e9",
    Regime.COLLAPSED: "#d93a97",
    Regime.DIVERGED: "#303439",
}
DARK, LIGHT = "#15181c", "#ffffff"  # of what is drawn over the cells, whatever the page's own colours
DASHES: dict[str, Any] = {"kernel": "-", "settled": (0, (4, 2)), "diverged": (0, (1, 1.4))}
SIDES = {"kernel": "kernel below", "settled": "settled above", "diverged": "diverged above"}


def cell_id(cell: MapCell) -> str:
    """The id of a cell's numbers on the page, to which its place on the map links."""
    return f"map-{cell.loss}-{_place(cell)}"


def cell_words(cell: MapCell) -> str:
    """Where a cell lies."""
    return f"{cell.loss}, {cell.size_words}, rate {cell.rate:g}"


def regime_words(cell: MapCell) -> str:
    """What a cell is, in a word or three, and whether that is sure."""
    return cell.regime.word + ("" if cell.sure else ", not sure")


def _place(cell: MapCell) -> str:
    return f"{cell.size}-{cell.rate:g}"


def map_plate(found: MapFindings) -> Plate:
    """A panel per loss: every cell's regime, lines of equal kernel gap, the borders, and the setting."""
    axis, symbol = found.axis
    one = "a network of one width, trained" if axis == "width" else "the network, trained for up to so many steps"
    return Plate(
        "map",
        "The map: kernel, PCA or learning?",
        f"Every cell is {one} at one learning rate on every seed; its colour is what training did, by the rules below. "
        "Choose one for its numbers. Thin lines join equal kernel gaps: distances to a twin that is linear in its "
        "weights and trained on the same batches. Thick lines are the borders between regimes, fitted as powers of the "
        f"{axis} {symbol}. Rates are in units of 2/λ_max, the critical rate of the first kernel.",
        tuple(_map_picture(found, loss) for loss in found.losses),
    )


def _map_picture(found: MapFindings, loss: str) -> Picture:
    cells = found.panel(loss)
    counts = {regime.word: sum(cell.regime is regime for cell in cells) for regime in COLORS}
    told = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
    return Picture(
        f"map-{loss}",
        f"Map of regimes under {loss} over {found.axis[0]} and learning rates, {len(cells)} cells: {told}",
        functools.partial(draw_map, found=found, loss=loss),
        size=SIZE,
        links={_place(cell): f"{cell_words(cell)}: {regime_words(cell)}" for cell in cells},
    )


@dataclass(frozen=True, eq=False)
class _Grid:
    """The places of a panel's cells: log2 of sizes and log10 of rates, so that power laws are straight lines."""

    cells: dict[tuple[float, float], MapCell]
    x: Array
    y: Array

    @classmethod
    def of(cls, cells: Sequence[MapCell]) -> _Grid:
        places = {(math.log2(cell.size), math.log10(cell.rate)): cell for cell in cells}
        x, y = (np.unique([place[axis] for place in places]) for axis in (0, 1))
        return cls(places, x, y)

    def number(self, name: str) -> Array:
        """(rate, size): the means of a quantity."""
        return np.array([[self.cells[x, y].numbers[name].mean for x in self.x] for y in self.y])


def _edges(centers: Array) -> Array:
    """Where cells around the centres meet, half-way between them; a lone cell is 1 wide."""
    if len(centers) == 1:
        return np.array([centers[0] - 0.5, centers[0] + 0.5])
    middle = (centers[1:] + centers[:-1]) / 2
    return np.concatenate([[2 * centers[0] - middle[0]], middle, [2 * centers[-1] - middle[-1]]])


def draw_map(figure: FigureBase, found: MapFindings, loss: str) -> None:
    """One panel."""
    ax, grid = axes.new_axes(figure, loss, "learning rate / critical rate"), _Grid.of(found.panel(loss))
    ax.grid(visible=False)
    x, y = _edges(grid.x), _edges(grid.y)
    ax.set_xlim(x[0], x[-1])
    ax.set_ylim(y[0], y[-1])
    _dress(ax, grid, found.axis)
    for (at_x, at_y), cell in grid.cells.items():
        i, j = int(np.searchsorted(grid.x, at_x)), int(np.searchsorted(grid.y, at_y))
        _draw_cell(ax, cell, (float(x[i]), float(y[j])), (float(x[i + 1] - x[i]), float(y[j + 1] - y[j])))
    lines = [*_draw_gaps(ax, grid), *_draw_borders(ax, [it for it in found.borders if it.loss == loss], found.axis[1])]
    if found.setting.loss == loss:
        at = math.log2(found.setting.size), math.log10(found.setting.rate)
        lines.insert(0, _draw_setting(ax, at))
    if not all(cell.sure for cell in grid.cells.values()):
        lines.append((Patch(linewidth=0, **_fill(Regime.LEARNING, sure=False)), "striped: not sure"))
    regimes: list[Entry] = [
        (Patch(facecolor=color, edgecolor=axes.ink_of(ax), linewidth=0.4), it.word) for it, color in COLORS.items()
    ]
    lines += [(axes.blank(), "")] * (len(regimes) - len(lines))
    axes.legend(figure, list(zip(regimes, lines, strict=True)), "")


def _dress(ax: Axes, grid: _Grid, axis: tuple[str, str]) -> None:
    axes.set_ticks(ax.xaxis, *_thinned(grid.x, [f"{2**x:.0f}" for x in grid.x], 8))
    axes.set_ticks(ax.yaxis, *_thinned(grid.y, [axes.number(float(f"{10**y:.3g}")) for y in grid.y], 14))
    ax.set_xlabel(" ".join(axis))
    ax.tick_params(length=0)


def _thinned(values: Array, labels: Sequence[str], most: int) -> tuple[list[float], Sequence[str]]:
    """The ticks that there is room for: every one, or every second, and so on."""
    every = math.ceil(len(values) / most)
    return values[::every].tolist(), labels[::every]


def _draw_cell(ax: Axes, cell: MapCell, corner: tuple[float, float], size: tuple[float, float]) -> None:
    ax.add_patch(Rectangle(corner, *size, linewidth=0, gid="cell", **_fill(cell.regime, sure=cell.sure)))
    ax.add_patch(Rectangle(corner, *size, facecolor="none", edgecolor=LIGHT, linewidth=0.8))
    # On top of all, invisible: a link, for a reader's finger or focus.
    ax.add_patch(Rectangle(corner, *size, facecolor="none", linewidth=0, url=f"#{_place(cell)}", zorder=9))


def _fill(regime: Regime, *, sure: bool) -> dict[str, Any]:
    """The colour of a regime, with lighter stripes where it is not sure."""
    color = np.array(to_rgb(COLORS[regime]))
    lighter = 0.45 * color + 0.55 if regime is not Regime.UNDERTRAINED else 0.75 * color
    return {"facecolor": COLORS[regime], **({} if sure else {"hatch": "////", "edgecolor": tuple(lighter)})}


def _draw_gaps(ax: Axes, grid: _Grid) -> list[Entry]:
    """Lines of equal kernel gap between the centres of cells that have one."""
    gaps = grid.number("map_gap")
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.ma.masked_invalid(np.log(gaps))
    if min(logs.shape) < 2 or logs.count() < 4:
        return []
    levels = [gap for gap in GAPS if logs.min() < math.log(gap) < logs.max()]
    if not levels:
        return []
    drawn = ax.contour(grid.x, grid.y, logs, [math.log(gap) for gap in levels], colors=DARK, linewidths=0.9)
    drawn.set(linestyle="-")
    for gap, parts in zip(levels, drawn.allsegs, strict=True):
        for part in sorted(filter(len, parts), key=len)[-1:]:  # a level may have only empty parts
            x, y = part[part[:, 0].argmax()]
            ax.annotate(
                f"{gap:g}",
                (x, y),
                (5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=DARK,
                bbox={"boxstyle": "round,pad=0.12", "facecolor": LIGHT, "alpha": 0.75, "linewidth": 0},
                zorder=6,
            )
    return [(Line2D([], [], color=axes.ink_of(ax), linewidth=0.9), "equal kernel gap")]


def _draw_borders(ax: Axes, borders: Sequence[Border], symbol: str) -> list[Entry]:
    """The laws of the borders, and the rates that they were fitted to."""
    entries: list[Entry] = []
    for border in borders:
        dashes = DASHES[border.name]
        if border.law is not None:
            x = np.array(ax.get_xlim())
            with np.errstate(all="ignore"):  # a law through two points may have any exponent
                y = np.log10(border.law.prefactor) + border.law.exponent * x * math.log10(2)
            if np.isfinite(y).all():
                ax.plot(x, y, color=LIGHT, linewidth=4.2, zorder=4)
                ax.plot(x, y, color=DARK, linewidth=2.2, linestyle=dashes, zorder=4)
        at = np.log2(border.sizes), np.log10(border.rates)
        ax.plot(*at, "o", markersize=4.5, color=DARK, markeredgecolor=LIGHT, markeredgewidth=0.9, zorder=5)
        handle = Line2D([], [], color=axes.ink_of(ax), linewidth=2, linestyle=dashes)
        entries.append((handle, f"{SIDES[border.name]} {_law(border, symbol)}"))
    return entries


def _law(border: Border, symbol: str) -> str:
    law = border.law
    if law is None:
        return f"{border.rates[0]:.2g} at {border.sizes[0]}"
    exponent, low, high = (f"{round(p, 2) + 0.0:.2f}".replace("-", "−") for p in (law.exponent, law.low, law.high))
    return f"∝ {symbol}^{exponent} " + ("(two places)" if math.isinf(law.low) else f"[{low}, {high}]")


def _draw_setting(ax: Axes, at: tuple[float, float]) -> Entry:
    look: dict[str, Any] = {
        "marker": "*",
        "linestyle": "none",
        "color": LIGHT,
        "markeredgecolor": DARK,
        "markeredgewidth": 1.1,
    }
    ax.plot(*at, markersize=14, zorder=8, gid="setting", **look)
    return Line2D([], [], markersize=11, **look), "the setting"


# The second axis of the question


def pays_plate(found: MapFindings) -> Plate | None:
    """Accuracies of the widest network and of its twins against the rate; None without labels."""
    if not found.baselines:
        return None
    size = max(found.baselines)
    at = f"{found.axis[0]} {size}"
    return Plate(
        "pays",
        "Does training pay?",
        f"Test accuracy of a linear probe at {at}: of the trained network, of its kernel twin, which is the "
        "same training with the features held still, and of what needs no training at all. Above its twin, moving "
        "features pay; above the closed form, training does. One may be without the other. Bars and bands are "
        "Student's 95 % intervals over the seeds.",
        tuple(
            Picture(
                f"pays-{loss}",
                f"Test accuracy under {loss} against the learning rate at {at}: trained network, kernel twin, "
                "start and best closed form",
                functools.partial(draw_pays, found=found, loss=loss, size=size),
            )
            for loss in found.losses
        ),
    )


def draw_pays(figure: FigureBase, found: MapFindings, loss: str, size: int) -> None:
    """One panel: what is trained as lines over the rates, what is not as horizontal ones."""
    ax = axes.new_axes(figure, f"{loss}, {found.axis[0]} {size}", "test accuracy")
    cells = sorted((cell for cell in found.panel(loss) if cell.size == size), key=lambda cell: cell.rate)
    rates = np.array([cell.rate for cell in cells])
    ax.set_xscale("log")
    ax.set_xlim(rates[0] / 1.5, rates[-1] * 1.5)
    axes.set_ticks(ax.xaxis, *_thinned(rates, [axes.number(rate) for rate in rates], 8))
    ax.set_xlabel("learning rate / critical rate")
    best = found.best_closed_form[size]
    flat = {"start": ("the start", axes.ink_of(ax), (0, (1.5, 1.5))), best: (f"{best}, closed form", axes.GREEN, "-")}
    entries: list[Entry] = []
    for name, (quantity, color, marker) in {
        "trained": ("map_accuracy", axes.ORANGE, "o"),
        "kernel twin": ("map_twin_accuracy", axes.BLUE, "s"),
    }.items():
        entries.append((_draw_estimates(ax, rates, [cell.numbers[quantity] for cell in cells], color, marker), name))
    for name, (words, color, dashes) in flat.items():
        entries.append((_draw_level(ax, found.baselines[size][name]["linear"], color, dashes), words))
    diverged = rates[[cell.regime is Regime.DIVERGED for cell in cells]]
    _dress_accuracy(ax, found, size)
    axes.mark_edge(ax, diverged, axes.ink_of(ax), marker="x", edge=0)
    notes = ["bars and bands: 95 % intervals" if _has_intervals(found) else "one seed"]
    axes.legend(figure, axes.in_rows(entries, 2), wrapped([*notes, *(["×: diverged"] if diverged.size else [])]))


def _draw_estimates(ax: Axes, x: Array, estimates: Sequence[Estimate], color: str, marker: str) -> Line2D:
    means = np.array([it.mean for it in estimates])
    ends = np.array([(it.low, it.high) for it in estimates])
    ends = np.where(np.isfinite(ends), np.clip(ends, 0, 1), np.nan)
    ax.vlines(x, ends[:, 0], ends[:, 1], color=color, linewidth=1.2, alpha=0.55)
    [line] = ax.plot(x, means, color=color, linewidth=1.6, marker=marker, markersize=5)
    return line


def _draw_level(ax: Axes, estimate: Estimate, color: str, dashes: Any) -> Line2D:
    if math.isfinite(estimate.error):
        ax.axhspan(max(estimate.low, 0), min(estimate.high, 1), color=color, alpha=0.13, linewidth=0)
    return ax.axhline(estimate.mean, color=color, linewidth=1.4, linestyle=dashes)


def _dress_accuracy(ax: Axes, found: MapFindings, size: int) -> None:
    """The same axis in every panel, so that losses can be compared."""
    cells = [cell for cell in found.cells if cell.size == size]
    shown = [cell.numbers[name] for cell in cells for name in ("map_accuracy", "map_twin_accuracy")]
    shown += [found.baselines[size][name]["linear"] for name in ("start", found.best_closed_form[size])]
    ends = np.array([end for it in shown for end in (it.low, it.mean, it.high) if math.isfinite(end)])
    low, high = max(ends.min(), 0.0), min(ends.max(), 1.0)
    margin = 0.05 * (high - low) + 0.005
    ax.set_ylim(low - margin, high + margin)
    ticks = [tick for tick in MaxNLocator(7, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= tick <= high]
    axes.set_ticks(ax.yaxis, ticks, [f"{100 * tick:g}%" for tick in ticks])


def _has_intervals(found: MapFindings) -> bool:
    return len(found.cells[0].endings) > 1
