"""A picture of an embedding: its leading dimensions in pairs, coloured by label or by how dense the points lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import ListedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from torch import Tensor

from kontrast.checks import require_finite, require_shape
from kontrast.report.axes import HUGE, PRINT_INK, Array, Entry, blank, in_rows, legend, style, width_colors
from kontrast.report.png import require_png_path, write_png
from kontrast.report.svg import to_png

PANEL = (4.9, 4.6)  # inches
MOST_POINTS = 5000
MOST_IN_LEGEND = 20
IN_A_ROW = 10
BINS = 48  # per side, to count how dense the points lie


def write_embedding_figure(path: Path, z: Tensor, labels: Tensor | None = None, *, seed: int = 0) -> Path:
    """Write a PNG of dimensions 1 and 2 of the embedding, and of 3 and 4 where it has them; return its path.

    The leading dimensions are drawn as they are, without a map to the plane that would show its own inventions. Of more
    than 5,000 samples, 5,000 are drawn at random. Classes stand in the order of their numbers; more than 20 of them are
    told apart by shade alone.

    Args:
        path: a file whose name ends in .png, in a folder that exists; a file that is there already is replaced.
        z: the embedding (n, d).
        labels: whole numbers (n,); without, colours say how dense the points lie.
        seed: of the samples that are drawn, and of their order.
    """
    path = require_png_path(path, "embedding.png")
    require_shape("z", z, ("n", "d"))
    require_finite("z", z, "look at the samples and at the encoder")
    if labels is not None:
        require_shape("labels", labels, (len(z),), "one per sample")
    order = np.random.default_rng(seed).permutation(len(z))[:MOST_POINTS]
    points = np.clip(z.detach().cpu().double().numpy()[order], -HUGE, HUGE)
    chosen = None if labels is None else labels.cpu().numpy()[order]
    classes = [] if labels is None else np.unique(labels.cpu().numpy()).tolist()
    with style(PRINT_INK, salt="embedding"):
        return write_png(path, to_png(_figure(points, chosen, classes, len(z))))


def _figure(points: Array, labels: NDArray[np.int64] | None, classes: list[int], n_samples: int) -> Figure:
    pairs = [(0, 1), (2, 3)][: max(1, points.shape[1] // 2)]
    figure = Figure(figsize=(PANEL[0] * len(pairs), PANEL[1]), layout="constrained")
    palette = _palette(len(classes))
    for ax, (first, second) in zip(np.atleast_1d(figure.subplots(1, len(pairs))), pairs, strict=True):
        colors: Any
        across = points[:, first]
        # One dimension has no other to stand against: its samples are spread out by their place in a random order.
        up = points[:, second] if second < points.shape[1] else np.linspace(0, 1, len(points))
        if labels is None:
            dense = _density(across, up)
            by_density = np.argsort(dense, kind="stable")  # the densest on top
            colors = ListedColormap(width_colors("cosine", 64))(dense[by_density])
            across, up = across[by_density], up[by_density]
        else:
            colors = [palette[place] for place in np.searchsorted(classes, labels)]
        size = float(np.clip(24000 / max(len(across), 1), 5, 26))
        ax.scatter(across, up, s=size, c=colors, linewidths=0, alpha=0.75)
        ax.set_xlabel(f"dimension {first + 1}")
        ax.set_ylabel(f"dimension {second + 1}" if second < points.shape[1] else "")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        if second >= points.shape[1]:
            ax.yaxis.set_major_locator(MaxNLocator(1))
            ax.tick_params(axis="y", left=False, labelleft=False)
    shown = f"{len(points):,} of {n_samples:,} samples" if len(points) < n_samples else f"{n_samples:,} samples"
    legend(figure, _entries(classes, palette), f"{shown}, {_colors_mean(len(classes))}")
    return figure


def _density(x: Array, y: Array) -> Array:
    """In [0, 1] for each point, the rank of the number of points about it."""
    if min(np.ptp(x), np.ptp(y)) == 0:
        return np.full(len(x), 0.5)
    counts, x_edges, y_edges = np.histogram2d(x, y, BINS)
    smooth = gaussian_filter(counts, 1.5)
    column = np.clip(np.searchsorted(x_edges, x, side="right") - 1, 0, BINS - 1)
    row = np.clip(np.searchsorted(y_edges, y, side="right") - 1, 0, BINS - 1)
    dense = smooth[column, row]
    ranks: Array = np.searchsorted(np.sort(dense), dense) / len(dense)
    return ranks


def _palette(n_classes: int) -> list[str]:
    """One colour per class: ten or twenty that are told apart, or shades of one ramp."""
    if n_classes > MOST_IN_LEGEND:
        return [to_hex(mpl.colormaps["turbo"](place)) for place in np.linspace(0.03, 0.97, n_classes)]
    return [to_hex(mpl.colormaps["tab10" if n_classes <= 10 else "tab20"](place)) for place in range(n_classes)]


def _entries(classes: list[int], palette: list[str]) -> list[list[Entry]]:
    if not classes or len(classes) > MOST_IN_LEGEND:
        return [[(blank(), "")]]
    made = [
        (Line2D([], [], linestyle="none", marker="o", markersize=5.5, color=color), str(label))
        for label, color in zip(classes, palette, strict=True)
    ]
    return in_rows(made, min(IN_A_ROW, len(made)))


def _colors_mean(n_classes: int) -> str:
    if n_classes == 0:
        return "darker where they lie denser"
    return "coloured by label" if n_classes <= MOST_IN_LEGEND else f"coloured by the order of their {n_classes} labels"
