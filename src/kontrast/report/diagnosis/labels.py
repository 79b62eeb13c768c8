"""How many labels would it need? Errors by leave-one-out, and the curve calibrated to them beyond."""

from __future__ import annotations

import functools
import math

import numpy as np
from matplotlib.figure import FigureBase

from kontrast.diagnosis import Diagnosis, buys, labels_needed
from kontrast.linalg import Estimate
from kontrast.report.axes import Entry, dress_log_y, in_rows, ink_of, legend, new_axes
from kontrast.report.diagnosis.drawing import END, START, Mark, dress_counts
from kontrast.report.diagnosis.sections import Grid, Section, Word
from kontrast.report.plates import Picture, Plate

TITLE = "How many labels would it need?"
MARKS: dict[str, Mark] = {"trained": END, "start": START}


def section(d: Diagnosis) -> Section | None:
    """The section; none without labels."""
    if d.labels is None:
        why = d.missing.get(labels_needed.ERROR.name, "")
        return Section("labels", TITLE, absent=why) if why and buys.main_task(d.result) == "linear" else None
    picture = Picture(
        "labels-curve",
        "Error of linear regression of the classes against the number of labels, of the model and of its start",
        functools.partial(_draw, d=d),
    )
    caption = (
        f"Marks are measured by leave-one-out with parts of the {d.labels.n_labelled} labels there are; beyond them, "
        "dashed, the learnability curve calibrated to these goes on. An error of 1 is that of always predicting how "
        "frequent the classes are. Bars are 95 % intervals."
    )
    sentences = tuple(d.labels.sentences)
    return Section("labels", TITLE, sentences, (Plate("labels", TITLE, caption, (picture,)),), (_curve(d), _needed(d)))


def _numbers(d: Diagnosis, name: str, representation: str) -> list[Estimate]:
    table = np.asarray(d.result[name].sel(representation=representation).values, dtype=float)
    return [Estimate(*map(float, row)) for row in table]


def _draw(figure: FigureBase, d: Diagnosis) -> None:
    assert d.labels is not None
    n = np.array(d.labels.n_labels, dtype=float)
    there = n <= d.labels.n_labelled
    ax = new_axes(figure, "Error by the number of labels", "error, 1: knows nothing")
    told = [np.isfinite([it.value for it in _numbers(d, labels_needed.ERROR.name, name)]) for name in MARKS]
    joined = np.ravel([d.result[labels_needed.ERROR.name].sel(representation=name).values for name in MARKS])
    dress_log_y(ax, joined[np.isfinite(joined)], decades=0.5)
    dress_counts(ax, n[0], max(n[np.any(told, axis=0)], default=n[-1]), "labels")
    entries: list[Entry] = []
    for name, mark in MARKS.items():
        found = _numbers(d, labels_needed.ERROR.name, name)
        values, low, high = (np.array([getattr(it, part) for it in found]) for part in ("value", "low", "high"))
        color = mark.color or ink_of(ax)
        face = color if mark.filled else "none"
        ax.vlines(n, low, high, color=color, linewidth=1.2, alpha=0.55)
        ax.plot(n, values, color=color, linewidth=1.2, linestyle=(0, (4, 2)))
        ax.plot(n[there], values[there], color=color, linewidth=1.6)
        [line] = ax.plot(
            n[there],
            values[there],
            color=color,
            linestyle="none",
            marker=mark.marker,
            markersize=6,
            markerfacecolor=face,
        )
        entries.append((line, name))
    legend(figure, in_rows(entries, 2), "dashed: beyond the labels there are")


def _curve(d: Diagnosis) -> Grid:
    assert d.labels is not None
    head, columns = [Word("labels")], []
    for quantity in (labels_needed.ERROR, labels_needed.ACCURACY):
        for name in MARKS:
            head.append(Word(f"{'error' if quantity is labels_needed.ERROR else 'accuracy'}, {name}", quantity.name))
            columns.append([quantity.write(it) for it in _numbers(d, quantity.name, name)])
    rows = tuple(
        (Word(f"{n:,}" if n <= d.labels.n_labelled else f"{n:,}, predicted"), cells)
        for n, *found in zip(d.labels.n_labels, *columns, strict=True)
        if set(cells := tuple(found)) != {"–"}
    )
    title = f"Of the {d.labels.n_labelled} labels there are, and beyond them; in brackets 95 % intervals"
    return Grid(title, tuple(head), rows)


def _needed(d: Diagnosis) -> Grid:
    levels = [float(level) for level in d.result.error_level.values]
    columns = [d.result.labels_needed.sel(representation=name).values for name in MARKS]
    rows = tuple(
        (
            Word(f"error of {level:g}"),
            tuple(f"{column[k]:,.0f}" if math.isfinite(column[k]) else "not told" for column in columns),
        )
        for k, level in enumerate(levels)
    )
    head = (Word("for an"), *(Word(f"labels, {name}", "labels_needed") for name in MARKS))
    return Grid("Labels that an error takes", head, rows)
