"""Lazy or learning? Predictions of the first kernel beside those of the lazy control, and which layers moved."""

from __future__ import annotations

import functools
import math

import numpy as np
from matplotlib.figure import FigureBase

from kontrast.diagnosis import Diagnosis, laziness, pca_of_start
from kontrast.linalg import Estimate
from kontrast.report.axes import dress_log_y, in_rows, ink_of, legend, new_axes, set_ticks
from kontrast.report.diagnosis.drawing import CONTROL, END, Dots, dot_rows, drawable
from kontrast.report.diagnosis.sections import Grid, Section, Word, is_monitor, samples_in_words
from kontrast.report.plates import Picture, Plate

TITLE = "Lazy or learning?"
CONTROL_WORDS = "lazy control"
MOST_NAMED = 12  # layers that a picture names; of more it numbers them
DRAWN = {
    "linearization_error": "error of the linearised prediction",
    "fixed_kernel_error": "error of the fixed-kernel prediction",
    "drift": "kernel drift",
    "largest_change": "largest change of a kernel entry",
    "movement": "movement of the embedding",
}


def section(d: Diagnosis) -> Section | None:
    """The section; a monitor's says that it has none of these numbers."""
    points = points_of(d)
    if not points:
        why = "a monitor sees embeddings alone: kernels and predictions take the weights, so diagnose the checkpoints"
        return Section("lazy", TITLE, absent=why if is_monitor(d) else "there are no two checkpoints to compare")
    return Section("lazy", TITLE, (f"{d.decided.regime.value}: {d.decided.reason}",), _plates(d), _grids(d))


def points_of(d: Diagnosis) -> list[str]:
    """The lazy control, where there is one, and the checkpoints after the start."""
    return [str(label) for label in d.result.point.values] if "point" in d.result.dims else []


def shown_points(d: Diagnosis) -> dict[str, str]:
    """The last checkpoint and the control, by what they are called."""
    points = points_of(d)
    shown = {"the model": points[-1]}
    return shown | ({CONTROL_WORDS: laziness.CONTROL} if laziness.CONTROL in points[:-1] else {})


def _plates(d: Diagnosis) -> tuple[Plate, ...]:
    pictures = [
        Picture(
            "lazy-errors",
            "What the first kernel predicts of training, and how far kernel and embedding moved, beside a lazy control",
            functools.partial(draw_errors, d=d),
        )
    ]
    if "parameter_movement" in d.result:
        pictures.append(
            Picture(
                "lazy-layers",
                "How far the parameters of every layer moved, as a share of their first size",
                functools.partial(_draw_layers, d=d),
            )
        )
    return (
        Plate(
            "lazy",
            TITLE,
            "First what the kernel at the start predicts: 100 % off is no prediction at all; the lazy control "
            "is the same start after a few tiny steps, where any model is a kernel machine, and shows what each number "
            "is where nothing but the kernel acts. Dashed: the limit up to which the error of the linearised "
            "prediction counts as that of a kernel machine. Then how far the parameters of each layer moved.",
            tuple(pictures),
        ),
    )


def draw_errors(figure: FigureBase, d: Diagnosis) -> None:
    """Errors, drift and movement of the model and of its control, on a logarithmic axis."""
    shown = shown_points(d)
    rows = [
        Dots(words, {name: d.number(key, point=point) for name, point in shown.items()})
        for key, words in DRAWN.items()
        if key in d.result
    ]
    dot_rows(
        figure,
        title="Does the first kernel predict it?",
        x_label="share, logarithmic",
        rows=rows,
        marks={"the model": END, CONTROL_WORDS: CONTROL},
        words="lines: 95 % intervals; dashed: the limit of a kernel machine",
        log=True,
        percent=True,
        level=d.limits.gap or None,
    )


def _draw_layers(figure: FigureBase, d: Diagnosis) -> None:
    names = [str(name) for name in d.result.parameter.values]
    moved = {name: _movement(d, point) for name, point in shown_points(d).items()}
    marks = {"the model": END, CONTROL_WORDS: CONTROL}
    title, words = "Which layers moved?", "‖θ − θ(0)‖ / ‖θ(0)‖ of each layer's own parameters"
    if len(names) <= MOST_NAMED:
        rows = [
            Dots(drawable(layer, 40), {name: _plain(values[k]) for name, values in moved.items()})
            for k, layer in enumerate(names)
        ]
        label = "movement, logarithmic"
        dot_rows(figure, title=title, x_label=label, rows=rows, marks=marks, words=words, log=True, percent=True)
        return
    ax = new_axes(figure, title, "movement")
    every = np.concatenate(list(moved.values()))
    dress_log_y(ax, every[np.isfinite(every)])
    entries = []
    for name, values in moved.items():
        color = marks[name].color or ink_of(ax)
        [line] = ax.plot(
            np.arange(1, len(names) + 1),
            np.where(np.isfinite(values) & (values > 0), values, np.nan),
            color=color,
            linewidth=1.2,
            marker=marks[name].marker,
            markersize=4,
            markerfacecolor=color if marks[name].filled else "none",
        )
        entries.append((line, name))
    at = np.unique(np.linspace(1, len(names), 6).round())
    set_ticks(ax.xaxis, [float(k) for k in at], [f"{k:.0f}" for k in at])
    ax.set_xlabel("layer, as numbered in the table")
    legend(figure, in_rows(entries, 2), words)


def _movement(d: Diagnosis, point: str) -> np.ndarray:
    return np.asarray(d.result.parameter_movement.sel(point=point).values, dtype=float)


def _plain(value: float) -> Estimate:
    return Estimate(value, math.nan, math.nan)


def _grids(d: Diagnosis) -> tuple[Grid, ...]:
    shown = shown_points(d)
    head = (
        Word("number"),
        *(Word(f"{name} ({point})" if name == "the model" else name) for name, point in shown.items()),
    )
    rows = [
        (
            Word(quantity.words, quantity.name),
            tuple(quantity.write(d.number(quantity.name, point=point)) for point in shown.values()),
        )
        for quantity in laziness.QUANTITIES
        if quantity.name in d.result
    ]
    if pca_of_start.SINE.name in d.result:
        sine = pca_of_start.SINE.write(d.number(pca_of_start.SINE.name))
        rows.append((Word(pca_of_start.SINE.words, pca_of_start.SINE.name), (sine, *[""] * (len(shown) - 1))))
    n, points = int(d.result.attrs["n_samples"]), int(d.result.attrs.get("n_points", 0))
    d_out = int(d.result.layer_dimension.sel(layer="embedding"))
    title = (
        f"The {d_out} dimensions of the embedding, {samples_in_words(d)}; kernels, and what they explain, over "
        f"{min(points, n)} of them. In brackets 95 % intervals over samples and, where tangents are of random "
        "directions, over these"
    )
    return (Grid(title, head, tuple(rows)), *_layers(d, shown))


def _layers(d: Diagnosis, shown: dict[str, str]) -> tuple[Grid, ...]:
    if "parameter_movement" not in d.result:
        return ()
    names = [str(name) for name in d.result.parameter.values]
    columns = [_movement(d, point) for point in shown.values()]
    rows = tuple(
        (Word(f"{k + 1}. {name}", "parameter_movement"), tuple(_share(column[k]) for column in columns))
        for k, name in enumerate(names)
    )
    head = (Word("layer"), *(Word(name) for name in shown))
    return (Grid("Movement of the parameters of every layer, as a share of their first size", head, rows, folded=True),)


def _share(value: float) -> str:
    if math.isnan(value):
        return "–"
    return "from 0" if math.isinf(value) else f"{100 * value:.3g} %"
