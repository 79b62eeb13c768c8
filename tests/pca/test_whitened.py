from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers, sampled_from
from torch import Tensor

from kontrast.errors import InputError
from kontrast.linalg import subspace_sines
from kontrast.pca import ViewMoments, require_positive_values, whitened, whitened_pca
from tests.cases import randn
from tests.reference import closed_forms as reference


def moments(M: int = 8, *, n: int = 40, v: int = 3, seed: int = 0, spread: float = 0.7) -> tuple[Tensor, Tensor]:
    """B and Σ of samples with independent noise in each view, positive in most directions."""
    views = randn(n, M, seed=seed) + spread * randn(v, n, M, seed=seed + 1)
    _, covariance, _, between = reference.view_covariances(views)
    return between, covariance


@given(seed=integers(0, 2**16), k=integers(1, 4), ridge=sampled_from([0.0, 1e-5, 0.1]))
def test_the_solution_is_that_of_the_generalized_eigenproblem(seed: int, k: int, ridge: float) -> None:
    B, covariance = moments(seed=seed)
    solution = whitened_pca(B, covariance, k, ridge=ridge)
    values, frame = reference.whitened(B, covariance, k, ridge=ridge)
    torch.testing.assert_close(solution.values, values, rtol=0, atol=1e-10)
    assert float(subspace_sines(solution.frame, frame).max()) < 1e-6
    assert solution.ridge == pytest.approx(ridge * float(covariance.trace()), rel=1e-12)
    regular = covariance + solution.ridge * torch.eye(8, dtype=torch.float64)
    torch.testing.assert_close(solution.frame.mT @ regular @ solution.frame, torch.eye(k).double(), rtol=0, atol=1e-10)
    residual = B @ solution.frame - regular @ solution.frame * solution.values
    assert float(residual.abs().max()) < 1e-10
    assert (solution.frame.amax(0) >= -solution.frame.amin(0) - 1e-9).all()
    torch.testing.assert_close(solution.scaled(0.5).square(), solution.frame.square() * solution.values)
    assert torch.equal(solution.scaled(0), solution.frame)


def test_lanczos_on_large_matrices_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    B, covariance = moments(100, n=60, v=2)
    whole = whitened_pca(B, covariance, 4, ridge=1e-3)
    monkeypatch.setattr(whitened, "DIRECT_BELOW", 50)
    iterated = whitened_pca(B, covariance, 4, ridge=1e-3)
    torch.testing.assert_close(iterated.values, whole.values, rtol=0, atol=1e-6)
    assert float(subspace_sines(iterated.frame, whole.frame).max()) < 1e-3


@given(scale=sampled_from([1e-8, 1e-3, 1e3, 1e8]))
def test_the_ridge_is_a_share_so_the_scale_of_features_does_not_matter(scale: float) -> None:
    B, covariance = moments()
    one, other = (whitened_pca(s * B, s * covariance, 3, ridge=1e-2) for s in (1.0, scale**2))
    torch.testing.assert_close(one.values, other.values, rtol=1e-9, atol=0)
    torch.testing.assert_close(one.frame, other.frame * scale, rtol=0, atol=1e-9)


@pytest.mark.parametrize("k", [0, -1, 9, 2.0, True, "2"])
def test_wrong_numbers_of_components_are_refused(k: object) -> None:
    with pytest.raises(InputError, match=r"n_components must be a whole number of at least 1|only 8 features"):
        whitened_pca(*moments(), k, ridge=0.0)


@pytest.mark.parametrize("ridge", [-1, -1e-9, math.nan, math.inf, "1", None])
def test_wrong_ridges_are_refused(ridge: object) -> None:
    with pytest.raises(InputError, match="ridge must be a finite number of at least 0"):
        whitened_pca(*moments(), 2, ridge=ridge)


def test_a_singular_covariance_needs_a_ridge() -> None:
    for B, covariance in (moments(8, n=2, v=2), moments(8)):
        B, covariance = (torch.nn.functional.pad(A, (0, 1, 0, 1)) for A in (B, covariance))  # a feature that is 0
        with pytest.raises(InputError, match=r"covariance of the 9 features is singular.*ridge above 0"):
            whitened_pca(B, covariance, 1, ridge=0.0)
        assert torch.isfinite(whitened_pca(B, covariance, 1, ridge=1e-5).frame).all()


@given(seed=integers(0, 2**16))
def test_features_that_repeat_are_singular_in_float32_too(seed: int) -> None:
    """Float32 features, of which the last is the sum of two others: what is left of its variance is rounding."""
    features = randn(2, 300, 6, seed=seed, dtype=torch.float32)
    features = torch.cat([features, features[..., :1] + features[..., 1:2]], dim=2)
    total = ViewMoments(7, torch.device("cpu"))
    total.update(features)
    covariance, B = total.covariances()
    with pytest.raises(InputError, match="singular"):
        whitened_pca(B, covariance, 1, ridge=0.0, resolution=total.resolution)


def test_features_that_do_not_vary_or_are_not_finite_are_refused() -> None:
    zero = torch.zeros(3, 3, dtype=torch.float64)
    with pytest.raises(InputError, match="features do not vary"):
        whitened_pca(zero, zero, 1, ridge=1e-5)
    for bad in (math.nan, math.inf):
        with pytest.raises(InputError, match="NaN, infinite or huge"):
            whitened_pca(zero, torch.full_like(zero, bad), 1, ridge=1e-5)


def test_components_beyond_the_positive_eigenvalues_are_refused() -> None:
    B, covariance = torch.diag(torch.tensor([0.5, 0.2, 0.0, -0.3])).double(), torch.eye(4).double()
    assert whitened_pca(B, covariance, 2, ridge=0.0).values.tolist() == pytest.approx([0.5, 0.2])
    with pytest.raises(InputError, match=r"n_components=3, but only 2 eigenvalues are positive.*at most 2"):
        whitened_pca(B, covariance, 3, ridge=0.0)
    fewer = whitened_pca(B, covariance, 4, ridge=0.0, allow_fewer=True)
    assert fewer.values.tolist() == pytest.approx([0.5, 0.2])
    assert fewer.frame.shape == (4, 2)
    with pytest.raises(InputError, match="only 1 eigenvalues are positive"):
        require_positive_values(torch.tensor([1.0, 0.1]), 2, noise=0.2)
