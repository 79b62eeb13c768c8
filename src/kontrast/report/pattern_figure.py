"""A picture of the patterns that a one-layer network learns: each with its share of the starts, and how they got there.

Paper C, Definition 3 and Figure 1: locally maximal eigenvectors, and how power iteration (94) converges to them.
"""

from __future__ import annotations

import math
import textwrap
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from kontrast.checks import require_type, require_whole
from kontrast.data import ImageShape
from kontrast.errors import InputError
from kontrast.report import axes
from kontrast.report.axes import Array, Entry
from kontrast.report.png import require_png_path, write_png
from kontrast.report.svg import printable, to_png

if TYPE_CHECKING:
    from kontrast.patterns import LMEs

WIDTH = 8.4  # inches
CELL = 1.6  # inches, the largest width of a pattern that is an image
STRIP = 0.85  # inches, the height of a pattern that is no image
MOST_IN_ROW, MOST_STRIPS_IN_ROW = 8, 4
FEW_VALUES = 32  # patterns of so few values are bars
MOST_CURVES, MOST_STEPS = 400, 400  # drawn of each
GRAY = "#8a8f96"


class _Kind(Enum):
    """How sure it is that a pattern attracts: its mark, its colour and its words."""

    CERTIFIED = ("●", axes.GREEN, "certified (Theorem 1)")
    STABLE = ("◐", "#8cc152", "stable, not certified")
    UNSTABLE = ("×", axes.PINK, "not stable")


_ENDINGS = {
    "CONVERGED": axes.BLUE,
    "SETTLED": axes.PRINT_INK,
    "CHATTERING": axes.ORANGE,
    "STEP_LIMIT": "#6a35a8",
    "SILENT": GRAY,
    "DIVERGED": "#8f2750",
}


@dataclass(frozen=True)
class _Drawn:
    """The patterns shown, by basin share, as arrays, and all starts."""

    weights: Array  # (shown, d)
    eigenvalues: Array
    basins: Array
    kinds: tuple[_Kind, ...]
    rest: float  # the share of the starts that led to patterns not shown
    n_patterns: int  # shown or not
    discrepancies: Array  # (T, k)
    endings: tuple[str, ...]  # of each start


def write_pattern_figure(
    path: str | Path,
    patterns: LMEs,
    *,
    image_shape: ImageShape | None = None,
    n_patterns: int = 24,
    title: str | None = None,
) -> Path:
    """Write a PNG of the patterns, the convergence of every start and the basin shares; return its path.

    Args:
        path: a file whose name ends in .png, in a folder that exists; a file that is there already is replaced.
        patterns: what `patterns.find_lmes` returns.
        image_shape: (h, w) or (c, h, w), to show patterns as images; without, they are bars or lines.
        n_patterns: how many are shown, those with the largest basins.
        title: a line above the figure; without, it counts the patterns and the starts.
    """
    path = require_png_path(path, "patterns.png")
    figure = pattern_figure(patterns, image_shape=image_shape, n_patterns=n_patterns, title=title)
    with axes.style(axes.PRINT_INK, salt="patterns"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # of the user's title
        content = to_png(figure)
    return write_png(path, content)


def pattern_figure(
    patterns: LMEs, *, image_shape: ImageShape | None = None, n_patterns: int = 24, title: str | None = None
) -> Figure:
    """The figure that `write_pattern_figure` writes.

    Images have colours about white, red above 0 and blue below, each scaled by its own largest weight; three channels
    are shown as colours about grey, of any other count the first.
    """
    n_shown = require_whole("n_patterns", n_patterns)
    if title is not None:
        require_type("title", title, str)
    drawn = _drawn(patterns, n_shown)
    images = None if image_shape is None else _images(drawn.weights, image_shape)
    heading = _heading(drawn) if title is None else "\n".join(textwrap.wrap(printable(title), 84))
    with axes.style(axes.PRINT_INK, salt="patterns"):
        rows, columns, height = _arrangement(drawn, images)
        figure = Figure(figsize=(WIDTH, height + 3.6 + 0.2 * heading.count("\n")), layout="constrained")
        figure.suptitle(heading, x=0.01, ha="left", fontsize=12, fontweight="bold")
        above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=[height, 3.3]).ravel()
        _draw_patterns(above, drawn, images, rows, columns)
        left, right = below.subfigures(1, 2, squeeze=False, width_ratios=[1.15, 1]).ravel()
        _draw_convergence(left, drawn)
        _draw_basins(right, drawn)
    return figure


def _drawn(patterns: LMEs, n_shown: int) -> _Drawn:
    try:
        basins = _array(patterns.basins)
        order = np.argsort(-basins, kind="stable")
        shown = order[:n_shown]
        certified, stable = _array(patterns.certified) > 0, _array(patterns.stable) > 0
        return _Drawn(
            weights=_array(patterns.weights)[shown],
            eigenvalues=_array(patterns.eigenvalues)[shown],
            basins=basins[shown],
            kinds=tuple(
                _Kind.CERTIFIED if certified[i] else _Kind.STABLE if stable[i] else _Kind.UNSTABLE for i in shown
            ),
            rest=float(basins[order[n_shown:]].sum()),
            n_patterns=len(basins),
            discrepancies=_array(patterns.discrepancies),
            endings=tuple(ending.name for ending in patterns.status),
        )
    except AttributeError as error:
        raise InputError(
            f"the figure takes what find_lmes returns, got {type(patterns).__name__} ({error}); "
            "call patterns.find_lmes first"
        ) from None


def _array(values: Tensor) -> Array:
    return values.detach().cpu().double().numpy()


def _heading(drawn: _Drawn) -> str:
    found = f"{drawn.n_patterns:,} pattern{'' if drawn.n_patterns == 1 else 's'}"
    first = f", the {len(drawn.basins)} largest basins shown" if len(drawn.basins) < drawn.n_patterns else ""
    return f"{found} from {len(drawn.endings):,} start{'' if len(drawn.endings) == 1 else 's'}{first}"


def _images(weights: Array, image_shape: ImageShape) -> Array:
    """Patterns as red, green and blue in [0, 1], (m, h, w, 3)."""
    sizes = tuple(image_shape) if isinstance(image_shape, tuple | list) else ()
    if len(sizes) not in (2, 3):
        raise InputError(f"image_shape must be (h, w) or (c, h, w), got {image_shape!r}")
    sizes = tuple(require_whole("a size of image_shape", size) for size in sizes)
    if math.prod(sizes) != weights.shape[1]:
        raise InputError(
            f"patterns have {weights.shape[1]} values, which image_shape {sizes} does not fit; give sizes whose "
            "product is that, or leave image_shape out"
        )
    scaled = weights / np.maximum(np.abs(weights).max(axis=1, keepdims=True, initial=0.0), 1e-300)
    pictures = scaled.reshape(len(weights), *((1,) if len(sizes) == 2 else ()), *sizes)  # (m, c, h, w)
    if pictures.shape[1] == 3:
        return np.asarray((1 + pictures.transpose(0, 2, 3, 1)) / 2)
    return np.asarray(mpl.colormaps["RdBu_r"]((1 + pictures[:, 0]) / 2)[..., :3])


def _arrangement(drawn: _Drawn, images: Array | None) -> tuple[int, int, float]:
    """Rows and columns of patterns, rows of about one length, and the height of all in inches."""
    n = len(drawn.basins)
    if n == 0:
        return 1, 1, 0.5
    rows = math.ceil(n / (MOST_STRIPS_IN_ROW if images is None else MOST_IN_ROW))
    columns = math.ceil(n / rows)
    if images is None:
        return rows, columns, rows * (STRIP + 0.5)
    height, width = images.shape[1:3]
    cell = min(CELL, (WIDTH - 0.3) / columns - 0.1)
    return rows, columns, rows * (min(cell * height / width, 2 * CELL) + 0.58)


def _draw_patterns(figure: SubFigure, drawn: _Drawn, images: Array | None, rows: int, columns: int) -> None:
    grid: NDArray[Any] = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in grid[len(drawn.basins) :]:
        ax.set_axis_off()
    if not drawn.basins.size:
        axes.say(grid[0], "no start came to rest at a pattern")
    far = 1.08 * float(np.abs(drawn.weights).max(initial=0.0)) or 1.0
    for place, ax in enumerate(grid[: len(drawn.basins)]):
        if images is None:
            _draw_strip(ax, drawn.weights[place], far, labeled=place % columns == 0)
        else:
            _draw_image(ax, images[place])
        mark, color, _ = drawn.kinds[place].value
        ax.set_title(f"{place + 1}", fontsize=8.5, pad=3, fontweight="normal")
        ax.set_title(mark, fontsize=10, pad=3, loc="right", color=color)
        words = f"{100 * drawn.basins[place]:.3g} %", f"λ {axes.number(float(f'{drawn.eigenvalues[place]:.3g}'))}"
        ax.set_xlabel((",  " if images is None else "\n").join(words), fontsize=8.5, labelpad=3)


def _draw_image(ax: Axes, image: Array) -> None:
    ax.imshow(image, interpolation="nearest", aspect="equal")
    ax.grid(visible=False)
    ax.spines[:].set_visible(True)
    ax.spines[:].set_alpha(0.35)
    for axis in (ax.xaxis, ax.yaxis):
        axes.set_ticks(axis, [])


def _draw_strip(ax: Axes, weights: Array, far: float, *, labeled: bool) -> None:
    positions = np.arange(1, len(weights) + 1)
    if len(weights) <= FEW_VALUES:
        ax.bar(positions, weights, width=0.8, color=[axes.ORANGE if w > 0 else axes.BLUE for w in weights])
    else:
        ax.plot(positions, weights, linewidth=1.0, color=axes.BLUE)
    ax.axhline(0, color=axes.PRINT_INK, linewidth=0.6, alpha=0.6)
    ax.set_ylim(-far, far)
    ax.set_xlim(0.4, len(weights) + 0.6)
    axes.set_ticks(ax.xaxis, [])
    ax.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    ax.tick_params(axis="y", labelsize=8, labelleft=labeled)


def _draw_convergence(figure: SubFigure, drawn: _Drawn) -> None:
    ax = axes.new_axes(figure, "Convergence of the starts", "‖w(t + 1) − w(t)‖")
    n_steps, n_starts = drawn.discrepancies.shape
    chosen = np.unique(np.linspace(0, n_starts - 1, min(n_starts, MOST_CURVES)).round().astype(int))
    picked = np.unique(np.geomspace(1, max(n_steps, 1), MOST_STEPS).round().astype(int))[:n_steps]
    axes.dress_step(ax, picked.astype(float) if n_steps else np.ones(1))
    values = np.where(np.isfinite(drawn.discrepancies), drawn.discrepancies, np.nan)
    axes.dress_log_y(ax, values, decades=1.0)
    counts = dict(Counter(drawn.endings).most_common())
    for layer, name in enumerate(counts):  # the rarest ending on top
        mine = [start for start in chosen if drawn.endings[start] == name]
        _draw_runs(ax, values[:, mine], picked, _ENDINGS.get(name, axes.PRINT_INK), layer)
    if not np.isfinite(values).any():
        axes.say(ax, "no start took a step")
    shown = "" if len(chosen) == n_starts else f"{len(chosen)} of {n_starts:,} starts, evenly spaced"
    entries = [
        (
            Line2D([], [], color=_ENDINGS.get(name, axes.PRINT_INK), linewidth=2.2),
            f"{name.lower().replace('_', ' ')} ({count:,})",
        )
        for name, count in counts.items()
    ]
    _legend(figure, entries, shown)


def _draw_runs(ax: Axes, values: Array, picked: NDArray[np.int64], color: str, layer: int) -> None:
    """One thin line per start with a dot at its end; a start that came to rest at exactly 0 ends at the lower edge."""
    lines, ends, zeros = [], [], []
    for column in values.T:
        steps = np.flatnonzero(column > 0) + 1
        zeros += [float(step) for step in (np.flatnonzero(column == 0) + 1)[:1]]
        if steps.size:
            kept = np.union1d(np.intersect1d(steps, picked), steps[-1:])
            lines.append(np.column_stack([kept, column[kept - 1]]))
            ends.append(lines[-1][-1])
    alpha = float(np.clip(12 / max(len(lines), 1), 0.12, 0.8))
    ax.add_collection(LineCollection(lines, colors=color, linewidths=0.8, alpha=alpha, zorder=2 + 0.01 * layer))
    if ends:
        ax.plot(*np.transpose(ends), linestyle="none", marker="o", markersize=2.6, color=color, zorder=3)
    axes.mark_edge(ax, np.asarray(zeros), color, marker="v", edge=0)


def _draw_basins(figure: SubFigure, drawn: _Drawn) -> None:
    ax = axes.new_axes(figure, "Basins", "share of the starts, %")
    n = len(drawn.basins)
    none = max(0.0, 1 - float(drawn.basins.sum()) - drawn.rest) if drawn.endings else 0.0
    others = {"other": drawn.rest, "none": none}
    others = {name: share for name, share in others.items() if share > 1e-6}  # more than the shares' rounding
    ax.bar(range(1, n + 1), 100 * drawn.basins, width=0.75, color=[kind.value[1] for kind in drawn.kinds])
    room = max(1.0, 0.16 * n)  # between the patterns and what is none of them
    places = [n + 0.5 + room * (k + 0.75) for k in range(len(others))]
    ax.bar(places, [100 * share for share in others.values()], width=0.6 * room, color=GRAY)
    ticks = list(range(1, n + 1, max(1, math.ceil(n / 12))))
    axes.set_ticks(ax.xaxis, [*ticks, *places], [*map(str, ticks), *others])
    right = max([n + 0.5, *(place + room / 2 for place in places)])
    spare = max(0.0, 5 - right) / 2  # a few bars stay slim, and in the middle
    ax.set_xlim(0.4 - spare, right + spare)
    ax.grid(visible=False, axis="x")
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    ax.set_xlabel("pattern")
    _legend(figure, [(_handle(kind), kind.value[2]) for kind in _Kind if kind in drawn.kinds], "")


def _handle(kind: _Kind) -> Line2D:
    """The mark above the patterns, which no legend can draw as text."""
    marker = Line2D([], [], linestyle="none", marker="x" if kind is _Kind.UNSTABLE else "o", markersize=6.5)
    marker.set(color=kind.value[1], markerfacecoloralt="white", fillstyle="left" if kind is _Kind.STABLE else "full")
    return marker


def _legend(figure: SubFigure, entries: Sequence[Entry], title: str) -> None:
    """Two entries per row."""
    if entries:
        axes.legend(figure, axes.in_rows(entries, min(2, len(entries))), title)
