from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats, integers

from kontrast.errors import InputError
from kontrast.linalg import random_frame
from kontrast.spectral import effective_rank, relative_spread
from tests.cases import generator, randn


@given(k=integers(1, 6), seed=integers(0, 2**16), scale=floats(1e-6, 1e6))
def test_k_equal_directions_have_rank_k(k: int, seed: int, scale: float) -> None:
    U, V = (random_frame(n, k, generator=generator(seed + i)) for i, n in enumerate((20, 8)))
    assert effective_rank(scale * U @ V.mT, centred=False) == pytest.approx(k, rel=1e-6)


@given(seed=integers(0, 2**16), shift=floats(-100, 100))
def test_the_centred_rank_ignores_a_shift_and_a_rotation(seed: int, shift: float) -> None:
    X, R = randn(20, 5, seed=seed), random_frame(5, 5, generator=generator(seed))
    assert effective_rank(X @ R + shift) == pytest.approx(effective_rank(X), rel=1e-8)
    assert 1 <= effective_rank(X) <= 5 + 1e-9


def test_rank_by_hand() -> None:
    X = torch.diag(torch.tensor([3.0, 1.0]))
    assert effective_rank(X, centred=False) == pytest.approx(math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25))))


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
        with pytest.raises(InputError, match="an embedding is"):
            measure(torch.ones(shape))
