"""The claims' pictures: a `claims.Panel`, which is numbers and words, as one `<svg>`; one file per claim.

Values that no axis has a place for (NaN, infinity, and on a logarithmic axis below zero) are left out. A curve of which
nothing is left is still named in the legend: a missing line is news. Zero stands below a logarithmic axis as a ▼.
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
import warnings
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from kontrast.claims import Curve, Panel
from kontrast.report import axes
from kontrast.report.axes import Array, Entry
from kontrast.report.svg import FONTS, printable, to_svg

WIDTH = 4.6  # inches, of every panel
# Where axes end, and larger values with them: beyond, an axis' margin overflows, or the product of two axes' scales.
FAR_LOG, FAR = 1e250, 1e100
GAP = 12.0  # points between the panels of a file

# Amber to indigo in even steps of CIE's L* (70 to 36), so that an order of curves survives any colour blindness and a
# grey printer; each curve of style "line" has a mark of its own besides.
_ONE = "#1f78c1"
_RAMP = LinearSegmentedColormap.from_list(
    "claims", [(0, "#dda01c"), (0.32, "#dd6f24"), (0.62, "#c8436b"), (0.85, "#8c3fa8"), (1, "#3f48b0")]
)
_MARKS = "os^DvPX*<>"
_DASHES = ((5, 2.5), (1.2, 1.8), (7, 2, 1.2, 2), (2.5, 1.5))
_MOST_MARKS = 24  # on one line; the line goes through all of its points


def curve_colors(n_curves: int) -> list[str]:
    """One colour per curve, light to dark."""
    return [_ONE] if n_curves == 1 else [to_hex(_RAMP(position)) for position in np.linspace(0, 1, n_curves)]


def panel_svg(panel: Panel, *, name: str) -> str:
    """The panel as one `<svg>` in the page's own ink; `name` keeps its ids apart from those of other panels."""
    labels = "; ".join(curve.label for curve in panel.curves) or "no curves"
    words = f"{panel.title}: {panel.y_label} against {panel.x_label}. Curves: {labels}."
    with axes.style(axes.INK, salt=name), warnings.catch_warnings():
        # A name in letters that matplotlib's font lacks is measured as boxes; the reader's browser has the letters.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        return to_svg(panel_figure(panel), name=name, label=" ".join(words.split()))


def joined_svg(pictures: Sequence[str], *, label: str) -> str:
    """Panels side by side (three in a row; four as two by two) on white, as a file for an `<img>`.

    A picture in an `<img>` does not know whether its page is light or dark, hence the paper of its own.
    """
    n_columns = 2 if len(pictures) == 4 else min(3, len(pictures))
    rows = [pictures[start : start + n_columns] for start in range(0, len(pictures), n_columns)]
    placed, top, right = "", GAP, 0.0
    for row in rows:
        sizes = [_size(picture) for picture in row]
        left = GAP
        for picture, (width, height) in zip(row, sizes, strict=True):
            place = f'<svg x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" '
            placed += place + picture.removeprefix("<svg ")
            left += width + GAP
        right, top = max(right, left), top + max(height for _, height in sizes) + GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right:g}pt" height="{top:g}pt" '
        f'viewBox="0 0 {right:g} {top:g}" role="img" aria-label="{_attribute(label)}" '
        f'font-family="{FONTS}" color="{axes.PRINT_INK}">'
        f'<rect width="{right:g}" height="{top:g}" fill="#ffffff"/>{placed}</svg>\n'
    )


def panel_figure(panel: Panel) -> Figure:
    """The panel as a figure. Call it, and save what it returns, inside `axes.style`."""
    title, x_label, y_label = _wrapped(panel.title, 38), _wrapped(panel.x_label, 48), _wrapped(panel.y_label, 34)
    points = [_shown(curve, panel) for curve in panel.curves]
    zeros = [_zeros(curve, panel) for curve in panel.curves]
    handles = _handles(panel.curves)
    entries = [
        (handle if np.isfinite(y).any() else axes.blank(), curve.label + _remark(curve, panel, y, zero))
        for curve, handle, (_, y), zero in zip(panel.curves, handles, points, zeros, strict=True)
    ]
    rows = _legend_rows([entries[i] for i in _reading_order(panel.curves)], paired=_are_paired(panel.curves))
    legend_lines = sum(max(label.count("\n") + 1 for _, label in row) for row in rows)
    words = 0.19 * (title.count("\n") + x_label.count("\n")) + 0.18 * legend_lines
    figure = Figure(figsize=(WIDTH, 3.1 + words), layout="constrained")
    ax = axes.new_axes(figure, title, y_label)
    _dress(ax, panel, points, zeros)
    ax.set_xlabel(x_label)
    for handle, (x, y), zero in zip(handles, points, zeros, strict=True):
        _draw(ax, handle, x, y)
        axes.mark_edge(ax, zero, str(handle.get_color()), marker="v", edge=0)
    if not any(np.isfinite(y).any() for _, y in points):
        axes.say(ax, "nothing finite to draw")
    if rows:
        axes.legend(figure, rows, "")
    return figure


def _shown(curve: Curve, panel: Panel) -> tuple[Array, Array]:
    """The curve's points, both coordinates NaN where an axis has no place for one of them."""
    x, y = _on_axis(curve.x, log=panel.x_log), _on_axis(curve.y, log=panel.y_log)
    whole = np.isfinite(x) & np.isfinite(y)
    return np.where(whole, x, np.nan), np.where(whole, y, np.nan)


def _on_axis(values: Sequence[float], *, log: bool) -> Array:
    numbers = np.asarray(values, dtype=float)
    drawable = np.isfinite(numbers) & (numbers > 0) if log else np.isfinite(numbers)
    near, far = (1 / FAR_LOG, FAR_LOG) if log else (-FAR, FAR)
    return np.where(drawable, np.clip(numbers, near, far), np.nan)


def _zeros(curve: Curve, panel: Panel) -> Array:
    """Where the curve is zero and the y axis, being logarithmic, has no place for it."""
    x = _on_axis(curve.x, log=panel.x_log)
    return x[np.isfinite(x) & (np.asarray(curve.y, dtype=float) == 0)] if panel.y_log else np.empty(0)


def _remark(curve: Curve, panel: Panel, shown: Array, zeros: Array) -> str:
    """A remark for the legend on a curve that is not drawn as it is."""
    if zeros.size:
        return " (▼: zero)"
    if not np.isfinite(shown).any():
        return " (nothing finite)"
    far = FAR_LOG if panel.y_log else FAR
    cut = any(far < abs(value) < math.inf for value in curve.y)
    return f" (cut at {axes.number(far)})" if cut else ""


def _split(curves: Sequence[Curve]) -> tuple[list[int], list[int]]:
    """The indices of the lines and of the guides."""
    guides = [i for i, curve in enumerate(curves) if curve.style == "dashed"]
    return [i for i in range(len(curves)) if i not in guides], guides


def _are_paired(curves: Sequence[Curve]) -> bool:
    """Whether each line has a guide of its own, such as a bound per width; two and two may be two laws for both."""
    lines, guides = _split(curves)
    return len(guides) == len(lines) > 2


def _reading_order(curves: Sequence[Curve]) -> list[int]:
    """The order of the legend: as given, but a guide that belongs to a line beside it."""
    lines, guides = _split(curves)
    if not _are_paired(curves):
        return list(range(len(curves)))
    return [i for pair in zip(lines, guides, strict=True) for i in pair]


def _handles(curves: Sequence[Curve]) -> list[Line2D]:
    """How each curve is drawn: lines coloured, guides in ink, or in their lines' colours where they are paired."""
    lines, guides = _split(curves)
    colors = curve_colors(max(1, len(lines)))
    handles: dict[int, Line2D] = {}
    for i, color, mark in zip(lines, colors, itertools.cycle(_MARKS), strict=False):
        mark = mark if curves[i].style == "line" else ""
        handles[i] = Line2D([], [], color=color, linewidth=1.5, marker=mark, markersize=5)
    for place, i in enumerate(guides):
        paired = _are_paired(curves)
        color, dashes = (colors[place], _DASHES[0]) if paired else (axes.INK, _DASHES[place % len(_DASHES)])
        handles[i] = Line2D([], [], color=color, linewidth=1.1, marker="", dashes=dashes)
    return [handles[i] for i in range(len(curves))]


def _draw(ax: Axes, handle: Line2D, x: Array, y: Array) -> None:
    """The points as the handle shows them; a point without neighbours is a dot, since no line goes through it."""
    there = np.isfinite(y)
    beside = np.concatenate([[False], there[:-1]]) | np.concatenate([there[1:], [False]])
    marked = there & ~beside
    if handle.get_marker():
        marked[:: math.ceil(len(y) / _MOST_MARKS) or 1] = True
    line = Line2D(x, y)
    line.update_from(handle)
    if not handle.get_marker():
        line.set_marker("o")
        line.set_markersize(3.5)
    line.set_markevery([int(i) for i in np.flatnonzero(marked & there)])
    ax.add_line(line)


def _dress(ax: Axes, panel: Panel, points: Sequence[tuple[Array, Array]], zeros: Sequence[Array]) -> None:
    x, y = (np.concatenate([np.empty(0), *(point[axis] for point in points)]) for axis in (0, 1))
    x, y = np.concatenate([x[np.isfinite(x)], *zeros]), y[np.isfinite(y)]
    if panel.x_log:
        _dress_log_x(ax, x)
    else:
        _dress_linear(ax, "x", x)
    if panel.y_log:
        axes.dress_log_y(ax, y, decades=0.5)
    else:
        _dress_linear(ax, "y", y)


def _dress_log_x(ax: Axes, values: Array) -> None:
    """A logarithmic x axis, labelled with its own values where they are few whole numbers, as widths are."""
    own = np.unique(values)
    if 0 < own.size <= 14 and (own == np.round(own)).all() and own[-1] < 1e5:
        axes.dress_width(ax, [int(value) for value in own])
        return
    low, high = axes.log_limits(values, decades=0.3)
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    axes.set_ticks(ax.xaxis, axes.log_ticks(low, high, most=6))


def _dress_linear(ax: Axes, which: str, values: Array) -> None:
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    size = max(abs(low), abs(high))
    # A flat line is not blown up into noise: the axis spans a hundredth of the values at least.
    margin = max(0.06 * (high - low), 5e-3 * size) if size > 1 / FAR else 0.5
    low, high = low - margin, high + margin
    ticks = [float(tick) for tick in MaxNLocator(7, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= tick <= high]
    labels = [axes.number(tick) for tick in ticks]
    if len(set(labels)) < len(labels):  # more digits than a label has
        labels = [f"{tick:.12g}".replace("-", "−") for tick in ticks]
    ax.set(**{f"{which}lim": (low, high)})
    axes.set_ticks(ax.xaxis if which == "x" else ax.yaxis, ticks, labels)


def _legend_rows(entries: Sequence[Entry], *, paired: bool) -> list[list[Entry]]:
    """The entries in as many columns as their words leave room for."""
    if not entries:
        return []
    labeled = [(handle, _wrapped(label, 50)) for handle, label in entries]
    longest = max(len(line) for _, label in labeled for line in label.split("\n"))
    n_columns = max(1, min(4, len(labeled), 58 // (longest + 6)))
    return axes.in_rows(labeled, 2 if paired and n_columns == 3 else n_columns)


def _wrapped(text: str, width: int) -> str:
    """Words in as few lines as fit, of about one length: no last line of a single word.

    A line that begins with an underscore, which would hide it from a legend, is set off by a space.
    """
    plain = printable(" ".join(text.split()))
    lines = textwrap.wrap(plain, width)
    longest = min(width, max((len(word) for word in plain.split()), default=1))  # narrower lines would cut words
    wrapped = (textwrap.wrap(plain, narrow) for narrow in range(longest, width + 1))
    evened = next(narrow for narrow in wrapped if len(narrow) == len(lines))
    return "\n".join(f" {line}" if line.startswith("_") else line for line in evened)


def _size(picture: str) -> tuple[float, float]:
    found = re.search(r'viewBox="0 0 (\S+) (\S+)"', picture)
    assert found is not None, "not a picture that `to_svg` made"
    return float(found[1]), float(found[2])


def _attribute(text: str) -> str:
    plain = printable(" ".join(text.split()))
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
