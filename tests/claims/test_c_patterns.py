"""The claims of paper C on patterns and their stability are measured otherwise once the code they rest on is broken."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kontrast.claims import measure, select
from kontrast.claims.c import patterns, stability
from kontrast.patterns import BatchNormalized, GatedCovariance, Homogeneous, MixtureCovariance, one_layer
from tests.claims.breaks import QUICK, Break, assert_noticed, each_of, times


def without_tolerance(real: Any) -> Any:
    """Gates that round-off opens."""
    return lambda self, z, tolerance=0.0: real(self, z)


def with_less_variance(real: Any) -> Any:
    """Batch normalisation that forgets a little of how the standard deviation changes."""
    return lambda self, weights: real(self, weights) + 0.01 * self.covariance.product(weights)


def the_largest_itself(real: Any) -> Any:
    """λ in the place of the gap below it."""
    return lambda A, w: float(w @ A @ w)


BROKEN: list[tuple[str, Any, str, Break]] = [
    ("C.lme", Homogeneous, "gate", without_tolerance),
    ("C.lme", one_layer, "_tangent", times(-1.0)),
    ("C.lme", one_layer, "PATIENCE", lambda real: 10**9),
    ("C.lme", BatchNormalized, "product", with_less_variance),
    ("C.thm1", MixtureCovariance, "_roughness_matrix", times(-1.0)),
    ("C.thm1", MixtureCovariance, "roughness", times(0.5)),
    ("C.thm1", one_layer, "_tangent", times(-1.0)),
    ("C.thm1", stability, "gap_at", the_largest_itself),
]


@pytest.mark.parametrize("claim_id", ["C.lme", "C.thm1"])
def test_one_seed_is_enough_to_tell_what_is_broken_from_what_is_not(claim_id: str) -> None:
    (claim,) = select([claim_id])
    found = measure(claim, dataclasses.replace(QUICK, n_seeds=1))
    assert found.verdict is claim.recorded, {name: str(x) for name, x in found.evidence.measured.items()}


@each_of(BROKEN)
def test_a_broken_implementation_changes_the_verdict(
    claim_id: str, where: Any, name: str, broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_noticed(claim_id, where, name, broken, monkeypatch, n_seeds=1)


def augmented(seed: int, left: float) -> tuple[stability.AugmentedMixture, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    means, w = (torch.randn(size, generator=draw, dtype=torch.float64) for size in ((4, 3), (3,)))
    p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    return stability.AugmentedMixture(means, p, 0.7, activation=Homogeneous(1.0, 1.0, left)), w / w.norm()


@settings(max_examples=20)
@given(seed=st.integers(0, 2**16), left=st.sampled_from([0.0, -0.3]))
def test_the_augmented_population_hangs_together(seed: int, left: float) -> None:
    """A(w)w is the product, and R is its derivative at fixed w."""
    field, w = augmented(seed, left)
    torch.testing.assert_close(field.product(w[None])[0], field.matrix(w) @ w, rtol=1e-12, atol=1e-14)
    u = torch.linalg.qr(w[:, None], mode="complete").Q[:, 1]
    step = 1e-5
    ahead, back = ((w + s * u) / (w + s * u).norm() for s in (step, -step))
    by_differences = (field.matrix(ahead) - field.matrix(back)) @ w / (2 * step)
    torch.testing.assert_close(by_differences, field.roughness_matrix(w) @ u, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("left", [0.0, -0.3])
def test_the_augmented_population_is_the_limit_of_samples_with_views(left: float) -> None:
    field, w = augmented(3, left)
    draw, n = torch.Generator().manual_seed(0), 100_000
    x = field.means[torch.multinomial(field.probabilities, n, replacement=True, generator=draw)]
    first, second = (x + 0.7 * torch.randn(x.shape, generator=draw, dtype=x.dtype) for _ in range(2))
    sampled = GatedCovariance(first, second, activation=field.activation).matrix(w)
    expected = field.matrix(w)
    assert float((sampled - expected).norm() / expected.norm()) < 0.05


def test_newton_finds_saddles_as_well_as_maxima() -> None:
    """A linear filter: every eigenvector of the covariance is at rest, ±, and its margin is the gap to the top."""
    means = torch.diag(torch.tensor([1.0, 2.0, 3.0])).double()
    field = MixtureCovariance(means, torch.full((3,), 1 / 3, dtype=torch.float64), 0.5, activation="linear")
    w, margins, worst = stability.rest_points(field, patterns.starts_of(60, 3))
    values = torch.linalg.eigvalsh(field.matrix(w[0]))
    expected = sorted([float(values[2] - values[1]), float(values[1] - values[2]), float(values[0] - values[2])] * 2)
    torch.testing.assert_close(torch.tensor(sorted(margins.tolist())), torch.tensor(expected), rtol=1e-5, atol=1e-7)
    returned = patterns.push_and_follow(field, w, margins, worst)
    assert ((returned < 0.5) == (margins > 0)).all()
    assert ((returned > 2) == (margins < 0)).all()
