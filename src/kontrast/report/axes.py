"""The style of all pictures: one ink, one colour per hue and width, logarithmic axes with plain labels, legends.

Nothing here is drawn as mathtext, and no word of the user's is drawn at all: a data set's name may hold any character,
and a picture must not depend on which fonts know it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import FigureBase
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from kontrast.losses import SIMILARITIES

Array = NDArray[np.float64]
Entry = tuple[Line2D | Patch, str]  # of a legend: how it is drawn, and its name

# Text, axes and grids of an SVG are drawn in this colour, and only they; `svg.to_svg` turns it into `currentColor`.
INK = "#010203"
PRINT_INK = "#22262b"

# Blue against orange, and green against pink: pairs that every common colour blindness keeps apart, the first for the
# similarities, in the order of their table, the second for PCA of the first and of the present features. Within one
# hue the widths run from light to dark in even steps (7 of CIE's L*), so that the order survives any colour blindness
# and a grey printer; more would lose the light end on a white page or the dark end on a near-black one.
BLUE, ORANGE, GREEN, PINK = "#1f78c1", "#d9641a", "#2f8a4a", "#c2478f"
_RAMPS = {
    BLUE: ["#35bfa6", "#1f93cf", "#3f66c8", "#6a35a8"],
    ORANGE: ["#e0a21c", "#dd6f14", "#c23b2c", "#8f2750"],
    GREEN: ["#86b81f", "#4da02a", "#2a7f46", "#1f5f4f"],
    PINK: ["#e889a8", "#d9598f", "#b83a86", "#8a2a78"],
}
COLORS = {**dict(zip(SIMILARITIES, itertools.cycle(_RAMPS), strict=False)), "start": GREEN, "now": PINK}
HUGE = 1e300  # above it, limits and their margins would overflow


def width_colors(hue: str, n_widths: int) -> list[str]:
    """One colour per width, narrow to wide; a single width has the hue's own colour."""
    if n_widths == 1:
        return [COLORS[hue]]
    ramp = LinearSegmentedColormap.from_list(hue, _RAMPS[COLORS[hue]])
    return [to_hex(ramp(position)) for position in np.linspace(0, 1, n_widths)]


@contextmanager
def style(ink: str, salt: str) -> Iterator[None]:
    """Draw and save inside this: matplotlib's own defaults, whatever the user has set, and then ours."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(
            {
                "font.family": "DejaVu Sans",  # comes with matplotlib, and wider than the fonts a browser puts in
                "font.size": 10,
                "axes.titlesize": 11,
                "axes.titleweight": "bold",
                "axes.titlelocation": "left",
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.linewidth": 0.7,
                "axes.grid": True,
                "axes.axisbelow": True,
                "grid.linewidth": 0.6,
                "grid.alpha": 0.16,
                "xtick.major.width": 0.7,
                "ytick.major.width": 0.7,
                "lines.solid_capstyle": "round",
                "hatch.linewidth": 0.8,
                "legend.frameon": False,
                "legend.fontsize": 9,
                "legend.title_fontsize": 8.5,
                "text.parse_math": False,
                "svg.fonttype": "none",
                "svg.hashsalt": salt,
                **dict.fromkeys(
                    ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), ink
                ),
            }
        )
        yield


def number(value: float) -> str:
    """A tick's label: 0.02, 1, 500, and beyond three zeros powers of ten in superscripts."""
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:g}".replace("-", "−")
    mantissa, exponent = f"{abs(value):.2e}".split("e")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    factor = f"{float(mantissa):g}"
    return ("−" if value < 0 else "") + (power if factor == "1" else f"{factor}×{power}")


def set_ticks(axis: Axis, values: Sequence[float], labels: Sequence[str] | None = None) -> None:
    """These ticks, these labels and nothing between."""
    axis.set_major_locator(FixedLocator(list(values)))
    axis.set_major_formatter(FixedFormatter(list(labels) if labels is not None else [number(v) for v in values]))
    axis.set_minor_locator(NullLocator())


def log_ticks(low: float, high: float, *, most: int = 7) -> list[float]:
    """Round numbers on a logarithmic axis from `low` to `high`: powers of ten, or 1-2-5, or finer in a narrow range."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = [10.0**k for k in range(first, last + 1) if low <= 10.0**k <= high]
    if len(decades) > 2:
        return decades[:: math.ceil(len(decades) / most)]
    fine = [m * 10.0**k for k in range(first, last + 1) for m in (1, 2, 5) if low <= m * 10.0**k <= high]
    if len(fine) > 2:
        return fine
    return [float(tick) for tick in MaxNLocator(5).tick_values(low, high) if low <= tick <= high]


def log_limits(values: Array, *, decades: float = 0.0, cap: float = math.inf) -> tuple[float, float]:
    """Limits around the positive values, `decades` apart at least, so that a flat line is not blown up into noise."""
    shown = values[np.isfinite(values) & (values > 0)]
    if shown.size == 0:
        return 0.1, 10.0
    low = math.log10(max(float(shown.min()), 1 / HUGE))
    high = math.log10(min(float(shown.max()), cap, HUGE))
    high = max(high, low)
    margin = max(0.06 * (high - low), (decades - (high - low)) / 2, 0.08)
    # Within ±307, and the margins too: ten to the power of 309 overflows, and of −324 is zero.
    return 10.0 ** max(low - margin, -307.0), 10.0 ** min(high + margin, 307.0)


def dress_log_y(ax: Axes, values: Array, *, decades: float = 0.0, cap: float = math.inf) -> None:
    """A logarithmic y axis around the values."""
    low, high = log_limits(values, decades=decades, cap=cap)
    ax.set_yscale("log")
    ax.set_ylim(low, high)
    set_ticks(ax.yaxis, log_ticks(low, high))


def dress_width(ax: Axes, widths: Sequence[int]) -> None:
    """The width axis, labelled with the study's own widths; where they crowd, some go without a label."""
    low, high = min(widths), max(widths)
    margin = max((high / low) ** 0.06, 1.3 if len(widths) > 1 else 2.0)
    ax.set_xscale("log")
    ax.set_xlim(low / margin, high * margin)
    room = math.log(high * margin**2 / low) / 8  # a label's share of the axis
    labeled: list[int] = []
    for width in sorted(widths):
        if not labeled or math.log(width / labeled[-1]) >= room:
            labeled.append(width)
    set_ticks(ax.xaxis, labeled, [str(width) for width in labeled])
    ax.set_xlabel("width M")


def dress_step(ax: Axes, steps: Array) -> None:
    """The step axis, logarithmic like the recorded steps."""
    low, high = float(steps[0]), float(steps[-1])
    margin = 1.12 if high > low else 2.0
    ax.set_xscale("log")
    ax.set_xlim(low / margin, high * margin)
    set_ticks(ax.xaxis, [t for t in log_ticks(low / margin, high * margin) if t == int(t)])
    ax.set_xlabel("step")


def mark_edge(ax: Axes, x: Array, color: str, *, marker: str, edge: float) -> None:
    """Marks for what lies off the scale: `edge` 1 is the top of the axes, 0 the bottom."""
    if x.size == 0:
        return
    x = np.clip(x, *ax.get_xlim())
    ax.plot(
        x,
        np.full(x.shape, edge),
        transform=ax.get_xaxis_transform(),
        linestyle="none",
        marker=marker,
        markersize=4.5,
        markeredgewidth=1.1,
        color=color,
        clip_on=False,
        zorder=5,
    )


def new_axes(figure: FigureBase, title: str, y_label: str) -> Axes:
    """Axes that fill the figure."""
    ax: Axes = figure.add_subplot()
    ax.set_title(title)
    ax.set_ylabel(y_label)
    return ax


def ink_of(ax: Axes) -> str:
    """The colour of the words of these axes."""
    return str(ax.xaxis.label.get_color())


def say(ax: Axes, text: str) -> None:
    """A sentence in an empty panel, above the middle, where a tolerance may run."""
    ax.text(0.5, 0.85, text, transform=ax.transAxes, ha="center", va="center", alpha=0.8)


def blank() -> Line2D:
    """A legend's handle that shows nothing, for a heading."""
    return Line2D([], [], linestyle="none")


def in_rows(entries: Sequence[Entry], n_columns: int) -> list[list[Entry]]:
    """The entries of a legend in rows, the last one filled up with blanks."""
    filled = [*entries, *[(blank(), "")] * (-len(entries) % n_columns)]
    return [filled[first : first + n_columns] for first in range(0, len(filled), n_columns)]


def legend(figure: FigureBase, rows: Sequence[Sequence[Entry]], title: str) -> None:
    """A legend below the axes, never over the data: a grid of rows of one length, under a line that explains it."""
    n_columns = len(rows[0])
    entries = [row[column] for column in range(n_columns) for row in rows]  # matplotlib fills columns first
    figure.legend(
        [handle for handle, _ in entries],
        [label for _, label in entries],
        title=title,
        loc="outside lower center",
        ncols=n_columns,
        handlelength=1.2 if n_columns > 1 else 2.2,
        handletextpad=0.4,
        columnspacing=0.8,
        borderpad=0.2,
        labelspacing=0.35,
        alignment="left",
    )
