"""The mixture with augmented views agrees with itself and with samples."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kontrast.claims.c.mixtures import AugmentedMixture
from kontrast.patterns import GatedCovariance, Homogeneous


def augmented(seed: int, left: float) -> tuple[AugmentedMixture, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    means, w = (torch.randn(size, generator=draw, dtype=torch.float64) for size in ((4, 3), (3,)))
    p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    return AugmentedMixture(means, p, 0.7, activation=Homogeneous(1.0, 1.0, left)), w / w.norm()


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
