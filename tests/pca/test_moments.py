from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers, lists, sampled_from
from torch import Tensor

from kontrast.data import GaussianNoise, make_pairs, pair_matrix
from kontrast.errors import InputError
from kontrast.pca import PairMoments, ViewMoments, contrastive_matrix, moments
from tests.cases import generator, randn
from tests.reference import closed_forms as reference

CPU = torch.device("cpu")
# Products of float32 features are rounded to float32 before they are added up: some eps of entries of order 1.
ATOL = {torch.float64: 1e-10, torch.float32: 2e-5}


def parts(n: int, cuts: list[int]) -> list[slice]:
    """0..n cut anywhere, empty pieces and all."""
    bounds = [0, *sorted(cut % (n + 1) for cut in cuts), n]
    return [slice(a, b) for a, b in itertools.pairwise(bounds) if b > a]


def pair_moments(anchors: Tensor, positives: Tensor, negatives: Tensor | None, batches: list[slice]) -> Tensor:
    total = PairMoments(anchors.shape[1], len(anchors), CPU)
    for rows in batches:
        total.update(anchors[rows], positives[rows].mean(1), None if negatives is None else negatives[rows].mean(1))
    return total.matrix()


def view_moments(views: Tensor, batches: list[slice]) -> ViewMoments:
    total = ViewMoments(views.shape[2], CPU)
    for rows in batches:
        total.update(view[rows] for view in views)
    return total


@given(
    n=integers(2, 12),
    n_positives=integers(1, 3),
    n_negatives=sampled_from([None, 1, 3]),
    cuts=lists(integers(0, 12), max_size=4),
    dtype=sampled_from([torch.float64, torch.float32]),
    seed=integers(0, 2**16),
)
def test_pair_moments_equal_the_loop_over_pairs_for_any_batches(
    n: int, n_positives: int, n_negatives: int | None, cuts: list[int], dtype: torch.dtype, seed: int
) -> None:
    anchors, positives = randn(n, 5, seed=seed, dtype=dtype), randn(n, n_positives, 5, seed=seed + 1, dtype=dtype)
    negatives = None if n_negatives is None else randn(n, n_negatives, 5, seed=seed + 2, dtype=dtype)
    found = pair_moments(anchors, positives, negatives, parts(n, cuts))
    assert found.dtype == torch.float64
    expected = reference.pair_matrix(anchors, positives, negatives)
    torch.testing.assert_close(found, expected, rtol=0, atol=ATOL[dtype])


@pytest.mark.parametrize("negatives", [1, "all"])
def test_pair_moments_equal_the_pair_matrix_of_the_same_pairs(negatives: int | str) -> None:
    """C = Φ^T S Φ with S over the pool: features of a pool of 2n points, one positive an anchor."""
    n = 9
    pairs = make_pairs(randn(n, 4), views=GaussianNoise(0.3), negatives=negatives, generator=generator(1))
    features = torch.tanh(pairs.x @ randn(4, 7, seed=2))
    anchors, positives, drawn = pairs.split(features)
    C = contrastive_matrix(features, pair_matrix(pairs))
    found = pair_moments(anchors, positives, None if negatives == "all" else drawn, [slice(0, 4), slice(4, n)])
    torch.testing.assert_close(found, C, rtol=0, atol=1e-12)


@given(
    n=integers(2, 10),
    v=integers(2, 4),
    cuts=lists(integers(0, 10), max_size=4),
    dtype=sampled_from([torch.float64, torch.float32]),
    offset=sampled_from([0.0, 3.0]),
    seed=integers(0, 2**16),
)
def test_view_moments_equal_the_loop_over_views_for_any_batches(
    n: int, v: int, cuts: list[int], dtype: torch.dtype, offset: float, seed: int
) -> None:
    views = randn(v, n, 5, seed=seed, dtype=dtype) + randn(n, 5, seed=seed + 1, dtype=dtype) + offset
    total = view_moments(views, parts(n, cuts))
    mean, covariance, of_means, between = reference.view_covariances(views)
    found, found_between = total.covariances()
    assert (total.n, total.n_views) == (n, v)
    torch.testing.assert_close(total.mean, mean, rtol=0, atol=ATOL[dtype])
    torch.testing.assert_close(found, covariance, rtol=0, atol=5 * ATOL[dtype])
    torch.testing.assert_close(found_between, between, rtol=0, atol=10 * ATOL[dtype])
    # The table's B = Σ − (Σ − G)v/(v−1) is the covariance of two different views.
    torch.testing.assert_close(covariance - (covariance - of_means) * v / (v - 1), between, rtol=0, atol=1e-10)


def test_a_large_mean_costs_no_digits() -> None:
    """Features 1000 ± 1 in float32: the mean's square, 1e6, would leave rounding of 0.1 in a covariance of 1."""
    views = randn(2, 200, 3, dtype=torch.float32) + 1000
    found, _ = view_moments(views, parts(200, [50, 120])).covariances()
    _, covariance, _, _ = reference.view_covariances(views)
    torch.testing.assert_close(found, covariance, rtol=0, atol=1e-4)


def test_strips_of_the_symmetric_product_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    views = randn(3, 20, 17)
    whole = view_moments(views, [slice(0, 20)]).covariances()
    monkeypatch.setattr(moments, "STRIP", 4)
    striped = view_moments(views, [slice(0, 20)]).covariances()
    for a, b in zip(whole, striped, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
        assert torch.equal(b, b.mT)


def test_the_views_handed_in_are_not_changed_and_one_is_held_at_a_time() -> None:
    views = randn(3, 6, 4)
    kept = views.clone()
    view_moments(views, [slice(0, 6)])
    assert torch.equal(views, kept)


def test_more_batches_may_follow_a_reading() -> None:
    views = randn(2, 10, 4)
    total = ViewMoments(4, CPU)
    total.update(view[:6] for view in views)
    total.covariances()
    total.update(view[6:] for view in views)
    for found, expected in zip(total.covariances(), view_moments(views, [slice(0, 10)]).covariances(), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_bad_batches_are_refused() -> None:
    with pytest.raises(InputError, match="n_anchors must be a whole number of at least 2, got 1"):
        PairMoments(3, 1, CPU)
    pairs = PairMoments(3, 4, CPU)
    pairs.update(randn(2, 3), randn(2, 3), None)
    with pytest.raises(InputError, match="2 of 4 anchors were added"):
        pairs.matrix()
    with pytest.raises(InputError, match="give at least 2 views, got 1"):
        ViewMoments(3, CPU).update([randn(5, 3)])
    with pytest.raises(InputError, match="give at least 2 views, got 0"):
        ViewMoments(3, CPU).update([])
    views = ViewMoments(3, CPU)
    views.update([randn(1, 3), randn(1, 3)])
    with pytest.raises(InputError, match="at least 2 samples are needed, got 1"):
        views.covariances()
    with pytest.raises(InputError, match="give 2 views, got 3"):
        views.update([randn(1, 3)] * 3)
