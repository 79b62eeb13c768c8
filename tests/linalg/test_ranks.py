"""Ranks of embeddings and kernels count directions, are blind to scale, and refuse what has none."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers

from kontrast.errors import InputError
from kontrast.linalg import effective_rank, entropy_rank, participation_ratio, random_frame, relative_spread
from tests.cases import generator, randn


@settings(max_examples=12)
@given(k=integers(1, 6), seed=integers(0, 2**16), scale=floats(1e-6, 1e6))
def test_k_equal_directions_have_rank_k(k: int, seed: int, scale: float) -> None:
    U, V = (random_frame(n, k, generator=generator(seed + i)) for i, n in enumerate((20, 8)))
    assert effective_rank(scale * U @ V.mT, centered=False) == pytest.approx(k, rel=1e-6)


@given(seed=integers(0, 2**16), shift=floats(-100, 100))
def test_the_centered_rank_ignores_a_shift_and_a_rotation(seed: int, shift: float) -> None:
    X, R = randn(20, 5, seed=seed), random_frame(5, 5, generator=generator(seed))
    assert effective_rank(X @ R + shift) == pytest.approx(effective_rank(X), rel=1e-8)
    assert 1 <= effective_rank(X) <= 5 + 1e-9


def test_rank_by_hand() -> None:
    X = torch.diag(torch.tensor([3.0, 1.0]))
    assert effective_rank(X, centered=False) == pytest.approx(
        math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    )


def test_complete_and_dimensional_collapse_are_told_apart() -> None:
    constant = torch.ones(200, 8, dtype=torch.float64) + 1e-3 * randn(200, 8)
    assert effective_rank(constant) > 7
    assert relative_spread(constant) < 1e-5
    line = randn(200, 1) @ randn(1, 8, seed=1)
    assert effective_rank(line) == pytest.approx(1, abs=1e-6)
    assert relative_spread(line) > 0.9


def test_no_spread_at_all_is_nan_and_zero() -> None:
    assert math.isnan(effective_rank(torch.ones(4, 3)))
    assert relative_spread(torch.ones(4, 3)) == 0


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_overflowed_embedding_is_nan(value: float) -> None:
    X = randn(5, 3)
    X[2, 1] = value
    assert math.isnan(effective_rank(X))
    assert math.isnan(relative_spread(X))


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 2, 2)])
def test_bad_shapes_are_refused(shape: tuple[int, ...]) -> None:
    for measure in (effective_rank, relative_spread):
        with pytest.raises(InputError, match="embedding must be"):
            measure(torch.ones(shape))


@pytest.mark.parametrize("given", [randn(5, 3).numpy(), [[1.0], [2.0]], torch.ones(5, 3, dtype=torch.int64)])
def test_what_is_no_embedding_is_refused(given: torch.Tensor) -> None:
    for measure in (effective_rank, relative_spread):
        with pytest.raises(InputError, match=r"embedding must be a tensor of floating-point numbers, got .*; use"):
            measure(given)


@given(n=integers(1, 20), rank=integers(1, 20), seed=integers(0, 2**16), scale=floats(1e-6, 1e6))
def test_ranks_count_equal_eigenvalues(n: int, rank: int, seed: int, scale: float) -> None:
    rank = min(n, rank)
    frame = random_frame(n, rank, generator=generator(seed))
    K = scale * frame @ frame.mT
    assert participation_ratio(K) == pytest.approx(rank, rel=1e-10)
    assert entropy_rank(torch.linalg.eigvalsh(K)) == pytest.approx(rank, rel=1e-9)


@given(seed=integers(0, 2**16), n=integers(2, 20), d=integers(1, 20))
def test_entropy_rank_is_the_effective_rank_of_the_kernel_matrix(seed: int, n: int, d: int) -> None:
    Z = randn(n, d, seed=seed)
    K = Z @ Z.mT
    rank = entropy_rank(torch.linalg.eigvalsh(K))
    assert rank == pytest.approx(effective_rank(K, centered=False), rel=1e-9)
    assert participation_ratio(K) <= rank * (1 + 1e-9)
    assert rank <= effective_rank(Z, centered=False) * (1 + 1e-9)  # singular values are flatter than their squares


K = randn(5, 5) @ randn(5, 5).mT
BROKEN = K.clone()
BROKEN[3, 3] = math.nan


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: participation_ratio(BROKEN.numpy()), r"K holds NaN or infinite"),
        (lambda: participation_ratio(0 * K), r"K is zero everywhere"),
        (lambda: participation_ratio(K, memory=10), r"memory is too small: one row of a kernel strip needs 120"),
        (lambda: entropy_rank(torch.tensor([1.0, -0.5])), r"at least 0 and not all 0, got -0.5 to 1"),
        (lambda: entropy_rank(torch.zeros(3)), r"not all 0"),
        (lambda: entropy_rank(torch.ones(3, 3)), r"eigenvalues must have shape \(n,\), got \(3, 3\)"),
        (lambda: participation_ratio(1e200 * K), "too large to square; divide it by its largest entry first"),
        (lambda: participation_ratio(1e-200 * K), "too small or too large to square"),
    ],
)
def test_what_has_no_rank_is_refused_with_the_fix(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=message):
        call()
