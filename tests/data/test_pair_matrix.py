from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import booleans, integers, sampled_from

from kontrast.data import GaussianNoise, Pairs, make_pairs, pair_matrix
from kontrast.dynamics import contrastive_problem
from kontrast.errors import InputError
from kontrast.losses import ContrastiveLoss, Dot, Linear
from tests.cases import DTYPES, TOLERANCE, generator, randn
from tests.reference import contrastive as reference

LOSS = ContrastiveLoss(Dot(), Linear())


def random_pairs(
    *, m: int, n: int, P: int, Q: int, seed: int, shared: bool, weighted: bool, dtype: torch.dtype = torch.float64
) -> Pairs:
    """Indices drawn with repetition, so that pairs come twice and points are paired with themselves."""
    g = generator(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(0, m, shape, generator=g)

    weight = torch.rand(n, Q, generator=g, dtype=torch.float64).to(dtype) if weighted else None
    return Pairs(randn(m, 3, seed=seed, dtype=dtype), draw(n), draw(n, P), draw(1 if shared else n, Q), weight)


SIZES = {
    "m": integers(1, 6),
    "n": integers(1, 5),
    "P": integers(1, 3),
    "Q": integers(0, 4),
    "seed": integers(0, 2**16),
    "shared": booleans(),
    "weighted": booleans(),
}


@given(**SIZES, dtype=sampled_from(DTYPES))
def test_the_linear_loss_is_a_trace(dtype: torch.dtype, **sizes: int) -> None:
    pairs = random_pairs(**sizes, dtype=dtype)
    F = randn(sizes["m"], 4, seed=sizes["seed"] + 1, dtype=dtype)
    loss = contrastive_problem(pairs, LOSS).objective(F)
    for symmetric in (True, False):
        S = pair_matrix(pairs, symmetric=symmetric)
        assert S.dtype == dtype
        torch.testing.assert_close(-torch.trace(F.mT @ (S @ F)), loss, **TOLERANCE[dtype])


@given(**SIZES)
def test_entries_are_sums_over_pairs(**sizes: int) -> None:
    pairs = random_pairs(**sizes)
    expected = torch.zeros(sizes["m"], sizes["m"], dtype=torch.float64)
    for a, b, alpha in reference.signed_pairs(pairs):
        expected[b, a] += alpha / pairs.n_anchors
    torch.testing.assert_close(pair_matrix(pairs, symmetric=False).to_dense(), expected, rtol=0, atol=1e-14)
    S = pair_matrix(pairs).to_dense()
    torch.testing.assert_close(S, (expected + expected.mT) / 2, rtol=0, atol=1e-14)
    assert torch.equal(S, S.mT)


def test_all_negatives_are_the_mean_over_the_others() -> None:
    pairs = make_pairs(randn(5, 3), views=GaussianNoise(0.1), negatives="all", generator=generator())
    S = pair_matrix(pairs, symmetric=False)
    assert S.is_coalesced()
    assert S._nnz() == 5 + 5 * 4  # a weight of 0 is no entry
    dense = S.to_dense()
    torch.testing.assert_close(dense[:5, :5], (torch.eye(5, dtype=torch.float64) - 1) / 20)
    torch.testing.assert_close(dense[5:, :5], torch.eye(5, dtype=torch.float64) / 5)
    assert dense[:, 5:].abs().max() == 0


def test_without_negatives_only_attraction_is_left() -> None:
    pairs = make_pairs(randn(4, 3), views=GaussianNoise(0.1), negatives=0, n_positives=2, generator=generator())
    S = pair_matrix(pairs)
    assert S._nnz() == 16
    assert (S.values() == 0.125).all()


def test_what_cannot_work_is_refused() -> None:
    none = torch.empty(0, 1, dtype=torch.int64)
    with pytest.raises(InputError, match="no anchors"):
        pair_matrix(Pairs(randn(3, 2), none[:, 0], none, none))
    one = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(InputError, match=r"pairs.x must be a tensor of floating-point numbers, got torch.uint8"):
        pair_matrix(Pairs(torch.ones(3, 2, dtype=torch.uint8), one[0], one, one))
