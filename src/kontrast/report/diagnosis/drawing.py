"""What the pictures of a diagnosis are drawn with: rows of dots with intervals, and lines over checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from kontrast.linalg import Estimate
from kontrast.report.axes import (
    BLUE,
    GREEN,
    HUGE,
    ORANGE,
    PINK,
    Array,
    blank,
    dress_log_y,
    in_rows,
    ink_of,
    legend,
    log_limits,
    log_ticks,
    new_axes,
    number,
    say,
    set_ticks,
)

LONGEST = 24  # letters of a label that a picture has room for
LEAST_ROWS = 3  # that a picture has room for
MOST_DRAWN = 300  # checkpoints that a picture draws, of a monitor's thousands
MOST_TICKS = 6  # checkpoints that have their labels below a picture


@dataclass(frozen=True)
class Mark:
    """How one thing is drawn wherever it occurs; no colour is the ink."""

    color: str | None
    marker: str
    filled: bool = True


END, START, CONTROL, INPUT, OTHER = (
    Mark(ORANGE, "o"),
    Mark(BLUE, "s", filled=False),
    Mark(GREEN, "D", filled=False),
    Mark(None, "^", filled=False),
    Mark(PINK, "v"),
)


@dataclass(frozen=True, eq=False)
class Dots:
    """One row: its words, and a number for each series that has one."""

    words: str
    numbers: Mapping[str, Estimate]


@dataclass(frozen=True, eq=False)
class Curve:
    """One line over the checkpoints: its name in the legend, its values, NaN where there is none."""

    name: str
    values: Array
    mark: Mark


def drawable(label: str, most: int = LONGEST) -> str:
    """A label of the user's as a picture can show it: plain characters that every font has, cut in the middle."""
    plain = "".join(letter if " " <= letter <= "~" else "?" for letter in label)
    return plain if len(plain) <= most else f"{plain[: most // 2 - 1]}…{plain[-(most - most // 2) :]}"


def dot_rows(
    figure: FigureBase,
    *,
    title: str,
    x_label: str,
    rows: Sequence[Dots],
    marks: Mapping[str, Mark],
    words: str,
    log: bool = False,
    percent: bool = False,
    level: float | None = None,
) -> None:
    """Numbers with their intervals in rows, each row's words above it, so that long ones have the whole width.

    `level` is a dashed line; on a logarithmic axis a number that is not positive lies at the left edge.
    """
    ax = new_axes(figure, title, "")
    every = np.array([part for row in rows for it in row.numbers.values() for part in _ends(it)], dtype=float)
    every = np.append(every[np.isfinite(every)], [] if level is None else [level])
    _dress_x(ax, every, log=log, percent=percent)
    ax.set_ylim(max(len(rows), LEAST_ROWS) - 0.55, -0.75)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_xlabel(x_label)
    ax.grid(visible=False, axis="y")
    if level is not None:
        ax.axvline(level, linewidth=1, dashes=(5, 3), color=ink_of(ax), alpha=0.75)
    left = ax.get_xlim()[0]
    for y, row in enumerate(rows):
        ax.text(0, y - 0.28, row.words, transform=ax.get_yaxis_transform(), va="center", fontsize=9)
        ax.axhline(y + 0.1, linewidth=0.5, color=ink_of(ax), alpha=0.16, zorder=0)
        for name, it in row.numbers.items():
            if math.isfinite(it.value):
                _dot(ax, it, y + 0.1, marks[name], left if log else None)
    shown = [name for name in marks if any(math.isfinite(_value(row, name)) for row in rows)]
    if not shown:
        say(ax, "no number could be had")
    legend(figure, in_rows([(_handle(ax, marks[name]), name) for name in shown] or [(blank(), "")], 3), words)


def _value(row: Dots, name: str) -> float:
    return row.numbers[name].value if name in row.numbers else math.nan


def _ends(it: Estimate) -> tuple[float, float, float]:
    return it.value, it.low, it.high


def _dress_x(ax: Axes, values: Array, *, log: bool, percent: bool) -> None:
    written = _percent if percent else number
    if log:
        low, high = log_limits(values)
        ax.set_xscale("log")
        ax.set_xlim(low, high)
        ticks = log_ticks(low, high, most=5)
    else:
        low, high = _span(values)
        ax.set_xlim(low, high)
        ticks = [float(tick) for tick in MaxNLocator(5).tick_values(low, high) if low <= tick <= high]
    set_ticks(ax.xaxis, ticks, [written(tick) for tick in ticks])


def _span(values: Array) -> tuple[float, float]:
    """Limits around the values, with a margin."""
    if not values.size:
        return 0.0, 1.0
    low, high = float(np.clip(values.min(), -HUGE, HUGE)), float(np.clip(values.max(), -HUGE, HUGE))
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 0.1
    return low - margin, high + margin


def _percent(value: float) -> str:
    return f"{number(float(f'{100 * value:.6g}'))} %"


def _dot(ax: Axes, it: Estimate, y: float, mark: Mark, left: float | None) -> None:
    color = mark.color or ink_of(ax)
    low, high = (bound if math.isfinite(bound) else it.value for bound in (it.low, it.high))
    value, marker = it.value, mark.marker
    if left is not None:
        low, marker = max(low, left), marker if value > 0 else "<"
        value = max(value, left)
    ax.hlines(y, low, max(low, high), color=color, linewidth=1.6, alpha=0.55)
    ax.plot(value, y, marker=marker, markersize=6, color=color, markerfacecolor=_face(mark, color), clip_on=False)


def _face(mark: Mark, color: str) -> str:
    return color if mark.filled else "none"


def _handle(ax: Axes, mark: Mark, linestyle: Literal["none", "-"] = "none") -> Line2D:
    color = mark.color or ink_of(ax)
    return Line2D(
        [], [], linestyle=linestyle, marker=mark.marker, markersize=6, color=color, markerfacecolor=_face(mark, color)
    )


# --- over checkpoints -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Marked:
    """The checkpoints that a picture marks: the one that is chosen without labels, and the best by labels."""

    chosen: str | None = None
    best: str | None = None


NOTHING_MARKED = Marked()


def over_checkpoints(
    figure: FigureBase,
    *,
    title: str,
    y_label: str,
    labels: Sequence[str],
    curves: Sequence[Curve],
    words: str = "",
    marked: Marked = NOTHING_MARKED,
    log: bool = False,
    percent: bool = False,
) -> None:
    """Lines over the checkpoints, which stand at even distances."""
    ax = new_axes(figure, title, y_label)
    kept = thinned(len(labels), MOST_DRAWN)
    x = kept.astype(float)
    every = np.concatenate([np.asarray(curve.values, dtype=float) for curve in curves] or [np.zeros(0)])
    every = every[np.isfinite(every)]
    if log:
        dress_log_y(ax, every)
    else:
        low, high = _span(every)
        ax.set_ylim(low, high)
        ticks = [float(tick) for tick in MaxNLocator(5).tick_values(low, high) if low <= tick <= high]
        set_ticks(ax.yaxis, ticks, [(_percent if percent else number)(float(f"{tick:.6g}")) for tick in ticks])
    dress_checkpoints(ax, labels)
    for curve in curves:
        color, values = curve.mark.color or ink_of(ax), np.asarray(curve.values, dtype=float)[kept]
        values = np.where(values > 0, values, np.nan) if log else values
        face = _face(curve.mark, color)
        size = 5 if len(labels) <= 30 else 0
        ax.plot(x, values, color=color, linewidth=1.6, marker=curve.mark.marker, markersize=size, markerfacecolor=face)
    told = [*([words] if words else []), *mark_checkpoints(ax, labels, marked)]
    if not every.size:
        say(ax, "no number could be had")
    entries = [(_handle(ax, curve.mark, "-"), curve.name) for curve in curves]
    legend(figure, in_rows(entries or [(blank(), "")], 2), "\n".join(told))


def dress_counts(ax: Axes, first: float, last: float, label: str) -> None:
    """A logarithmic x axis of whole numbers."""
    low, high = first / 1.15, last * 1.15
    ticks = [m * 10.0**k for k in range(12) for m in (1, 2, 5) if low <= m * 10.0**k <= high]
    tens = [tick for tick in ticks if math.log10(tick).is_integer()]
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    set_ticks(ax.xaxis, ticks if len(ticks) <= 7 else tens)
    ax.set_xlabel(label)


def thinned(n: int, most: int) -> np.ndarray:
    """At most so many of n places, at even distances, the first and the last among them."""
    return np.unique(np.linspace(0, n - 1, min(most, n)).round().astype(int))


def dress_checkpoints(ax: Axes, labels: Sequence[str]) -> None:
    """The axis of checkpoints; what all labels begin with is said once, and where they crowd some go without."""
    prefix = _shared(labels).rstrip("0123456789.") if len(labels) > 1 else ""
    rest = [label.removeprefix(prefix) for label in labels]
    most = MOST_TICKS if max(map(len, rest), default=0) <= 6 else 3
    at = thinned(len(labels), most)
    margin = 0.06 * max(len(labels) - 1, 1)
    ax.set_xlim(-margin, len(labels) - 1 + margin)
    set_ticks(ax.xaxis, [float(k) for k in at], [drawable(rest[k], 12) for k in at])
    ax.set_xlabel(f"checkpoint {drawable(prefix)}".rstrip() + ("…" if prefix else ""))


def _shared(labels: Sequence[str]) -> str:
    """What all labels begin with."""
    first, last = min(labels), max(labels)  # all others lie between these two
    differ = (k for k, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(differ, min(len(first), len(last)))]


def mark_checkpoints(ax: Axes, labels: Sequence[str], marked: Marked) -> Iterable[str]:
    """Vertical lines at the marked checkpoints, and what they are."""
    if marked.chosen in labels:
        at = list(labels).index(marked.chosen or "")
        ax.axvline(at, linewidth=1.1, linestyle=(0, (1, 2)), color=ink_of(ax), alpha=0.9)
        yield "dotted: the checkpoint chosen without labels"
    if marked.best in labels:
        at = list(labels).index(marked.best or "")
        ax.axvline(at, linewidth=1, linestyle=(0, (6, 3)), color=ink_of(ax), alpha=0.75)
        yield "dashed: the best one by labels"
