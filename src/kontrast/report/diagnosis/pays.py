"""Is training buying anything? The scores of the trained embedding and of everything that needs no training."""

from __future__ import annotations

import functools

import numpy as np
from matplotlib.figure import FigureBase

from kontrast.diagnosis import Diagnosis, buys
from kontrast.linalg import Estimate
from kontrast.report.diagnosis.drawing import END, INPUT, OTHER, START, Dots, dot_rows
from kontrast.report.diagnosis.sections import Grid, Section, Word, is_monitor
from kontrast.report.plates import Picture, Plate

TITLE = "Is training buying anything?"
WORDS = {
    "linear": "accuracy of a linear probe",
    "knn": "accuracy of 20 nearest neighbours",
    "dichotomies": "accuracy at random dichotomies",
    "agreement": "agreement of neighbours",
}
SHORT = {"linear": "linear probe", "knn": "nearest neighbours", "dichotomies": "dichotomies", "agreement": "agreement"}


def section(d: Diagnosis) -> Section | None:
    """The section."""
    if "score" not in d.result:
        why = (
            "a monitor probes nothing but nearest neighbours; diagnose the checkpoints with labels"
            if is_monitor(d)
            else d.missing.get("score", "no embedding was scored")
        )
        return Section("pays", TITLE, absent=why)
    task = buys.main_task(d.result)
    told = {
        "yes": "yes, by {name}",
        "no": "no: {name} does as well without training",
        "unsure": "not sure: the difference to {name} may go either way",
    }
    if task not in ("linear", "knn"):
        told = {
            "no": "no: training has lost these tasks to its start",
            "unsure": "only labels would decide: these tasks know the samples, and not what they are for",
        }
    hardest = "" if d.hardest is None else d.hardest.over
    sentence = told.get(d.pays, "").format(name=f"{_difference(d)} over {hardest}" if d.pays == "yes" else hardest)
    return Section("pays", TITLE, (sentence,) if hardest else (), _plates(d, task), (_grid(d),))


def _difference(d: Diagnosis) -> str:
    return "" if d.hardest is None else d.hardest.in_points()


def _names(d: Diagnosis) -> list[str]:
    return [str(name) for name in d.result.embedding.values]


def score_of(d: Diagnosis, name: str, task: str) -> Estimate:
    """The mean score over the splits with its interval."""
    values = np.asarray(d.result.score.sel(embedding=name, task=task).values, dtype=float)
    if not np.isfinite(values).all():
        return Estimate(float("nan"), float("nan"), float("nan"))
    it = buys.over_splits(values, d.result)
    return Estimate(it.value, max(it.low, 0.0), min(it.high, 1.0))


def _plates(d: Diagnosis, task: str) -> tuple[Plate, ...]:
    labelled = task in ("linear", "knn")
    caption = (
        f"First the {WORDS[task]} of each embedding, then the trained one's less that of each other, over the same "
        "splits, so that what makes a split easy falls out. "
    )
    caption += (
        "To pay, training must beat its start and every closed form by more than the dashed margin; the raw input has "
        "all its dimensions, and is no rival."
        if labelled
        else "There are no labels, so the tasks are random dichotomies of the samples, learned from some of their "
        "views and tested on the others."
    )
    return (
        Plate(
            "pays",
            TITLE,
            caption,
            (
                Picture(
                    "pays-scores",
                    f"{WORDS[task]} of the trained embedding, its start, closed forms, PCA and the raw input",
                    functools.partial(draw_scores, d=d, task=task),
                ),
                Picture(
                    "pays-gains",
                    "The trained embedding's score less that of each other, with intervals",
                    functools.partial(draw_gains, d=d, task=task),
                ),
            ),
        ),
    )


def draw_scores(figure: FigureBase, d: Diagnosis, task: str) -> None:
    """The score of every embedding."""
    rows = []
    for name in _names(d):
        series = {"trained": "trained", "start": "start", "raw input": "raw input"}.get(name, "closed form")
        rows.append(Dots(name, {series: score_of(d, name, task)}))
    dot_rows(
        figure,
        title=f"{WORDS[task][0].upper()}{WORDS[task][1:]}",
        x_label="share right",
        rows=rows,
        marks={"trained": END, "start": START, "closed form": OTHER, "raw input": INPUT},
        words="lines: 95 % intervals over splits",
        percent=True,
    )


def draw_gains(figure: FigureBase, d: Diagnosis, task: str) -> None:
    """The paired differences."""
    rows = [
        Dots(f"over {gain.over}", {"trained, less": gain.difference}) for gain in buys.gains(d.result, task).values()
    ]
    dot_rows(
        figure,
        title="What training adds",
        x_label="difference",
        rows=rows,
        marks={"trained, less": END},
        words=f"lines: 95 % intervals; dashed: a margin of {100 * d.limits.margin:g} %",
        percent=True,
        level=d.limits.margin,
    )


def _grid(d: Diagnosis) -> Grid:
    tasks = [str(task) for task in d.result.task.values]
    found = {task: buys.gains(d.result, task) for task in tasks}
    rows = []
    for name in _names(d):
        size = int(d.result.score_dimension.sel(embedding=name))
        cells = [str(size) if size else "–"]
        for task in tasks:
            cells.append(_percent(score_of(d, name, task)))
            gain = found[task].get(name)
            cells.append("" if name == "trained" else "–" if gain is None else _points(gain.difference))
        rows.append((Word(name), tuple(cells)))
    head = [Word("embedding"), Word("d", "score_dimension")]
    for task in tasks:
        head += [Word(SHORT.get(task, task), f"score-{task}"), Word("trained less it", "difference")]
    test = int(d.result.attrs.get("n_probe_test", 0))
    samples = (
        f"{int(d.result.attrs['n_probe_train']):,} labelled samples train a probe and {test:,} others test it, in each "
        "of "
        if test
        else "In each of "
    )
    n_splits = d.result.sizes["split"]
    return Grid(f"{samples}{n_splits} splits; in brackets 95 % intervals over splits", tuple(head), tuple(rows))


def _percent(it: Estimate) -> str:
    return f"{100 * it.value:.1f} % [{100 * it.low:.1f}, {100 * it.high:.1f}]" if it.value == it.value else "–"


def _points(it: Estimate) -> str:
    return f"{100 * it.value:+.1f} points [{100 * it.low:+.1f}, {100 * it.high:+.1f}]"
