"""Alignment and uniformity: Wang & Isola's formulas on rows of unit length, always, and in batches."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, lists
from torch import Tensor

from kontrast.diagnosis.metrics import Alignment, Uniformity, alignment, uniformity
from kontrast.diagnosis.metrics import rows as rows_of
from kontrast.errors import InputError
from kontrast.linalg import random_frame
from tests.cases import generator, randn
from tests.reference import metrics as reference

seeds = integers(0, 2**16)


def two_views(n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    a = randn(n, d, seed=seed) + 0.5
    return a, a + 0.4 * randn(n, d, seed=seed + 1)


@settings(max_examples=15)
@given(seed=seeds, n=integers(2, 25), d=integers(1, 8), t=floats(0.1, 50))
def test_they_are_the_authors_formulas(seed: int, n: int, d: int, t: float) -> None:
    a, b = two_views(n, d, seed)
    assert alignment(a, b) == pytest.approx(reference.alignment(a.numpy(), b.numpy()), rel=1e-10)
    expected = [reference.uniformity(view.numpy(), t) for view in (a, b)]
    assert uniformity(a, t=t) == pytest.approx(expected[0], rel=1e-10, abs=1e-12)
    assert uniformity((a, b), t=t) == pytest.approx(sum(expected) / 2, rel=1e-10, abs=1e-12)


@given(seed=seeds, n=integers(2, 20), d=integers(1, 8), scale=floats(1e-6, 1e6))
def test_rotation_scale_order_and_duplicates(seed: int, n: int, d: int, scale: float) -> None:
    a, b = two_views(n, d, seed)
    R, order = random_frame(d, d, generator=generator(seed)), torch.randperm(n, generator=generator(seed))
    lengths = torch.rand(n, 1, generator=generator(seed), dtype=torch.float64) + 0.1
    found, even = alignment(a, b), uniformity((a, b))
    for x, y in ((scale * a, b), (a @ R, b @ R), (a[order], b[order]), (lengths * a, b)):
        assert alignment(x, y) == pytest.approx(found, rel=1e-9)
        assert uniformity((x, y)) == pytest.approx(even, rel=1e-9, abs=1e-11)
    assert alignment(torch.cat([a, a]), torch.cat([b, b])) == pytest.approx(found, rel=1e-10)
    # A copy adds the n pairs of equal rows, and each pair of different rows three more times.
    pairs = math.comb(n, 2)
    doubled = math.log((4 * pairs * math.exp(uniformity(a)) + n) / math.comb(2 * n, 2))
    assert uniformity(torch.cat([a, a])) == pytest.approx(doubled, rel=1e-9, abs=1e-11)


@given(seed=seeds, d=integers(1, 6), sizes=lists(integers(1, 6), min_size=1, max_size=8))
def test_alignment_in_batches_and_merged(seed: int, d: int, sizes: list[int]) -> None:
    a, b = two_views(sum(sizes), d, seed)
    updated, merged = Alignment(), Alignment()
    for x, y in reversed(list(zip(a.split(sizes), b.split(sizes), strict=True))):
        updated.update(x, y)
        part = Alignment()
        part.update(x, y)
        merged.merge(part)
    for one in (updated, merged):
        assert one.compute()["alignment"] == pytest.approx(alignment(a, b), rel=1e-10)


@given(seed=seeds, sizes=lists(integers(1, 6), min_size=1, max_size=6).filter(lambda sizes: max(sizes) > 1))
def test_uniformity_averages_over_the_pairs_of_each_batch(seed: int, sizes: list[int]) -> None:
    a, b = two_views(sum(sizes), 4, seed)
    batches = list(zip(a.split(sizes), b.split(sizes), strict=True))
    updated, merged = Uniformity(), Uniformity()
    for x, y in batches:
        updated.update(x, y)
    for x, y in reversed(batches):
        part = Uniformity()
        part.update(x, y)
        merged.merge(part)
    pairs = [math.comb(size, 2) for size in sizes]
    expected = [
        math.log(sum(p * math.exp(uniformity(batch[view])) for p, batch in zip(pairs, batches, strict=True) if p))
        for view in (0, 1)
    ]
    for one in (updated, merged):
        assert one.n_pairs == sum(pairs)
        assert one.compute()["uniformity"] == pytest.approx(
            sum(expected) / 2 - math.log(sum(pairs)), rel=1e-10, abs=1e-12
        )


def test_strips_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a, _ = two_views(40, 6)
    whole = uniformity(a)
    monkeypatch.setattr(rows_of, "STRIP", 120)
    assert uniformity(a) == pytest.approx(whole, rel=1e-12)


def test_the_ends_of_their_ranges() -> None:
    a = randn(500, 200)
    assert alignment(a, 3 * a) == pytest.approx(0, abs=1e-25)
    assert alignment(a, -a) == pytest.approx(4)
    assert alignment(a, randn(500, 200, seed=1)) == pytest.approx(2, abs=0.05)
    assert uniformity(a) == pytest.approx(-4, abs=0.05)
    assert uniformity(torch.ones(9, 4)) == 0
    assert uniformity(a, t=1e4) < -1e3  # exp underflows, the logarithm does not


def test_rows_of_zeros_are_at_distance_one() -> None:
    a = randn(1, 4)
    assert alignment(a, torch.zeros(1, 4, dtype=torch.float64)) == pytest.approx(1)
    assert uniformity(torch.cat([a, 0 * a]), t=3) == pytest.approx(-3)


def test_number_types_are_widened() -> None:
    a, b = (view.float().requires_grad_() for view in two_views(20, 5))
    assert alignment(a, b) == pytest.approx(alignment(a.detach().double(), b.detach().double()), rel=1e-13)
    assert uniformity(a) == pytest.approx(uniformity(a.detach().double()), rel=1e-13)


def test_too_few_samples_say_so() -> None:
    assert math.isnan(uniformity(randn(1, 4)))
    assert math.isnan(Uniformity().compute()["uniformity"])
    assert "needs 2 samples in a batch" in Uniformity().missing["uniformity"]
    assert math.isnan(Alignment().compute()["alignment"])
    assert Alignment().missing == {"alignment": "needs 1 pair of views, got 0"}
    one = Alignment()
    one.update(randn(1, 4), randn(1, 4))
    assert one.missing == {}


def test_bad_input_is_refused() -> None:
    a, b = two_views(5, 4)
    with pytest.raises(InputError, match=r"b must have the shape of a, \(5, 4\), got \(4, 4\); row i of both is one"):
        alignment(a, b[:4])
    with pytest.raises(InputError, match="b holds NaN or infinite"):
        alignment(a, b * math.inf)
    with pytest.raises(InputError, match=r"views\[0\] must have shape \(n, d\)"):
        uniformity(a[0])
    with pytest.raises(InputError, match=r"views\[1\] must have the shape of views\[0\]"):
        uniformity((a, b[:3]))
    with pytest.raises(InputError, match="at least one tensor"):
        uniformity([])
    with pytest.raises(InputError, match="t must be a positive number"):
        uniformity(a, t=0)
    pairs = Uniformity()
    pairs.update(a)
    with pytest.raises(InputError, match="batches had 1 views so far, got 2"):
        pairs.update(a, b)
    with pytest.raises(InputError, match=r"t must be 2.0 in both, got 1.0"):
        pairs.merge(Uniformity(t=1.0))
