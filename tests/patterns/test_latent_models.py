"""Paper C's generative models: samples have the stated moments, states are exact, and A(u_m) is (34) and (35)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import booleans, floats, integers, sampled_from

from kontrast.errors import InputError
from kontrast.patterns import (
    THRESHOLD_Q,
    LatentCategorical,
    LatentSummation,
    nearly_orthogonal_patterns,
    orthonormal_patterns,
)
from kontrast.patterns.latent_models import require_probabilities
from tests.cases import DTYPES, TOLERANCE, generator, randn

Model = LatentCategorical | LatentSummation


def draw_probabilities(n: int, seed: int) -> torch.Tensor:
    p = torch.rand(n, generator=generator(seed), dtype=torch.float64) + 0.05
    return p / p.sum()


def draw_model(M: int, d: int, seed: int, *, summation: bool, dtype: torch.dtype = torch.float64) -> Model:
    U = orthonormal_patterns(M, d, generator=generator(seed)).to(dtype)
    if summation:
        return LatentSummation(
            U, (0.05 + 0.9 * torch.rand(M, generator=generator(seed), dtype=torch.float64)).to(dtype)
        )
    return LatentCategorical(U, draw_probabilities(M, seed).to(dtype))


def gated_covariance(model: Model, w: torch.Tensor) -> torch.Tensor:
    """V[x·1(w^T x > 0)] over the states, one by one."""
    points, probabilities = model.states()
    first, second = 0.0, 0.0
    for x, p in zip(points, probabilities, strict=True):
        gated = x if float(x @ w) > 1e-9 else torch.zeros_like(x)
        first, second = first + p * gated, second + p * torch.outer(gated, gated)
    assert isinstance(first, torch.Tensor)
    return second - torch.outer(first, first)


@given(M=integers(1, 5), extra=integers(0, 3), seed=integers(0, 2**16), summation=booleans())
def test_the_covariance_at_a_pattern_is_that_of_the_states(M: int, extra: int, seed: int, summation: bool) -> None:
    model = draw_model(M, M + extra, seed, summation=summation)
    for m in range(M):
        u, A = model.patterns[m], model.covariance_at(m)
        torch.testing.assert_close(A, gated_covariance(model, u), rtol=0, atol=1e-12)
        torch.testing.assert_close(A @ u, model.eigenvalue_at(m) * u, rtol=0, atol=1e-12)
        own = float(u @ A @ u)
        others = torch.linalg.eigvalsh(A - own * torch.outer(u, u))  # u's own eigenvalue is now 0
        assert model.gap_at(m) == pytest.approx(own - float(others[-1]), abs=1e-12)


def test_the_identity_of_35_is_the_span_of_the_patterns() -> None:
    """With the paper's I the directions outside the span would have the variance q, where no sample varies."""
    model = LatentSummation(orthonormal_patterns(2, 4, generator=generator()), 0.3)
    u = model.patterns[0]
    printed = 0.49 * torch.outer(u, u) + 0.3 * (torch.eye(4, dtype=torch.float64) - torch.outer(u, u))
    assert torch.linalg.matrix_rank(model.covariance_at(0)) == 2
    assert (model.covariance_at(0) - printed).abs().max() > 0.1
    whole = LatentSummation(orthonormal_patterns(4, 4, generator=generator()), 0.3)
    u = whole.patterns[0]
    printed = 0.49 * torch.outer(u, u) + 0.3 * (torch.eye(4, dtype=torch.float64) - torch.outer(u, u))
    torch.testing.assert_close(whole.covariance_at(0), printed, rtol=0, atol=1e-14)


@given(offset=floats(-0.3, 0.3).filter(lambda t: abs(t) > 1e-6), M=integers(2, 5))
def test_a_pattern_is_the_top_eigenvector_iff_q_is_below_the_threshold(offset: float, M: int) -> None:
    assert abs((1 - THRESHOLD_Q) ** 2 - THRESHOLD_Q) < 1e-15
    model = LatentSummation(orthonormal_patterns(M, M, generator=generator(M)), THRESHOLD_Q + offset)
    values, vectors = torch.linalg.eigh(gated_covariance(model, model.patterns[0]))
    top = abs(float(vectors[:, -1] @ model.patterns[0])) > 1 - 1e-6 and float(values[-1] - values[-2]) > 1e-9
    assert top == (offset < 0) == (model.gap_at(0) > 0)


@given(M=integers(1, 6), seed=integers(0, 2**16), summation=booleans(), dtype=sampled_from(DTYPES))
def test_the_states_are_a_distribution_with_the_stated_moments(
    M: int, seed: int, summation: bool, dtype: torch.dtype
) -> None:
    model = draw_model(M, M + 1, seed, summation=summation, dtype=dtype)
    points, p = model.states()
    assert points.dtype == p.dtype == dtype
    assert points.shape == (2**M if summation else M, M + 1)
    require_probabilities(p, len(points))
    y = points @ model.patterns.mT
    if summation:
        tolerance = {"rtol": 0, "atol": 100 * TOLERANCE[dtype]["atol"]}
        torch.testing.assert_close(p @ y, torch.zeros(M, dtype=dtype), **tolerance)
        torch.testing.assert_close(y.mT @ (p[:, None] * y), torch.eye(M, dtype=dtype), **tolerance)
    else:
        torch.testing.assert_close(y, torch.eye(M, dtype=dtype), **TOLERANCE[dtype])


@pytest.mark.parametrize("summation", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_samples_are_states_in_their_proportions(summation: bool, dtype: torch.dtype) -> None:
    model, n = draw_model(3, 4, 5, summation=summation, dtype=dtype), 20_000
    points, p = model.states()
    x = model.sample(n, generator=generator(1))
    assert x.shape == (n, 4)
    assert x.dtype == dtype
    distance = torch.cdist(x.double(), points.double())
    assert distance.min(1).values.max() < 1e-6
    share = torch.bincount(distance.argmin(1), minlength=len(points)) / n
    assert ((share - p).abs() < 4.5 * (p * (1 - p) / n).sqrt()).all()
    assert torch.equal(x, model.sample(n, generator=generator(1)))
    noise = model.sample(n, noise_std=0.3, generator=generator(1)) - x
    assert float(noise.std()) == pytest.approx(0.3, rel=0.02)
    assert abs(float(noise.mean())) < 4.5 * 0.3 / (4 * n) ** 0.5
    assert noise.dtype == dtype


def test_one_q_serves_all_patterns() -> None:
    U = orthonormal_patterns(3, 3, generator=generator())
    one, each = LatentSummation(U, 0.2), LatentSummation(U, torch.full((3,), 0.2, dtype=torch.float64))
    assert torch.equal(one.sample(50, generator=generator()), each.sample(50, generator=generator()))
    assert torch.equal(one.rates, each.rates)


@given(M=integers(2, 8), extra=integers(0, 4), size=floats(0, 0.99), seed=integers(0, 2**16))
def test_nearly_orthogonal_patterns_are_off_by_exactly_their_size(M: int, extra: int, size: float, seed: int) -> None:
    U = nearly_orthogonal_patterns(M, M + extra, size, generator=generator(seed))
    assert U.shape == (M, M + extra)
    off = U @ U.mT - torch.eye(M, dtype=torch.float64)
    assert off.diagonal().abs().max() < 1e-13
    assert float(torch.linalg.matrix_norm(off, ord=2)) == pytest.approx(size, abs=1e-13)


def test_a_single_nearly_orthogonal_pattern_is_a_unit_vector() -> None:
    assert float(nearly_orthogonal_patterns(1, 3, 0.0, generator=generator()).norm()) == pytest.approx(1)
    with pytest.raises(InputError, match="one pattern of norm 1 cannot be off by"):
        nearly_orthogonal_patterns(1, 3, 0.1, generator=generator())


def test_the_closed_form_refuses_patterns_that_are_not_orthonormal() -> None:
    U = nearly_orthogonal_patterns(3, 4, 0.02, generator=generator())
    for model in (LatentCategorical(U, draw_probabilities(3, 0)), LatentSummation(U, 0.2)):
        with pytest.raises(InputError, match=r"I‖ is 0\.02 for these"):
            model.covariance_at(0)
    draw_model(8, 8, 0, summation=True, dtype=torch.float32).covariance_at(0)  # orthonormal up to float32's rounding


U = orthonormal_patterns(3, 4, generator=generator())
P = draw_probabilities(3, 0)


@pytest.mark.parametrize(
    ("patterns", "probabilities", "message"),
    [
        (U.numpy(), P, "patterns must be a tensor of floating-point numbers"),
        (U.long(), P, r"got torch.int64 \(3, 4\)"),
        (U[0], P, r"patterns must have shape \(M, d\), got \(4,\)"),
        (U[:0], P[:0], r"got \(0, 4\)"),
        ("patterns", P, "got str"),
        (U / 0, P, "patterns holds NaN or infinite"),
        (U, P[:2], r"probabilities must have shape \(3,\), got \(2,\)"),
        (U, P.tolist(), r"probabilities must be .* got list"),
        (U, P.numpy(), "probabilities must be .* got ndarray"),
        (U, torch.tensor([1, 0, 0]), "got torch.int64"),
        (U, P * 1.001, "sum to 1, got .* a sum of 1.001; divide"),
        (U, torch.tensor([1.2, -0.1, -0.1]), "a smallest of -0.1"),
        (U, P * torch.nan, "a sum of nan"),
    ],
)
def test_bad_categorical_models_are_refused(patterns: object, probabilities: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LatentCategorical(patterns, probabilities)


@pytest.mark.parametrize(
    ("q", "message"),
    [
        (0, "q must be above 0 and below 1, got 0 to 0"),
        (1.0, "got 1 to 1"),
        (math.nan, "got nan"),
        (P - 1, "q must be above 0 and below 1"),
        (P[:2], r"tensor \(3,\) with one per pattern, got torch.float64 \(2,\)"),
        (np.full(3, 0.2), "q must be a number, or .* got ndarray"),
        (torch.ones(3, dtype=torch.int64), "got torch.int64"),
        ("0.3", "got str"),
        (True, "got bool"),
    ],
)
def test_bad_rates_are_refused(q: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LatentSummation(U, q)


def test_other_bad_input_is_refused() -> None:
    model, g = LatentSummation(U, 0.2), generator()
    for call, message in (
        (lambda: model.sample(0, generator=g), "n must be a whole number of at least 1, got 0"),
        (lambda: model.sample(2.5, generator=g), "n must be a whole number"),
        (
            lambda: model.sample(2, noise_std=-1.0, generator=g),
            "noise_std must be a finite number of at least 0, got -1.0",
        ),
        (lambda: model.sample(2, noise_std="a", generator=g), "got 'a'"),
        (lambda: model.sample(2, generator=0), "generator must be a torch.Generator, got int"),
        (lambda: LatentCategorical(U, P).sample(2, generator=None), "got NoneType; use torch.Generator"),
        (lambda: model.covariance_at(3), "m must be a whole number of at most 2, got 3"),
        (lambda: model.gap_at(-1), "m must be a whole number of at least 0"),
        (lambda: model.eigenvalue_at("a"), "m must be a whole number"),
        (lambda: LatentSummation(randn(17, 17), 0.2).states(), "17 patterns have 2.17 sums"),
        (lambda: orthonormal_patterns(4, 3, generator=g), "no 4 independent patterns in 3 dimensions"),
        (lambda: orthonormal_patterns(0, 3, generator=g), "n_patterns must be a whole number"),
        (lambda: orthonormal_patterns(2, "d", generator=g), "d must be a whole number"),
        (
            lambda: nearly_orthogonal_patterns(2, 3, 1.0, generator=g),
            "size must be a number of at least 0 and below 1, got 1.0",
        ),
        (lambda: nearly_orthogonal_patterns(2, 3, math.nan, generator=g), "got nan"),
        (lambda: nearly_orthogonal_patterns(2, 3, "x", generator=g), "got 'x'"),
        (lambda: nearly_orthogonal_patterns(2, 3, 0.1, generator=1), "generator must be a torch.Generator"),
    ):
        with pytest.raises(InputError, match=message):
            call()
