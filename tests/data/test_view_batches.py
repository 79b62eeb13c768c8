"""Batches of fresh views: shuffled epochs without end, labels beside their samples, the same for the same seed."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers

from kontrast.data import GaussianNoise, parse_view, view_batches
from kontrast.data.view_batches import STEPS_AT_ONCE
from kontrast.errors import InputError
from tests.cases import generator, randn


def same(x, generator):
    """A view that changes nothing, so that batches tell which samples they hold."""
    return x


def numbered(n):
    return torch.arange(float(n)).unsqueeze(1)


def taken(x, view, n_batches, *, seed=0, labels=None, batch_size=4):
    batches = view_batches(x, view, batch_size=batch_size, generator=generator(seed), labels=labels)
    return list(itertools.islice(batches, n_batches))


@given(n=integers(2, 40), size=integers(1, 40), seed=integers(0, 2**16))
def test_every_sample_comes_once_in_an_epoch_and_batches_are_full(n, size, seed):
    size = min(n, size)
    batches = taken(numbered(n), same, 3 * STEPS_AT_ONCE, seed=seed, batch_size=size)
    assert all(batch.shape == (2 * size, 1) and labels is None for batch, labels in batches)
    assert all(torch.equal(batch[:size], batch[size:]) for batch, _ in batches)  # row i of both views is one sample
    order = [int(i) for batch, _ in batches for i in batch[:size, 0]]
    for first in range(0, len(order) - n + 1, n):
        assert Counter(order[first : first + n]) == Counter(range(n))


def test_epochs_are_shuffled_anew():
    order = [int(i) for batch, _ in taken(numbered(32), same, 24) for i in batch[:4, 0]]
    epochs = [order[:32], order[32:64], order[64:96]]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert list(range(32)) not in epochs


def test_views_are_fresh_at_every_look():
    noise = GaussianNoise(0.1)
    seen = [batch for batch, _ in taken(torch.zeros(4, 3), noise, 40)]
    rows = torch.cat(seen)
    assert len(torch.unique(rows, dim=0)) == len(rows)  # no view comes twice, within a batch or later
    assert float(rows.std()) == pytest.approx(0.1, rel=0.1)
    assert abs(float((seen[0][:4] * seen[0][4:]).mean())) < 0.02


def test_labels_follow_their_samples():
    for batch, labels in taken(numbered(11), same, 40, labels=torch.arange(11) * 10):
        assert torch.equal(labels.double(), 10 * batch[:4, 0].double())


@given(seed=integers(0, 2**16))
def test_the_same_seed_gives_the_same_batches_and_labels_change_none(seed):
    x, view = randn(9, 4, seed=seed), parse_view("noise:0.1+mask:0.25")
    one, two, labelled, other = (
        taken(x, view, 20, seed=seed + add, labels=labels)
        for add, labels in ((0, None), (0, None), (0, torch.arange(9)), (1, None))
    )
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(one, two, strict=True))
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(one, labelled, strict=True))
    assert not any(torch.equal(a, b) for (a, _), (b, _) in zip(one, other, strict=True))


def test_images_keep_their_shape_and_number_type():
    x = torch.rand(6, 1, 8, 8, generator=generator())
    (batch, _), *_ = taken(x, parse_view("crop"), 1)
    assert batch.shape == (8, 1, 8, 8)
    assert batch.dtype == x.dtype


REFUSALS = [
    ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
    ({"batch_size": 10}, "batch_size must be a whole number of at most 9, got 10"),
    ({"batch_size": 2.5}, "batch_size must be a whole number"),
    ({"generator": 3}, "generator must be a torch.Generator, got int"),
    ({"labels": torch.arange(8)}, "x and labels must have one length, got 9 and 8"),
]


@pytest.mark.parametrize("change, words", REFUSALS)
def test_refusals_come_before_the_first_batch(change, words):
    fields = {"batch_size": 4, "generator": generator(), **change}
    with pytest.raises(InputError, match=words):
        view_batches(numbered(9), same, **fields)


def test_a_view_that_changes_the_shape_is_refused():
    with pytest.raises(InputError, match="a view must keep number type and shape"):
        taken(numbered(9), lambda x, generator: x[:, :0], 1)
