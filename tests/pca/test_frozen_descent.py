"""The steps that the closed form says are those that descent takes."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers

from kontrast.errors import InputError
from kontrast.linalg import grassmann_step, random_frame, subspace_sines
from kontrast.pca import FrozenDescent

LOW, HIGH = 0.02, 0.3  # sines that are asked for


def random_problem(m: int, M: int, Z: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, a symmetric S whose eigenvalues have both signs, and a start."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(m, M, generator=generator, dtype=torch.float64)
    S = torch.randn(m, m, generator=generator, dtype=torch.float64)
    return features, (S + S.T) / m, random_frame(M, Z, generator=generator)


def sine_after(C: torch.Tensor, W: torch.Tensor, n_steps: int, rate: float) -> float:
    """Descent of −Tr(W^T C W), step by step, and its largest sine to the top eigenvectors."""
    k = W.shape[1]
    top = torch.linalg.eigh(C)[1][:, -k:]
    for _ in range(n_steps):
        W = grassmann_step(W, -2 * C @ W, learning_rate=rate)
    return float(subspace_sines(W, top)[0])


@settings(max_examples=60)
@given(
    m=integers(4, 20),
    M=integers(6, 60),
    k=integers(1, 3),
    seed=integers(0, 2**16),
    sine=floats(LOW, HIGH),
    share=floats(0.05, 1.5),
)
def test_descent_arrives_in_the_steps_it_says_and_not_much_sooner(
    m: int, M: int, k: int, seed: int, sine: float, share: float
) -> None:
    """With steps of up to one and a half times the longest that does not overshoot; "about" is a factor of two."""
    features, S, W = random_problem(m, M, 3, seed)
    descent, C = FrozenDescent.of(features, S, W), features.T @ S @ features
    values = torch.linalg.eigvalsh(C).flip(0)
    assert descent.spread == pytest.approx(float(values[0] - values[-1]), rel=1e-9)
    assert descent.gap(k) == pytest.approx(float(values[k - 1] - values[k]), rel=1e-6, abs=descent.noise)
    rate = share * descent.learning_rate
    steps = descent.steps_to(sine, k, learning_rate=rate)
    if steps > 3000:  # an eigengap of nearly zero; the law is the same
        return
    assert sine_after(C, W[:, :k], math.ceil(steps), rate) <= 2 * sine
    if steps > 20:
        assert sine_after(C, W[:, :k], int(steps / 4), rate) > sine


def test_one_direction_is_exact_in_small_steps() -> None:
    features, S, W = random_problem(10, 40, 1, 3)
    descent, C = FrozenDescent.of(features, S, W), features.T @ S @ features
    rate = descent.learning_rate / 50
    steps = descent.steps_to(0.1, 1, learning_rate=rate)
    assert sine_after(C, W, round(steps), rate) == pytest.approx(0.1, rel=0.1)


def test_steps_that_overshoot_never_arrive() -> None:
    features, S, W = random_problem(10, 40, 2, 0)
    descent = FrozenDescent.of(features, S, W)
    limit = 1 / descent.spread
    assert math.isfinite(descent.steps_to(0.1, 2, learning_rate=0.99 * limit))
    assert descent.steps_to(0.1, 2, learning_rate=1.01 * limit) == math.inf
    assert descent.learning_rate == pytest.approx(limit / 2)


def test_without_an_eigengap_no_number_of_steps_is_enough() -> None:
    """Points in one direction have one eigenvalue, and zeros: there is a PCA of one dimension and none of two."""
    features, S = torch.ones(4, 9, dtype=torch.float64), torch.eye(4, dtype=torch.float64)
    W = random_frame(9, 2, generator=torch.Generator().manual_seed(0))
    descent = FrozenDescent.of(features, S, W)
    assert descent.gap(1) == pytest.approx(36)
    assert descent.gap(2) == 0
    assert math.isfinite(descent.steps_to(0.1, 1, learning_rate=0.01))
    assert descent.steps_to(0.1, 2, learning_rate=0.01) == math.inf
    silent = FrozenDescent.of(0 * features, S, W)
    assert silent.learning_rate == math.inf
    assert silent.steps_to(0.1, 1, learning_rate=1.0) == math.inf


def test_the_whole_space_is_there_from_the_start() -> None:
    features, S, W = random_problem(6, 3, 3, 0)
    descent = FrozenDescent.of(features, S, W)
    assert descent.gap(3) == math.inf
    assert descent.steps_to(0.1, 3, learning_rate=0.01) == 0


def test_a_start_that_is_pca_needs_no_step_and_one_that_misses_it_never_arrives() -> None:
    features, S, _ = random_problem(6, 9, 1, 0)
    vectors = torch.linalg.eigh(features.T @ S @ features)[1]
    there = FrozenDescent.of(features, S, vectors[:, -1:])
    assert there.steps_to(0.1, 1, learning_rate=0.1 * there.learning_rate) == 0
    missed = dataclasses.replace(there, start=there.start.flip(0).masked_fill(there.start.flip(0).abs() < 1, 0.0))
    assert missed.steps_to(0.1, 1, learning_rate=0.1 * there.learning_rate) == math.inf


def test_single_precision_knows_a_gap_only_to_its_own_rounding() -> None:
    features, S, W = random_problem(6, 9, 1, 0)
    fine, coarse = FrozenDescent.of(features, S, W), FrozenDescent.of(features.float(), S.float(), W.float())
    assert coarse.noise > 1e6 * fine.noise
    assert coarse.gap(1) == pytest.approx(fine.gap(1), rel=1e-4)


@pytest.mark.parametrize("k", [0, 2])
def test_dimensions_are_those_of_the_start(k: int) -> None:
    with pytest.raises(InputError, match="k must be a whole number"):
        FrozenDescent.of(*random_problem(6, 9, 1, 0)).gap(k)
