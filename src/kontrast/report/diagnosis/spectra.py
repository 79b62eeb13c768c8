"""Collapsed? The spectrum of every layer, and all conventions of its rank side by side."""

from __future__ import annotations

import functools

import numpy as np
from matplotlib.figure import FigureBase

from kontrast.diagnosis import Diagnosis, collapse, rules
from kontrast.report.axes import dress_log_y, in_rows, ink_of, legend, new_axes, say
from kontrast.report.diagnosis.drawing import END, START, Dots, Mark, dot_rows, drawable, dress_counts
from kontrast.report.diagnosis.sections import (
    Grid,
    Section,
    Word,
    checkpoints_of,
    is_monitor,
    layers_of,
    samples_in_words,
    written,
)
from kontrast.report.plates import Picture, Plate

TITLE = "Collapsed?"
RANKS = ("rankme", "centered_rank", "participation_ratio", "stable_rank", "nesum", "lidar")
MOST_LAYERS = 4  # that have pictures; all have their table
ROUNDING = 1e-7  # of the largest singular value, below which nothing is told from rounding
COLLAPSES = {
    "none": "no collapse of {layer}",
    "dimensional": "dimensional collapse of {layer}: few directions are left",
    "complete": "complete collapse of {layer}: all samples look the same",
}


def section(d: Diagnosis) -> Section | None:
    """The section."""
    layers = layers_of(d)
    if not layers or not checkpoints_of(d):
        return Section("collapse", TITLE, absent="no layer was measured")
    judged = _judged(d)
    sentences = tuple(COLLAPSES[rules.collapse_in(d.result, layer)].format(layer=layer) for layer in judged)
    return Section("collapse", TITLE, sentences, _plates(d), tuple(_grid(d, layer) for layer in layers))


def _judged(d: Diagnosis) -> list[str]:
    """The layers that the verdict is about."""
    return [layer for layer in layers_of(d) if layer in (d.result.attrs.get("features"), "embedding")]


def ends_of(d: Diagnosis) -> dict[str, str]:
    """The start and the last checkpoint, by what they are called; of a single checkpoint the last alone."""
    labels = checkpoints_of(d)
    return {"start": labels[0], "end": labels[-1]} if len(labels) > 1 else {"end": labels[-1]}


def _plates(d: Diagnosis) -> tuple[Plate, ...]:
    layers = layers_of(d)
    drawn = list(dict.fromkeys([*_judged(d), *layers]))[:MOST_LAYERS]
    made = []
    for k, layer in enumerate(layer for layer in layers if layer in drawn):
        pictures = []
        if "singular_values" in d.result:
            pictures.append(
                Picture(
                    f"spectrum-{k}",
                    f"Singular values of {layer} at the start and at the end, on logarithmic axes",
                    functools.partial(draw_spectrum, d=d, layer=layer),
                )
            )
        pictures.append(
            Picture(
                f"ranks-{k}",
                f"Ranks of {layer} by every convention, at the start and at the end",
                functools.partial(_draw_ranks, d=d, layer=layer),
            )
        )
        size = int(d.result.layer_dimension.sel(layer=layer))
        caption = (
            f"{layer}, {size} dimensions. First the singular values of the centred layer, divided by the root of the "
            "number of samples; where the line falls off, the directions beyond carry nothing. Then how many "
            "directions there are, by every convention; each counts small directions in its own way."
        )
        made.append(Plate(f"collapse-{k}", layer, caption, tuple(pictures)))
    return tuple(made)


def draw_spectrum(figure: FigureBase, d: Diagnosis, layer: str) -> None:
    """Singular values against their number, both logarithmic."""
    ax = new_axes(figure, f"Spectrum of {drawable(layer)}", "singular value")
    marks: dict[str, Mark] = {"start": START, "end": END}
    entries, every = [], [np.zeros(0)]
    longest = 1
    for name, label in ends_of(d).items():
        values = np.asarray(d.result.singular_values.sel(checkpoint=label, layer=layer).values, dtype=float)
        values = values[np.isfinite(values)]
        values = values[values > ROUNDING * values.max(initial=0.0)]
        longest, color = max(longest, len(values)), marks[name].color or ink_of(ax)
        size = 3.5 if len(values) <= 64 else 0
        [line] = ax.plot(
            np.arange(1, len(values) + 1),
            values,
            color=color,
            linewidth=1.7,
            linestyle="-" if marks[name].filled else (0, (4, 2)),
            marker=marks[name].marker,
            markersize=size,
            markerfacecolor=color if marks[name].filled else "none",
        )
        entries.append((line, f"{name} ({drawable(label, 14)})"))
        every.append(values)
    joined = np.concatenate(every)
    dress_log_y(ax, joined)
    dress_counts(ax, 1, longest, "number of the direction")
    if not joined.size:
        say(ax, "all samples have one embedding")
    legend(figure, in_rows(entries, 2), "of the centred layer; both axes logarithmic")


def _draw_ranks(figure: FigureBase, d: Diagnosis, layer: str) -> None:
    shown = [quantity for quantity in collapse.QUANTITIES if quantity.name in RANKS and quantity.name in d.result]
    rows = [
        Dots(
            quantity.words,
            {name: d.number(quantity.name, checkpoint=label, layer=layer) for name, label in ends_of(d).items()},
        )
        for quantity in shown
    ]
    size = int(d.result.layer_dimension.sel(layer=layer))
    dot_rows(
        figure,
        title=f"Ranks of {drawable(layer)}",
        x_label="number of directions, logarithmic",
        rows=rows,
        marks={"start": START, "end": END},
        words=("" if is_monitor(d) else "lines: 95 % intervals; ") + f"dashed: the {size} dimensions",
        log=True,
        level=float(size) if size else None,
    )


def _grid(d: Diagnosis, layer: str) -> Grid:
    ends = ends_of(d)
    rows = [
        (
            Word(quantity.words, quantity.name),
            tuple(quantity.write(d.number(quantity.name, checkpoint=at, layer=layer)) for at in ends.values()),
        )
        for quantity in collapse.QUANTITIES
        if quantity.name in d.result
    ]
    if "similarity_to_start" in d.result:  # a monitor's
        similar = [d.number("similarity_to_start", checkpoint=at, layer=layer).value for at in ends.values()]
        rows.append((Word("similarity to the start", "similarity_to_start"), tuple(map(written, similar))))
    size = int(d.result.layer_dimension.sel(layer=layer))
    intervals = "" if is_monitor(d) else "; in brackets 95 % intervals over resampled samples"
    return Grid(
        f"{layer}: {size} dimensions {samples_in_words(d)}{intervals}",
        (Word("convention"), *(Word(f"{name} ({label})") for name, label in ends.items())),
        tuple(rows),
        folded=layer not in _judged(d),
    )
