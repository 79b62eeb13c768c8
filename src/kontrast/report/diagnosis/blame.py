"""Batch, temperature or augmentation? Similarities of pairs, the loss between its marks, and each part of a view."""

from __future__ import annotations

import functools

import numpy as np
from matplotlib.figure import FigureBase
from matplotlib.patches import Patch

from kontrast.diagnosis import Diagnosis, augmentations, views_and_loss
from kontrast.report.axes import BLUE, ORANGE, in_rows, legend, new_axes, number, say, set_ticks
from kontrast.report.diagnosis.checkpoints import marked_of
from kontrast.report.diagnosis.drawing import (
    END,
    INPUT,
    OTHER,
    START,
    Curve,
    Dots,
    Mark,
    dot_rows,
    drawable,
    over_checkpoints,
)
from kontrast.report.diagnosis.sections import Grid, Section, Word, checkpoints_of, samples_in_words
from kontrast.report.diagnosis.spectra import ends_of
from kontrast.report.plates import Picture, Plate

TITLE = "Are batch, temperature or augmentation to blame?"
KINDS = {"positives": ORANGE, "negatives": BLUE}
MARKS = {
    "loss_at_chance": ("at chance", Mark(None, "", filled=False)),
    "loss": ("loss", END),
    "loss_of_equal_views": ("of equal views", START),
}
SEEN_BY = {augmentations.OWN: END, views_and_loss.START: START, views_and_loss.INPUT: INPUT}


def section(d: Diagnosis) -> Section | None:
    """The section."""
    grids = tuple(_grids(d))
    if not grids:
        return Section("blame", TITLE, absent="no pairs of views were measured")
    sentences = [cause.sentence for cause in d.causes] or ["nothing is to blame"]
    if parts := views_and_loss.augmentations_in(d.result):
        sentences.append(augmentations.told_by(parts))
    return Section("blame", TITLE, tuple(sentences), tuple(_plates(d)), grids)


# --- pictures -------------------------------------------------------------------------------------------------------


def _plates(d: Diagnosis) -> list[Plate]:
    made = []
    if "similarity_histogram" in d.result:
        pictures = tuple(
            Picture(
                f"similarities-{name}",
                f"Cosine similarities of positives and of negatives at the {name}",
                functools.partial(draw_similarities, d=d, name=name),
            )
            for name in ends_of(d)
        )
        caption = (
            "Cosines of two views of a sample (positives) and of views of two samples (negatives). Where the two hills "
            "lie apart, views find their sample; where both stand at 1, the embedding has collapsed."
        )
        made.append(Plate("similarities", "Similarities", caption, pictures))
    if "loss" in d.result and len(checkpoints_of(d)) > 1:
        picture = Picture(
            "loss-marks",
            "The loss over the checkpoints, between its value at chance and that of equal views",
            functools.partial(_draw_loss, d=d),
        )
        caption = (
            f"The loss ({d.result.attrs.get('loss', '')}) between its value for pairs of strangers (chance) and for "
            "equal views, for this very batch and temperature. At chance training tells no pairs apart."
            if "loss_at_chance" in d.result
            else "The loss that training told."
        )
        made.append(Plate("loss", "The loss", caption, (picture,)))
    if pictures := tuple(_of_parts(d)):
        caption = (
            "How far each part of the view, applied alone, moves the input and the embedding: 0 ignores it, 1 moves a "
        )
        caption += "sample as far as to another one."
        if len(pictures) > 1:
            caption += " Then whether a linear probe reads the number that was drawn off the embedding of the view."
        made.append(Plate("augmentations", "Augmentations", caption, pictures))
    return made


def draw_similarities(figure: FigureBase, d: Diagnosis, name: str) -> None:
    """Both histograms at one checkpoint, as shares."""
    label = ends_of(d)[name]
    found = d.result.similarity_histogram.sel(checkpoint=label)
    centers = np.asarray(d.result.bin.values, dtype=float)
    width = float(np.diff(centers).mean()) if len(centers) > 1 else 2.0
    ax = new_axes(figure, f"Similarities at the {name} ({drawable(label, 14)})", "share of the pairs")
    highest, there = 0.0, np.zeros(len(centers), dtype=bool)
    for kind, color in KINDS.items():
        counts = np.nan_to_num(np.asarray(found.sel(kind=kind).values, dtype=float))
        share = counts / max(counts.sum(), 1.0)
        ax.stairs(share, np.append(centers - width / 2, centers[-1] + width / 2), fill=True, color=color, alpha=0.3)
        ax.stairs(share, np.append(centers - width / 2, centers[-1] + width / 2), color=color, linewidth=1.4)
        highest, there = max(highest, float(share.max(initial=0.0))), there | (counts > 0)
    shown = centers[there]
    if shown.size:
        low = max(-1.0, float(shown.min()) - 4 * width)
        ax.set_xlim(low, 1.02)
    else:
        ax.set_xlim(-1.02, 1.02)
        say(ax, "no pair was measured")
    ax.set_ylim(0, 1.08 * highest or 1.0)
    ticks = [float(tick) for tick in ax.get_yticks() if 0 <= tick <= 1.08 * highest]
    set_ticks(ax.yaxis, ticks, [f"{number(float(f'{100 * tick:.4g}'))} %" for tick in ticks])
    ax.set_xlabel("cosine similarity")
    entries = [(Patch(color=color, alpha=0.5), kind) for kind, color in KINDS.items()]
    legend(figure, in_rows(entries, 2), "")


def _draw_loss(figure: FigureBase, d: Diagnosis) -> None:
    labels, curves = checkpoints_of(d), []
    for key, (words, mark) in MARKS.items():
        if key in d.result:
            values = np.array([d.number(key, checkpoint=label).value for label in labels])
            curves.append(Curve(words, values, mark))
    over_checkpoints(
        figure,
        title="Loss over the checkpoints",
        y_label="loss",
        labels=labels,
        curves=curves,
        marked=marked_of(d),
    )


def _of_parts(d: Diagnosis) -> list[Picture]:
    if "invariance" not in d.result:
        return []
    made = [
        Picture(
            "augmentations-moves",
            "How far each part of the view moves the input and the embedding",
            functools.partial(_draw_moves, d=d),
        )
    ]
    if "leak" in d.result:
        made.append(
            Picture(
                "augmentations-leaks",
                "What a linear probe reads of each augmentation off the embedding",
                functools.partial(_draw_leaks, d=d),
            )
        )
    return made


def _seen_by(d: Diagnosis) -> dict[str, Mark]:
    return {str(who): SEEN_BY.get(str(who), OTHER) for who in d.result.seen_by.values}


def _draw_moves(figure: FigureBase, d: Diagnosis) -> None:
    marks = _seen_by(d)
    rows = [
        Dots(drawable(part, 40), {who: d.number("invariance", part=part, seen_by=who) for who in marks})
        for part in map(str, d.result.part.values)
    ]
    dot_rows(
        figure,
        title="How far each part moves",
        x_label="squared distance, 1: as to another sample",
        rows=rows,
        marks=marks,
        words="lines: 95 % intervals",
    )


def _number_words(key: str) -> str:
    part, _, name = key.partition("|")
    return name if name.startswith(f"{part}:") else f"{part}: {name}"


def _draw_leaks(figure: FigureBase, d: Diagnosis) -> None:
    marks = _seen_by(d)
    rows = [
        Dots(drawable(_number_words(key), 40), {who: d.number("leak", number=key, seen_by=who) for who in marks})
        for key in map(str, d.result.number.values)
    ]
    dot_rows(
        figure,
        title="What it tells of each",
        x_label="R² of a linear probe; dashed: it leaks",
        rows=rows,
        marks=marks,
        words="lines: 95 % intervals",
        level=augmentations.LEAKED,
    )


# --- tables ---------------------------------------------------------------------------------------------------------


def _grids(d: Diagnosis) -> list[Grid]:
    return [grid for grid in (_pairs(d), _views(d), _parts(d), _leaks(d)) if grid is not None]


def _pairs(d: Diagnosis) -> Grid | None:
    ends = ends_of(d) if checkpoints_of(d) else {}
    shown = [it for it in views_and_loss.OF_PAIRS if it.name in d.result and "checkpoint" in d.result[it.name].dims]
    if not shown:
        return None
    rows = [
        (Word(it.words, it.name), tuple(it.write(d.number(it.name, checkpoint=label)) for label in ends.values()))
        for it in shown
    ]
    size = int(d.result.layer_dimension.sel(layer="embedding"))
    return Grid(
        f"Pairs of views {samples_in_words(d)}, in the {size} dimensions of the embedding",
        (Word("number"), *(Word(f"{name} ({label})") for name, label in ends.items())),
        tuple(rows),
    )


def _views(d: Diagnosis) -> Grid | None:
    shown = [it for it in views_and_loss.AT_THE_END if it.name in d.result]
    rows = [(Word(it.words, it.name), (it.write(d.number(it.name)),)) for it in shown]
    return (
        Grid(f"Views and temperature at the end, {samples_in_words(d)}", (Word("number"), Word("end")), tuple(rows))
        if rows
        else None
    )


def _parts(d: Diagnosis) -> Grid | None:
    if "invariance" not in d.result:
        return None
    marks = list(_seen_by(d))
    rows = []
    for part in map(str, d.result.part.values):
        cells = [views_and_loss.CHANGE.write(d.number("change", part=part))]
        cells += [views_and_loss.INVARIANCE.write(d.number("invariance", part=part, seen_by=who)) for who in marks]
        rows.append((Word(part), tuple(cells)))
    head = (
        Word("part of the view"),
        Word("moves the input", "change"),
        *(Word(f"moves {who}", "invariance") for who in marks),
    )
    return Grid(f"Each part of the view alone, {samples_in_words(d)}", head, tuple(rows))


def _leaks(d: Diagnosis) -> Grid | None:
    if "leak" not in d.result:
        return None
    marks = list(_seen_by(d))
    rows = tuple(
        (
            Word(_number_words(key)),
            tuple(views_and_loss.LEAK.write(d.number("leak", number=key, seen_by=who)) for who in marks),
        )
        for key in map(str, d.result.number.values)
    )
    head = (Word("number that was drawn"), *(Word(f"told by {who}", "leak") for who in marks))
    return Grid(f"What a linear probe reads off the embedding of a view, R² {samples_in_words(d)}", head, rows)
