"""Is training buying anything: paired differences, their intervals, and tasks that need no labels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis.strategies import floats, integers, lists

from kontrast.diagnosis import buys
from kontrast.diagnosis.embeddings import TWINS
from kontrast.diagnosis.metrics import neighbor_agreement
from tests.cases import randn
from tests.diagnosis.subjects import mlp, moved, quick, state_of, subject_of
from tests.reference import diagnosis as slow

pytestmark = pytest.mark.usefixtures("few_features")
scores = lists(floats(0, 1), min_size=6, max_size=6)


def scored(**by_name: Any) -> xr.Dataset:
    """A result with these scores of a linear probe."""
    table = np.array([[np.asarray(values, dtype=float)] for values in by_name.values()])
    return xr.Dataset(
        {"score": (("embedding", "task", "split"), table)},
        coords={"embedding": [name.replace("_", " ") for name in by_name], "task": ["linear"]},
        attrs={"n_probe_train": 70, "n_probe_test": 30},
    )


@given(a=scores, b=scores, seed=integers(0, 99))
def test_differences_are_paired_by_split(a: list[float], b: list[float], seed: int) -> None:
    gain = buys.gains(scored(trained=a, start=b), "linear")["start"]
    mean, low, high = slow.corrected_interval([x - y for x, y in zip(a, b, strict=True)], 30 / 70)
    found = gain.difference
    assert (found.value, found.low, found.high) == pytest.approx((mean, low, high), abs=1e-12)
    assert gain.score == pytest.approx(sum(b) / 6)
    order = np.random.default_rng(seed).permutation(6)
    other = buys.gains(scored(trained=np.array(a)[order], start=np.array(b)[order]), "linear")["start"].difference
    assert (other.low, other.high) == pytest.approx((low, high), abs=1e-9)


def test_what_all_splits_agree_on_has_no_width_however_they_differ_themselves() -> None:
    b = np.linspace(0.1, 0.6, 6)
    found = buys.gains(scored(trained=b + 0.1, start=b), "linear")["start"].difference
    assert found.high - found.low < 1e-9


def test_an_embedding_that_cannot_be_made_is_left_out() -> None:
    result = scored(trained=[0.5] * 6, start=[0.4] * 6, spectral=[math.nan] * 6, raw_input=[0.9] * 6)
    found = buys.gains(result, "linear")
    assert list(found) == ["start", "raw input"]
    assert [it.over for it in buys.rivals(found)] == ["start"]  # the input with all its dimensions is no rival
    assert buys.gains(xr.Dataset(), "linear") == {}
    assert buys.gains(result, "knn") == {}


# --- tasks without labels -------------------------------------------------------------------------------------------


def test_dichotomies_of_noise_are_at_chance_and_those_of_equal_views_are_learned() -> None:
    signs = torch.where(randn(60, 32, seed=1) > 0, 1.0, -1.0).double()
    z = randn(60, 100, seed=2)[:, None].expand(60, 2, 100)
    assert buys._dichotomies(z, z, signs) > 0.99
    noise = np.mean(
        [buys._dichotomies(randn(60, 2, 20, seed=s), randn(60, 2, 20, seed=s + 9), signs) for s in range(9)]
    )
    assert noise == pytest.approx(0.5, abs=0.02)
    assert buys._dichotomies(torch.ones(60, 2, 5).double(), torch.ones(60, 2, 5).double(), signs) == 0.5


@given(seed=integers(0, 999), factor=floats(1e-3, 1e3))
def test_dichotomies_do_not_know_the_scale(seed: int, factor: float) -> None:
    signs = torch.where(randn(20, 8, seed=seed) > 0, 1.0, -1.0).double()
    z = randn(20, 4, seed=seed + 1)[:, None] + 0.3 * randn(20, 2, 4, seed=seed + 2)
    seen, unseen = z[:, :1], z[:, 1:]
    found = buys._dichotomies(seen, unseen, signs)
    assert buys._dichotomies(factor * seen + 1, factor * unseen + 1, signs) == pytest.approx(found, abs=0.01)
    assert 0 <= found <= 1


def test_views_that_have_nothing_in_common_tell_nothing_of_each_other() -> None:
    subject = subject_of(mlp(), state_of(mlp()), state_of(mlp()), n_splits=8)
    dichotomies, agreement = buys._without_labels(subject, randn(40, 2, 30, seed=6), 8).mean(1)
    assert dichotomies == pytest.approx(0.5, abs=0.03)  # tested on views that it did not learn from
    assert agreement < 0.15
    equal = randn(40, 1, 60, seed=6).expand(40, 2, 60)
    assert buys._without_labels(subject, equal, 8).min() > 0.99


def test_without_labels_the_tasks_are_dichotomies_and_agreement() -> None:
    module = mlp()
    d = quick(module, state_of(module), moved(module, 0.2), n_splits=3)
    assert list(d.result.task.values) == ["dichotomies", "agreement"]
    assert list(d.result.embedding.values) == ["trained", *(name for name in TWINS if name != "start as saved")]
    assert np.isfinite(d.result.score.values).all()
    assert "only labels would decide" in d.verdict
    subject = subject_of(module, state_of(module), moved(module, 0.2))
    z = subject.encoder.embed(subject.end, subject.views.views.flatten(0, 1)).reshape(24, 2, -1)
    rows = torch.randperm(24, generator=subject.generator(3))[:17]
    expected = neighbor_agreement(z[rows])
    found = quick(module, state_of(module), moved(module, 0.2)).result.score
    assert float(found.sel(embedding="trained", task="agreement")[0]) == pytest.approx(expected)


# --- with labels ----------------------------------------------------------------------------------------------------


def labelled(n: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(n) % 3
    return 3 * randn(3, 6, seed=3)[y] + 0.5 * randn(n, 6, seed=4), y


def test_with_labels_scores_are_accuracies_on_samples_that_did_not_train() -> None:
    module, (x, y) = mlp(), labelled()
    d = quick(module, state_of(module), state_of(module), data=x, labels=y, n_splits=3)
    assert list(d.result.task.values) == ["linear", "knn"]
    assert d.buys["start"].difference.value == 0  # the same weights
    assert (d.result.attrs["n_probe_train"], d.result.attrs["n_probe_test"]) == (42, 18)
    assert float(d.result.score.sel(embedding="raw input", task="linear").mean()) > 0.9
    assert d.pays == "no"
    assert d.exit_code == 4
    wrong = quick(module, state_of(module), state_of(module), data=x, labels=y, test=(x, (y + 1) % 3), n_splits=3)
    assert float(wrong.result.score.max()) < 0.2  # it is the labels of test that count


def test_splits_share_no_sample_and_do_not_depend_on_the_embedding() -> None:
    x, y = labelled()
    module = mlp()
    subject = subject_of(module, state_of(module), state_of(module), x=x, labels=y, n_splits=5)
    splits = buys._splits(subject, subject.labelled)
    for train, test in splits:
        assert sorted([*train.tolist(), *test.tolist()]) == list(range(60))
    assert len({tuple(test.tolist()) for _, test in splits}) == 5
    again = buys._splits(
        subject_of(module, state_of(module), moved(module, 1.0), x=x, labels=y, n_splits=5), subject.labelled
    )
    assert all(torch.equal(a[1], b[1]) for a, b in zip(splits, again, strict=True))


def test_a_class_that_is_too_rare_to_be_in_every_split_is_no_crash() -> None:
    x, _ = labelled(24)
    y = torch.zeros(24, dtype=torch.int64)
    y[:2] = 1
    module = mlp()
    states = [state_of(module), moved(module, 0.2), moved(module, 0.4)]
    d = quick(module, states, data=x, labels=y, n_splits=30)
    assert np.isfinite(d.result.score.values).all()
    assert np.isfinite(d.result.checkpoint_accuracy.values).all()


def test_labels_of_other_samples_than_the_views_judge_no_checkpoint() -> None:
    x, y = labelled(40)
    module = mlp()
    states = [state_of(module), moved(module, 0.2), moved(module, 0.4)]
    a = randn(24, 6, seed=8)
    d = quick(module, states, data=x, labels=y, views=(a, a + 0.1))
    assert "checkpoint_accuracy" not in d.result
    assert list(d.result.task.values) == ["linear", "knn"]
    loader = [(a[:12], a[:12] + 0.1, y[:12]), (a[12:], a[12:] + 0.1, y[12:24])]
    d = quick(module, states, data=x, labels=y, views=loader)
    assert d.choice is not None
    assert d.choice.best is not None  # by the labels that came with the views
