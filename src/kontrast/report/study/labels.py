"""The plate of the label curves: errors and accuracies over the number of labels, predicted and measured."""

from __future__ import annotations

import functools

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase

from kontrast.losses import SIMILARITIES
from kontrast.report.axes import COLORS, blank, dress_log_y, legend, number, say, set_ticks
from kontrast.report.plates import Picture, Plate
from kontrast.report.study.curves import span_ticks, wrapped
from kontrast.study import LabelFindings, labels

# A representation's colour (None is the ink) and marker.
MARKS: dict[str, tuple[str | None, str]] = {
    "pca": (COLORS["start"], "o"),
    "iterative": ("#8aa81c", "s"),
    "trained": (COLORS["now"], "o"),
    **{name: (COLORS[name], "o") for name in SIMILARITIES},
    "random": ("#97703a", "D"),
    "pixels": (None, "^"),
    "pixel-pca": ("#1a9a9a", "v"),
    "ntk": ("#7a4fc9", "P"),
}


def labels_plate(result: xr.Dataset, found: LabelFindings) -> Plate:
    """Errors on the left, accuracies on the right."""
    return Plate(
        "labels",
        "How many labels does each representation need?",
        f"Kernel ridge regression from n labels of {found.n_samples} samples, tested on the others (paper D, Sec. 2.2; "
        "claim D.kappa). Lines are predicted before any regression, from the kernel of the samples and the labels' "
        "power in its modes, with a κ for every sample; marks are measured. An error of 1 is that of always predicting "
        f"the mean. Networks are those of width {found.width}; ntk is the tangent kernel of an infinitely wide one.",
        tuple(
            Picture(
                it.plot,
                f"{it.caption[0].upper()}{it.caption[1:]}, against the number of labels, predicted and measured",
                functools.partial(_draw, it=it, found=found, seeds=result[it.measured].isel(width=-1)),
            )
            for it in labels.COMPARISONS
        ),
    )


def _draw(figure: FigureBase, *, it: labels.Comparison, found: LabelFindings, seeds: xr.DataArray) -> None:
    ax = _axes(figure, found, it.title, it.symbol)
    measured, predicted = found.means[it.measured], found.means[it.predicted]
    words = []
    if it.is_share:
        ax.set_ylim(0, 1.01)
        set_ticks(ax.yaxis, ticks := span_ticks(0.0, 1.0), [f"{tick:.0%}" for tick in ticks])
    else:
        shown = np.array([*measured.values(), *predicted.values()])
        dress_log_y(ax, np.concatenate([shown.ravel(), seeds.values.ravel()]))
    if it.is_share and np.isfinite(found.level):
        ax.axhline(found.level, linewidth=1, dashes=(5, 3), color=str(ax.xaxis.label.get_color()), alpha=0.75)
        words.append(f"dashed: {found.level:.0%}, for the labels needed")
    _curves(figure, ax, found, measured, predicted, seeds, words)


def _axes(figure: FigureBase, found: LabelFindings, title: str, y_label: str) -> Axes:
    ax: Axes = figure.add_subplot()
    ax.set_title(title)
    ax.set_ylabel(y_label)
    ax.set_xscale("log")
    low, high = found.n_labels[0], found.n_labels[-1]
    margin = max((high / low) ** 0.06, 1.15)
    ax.set_xlim(low / margin, high * margin)
    set_ticks(ax.xaxis, found.n_labels, [number(n) for n in found.n_labels])
    ax.set_xlabel("labels n")
    return ax


def _curves(
    figure: FigureBase,
    ax: Axes,
    found: LabelFindings,
    measured: dict[str, tuple[float, ...]],
    predicted: dict[str, tuple[float, ...]],
    seeds: xr.DataArray,
    words: list[str],
) -> None:
    """Predicted lines, measured marks, and a bar from the lowest to the highest seed."""
    n = np.asarray(found.n_labels, dtype=float)
    entries = []
    for name in found.representations:
        color, marker = MARKS[name]
        color = color or str(ax.xaxis.label.get_color())
        rows = seeds.sel(representation=name).transpose("n_labels", "seed").values
        if found.n_seeds > 1:
            ax.vlines(n, rows.min(axis=1), rows.max(axis=1), color=color, linewidth=1, alpha=0.45)
        ax.plot(n, predicted[name], color=color, linewidth=1.4)
        [marks] = ax.plot(n, measured[name], color=color, linestyle="none", marker=marker, markersize=5)
        if name == "iterative":  # PCA after five small steps: where it lies on PCA's marks, both are seen
            marks.set(markerfacecolor="none", markersize=8)
        entries.append((marks, name if np.isfinite(measured[name]).any() else f"{name} (diverged)"))
    if found.best is None:
        say(ax, "every embedding diverged")
    entries += [(blank(), "")] * (-len(entries) % 3)
    about = ["lines: predicted", "marks: measured", *(["bars: range of seeds"] if found.n_seeds > 1 else ["one seed"])]
    legend(figure, [entries[first : first + 3] for first in range(0, len(entries), 3)], wrapped([*about, *words]))
