"""Which checkpoint? Everything over the checkpoints, with the one chosen without labels and the best by labels."""

from __future__ import annotations

import functools
import math

import numpy as np
from matplotlib.figure import FigureBase

from kontrast.diagnosis import Diagnosis, collapse
from kontrast.report.axes import BLUE, GREEN, ORANGE, PINK, blank, dress_log_y, ink_of, legend, new_axes, say
from kontrast.report.diagnosis.drawing import (
    MOST_DRAWN,
    Curve,
    Mark,
    Marked,
    drawable,
    dress_checkpoints,
    mark_checkpoints,
    over_checkpoints,
    thinned,
)
from kontrast.report.diagnosis.lazy import points_of
from kontrast.report.diagnosis.sections import Grid, Section, Word, checkpoints_of, is_monitor, written
from kontrast.report.plates import Picture, Plate

TITLE = "Which checkpoint?"
MOST_DIMENSIONS = 12  # whose variances are drawn
RANKS = {
    "rankme": Mark(ORANGE, "o"),
    "centered_rank": Mark(BLUE, "s", filled=False),
    "participation_ratio": Mark(GREEN, "D", filled=False),
    "lidar": Mark(PINK, "v"),
}
SHARES = {
    "checkpoint_accuracy": ("linear probe", Mark(ORANGE, "o")),
    "knn_accuracy": ("20 nearest neighbours", Mark(ORANGE, "o")),
    "neighbor_agreement": ("agreement of neighbours", Mark(BLUE, "s", filled=False)),
}
OF_KERNEL = {
    "drift": ("kernel drift", Mark(ORANGE, "o")),
    "linearization_error": ("error of the linearised prediction", Mark(BLUE, "s", filled=False)),
}
MOST_ROWS = 100
TRAJECTORY = ("rankme", "centered_rank", "lidar", "spread")


def section(d: Diagnosis) -> Section | None:
    """The section; none where there are fewer than three checkpoints."""
    labels = checkpoints_of(d)
    if len(labels) < 3 or d.choice is None:
        return None
    chosen = d.choice.chosen
    told = f"without labels: {chosen.checkpoint} ({chosen.words})"
    if d.choice.best is not None:
        told += (
            f"; by labels: {d.choice.best} ({100 * d.choice.best_accuracy:.1f} % of a linear probe), "
            f"{100 * chosen.regret:.1f} points above the choice"
        )
    sentences = [told]
    if learned := d.learned_dimensions:
        sentences.append("dimensions of the embedding were learned at " + _listed(learned))
    return Section("checkpoints", TITLE, tuple(sentences), (_plate(d),), (_criteria(d), _trajectories(d)))


def _listed(learned: list[tuple[str, int]]) -> str:
    return ", ".join(f"{label} ({count})" for label, count in learned)


def marked_of(d: Diagnosis) -> Marked:
    """The chosen and the best checkpoint."""
    return Marked() if d.choice is None else Marked(d.choice.chosen.checkpoint, d.choice.best)


def _layer(d: Diagnosis) -> str:
    return str(d.result.attrs["features"])


def _plate(d: Diagnosis) -> Plate:
    pictures = [
        Picture(
            "checkpoints-ranks", "Ranks over the checkpoints, with the chosen one", functools.partial(draw_ranks, d=d)
        )
    ]
    if any(name in d.result for name in SHARES):
        pictures.append(
            Picture(
                "checkpoints-shares",
                "Accuracy and agreement over the checkpoints",
                functools.partial(_draw_shares, d=d),
            )
        )
    if any(name in d.result for name in OF_KERNEL) and points_of(d):
        pictures.append(
            Picture("checkpoints-kernel", "Kernel drift over the checkpoints", functools.partial(_draw_kernel, d=d))
        )
    if "singular_values" in d.result and np.isfinite(_variances(d)).any():
        pictures.append(
            Picture(
                "checkpoints-dimensions",
                "Variances of the leading dimensions of the embedding over the checkpoints",
                functools.partial(_draw_dimensions, d=d),
            )
        )
    caption = (
        f"Over the checkpoints: ranks of {_layer(d)}; shares; how far the kernel has moved; and the variances of the "
        "leading dimensions of the embedding, marked where one has passed half of its way up on the logarithmic axis: "
        "dimensions are often learned one after the other (Simon et al. 2023)."
    )
    return Plate("checkpoints", TITLE, caption, tuple(pictures))


def _values(d: Diagnosis, name: str) -> np.ndarray:
    """A number at every checkpoint."""
    if name == "checkpoint_accuracy":
        return np.asarray(d.result[name].mean("checkpoint_split").values, dtype=float)
    found = d.result[name].sel(bound="value")
    return np.asarray((found.sel(layer=_layer(d)) if "layer" in found.dims else found).values, dtype=float)


def draw_ranks(figure: FigureBase, d: Diagnosis) -> None:
    """Four ranks of the judged layer over the checkpoints."""
    words = {quantity.name: quantity.words for quantity in collapse.QUANTITIES}
    over_checkpoints(
        figure,
        title=f"Ranks of {drawable(_layer(d))}",
        y_label="number of directions",
        labels=checkpoints_of(d),
        curves=[Curve(words[name], _values(d, name), mark) for name, mark in RANKS.items() if name in d.result],
        marked=marked_of(d),
        log=True,
    )


def _draw_shares(figure: FigureBase, d: Diagnosis) -> None:
    over_checkpoints(
        figure,
        title="What samples are told by",
        y_label="share right",
        labels=checkpoints_of(d),
        curves=[Curve(words, _values(d, name), mark) for name, (words, mark) in SHARES.items() if name in d.result],
        marked=marked_of(d),
        percent=True,
    )


def _draw_kernel(figure: FigureBase, d: Diagnosis) -> None:
    labels, curves = checkpoints_of(d), []
    for name, (words, mark) in OF_KERNEL.items():
        if name in d.result:
            values = np.array([d.number(name, point=label).value for label in labels])
            curves.append(Curve(words, values, mark))
    over_checkpoints(
        figure,
        title="How far from its kernel",
        y_label="share",
        labels=labels,
        curves=curves,
        marked=marked_of(d),
        log=True,
    )


def _variances(d: Diagnosis) -> np.ndarray:
    values = np.asarray(d.result.singular_values.sel(layer="embedding").values, dtype=float) ** 2
    return values[:, :MOST_DIMENSIONS]


def _draw_dimensions(figure: FigureBase, d: Diagnosis) -> None:
    ax, variances, labels = (
        new_axes(figure, "Dimensions, as they are learned", "variance"),
        _variances(d),
        checkpoints_of(d),
    )
    learned = collapse.learned_at(d.result, "embedding")
    shown = variances[np.isfinite(variances) & (variances > 1e-14 * np.nanmax(variances))]
    dress_log_y(ax, shown)
    dress_checkpoints(ax, labels)
    kept = thinned(len(labels), MOST_DRAWN)
    for k in range(variances.shape[1]):
        ax.plot(kept, _positive(variances[kept, k]), color=ink_of(ax), linewidth=0.9, alpha=0.55)
    marks = [(at, variances[at, k]) for k, at in enumerate(learned[: variances.shape[1]]) if at is not None]
    if marks:
        ax.plot(*zip(*marks, strict=True), linestyle="none", marker="o", markersize=6, color=ORANGE)
    if not shown.size:
        say(ax, "all samples have one embedding")
    told = ["dots: where a dimension has been learned" if marks else "no dimension grew fourfold or more"]
    told += mark_checkpoints(ax, labels, marked_of(d))
    legend(figure, [[(blank(), "")]], "\n".join(told))


def _positive(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values, np.nan)


def _criteria(d: Diagnosis) -> Grid:
    assert d.choice is not None
    rows = []
    for it in (d.choice.chosen, *d.choice.others):
        cells = (it.checkpoint, _percent(it.accuracy), _points(it.regret), written(it.correlation))
        rows.append((Word(it.words, it.name if it.name in d.result else ""), cells))
    if d.choice.best is not None:
        rows.append((Word("best by labels"), (d.choice.best, _percent(d.choice.best_accuracy), _points(0.0), "")))
    head = ("chosen by", "checkpoint", "linear probe", "below the best", "rank correlation")
    names = ("", "", "checkpoint_accuracy" if d.choice.best is not None else "", "regret", "rank-correlation")
    return Grid(
        f"Choices without labels, from {_layer(d)}"
        + ("" if d.choice.best is None else ", and what labels say of them"),
        tuple(Word(words, name) for words, name in zip(head, names, strict=True)),
        tuple(rows),
    )


def _trajectories(d: Diagnosis) -> Grid:
    words = {quantity.name: quantity.words for quantity in collapse.QUANTITIES}
    columns = {name: _values(d, name) for name in TRAJECTORY if name in d.result}
    heads = [Word(words[name], name) for name in columns]
    for name, (text, _) in SHARES.items():
        if name in d.result:
            columns[name] = _values(d, name)
            heads.append(Word(text, name))
    labels = checkpoints_of(d)
    for name in ("drift", "linearization_error"):
        if name in d.result:
            columns[name] = np.array([d.number(name, point=label).value for label in labels])
            heads.append(Word(OF_KERNEL[name][0], name))
    if "loss" in d.result:
        columns["loss"] = _values(d, "loss")
        heads.append(Word("loss", "loss"))
    rows = tuple(
        (Word(labels[k]), tuple(_cell(name, values[k]) for name, values in columns.items()))
        for k in thinned(len(labels), MOST_ROWS)
    )
    what = "record" if is_monitor(d) else "checkpoint"
    every = f"Every {what}" if len(rows) == len(labels) else f"{len(rows)} of {len(labels):,} {what}s"
    title = f"{every}: ranks of {_layer(d)}, and the rest"
    return Grid(title, (Word("checkpoint"), *heads), rows, folded=len(labels) > 12)


def _cell(name: str, value: float) -> str:
    return _percent(value) if name in SHARES or name in OF_KERNEL else written(value)


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %" if math.isfinite(value) else "–"


def _points(value: float) -> str:
    return f"{100 * value:.1f} points" if math.isfinite(value) else "–"
