"""The numbers of a diagnosis as rows: every one with its interval, its convention, n and d."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import xarray as xr

from kontrast.diagnosis import collapse, laziness, pca_of_start, views_and_loss
from kontrast.diagnosis.buys import PROBES, TASKS, gains
from kontrast.diagnosis.laziness import CONTROL
from kontrast.diagnosis.quantities import Quantity, estimate_in

QUESTIONS = {
    "lazy": "Lazy or learning?",
    "collapse": "Collapsed?",
    "pays": "Is training buying anything?",
    "blame": "Are batch, temperature or augmentation to blame?",
}


@dataclass(frozen=True)
class Row:
    """One number.

    Attributes:
        question: which question it belongs to, a key of `QUESTIONS`.
        name: of its variable in the stored result.
        words: its name, with its convention.
        where: the checkpoint, layer or embedding.
        value: the number.
        low: the lower end of its interval; NaN where it has none.
        high: the upper end.
        n: samples it is measured on.
        d: dimensions of what it is measured on; 0 where that says nothing.
        written: value and interval as text.
        definition: what is computed.
    """

    question: str
    name: str
    words: str
    where: str
    value: float
    low: float
    high: float
    n: int
    d: int
    written: str
    definition: str

    def as_dict(self) -> dict[str, Any]:
        """As JSON types; NaN and infinities become None."""
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(self).items()
        }


def rows_of(result: xr.Dataset) -> Iterator[Row]:
    """All numbers at the last checkpoint, and beside them those of the start and of the lazy control."""
    n = int(result.attrs["n_samples"])
    yield from _lazy(result, n)
    yield from _collapse(result, n)
    yield from _pays(result)
    yield from _blame(result, n)


def _lazy(result: xr.Dataset, n: int) -> Iterator[Row]:
    if "point" in result.dims and result.sizes["point"]:
        points = [str(label) for label in result.point.values]
        d = int(result.layer_dimension.sel(layer="embedding"))
        for quantity in laziness.QUANTITIES:
            of_kernel = quantity.name in laziness.OF_KERNEL
            size = min(n, int(result.attrs["n_points"])) if of_kernel else n
            for where in dict.fromkeys((points[-1], CONTROL)):
                if where in points:
                    yield _row(result, "lazy", quantity, where, size, d, point=where)
        yield _row(result, "lazy", pca_of_start.SINE, points[-1], n, d)


def _collapse(result: xr.Dataset, n: int) -> Iterator[Row]:
    ends = dict.fromkeys(str(result.checkpoint.values[k]) for k in (-1, 0))
    for layer in map(str, result.layer.values):
        d = int(result.layer_dimension.sel(layer=layer))
        for quantity in collapse.QUANTITIES:
            for label in ends:
                where = f"{layer}, {label}"
                if quantity.name in result:
                    yield _row(result, "collapse", quantity, where, n, d, checkpoint=label, layer=layer)


def _pays(result: xr.Dataset) -> Iterator[Row]:
    if "score" not in result:
        return
    n = int(result.attrs.get("n_probe_test", result.attrs["n_samples"]))
    for task in map(str, result.task.values):
        definition = (PROBES | TASKS)[task]
        quantity = Quantity("score", f"{task}: trained less", definition, percent=True)
        for gain in gains(result, task).values():
            d = int(result.score_dimension.sel(embedding=gain.over))
            it = gain.difference
            yield Row(
                "pays", "score", f"{quantity.words} {gain.over}", gain.words, it.value, it.low, it.high, n, d,
                gain.in_points(), definition,
            )  # fmt: skip


def _blame(result: xr.Dataset, n: int) -> Iterator[Row]:
    d = int(result.layer_dimension.sel(layer="embedding"))
    ends = dict.fromkeys(str(result.checkpoint.values[k]) for k in (-1, 0))
    for quantity in views_and_loss.QUANTITIES:
        if quantity.name in result and "checkpoint" in result[quantity.name].dims:
            for label in ends:
                yield _row(result, "blame", quantity, label, n, d, checkpoint=label)
        elif quantity.name in result:
            yield _row(result, "blame", quantity, "views", n, 0)
    for quantity, dim in views_and_loss.BY_PART:
        if quantity.name in result:
            for part in map(str, result[dim].values):
                for who in map(str, result.seen_by.values):
                    at = {dim: part, "seen_by": who}
                    yield _row(result, "blame", quantity, f"{part}, {who}", n, d, **at)


def _row(result: xr.Dataset, question: str, quantity: Quantity, where: str, n: int, d: int, **at: str) -> Row:
    it = estimate_in(result, quantity.name, **at)
    return Row(
        question, quantity.name, quantity.words, where, it.value, it.low, it.high, n, d, quantity.write(it),
        quantity.definition,
    )  # fmt: skip


def table_text(rows: Sequence[Row]) -> str:
    """The rows in plain text, under their questions."""
    width = max((len(f"{row.words} ({row.where})") for row in rows), default=0)
    lines = []
    for question, words in QUESTIONS.items():
        mine = [row for row in rows if row.question == question]
        if mine:
            lines += [words, *(f"  {f'{row.words} ({row.where})':<{width}}  {row.written}" for row in mine), ""]
    return "\n".join(lines)
