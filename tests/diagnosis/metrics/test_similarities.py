"""Similarities of positives and negatives: counted pair by pair, in batches, and for rows that are all alike."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, lists
from torch import Tensor

from kontrast.diagnosis.metrics import Similarities, effective_negatives, neighbor_agreement
from kontrast.diagnosis.metrics import rows as rows_of
from kontrast.errors import InputError
from kontrast.linalg import random_frame
from kontrast.losses import nt_xent
from tests.cases import generator, randn
from tests.reference import metrics as reference

seeds = integers(0, 2**16)


def two_views(n: int, d: int, seed: int = 0, noise: float = 0.4) -> tuple[Tensor, Tensor]:
    a = randn(n, d, seed=seed) + 0.5
    return a, a + noise * randn(n, d, seed=seed + 1)


def similarities_of(*batches: tuple[Tensor, Tensor], n_bins: int = 16) -> Similarities:
    found = Similarities(n_bins=n_bins)
    for a, b in batches:
        found.update(a, b)
    return found


def same(found: Similarities, expected: Similarities) -> None:
    for one, other in zip(found.compute().values(), expected.compute().values(), strict=True):
        assert torch.equal(one.counts, other.counts)
        assert (one.n, one.mean, one.deviation) == pytest.approx((other.n, other.mean, other.deviation), nan_ok=True)


@given(seed=seeds, n=integers(2, 20), d=integers(2, 6))
def test_histograms_count_every_pair_once(seed: int, n: int, d: int) -> None:
    a, b = two_views(n, d, seed)
    found = similarities_of((a, b)).compute()
    u, v = (reference.unit(view.numpy()) for view in (a, b))
    for name, expected, times in (
        ("positives", (u * v).sum(1), 1),
        ("negatives", np.concatenate(reference.negatives(a.numpy(), b.numpy())), 2),
    ):
        one = found[name]
        counts, edges = np.histogram(expected, 16, (-1, 1))
        np.testing.assert_array_equal(times * one.counts.numpy(), counts)
        np.testing.assert_allclose(one.edges.numpy(), edges, atol=1e-15)
        assert one.n * times == len(expected)
        assert one.mean == pytest.approx(expected.mean(), rel=1e-10, abs=1e-12)
        assert one.deviation == pytest.approx(expected.std(), rel=1e-9, abs=1e-9)
        assert float(one.share.sum()) == pytest.approx(1)
    assert found["negatives"].n == 2 * n * (n - 1)


@given(seed=seeds, sizes=lists(integers(1, 6), min_size=3, max_size=3))
def test_merging_is_associative_and_commutative_and_keeps_batches(seed: int, sizes: list[int]) -> None:
    a, b = two_views(sum(sizes), 4, seed)
    batches = list(zip(a.split(sizes), b.split(sizes), strict=True))
    whole = similarities_of(*batches)
    left, right, back = (similarities_of() for _ in range(3))
    x, y, z = (similarities_of(batch) for batch in batches)
    left.merge(x)
    left.merge(y)
    left.merge(z)
    y.merge(z)
    right.merge(x)
    right.merge(y)
    for batch in reversed(batches):
        back.merge(similarities_of(batch))
    for one in (left, right, back):
        same(one, whole)


def test_one_sample_has_no_negatives() -> None:
    found = similarities_of((randn(1, 4), randn(1, 4, seed=1))).compute()
    assert found["positives"].n == 1
    assert found["negatives"].n == 0
    assert math.isnan(found["negatives"].mean)
    assert found["negatives"].share.isnan().all()


def test_equal_rows_fall_into_the_last_bin() -> None:
    found = similarities_of((torch.full((6, 3), 0.1), torch.full((6, 3), 0.3))).compute()
    assert found["positives"].counts[-1] == 6
    assert found["negatives"].counts[-1] == 60
    assert found["negatives"].deviation == pytest.approx(0, abs=1e-12)


def test_strips_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = two_views(30, 5)
    views = torch.stack([a, b], 1)
    whole, count, agreed = similarities_of((a, b)), effective_negatives(a, b, 0.2), neighbor_agreement(views)
    monkeypatch.setattr(rows_of, "STRIP", 130)
    same(similarities_of((a, b)), whole)
    assert effective_negatives(a, b, 0.2) == pytest.approx(count, rel=1e-12)
    assert neighbor_agreement(views) == pytest.approx(agreed, rel=1e-12)


@settings(max_examples=15)
@given(seed=seeds, n=integers(2, 15), d=integers(2, 6), temperature=floats(0.02, 20), scale=floats(1e-5, 1e5))
def test_effective_negatives(seed: int, n: int, d: int, temperature: float, scale: float) -> None:
    a, b = two_views(n, d, seed)
    found = effective_negatives(a, b, temperature)
    assert found == pytest.approx(reference.effective_negatives(a.numpy(), b.numpy(), temperature), rel=1e-9)
    R, order = random_frame(d, d, generator=generator(seed)), torch.randperm(n, generator=generator(seed))
    for x, y in ((b, a), (a @ R, scale * b @ R), (a[order], b[order])):
        assert effective_negatives(x, y, temperature) == pytest.approx(found, rel=1e-8)
    assert 1 - 1e-9 <= found <= (2 * n - 2) * (1 + 1e-9)


def test_effective_negatives_go_from_one_to_all() -> None:
    a, b = two_views(10, 8)
    assert effective_negatives(a, b, 1e5) == pytest.approx(18, rel=1e-6)
    assert effective_negatives(a, b, 1e-7) == pytest.approx(1)
    assert effective_negatives(torch.ones(10, 3), torch.ones(10, 3), 0.1) == pytest.approx(18)
    assert math.isnan(effective_negatives(a[:1], b[:1], 0.1))


def test_effective_negatives_are_the_weights_of_the_gradient_of_nt_xent() -> None:
    """The loss pushes an anchor from each negative in proportion to its softmax weight: the same entropy."""
    n, temperature = 6, 0.3
    a, b = two_views(n, 20)
    rows = torch.cat([a, b])
    rows = rows / rows.norm(dim=1, keepdim=True)
    gram = (rows @ rows.mT).requires_grad_()
    twin = torch.arange(2 * n).roll(n)
    logits = (gram / temperature).masked_fill(torch.eye(2 * n, dtype=torch.bool), -math.inf)
    loss = torch.nn.functional.cross_entropy(logits, twin)
    assert float(loss.detach()) == pytest.approx(float(nt_xent(a, b, temperature=temperature)), rel=1e-9)
    (weights,) = torch.autograd.grad(loss, gram)
    weights[torch.arange(2 * n), twin] = 0
    weights = weights / weights.sum(1, keepdim=True)
    expected = torch.special.entr(weights).sum(1).exp().mean()
    assert effective_negatives(a, b, temperature) == pytest.approx(float(expected), rel=1e-9)


@settings(max_examples=15)
@given(seed=seeds, n=integers(2, 12), v=integers(2, 4), d=integers(2, 6), noise=floats(0.01, 3))
def test_neighbors(seed: int, n: int, v: int, d: int, noise: float) -> None:
    views = randn(n, 1, d, seed=seed) + noise * randn(n, v, d, seed=seed + 1)
    found = neighbor_agreement(views)
    assert found == pytest.approx(reference.neighbor_agreement(views.numpy()))
    R, order = random_frame(d, d, generator=generator(seed)), torch.randperm(n, generator=generator(seed))
    lengths = torch.rand(n, v, 1, generator=generator(seed), dtype=torch.float64) + 0.1
    for other in (views @ R, 7 * views[order], lengths * views, list(views.unbind(1))):
        assert neighbor_agreement(other) == pytest.approx(found)


@pytest.mark.parametrize("n, v", [(2, 2), (10, 3)])
def test_equal_rows_agree_at_chance(n: int, v: int) -> None:
    chance = (v - 1) / (n * v - 1)
    assert neighbor_agreement(torch.full((n, v, 5), 0.1)) == pytest.approx(chance)
    assert neighbor_agreement(torch.zeros(n, v, 5)) == pytest.approx(chance)


def test_neighbors_of_rows_that_are_nearly_equal() -> None:
    """Cosines of such rows differ in the last digits only; their distances do not."""
    views = 1 + 1e-7 * (randn(30, 1, 6) + 0.01 * randn(30, 2, 6, seed=1))
    assert neighbor_agreement(views) > 0.95


def test_a_copy_of_a_sample_shares_the_nearest_place() -> None:
    views = randn(8, 1, 5).expand(8, 2, 5)
    assert neighbor_agreement(views) == 1
    assert neighbor_agreement(torch.cat([views, views])) == pytest.approx(1 / 3)


def test_number_types_are_widened() -> None:
    a, b = (view.float().requires_grad_() for view in two_views(12, 5))
    x, y = (view.detach().double() for view in (a, b))
    same(similarities_of((a, b)), similarities_of((x, y)))
    assert effective_negatives(a, b, 0.2) == pytest.approx(effective_negatives(x, y, 0.2), rel=1e-12)
    assert neighbor_agreement([a, b]) == neighbor_agreement([x, y])


def test_bad_input_is_refused() -> None:
    a, b = two_views(5, 4)
    with pytest.raises(InputError, match=r"b must have the shape of a, \(5, 4\), got \(5, 3\)"):
        similarities_of((a, b[:, :3]))
    with pytest.raises(InputError, match="a holds NaN or infinite"):
        effective_negatives(a * math.nan, b, 0.1)
    with pytest.raises(InputError, match="temperature must be a positive number"):
        effective_negatives(a, b, 0)
    with pytest.raises(InputError, match="at least 2 views of every sample"):
        neighbor_agreement(a[:, None])
    with pytest.raises(InputError, match="n_bins must be a whole number of at least 1"):
        Similarities(n_bins=0)
    with pytest.raises(InputError, match="n_bins must be 16 in both, got 8"):
        similarities_of((a, b)).merge(similarities_of((a, b), n_bins=8))
