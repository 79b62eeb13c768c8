"""How a study's pictures are drawn: a quantity against width or against step, read from the runs.

Nothing is averaged away: a mean is drawn where every seed is finite, and each seed is drawn beside it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from kontrast.linalg import PowerLaw
from kontrast.losses import SIMILARITIES
from kontrast.report import axes
from kontrast.report.axes import Array, Entry
from kontrast.study import (
    OF_THE_INPUT,
    Drawing,
    Findings,
    PCAFindings,
    Plot,
    ProbeFindings,
    Quantity,
    SimilarityFindings,
    pca,
)

OFF_SCALE = 300.0  # a diverging run leaves the axes at this multiple of the largest value that is not running away
MOST_LABELS = 6  # widths named in a legend; the colours between are read off


@dataclass(frozen=True)
class Runs:
    """Runs that share a colour: their findings, and their arrays over (width, seed, step)."""

    found: SimilarityFindings | PCAFindings
    data: xr.Dataset
    name: str = ""
    hue: str = ""  # of `axes.COLORS`
    quantity: str = ""  # that is drawn

    @classmethod
    def under(cls, found: SimilarityFindings, result: xr.Dataset) -> Runs:
        """One similarity's runs."""
        return cls(found, result.sel(similarity=found.similarity), name=found.similarity, hue=found.similarity)

    @classmethod
    def orthonormal(cls, found: PCAFindings, result: xr.Dataset) -> Runs:
        """The runs with an orthonormal output layer; `showing` gives them a name and a colour."""
        names = {"pca_diverged": "diverged", "pca_stopped_at": "stopped_at"}
        return cls(found, pca.orthonormal_runs(result).rename(names))

    def showing(self, quantity: Quantity) -> Runs:
        """The same runs, drawn by this quantity, with its own name and colour where it has them."""
        assert quantity.drawing is not None
        name, hue = quantity.drawing.curve or self.name, quantity.drawing.hue or self.hue
        return replace(self, name=name, hue=hue, quantity=quantity.name)

    @property
    def colors(self) -> list[str]:
        """One colour per width."""
        return axes.width_colors(self.hue, len(self.found.widths))

    @property
    def color(self) -> str:
        """The colour for all widths."""
        return axes.COLORS[self.hue]

    @functools.cached_property
    def steps(self) -> Array:
        """The recorded steps."""
        return np.asarray(self.data.step.values, dtype=float)

    @functools.cached_property
    def stopped(self) -> Array:
        """(width, seed): the step at which a run diverged, NaN where it did not."""
        at = self.data.stopped_at.transpose("width", "seed").values.astype(float)
        return np.where(self.data.diverged.transpose("width", "seed").values.astype(bool), at, np.nan)

    @property
    def law(self) -> PowerLaw | None:
        """The law of what is drawn, where it was fitted."""
        return self.found.exponents.get(self.quantity)

    def values(self, name: str = "") -> Array:
        """(width, seed, step): a quantity, NaN where it is not finite, at most `HUGE` so that limits stay finite."""
        values = self.data[name or self.quantity].transpose("width", "seed", "step").values.astype(float)
        return np.where(np.isfinite(values), np.clip(values, -axes.HUGE, axes.HUGE), np.nan)

    def settled(self, name: str = "") -> Array:
        """The values that are not running away: those of the first half of a run's way to its divergence."""
        before = ~(self.steps > self.stopped[..., None] / 2)  # NaN, a run that did not diverge, compares as False
        return np.where(before, self.values(name), np.nan)

    def at_table_step(self) -> Array:
        """(width, seed): the values at the step of the table."""
        if self.found.step is None:
            return np.full(self.stopped.shape, np.nan)
        return self.values()[..., int(np.flatnonzero(self.steps == self.found.step)[0])]


def against_width(figure: FigureBase, runs: Sequence[Runs], plot: Plot, drawing: Drawing, findings: Findings) -> None:
    """A quantity at the step of the table against width: seeds, their mean, and the fitted law."""
    tolerance = _tolerance(drawing, findings)
    ax, widths = axes.new_axes(figure, plot.title, drawing.symbol), runs[0].found.widths
    axes.dress_width(ax, widths)
    seeds = [run.at_table_step() for run in runs]
    axes.dress_log_y(ax, _joined(*seeds, [tolerance]), decades=1.0)
    for run, values, aside in zip(runs, seeds, _asides(runs), strict=True):
        _seeds_and_law(ax, run, values, aside)
    words = _width_words(runs, fitted=any(run.law for run in runs))
    if (_joined(*seeds) == 0).any():
        words.append("▼: zero")
    if not np.isfinite(_joined(*seeds)).any():
        axes.say(ax, "overflows too early to compare")
        words = []
    elif drawing.guide is not None and _draw_guide(ax, seeds, widths, drawing.guide):
        words.append("dashed: 1/√M")
    words += _draw_tolerance(ax, tolerance)
    axes.legend(figure, [[_law_entry(run)] for run in runs], wrapped(words))


def _seeds_and_law(ax: Axes, run: Runs, values: Array, aside: float) -> None:
    widths, color, law = np.asarray(run.found.widths, dtype=float), run.color, run.law
    at = np.broadcast_to(widths[:, None], values.shape) * aside
    _seed_dots(ax, at[values > 0], values[values > 0], color)
    axes.mark_edge(ax, np.unique(at[values == 0]), color, marker="v", edge=0)
    means = np.asarray(run.found.means.get(run.quantity, ()), dtype=float)
    if means.size:
        ax.plot(widths, np.where(means > 0, means, np.nan), "-o", linewidth=1.5, markersize=5.5, color=color)
    if law is not None:
        x = np.geomspace(*ax.get_xlim(), 2)
        with np.errstate(over="ignore", invalid="ignore"):  # a law through two points may have any exponent
            y = law.prefactor * x**law.exponent
        ax.plot(x, np.where(np.isfinite(y), y, np.nan), ":", linewidth=1.6, color=color)


def _asides(runs: Sequence[Runs]) -> list[float]:
    """Factors that set the similarities' seeds a little apart on the width axis."""
    return [1.0] if len(runs) == 1 else [float(factor) for factor in np.geomspace(0.95, 1.05, len(runs))]


def _seed_dots(ax: Axes, x: Array, y: Array, color: str) -> None:
    ax.plot(x, y, linestyle="none", marker="o", markersize=3.2, markeredgewidth=0, color=color, alpha=0.5)


def _law_entry(run: Runs) -> Entry:
    fit = f"∝ M^{run.law}" if run.law is not None else "no fit"
    words = f", step {run.found.step}: {fit}" if run.found.step is not None else " overflows too early to compare"
    return _line(run.color, marker="o"), f"{run.name}{words}"


def _draw_guide(ax: Axes, seeds: Sequence[Array], widths: Sequence[int], exponent: float) -> bool:
    """A line of the given slope through the largest value at the first width; needs a second width to be compared."""
    start = _joined(*(values[0] for values in seeds))
    start = start[start > 0]  # NaN compares as False
    if start.size == 0 or len(widths) < 2:
        return False
    x = np.geomspace(*ax.get_xlim(), 2)
    ax.plot(x, start.max() * (x / widths[0]) ** exponent, linewidth=1, dashes=(5, 3), color=axes.ink_of(ax), alpha=0.75)
    return True


def against_step(figure: FigureBase, runs: Sequence[Runs], plot: Plot, drawing: Drawing, findings: Findings) -> None:
    """A quantity along training: thin lines are seeds, thick ones their mean.

    An `unbounded` quantity leaves through the top when its run diverges, and its cross stands there; the cross of
    another stands at its last value. With a `span` of possible values the axis is linear and shows all of it.
    """
    tolerance, span = _tolerance(drawing, findings), drawing.span and drawing.span(findings.spec)
    ax = axes.new_axes(figure, plot.title, drawing.symbol)
    axes.dress_step(ax, runs[0].steps)
    every = _joined(*(run.values() for run in runs), [tolerance])
    if span is None:
        cap = OFF_SCALE * _largest(*(run.settled() for run in runs)) if drawing.unbounded else math.inf
        axes.dress_log_y(ax, every, cap=cap)
    else:
        margin = 0.04 * (span[1] - span[0])
        ax.set_ylim(span[0] - margin, span[1] + margin)
        axes.set_ticks(ax.yaxis, span_ticks(*span))
    for run in runs:
        for color, seeds, stopped in zip(run.colors, run.values(), run.stopped, strict=True):
            if span is None:
                axes.mark_edge(ax, run.steps[(seeds == 0).any(0)], color, marker="v", edge=0)
            _lines(ax, run.steps, seeds, color)
            _crosses(ax, run.steps, seeds, stopped, color, edge=1 if drawing.unbounded else None)
    words = _words(runs)
    if span is None and (every == 0).any():
        words.append("▼: zero")
    words += _draw_tolerance(ax, tolerance)
    if not np.isfinite(_joined(*(run.values() for run in runs))).any():
        axes.say(ax, "no finite value was recorded")
    axes.legend(figure, [_width_entries(run) for run in runs], wrapped(words))


def span_ticks(low: float, high: float) -> list[float]:
    """Round numbers on a linear axis, its lower end among them."""
    ticks = [float(tick) for tick in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high)]
    return sorted({low, *(tick for tick in ticks if low < tick <= high)})


def loss_against_step(figure: FigureBase, run: Runs) -> None:
    """Training loss, and dashed the loss of the fixed-kernel prediction; logarithmic both ways where it runs away."""
    ax = axes.new_axes(figure, f"Loss, {run.name} similarity", "loss")
    axes.dress_step(ax, run.steps)
    _dress_loss(ax, run)
    losses = run.values("loss")
    for color, loss, twin, stopped in zip(run.colors, losses, run.values("kernel_loss"), run.stopped, strict=True):
        _lines(ax, run.steps, loss, color)
        _lines(ax, run.steps, twin, color, twin=True)
        _crosses(ax, run.steps, loss, stopped, color, edge=0)
    if not np.isfinite(losses).any():
        axes.say(ax, "no finite value was recorded")
    axes.legend(figure, [_width_entries(run)], wrapped([*_words([run]), "dashed: fixed kernel, mean"]))


def _dress_loss(ax: Axes, run: Runs) -> None:
    """Linear, unless the loss runs away to many times its start: then logarithmic on both sides of a linear middle."""
    every = _finite(run.values("loss"), run.values("kernel_loss"))
    bound = min(OFF_SCALE * _largest(np.abs(_joined(run.settled("loss"), run.settled("kernel_loss")))), axes.HUGE)
    ends = np.clip([every.min(), every.max()] if every.size else [-1.0, 1.0], -bound, bound)
    low, high = float(ends[0]), float(ends[1])
    starts = np.abs(_finite(run.values("loss")[..., 0], run.values("kernel_loss")[..., 0]))
    start = float(np.median(starts)) if starts.size else 0.0
    if start == 0 or max(-low, high) < 100 * start:
        margin = 0.05 * (high - low) or 0.05 * max(abs(high), 1e-3)
        ax.set_ylim(low - margin, high + margin)
        ax.yaxis.set_major_formatter(lambda value, _: axes.number(value))
        return
    linear = 10.0 ** math.floor(math.log10(start))
    ax.set_yscale("symlog", linthresh=linear)
    ax.set_ylim(min(2 * low, -0.2 * linear), max(2 * high, 0.2 * linear))
    down = [-tick for tick in axes.log_ticks(linear, -low)[::-1]] if -low > linear else []
    axes.set_ticks(ax.yaxis, [*down, 0.0, *(axes.log_ticks(linear, high) if high > linear else [])])


def divergence_against_width(figure: FigureBase, runs: Sequence[Runs]) -> None:
    """The step of divergence against width: seeds, their mean where all diverged, and the fitted logarithm."""
    ax = axes.new_axes(figure, "Divergence against width", "step of divergence")
    axes.dress_width(ax, runs[0].found.widths)
    widths = np.asarray(runs[0].found.widths, dtype=float)
    shown = [run for run in runs if np.isfinite(run.stopped).any()]
    judged = [run.found for run in shown if isinstance(run.found, SimilarityFindings)]
    ax.set_ylim(0, 1.08 * _largest(*(run.stopped for run in shown), [1.0]))
    ax.yaxis.set_major_locator(MaxNLocator(7, integer=True, steps=[1, 2, 5, 10]))
    words = _width_words(runs, fitted=any(found.divergence_law for found in judged))
    entries = []
    for run, found, aside in zip(shown, judged, _asides(shown), strict=True):
        color, law = run.color, found.divergence_law
        _seed_dots(ax, np.broadcast_to(widths[:, None] * aside, run.stopped.shape).ravel(), run.stopped.ravel(), color)
        whole = np.isfinite(run.stopped).all(axis=1)
        ax.plot(widths, np.where(whole, found.diverged_at, np.nan), "-o", linewidth=1.5, markersize=5.5, color=color)
        if not whole.all():
            axes.mark_edge(ax, widths[~whole], color, marker="^", edge=1)
            words.append("▲: some seeds did not diverge")
        label = f"{run.name}: {int(np.isfinite(run.stopped).sum())} of {run.stopped.size} runs"
        if law is not None:
            x = np.geomspace(*ax.get_xlim(), 32)
            ax.plot(x, [law(value) for value in x], ":", linewidth=1.6, color=color)
            interval = "" if math.isinf(law.low) else f" [{law.low:+.1f}, {law.high:+.1f}]"
            label = f"{run.name}: {law.slope:+.1f}{interval} steps · ln M"
        entries.append([(_line(color, marker="o"), label)])
    axes.legend(figure, entries, wrapped(list(dict.fromkeys(words))))


# How an embedding's accuracies are drawn: colour (None is the ink), dashes and marker.
_PROBES: dict[str, tuple[str | None, Any, str]] = {
    "pca": (axes.COLORS["start"], "-", "o"),
    "iterative": (axes.COLORS["start"], (0, (3, 1.8)), "s"),
    "trained": (axes.COLORS["now"], "-", "o"),
    **{name: (axes.COLORS[name], "-", "o") for name in SIMILARITIES},
    "random": (None, "-", "D"),
    "pixels": (None, (0, (8, 2)), ""),
    "pixel-pca": (None, (0, (4, 2)), ""),
    "chance": (None, (0, (1, 2)), ""),
}


def probes_against_width(figure: FigureBase, found: ProbeFindings, accuracy: xr.DataArray) -> None:
    """Every embedding's accuracy: seeds as dots and their mean, or a horizontal line for what has no width."""
    ax = axes.new_axes(figure, "Linear probe, against width", "test accuracy")
    axes.dress_width(ax, found.widths)
    values = accuracy.transpose("embedding", "width", "seed")
    low = float(np.nanmin(values.values))
    ax.set_ylim(low - 0.06 * (1 - low) - 0.01, 1.01)
    axes.set_ticks(ax.yaxis, ticks := span_ticks(low, 1.0)[1:], [f"{tick:.0%}" for tick in ticks])
    widths = np.asarray(found.widths, dtype=float)
    entries = []
    for name in found.embeddings:
        color, dashes, marker = _PROBES[name]
        color = color or axes.ink_of(ax)
        means, seeds = np.asarray(found.means[name]), values.sel(embedding=name).values  # (width,), (width, seed)
        if name in OF_THE_INPUT:
            line = ax.axhline(means[0], color=color, linewidth=1.2, alpha=0.75)
        else:
            _seed_dots(ax, np.repeat(widths, seeds.shape[1]), seeds.ravel(), color)
            [line] = ax.plot(widths, means, color=color, linewidth=1.5, marker=marker, markersize=4.5)
        line.set_linestyle(dashes)
        if name == "iterative":  # PCA after five small steps: where it lies on PCA's line, both are seen
            line.set(markerfacecolor="none", markersize=8)
        entries.append((line, name if np.isfinite(means).any() else f"{name} (diverged)"))
    words = ["dots: seeds", "lines: their mean"] if found.n_seeds > 1 else ["one seed"]
    axes.legend(figure, axes.in_rows(entries, 3), wrapped(words))


def _lines(ax: Axes, steps: Array, seeds: Array, color: str, *, twin: bool = False) -> None:
    """Each seed thin, the mean thick where all are finite; of a twin the mean alone, dashed. A lone point is a dot."""
    if not twin and len(seeds) > 1:
        for seed in _drawable(ax, seeds):
            ax.plot(steps, seed, linewidth=0.7, alpha=0.3, marker=_dot(seed), markersize=2.5, color=color)
    mean = _drawable(ax, seeds.mean(axis=0))  # NaN wherever a seed is; a zero counts
    width, dashes = (1.2, (0, (3, 1.8))) if twin else (1.6, "-")
    ax.plot(steps, mean, linewidth=width, linestyle=dashes, marker=_dot(mean), markersize=3.5, color=color, zorder=3)


def _drawable(ax: Axes, values: Array) -> Array:
    """The values with NaN for those a logarithmic axis has no place for."""
    return np.where(values > 0, values, np.nan) if ax.get_yscale() == "log" else values


def _crosses(ax: Axes, steps: Array, seeds: Array, stopped: Array, color: str, *, edge: int | None) -> None:
    """A cross for every run that diverged: at the edge it left through, joined to its last value, or at that value."""
    for seed, at in zip(_drawable(ax, seeds), stopped, strict=True):
        if not math.isfinite(at):
            continue
        finite = np.flatnonzero(np.isfinite(seed))
        if edge is None:
            if finite.size:
                ax.plot(steps[finite[-1]], seed[finite[-1]], "x", markersize=4.5, markeredgewidth=1.1, color=color)
            continue
        axes.mark_edge(ax, np.asarray([at]), color, marker="x", edge=edge)
        if finite.size:
            end = ax.get_ylim()[edge]
            ax.plot([steps[finite[-1]], at], [seed[finite[-1]], end], linewidth=0.7, alpha=0.3, color=color)


def _width_entries(run: Runs) -> list[Entry]:
    widths, colors = run.found.widths, run.colors
    chosen = sorted({round(i) for i in np.linspace(0, len(widths) - 1, min(len(widths), MOST_LABELS))})
    return [(axes.blank(), run.name), *((_line(colors[i]), str(widths[i])) for i in chosen)]


def _width_words(runs: Sequence[Runs], *, fitted: bool) -> list[str]:
    words = ["dots: seeds", "circles: their mean"] if runs[0].stopped.shape[1] > 1 else ["circles: one seed"]
    return [*words, "dotted: fit, 95 % interval"] if fitted else words


def _words(runs: Sequence[Runs]) -> list[str]:
    n_seeds = runs[0].stopped.shape[1]
    words = [f"thick: mean of {n_seeds} seeds", "thin: each seed"] if n_seeds > 1 else ["one seed"]
    if any(np.isfinite(run.stopped).any() for run in runs):
        words.append("×: a run diverged")
    return words


def wrapped(words: Sequence[str], *, most: int = 60) -> str:
    """The words that explain a legend, in two lines, so that panels side by side have axes of one height.

    More than two lines only where they would not fit the panel.
    """
    half = math.ceil(len(words) / 2) if len(words) > 2 else len(words)
    lines = [" · ".join(part) for part in (words[:half], words[half:]) if part]
    return "\n".join(lines if all(len(line) <= most for line in lines) else words)


def _tolerance(drawing: Drawing, findings: Findings) -> float | None:
    return getattr(findings.thresholds, drawing.threshold) if drawing.threshold else None


def _draw_tolerance(ax: Axes, tolerance: float | None) -> list[str]:
    """A dashed line where there is a tolerance, and the words for it."""
    if tolerance is None:
        return []
    ax.axhline(tolerance, linewidth=1, dashes=(5, 3), color=axes.ink_of(ax), alpha=0.75)
    return [f"dashed: tolerance {tolerance:g}"]


def _line(color: str, marker: str = "") -> Line2D:
    return Line2D([], [], color=color, linewidth=2.2 if not marker else 1.5, marker=marker, markersize=5.5)


def _dot(values: Array) -> str:
    return "o" if np.isfinite(values).sum() == 1 else ""


def _joined(*parts: ArrayLike | list[float | None]) -> Array:
    """All numbers in one row; None, an option not given, becomes NaN."""
    return np.concatenate([np.asarray(part, dtype=float).ravel() for part in parts])


def _finite(*parts: ArrayLike) -> Array:
    values = _joined(*parts)
    return values[np.isfinite(values)]


def _largest(*parts: ArrayLike) -> float:
    """The largest finite number; infinity, which caps nothing, where there is none."""
    values = _finite(*parts)
    return float(values.max()) if values.size else math.inf
