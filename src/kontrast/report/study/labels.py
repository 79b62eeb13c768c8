"""The plate of the label curves: errors and accuracies over the number of labels, predicted and measured."""

from __future__ import annotations

import functools

import numpy as np
import xarray as xr
from matplotlib.figure import FigureBase

from kontrast.losses import SIMILARITIES
from kontrast.report.axes import COLORS, dress_log_y, in_rows, ink_of, legend, new_axes, say, set_ticks
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
    """Predicted lines, measured marks, and a bar from the lowest to the highest seed."""
    ax, n = new_axes(figure, it.title, it.symbol), np.asarray(found.n_labels, dtype=float)
    margin = max((n[-1] / n[0]) ** 0.06, 1.15)
    ax.set_xscale("log")
    ax.set_xlim(n[0] / margin, n[-1] * margin)
    set_ticks(ax.xaxis, found.n_labels)
    ax.set_xlabel("labels n")
    measured, predicted = found.means[it.measured], found.means[it.predicted]
    words = ["lines: predicted", "marks: measured", "bars: range of seeds" if found.n_seeds > 1 else "one seed"]
    if it.is_share:
        ax.set_ylim(0, 1.01)
        set_ticks(ax.yaxis, ticks := span_ticks(0.0, 1.0), [f"{tick:.0%}" for tick in ticks])
    else:
        shown = np.array([*measured.values(), *predicted.values()])
        dress_log_y(ax, np.concatenate([shown.ravel(), seeds.values.ravel()]))
    if it.is_share and np.isfinite(found.level):
        ax.axhline(found.level, linewidth=1, dashes=(5, 3), color=ink_of(ax), alpha=0.75)
        words.append(f"dashed: {found.level:.0%}, for the labels needed")
    entries = []
    for name in found.representations:
        color, marker = MARKS[name]
        color = color or ink_of(ax)
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
    legend(figure, in_rows(entries, 3), wrapped(words))
