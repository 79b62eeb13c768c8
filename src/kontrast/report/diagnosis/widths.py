"""How wide for a kernel that stays? The drift against the width, with the fitted law."""

from __future__ import annotations

import functools

import numpy as np
from matplotlib.figure import FigureBase

from kontrast.diagnosis import Diagnosis
from kontrast.report.axes import BLUE, ORANGE, Entry, dress_log_y, dress_width, in_rows, ink_of, legend, new_axes
from kontrast.report.diagnosis.sections import Grid, Section, Word, written
from kontrast.report.plates import Picture, Plate

TITLE = "How wide for a kernel that stays?"


def section(d: Diagnosis) -> Section | None:
    """The section; none where no widths were swept."""
    needed = d.width_for()
    if needed is None:
        return None
    picture = Picture("widths", "Kernel drift against width, with the fitted power law", functools.partial(_draw, d=d))
    caption = "Every dot is one seed; both axes are logarithmic. Dashed: the drift that is asked for."
    table = np.asarray(d.result.width_drift.values, dtype=float)
    rows = tuple(
        (Word(str(width)), tuple(written(value) for value in row))
        for width, row in zip(d.result.width.values, table, strict=True)
    )
    seeds = (Word(f"drift, seed {k}", "width_drift") for k in range(table.shape[1]))
    grid = Grid("Drift after the same short training at every width", (Word("width"), *seeds), rows)
    return Section("widths", TITLE, (needed.sentence,), (Plate("widths", TITLE, caption, (picture,)),), (grid,))


def _draw(figure: FigureBase, d: Diagnosis) -> None:
    needed = d.width_for()
    assert needed is not None
    widths, table = d.result.width.values.astype(float), np.asarray(d.result.width_drift.values, dtype=float)
    ax = new_axes(figure, "Kernel drift against width", "‖K − K(0)‖ / ‖K(0)‖")
    shown = table[np.isfinite(table) & (table > 0)]
    dress_log_y(ax, np.append(shown, needed.drift))
    dress_width(ax, [int(width) for width in widths])
    [dots] = ax.plot(
        np.repeat(widths, table.shape[1]), table.ravel(), linestyle="none", marker="o", markersize=5, color=ORANGE
    )
    entries: list[Entry] = [(dots, "measured")]
    if needed.law is not None:
        ends = np.array([widths.min(), widths.max()])
        [line] = ax.plot(ends, [needed.law(float(x)) for x in ends], color=BLUE, linewidth=1.4)
        entries.append((line, f"width^{needed.law.exponent:+.2f}"))
    ax.axhline(needed.drift, linewidth=1, dashes=(5, 3), color=ink_of(ax), alpha=0.75)
    legend(figure, in_rows(entries, 2), "")
