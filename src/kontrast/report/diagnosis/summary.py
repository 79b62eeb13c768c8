"""A diagnosis in a few lines: the tables of main numbers that a terminal and a notebook show."""

from __future__ import annotations

from collections.abc import Iterator

from kontrast.diagnosis import Diagnosis, buys, collapse, laziness
from kontrast.report.diagnosis.definitions import definitions
from kontrast.report.diagnosis.lazy import points_of, shown_points
from kontrast.report.diagnosis.pays import SHORT
from kontrast.report.diagnosis.sections import Grid, Word, checkpoints_of, layers_of
from kontrast.report.diagnosis.spectra import ends_of
from kontrast.report.template import template

RANKS = ("rankme", "centered_rank", "participation_ratio", "alpha_req", "lidar", "spread")
ERRORS = ("linearization_error", "fixed_kernel_error", "explained_share", "drift", "alignment_with_first_kernel")


def diagnosis_summary(d: Diagnosis) -> str:
    """What a notebook shows: the sentence, its reasons and a few numbers, in the reader's own colours."""
    texts = {it.name: it.text for it in definitions(d.result)}
    made = template("kontrast.report.diagnosis", "summary.html")
    return made.render(d=d, grids=diagnosis_tables(d), definitions=texts)


def diagnosis_tables(d: Diagnosis) -> list[Grid]:
    """The main numbers, one small table for each question that has some."""
    return [*_lazy(d), *_ranks(d), *_pays(d)]


def _lazy(d: Diagnosis) -> Iterator[Grid]:
    if not points_of(d):
        return
    shown = shown_points(d)
    rows = tuple(
        (Word(it.words, it.name), tuple(it.write(d.number(it.name, point=point)) for point in shown.values()))
        for it in laziness.QUANTITIES
        if it.name in ERRORS and it.name in d.result
    )
    yield Grid("lazy or learning?", (Word("number"), *map(Word, shown)), rows)


def _ranks(d: Diagnosis) -> Iterator[Grid]:
    if not checkpoints_of(d):
        return
    for layer in dict.fromkeys([str(d.result.attrs["features"]), "embedding"]):
        if layer not in layers_of(d):
            continue
        size = int(d.result.layer_dimension.sel(layer=layer))
        ends = ends_of(d)
        rows = tuple(
            (
                Word(it.words, it.name),
                tuple(it.write(d.number(it.name, checkpoint=at, layer=layer)) for at in ends.values()),
            )
            for it in collapse.QUANTITIES
            if it.name in RANKS and it.name in d.result
        )
        yield Grid(f"collapsed? {layer}, {size} dimensions", (Word("convention"), *map(Word, ends)), rows)


def _pays(d: Diagnosis) -> Iterator[Grid]:
    if not d.buys:
        return
    task = buys.main_task(d.result)
    trained = float(d.result.score.sel(task=task, embedding="trained").mean())
    rows = [(Word("trained", f"score-{task}"), (f"{100 * trained:.1f} %", ""))]
    for name, gain in d.buys.items():
        rows.append((Word(name, f"score-{task}"), (f"{100 * gain.score:.1f} %", gain.in_points())))
    head = (Word("embedding"), Word(SHORT.get(task, task)), Word("trained less it"))
    yield Grid("is training buying anything?", head, tuple(rows))
