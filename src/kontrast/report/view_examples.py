"""Pictures of what a view does: some samples, each beside fresh views of it."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from kontrast.checks import require_whole
from kontrast.data import View, fit_view, fresh_view
from kontrast.errors import InputError
from kontrast.report.axes import BLUE, HUGE, ORANGE, PRINT_INK, Array, legend, say, set_ticks, style
from kontrast.report.png import require_png_path, write_png
from kontrast.report.svg import printable, to_png

CELL = 0.8  # inches, the longer side of an image
ROW = (7.2, 1.15)  # inches, a sample that is a row
LARGEST_SIDE = 256  # of a drawn image; of larger ones every second, third, ... pixel is drawn
ABOUT = 0.1  # samples that leave [0, 1] by less are taken as images in [0, 1]
FEW_VALUES = 24  # rows of so few values show them as dots


def write_view_examples(
    path: Path, x: Tensor | Array, views: View, *, n_samples: int = 6, n_views: int = 7, seed: int = 0
) -> Path:
    """Write a PNG of the first samples of `x` and of fresh views of each; return its path.

    Images stand in a grid, the sample itself in the first column. Images in about [0, 1] are clipped to it; others are
    scaled by the least and the largest value of the sample, which its views share, so that a brighter view looks
    brighter. One or three channels are shown; of any other number only the first. Rows (n, d) are lines over their d
    values, the sample thick and its views thin. The samples shown are one batch, the one that `mixup` mixes.

    Args:
        path: a file whose name ends in .png, in a folder that exists; a file that is there already is replaced.
        x: samples, (n, c, h, w) or (n, d), floating.
        views: the view to look at; its text is the title. One that was not fitted to a data set is fitted to `x`.
        n_samples: samples to show, or all where there are fewer.
        n_views: views of each.
        seed: of the views; the same arguments give the same bytes.
    """
    path, x = require_png_path(path, "views.png"), torch.as_tensor(x)
    if x.dim() not in (2, 4) or x.numel() == 0:
        raise InputError(f"x must hold images (n, c, h, w) or rows (n, d), at least one, got shape {tuple(x.shape)}")
    n_samples, n_views = require_whole("n_samples", n_samples), require_whole("n_views", n_views)
    samples, views = x[:n_samples].detach(), fit_view(views, [x])
    generator = torch.Generator().manual_seed(seed)
    seen = [samples, *(fresh_view(views, samples, generator) for _ in range(n_views))]
    step = math.ceil(max(x.shape[2:]) / LARGEST_SIDE) if x.dim() == 4 else 1
    drawn = np.stack([_array(made[..., ::step, ::step] if x.dim() == 4 else made) for made in seen], axis=1)
    with style(PRINT_INK, salt="views"):
        return write_png(path, to_png(_grid(drawn, str(views)) if x.dim() == 4 else _lines(drawn, str(views))))


def _grid(drawn: Array, title: str) -> Figure:
    """Images (samples, 1 + views, c, h, w) as one picture with white gaps, the sample's column set apart."""
    n_samples, n_columns, _, height, width = drawn.shape
    gap = max(1, round(0.07 * max(height, width)))
    apart = 2 * gap  # between the sample and its views, beside the gap
    lefts = [column * (width + gap) + (apart if column else 0) for column in range(n_columns)]
    sheet = np.ones((n_samples * (height + gap) - gap, lefts[-1] + width, 3))
    for sample, images in enumerate(_shades(drawn)):
        top = sample * (height + gap)
        for left, image in zip(lefts, images, strict=True):
            sheet[top : top + height, left : left + width] = image.transpose(1, 2, 0)
    inches = CELL / max(height, width)
    figure_width = max(sheet.shape[1] * inches + 0.3, 3.2)
    heading = _wrapped(title, figure_width)
    figure_height = sheet.shape[0] * inches + 0.52 + 0.2 * (heading.count("\n") + 1)
    figure = Figure(figsize=(figure_width, figure_height), layout="constrained")
    ax = figure.add_subplot()
    ax.imshow(sheet, interpolation="nearest", aspect="equal")
    ax.set_title(heading, pad=8)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labeltop=True, labelbottom=False)
    set_ticks(ax.yaxis, [])
    middle = (lefts[1] + lefts[-1] + width) / 2
    set_ticks(ax.xaxis, [width / 2 - 0.5, middle - 0.5], ["sample", "view" if n_columns == 2 else "views"])
    return figure


def _shades(drawn: Array) -> Array:
    """Images as red, green and blue in [0, 1]; what is not finite is black."""
    colors = drawn if drawn.shape[2] == 3 else np.repeat(drawn[:, :, :1], 3, axis=2)
    samples = colors[:, 0].reshape(len(colors), -1)
    finite = np.isfinite(samples)
    low = np.where(finite, samples, np.inf).min(axis=1)
    high = np.where(finite, samples, -np.inf).max(axis=1)
    usual = finite.any() and low.min() >= -ABOUT and high.max() <= 1 + ABOUT
    if not usual:
        low, span = np.where(low < high, low, 0.0), np.where(low < high, high - low, 1.0)
        with np.errstate(over="ignore"):  # a view far beyond its sample is white or black
            colors = (colors - low[:, None, None, None, None]) / span[:, None, None, None, None]
    return np.clip(np.where(np.isnan(colors), 0.0, colors), 0.0, 1.0)


def _lines(drawn: Array, title: str) -> Figure:
    """Rows (samples, 1 + views, d), one strip of axes per sample."""
    n_samples, _, d = drawn.shape
    heading = _wrapped(title, ROW[0])
    height = ROW[1] * n_samples + 0.5 + 0.2 * (heading.count("\n") + 1)
    figure = Figure(figsize=(ROW[0], height), layout="constrained")
    strips = figure.subplots(n_samples, 1, sharex=True, squeeze=False)[:, 0]
    dot = "o" if d <= FEW_VALUES else ""
    positions = np.arange(1, d + 1)
    for ax, (sample, *views) in zip(strips, drawn, strict=True):
        for line in views:
            ax.plot(positions, line, linewidth=0.7, marker=dot, markersize=2.2, alpha=0.7, color=ORANGE)
        ax.plot(positions, sample, linewidth=1.8, marker=dot, markersize=4, color=BLUE)
        ax.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
        if not (np.isfinite(sample).any() or np.isfinite(views).any()):
            say(ax, "nothing finite to draw")
    ticks = MaxNLocator(8, integer=True).tick_values(1, d)
    set_ticks(strips[-1].xaxis, sorted({1.0, *(float(t) for t in ticks if 1 <= t <= d)}))
    strips[-1].set_xlabel("position of the value in the row")
    strips[0].set_title(heading)
    thick = Line2D([], [], linewidth=1.8, marker=dot, markersize=4, color=BLUE)
    thin = Line2D([], [], linewidth=0.7, marker=dot, markersize=2.2, color=ORANGE)
    legend(figure, [[(thick, "sample"), (thin, "views")]], "")
    return figure


def _array(values: Tensor) -> Array:
    """As float64, NaN where a value is not finite, at most `HUGE` so that limits stay finite."""
    array = values.detach().to("cpu", torch.float64).numpy()
    return np.where(np.isfinite(array), np.clip(array, -HUGE, HUGE), np.nan)


def _wrapped(title: str, inches: float) -> str:
    """The view's text in lines that fit, broken behind a "+" where there is one."""
    plain = printable(title).replace("+", "+ ")
    return "\n".join(line.replace("+ ", "+") for line in textwrap.wrap(plain, max(12, int(10 * inches))))
