"""How many labels: the stored curve is the calibrated one, and its words are those of its counts."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import xarray as xr
from torch import Tensor

from kontrast.diagnosis import labels_needed
from kontrast.diagnosis.embeddings import Sources
from kontrast.diagnosis.labels_needed import LEVEL, LEVELS, SHARES, labels_in
from kontrast.diagnosis.quantities import BOUNDS
from kontrast.diagnosis.subject import Subject
from tests.cases import generator, randn
from tests.diagnosis.subjects import mlp, moved, state_of, subject_of

NET = mlp()
START, END = state_of(NET), moved(NET, 0.3)


def labelled(n: int, *, noise: float = 1.0, classes: int = 2) -> tuple[Tensor, Tensor]:
    """Rows around a centre for every class."""
    y = torch.arange(n) % classes
    return 2 * randn(classes, 6, seed=3)[y] + noise * randn(n, 6, seed=4), y


def asked(x: Tensor, y: Tensor, end: Any = END, **given: Any) -> Subject:
    return subject_of(NET, START, end, x=x, labels=y, **given)


def measured(subject: Subject) -> tuple[xr.Dataset, dict[str, str]]:
    found, why = labels_needed.measure(subject, Sources(subject))
    return found.assign_coords(bound=list(BOUNDS)), why


def test_the_error_with_the_labels_there_are_is_that_of_refits() -> None:
    x, y = labelled(60)
    subject = asked(x, y)
    found, why = measured(subject)
    assert why == {}
    rows, y = subject.labelled.x, subject.labelled.y
    z = subject.encoder.embed(subject.end, rows)
    Y = torch.nn.functional.one_hot(y).double()
    K, rank = labels_needed._kernel(z)
    assert rank == 4  # three dimensions and a constant
    ridge = labels_needed.RELATIVE_RIDGE * float(K.diagonal().mean())
    errors = []
    for i in range(60):
        rest = [j for j in range(60) if j != i]
        weights = torch.linalg.solve(K[rest][:, rest] + ridge * torch.eye(59), Y[rest])
        errors.append((Y[i] - K[i, rest] @ weights).square().sum())
    expected = float(torch.stack(errors).mean() / (Y - Y.mean(0)).square().sum(1).mean())
    stored = float(found.label_error.sel(representation="trained", n_labels=60, bound="value"))
    assert stored == pytest.approx(expected, rel=0.03)


def test_curves_fall_and_counts_grow_as_the_error_asked_for_falls() -> None:
    needed = labels_in(measured(asked(*labelled(80)))[0])
    for name in ("trained", "start"):
        values = [it.value for it in needed.errors[name] if math.isfinite(it.value)]
        assert all(later <= earlier + 0.02 for earlier, later in itertools.pairwise(values))
        counts = [needed.needed[name][level] for level in LEVELS]  # the levels fall
        known = [count for count in counts if count is not None]
        assert known == sorted(known)
        assert counts[len(known) :] == [None] * (len(counts) - len(known))  # once too far, always too far
        assert all(needed.why[name][level] for level in LEVELS)


def test_sizes_are_shares_of_the_labels_there_are() -> None:
    found, _ = measured(asked(*labelled(60)))
    assert found.n_labels.values.tolist() == sorted({round(share * 60) for share in SHARES})
    assert found.attrs["n_labelled"] == 60
    assert labels_in(found).n_labels == tuple(found.n_labels.values.tolist())
    few, _ = measured(asked(*labelled(200), n_labelled=50))
    assert few.attrs["n_labelled"] == 50


def test_what_is_easier_needs_fewer_labels() -> None:
    clear, hard = (labels_in(measured(asked(*labelled(80, noise=noise)))[0]) for noise in (0.2, 2.5))
    at = clear.n_labels.index(80)
    assert clear.errors["trained"][at].value < hard.errors["trained"][at].value
    assert clear.needed["trained"][0.5] is not None
    assert hard.needed["trained"][0.1] is None


def test_sentences_say_errors_and_counts() -> None:
    needed = labels_in(measured(asked(*labelled(80, noise=0.2), end=START))[0])
    (sentence,) = needed.sentences
    assert sentence.startswith("leave-one-out squared error with the 80 labels there are: trained ")
    count = needed.needed["trained"][LEVEL]
    expected = f"{count} labels" if count is not None else "more labels than can be told"
    assert f"takes trained {expected}" in sentence
    for one, other in zip(needed.errors["trained"], needed.errors["start"], strict=True):  # the same weights
        assert one.value == other.value or (math.isnan(one.value) and math.isnan(other.value))


@pytest.mark.parametrize(
    "x, y, why",
    [
        (labelled(24)[0], labelled(24)[1], "trained: a learning curve needs 40 labelled samples, got 24"),
        (torch.zeros(60, 6).double(), labelled(60)[1], "trained: "),
        (labelled(60)[0], None, "there are no labels"),
    ],
)
def test_a_curve_that_cannot_be_had_says_why(x: Tensor, y: Tensor | None, why: str) -> None:
    found, missing = measured(subject_of(NET, START, END, x=x, labels=y))
    assert missing["label_error"].startswith(why)
    assert "\n" not in missing["label_error"]
    assert labels_in(found) is None


def test_labels_by_chance_are_not_learned() -> None:
    x, y = labelled(120)
    chance = y[torch.randperm(120, generator=generator(1))]
    needed = labels_in(measured(asked(x, chance))[0])
    at = needed.n_labels.index(120)
    assert needed.errors["trained"][at].value > 0.9
    assert needed.needed["trained"][0.3] is None
    assert "more labels than can be told" in next(iter(needed.sentences))
