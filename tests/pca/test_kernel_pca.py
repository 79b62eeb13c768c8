from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers, sampled_from
from torch import Tensor

from kontrast.errors import InputError
from kontrast.kernels import CosineKernel, GaussianKernel, InfiniteNetwork, NetworkKernel
from kontrast.linalg import subspace_sines
from kontrast.pca import KernelFeatures, kernel_contrastive_pca, kernel_pca, nystrom_features
from tests.cases import DTYPES, randn
from tests.reference import closed_forms as reference

KERNELS = [
    NetworkKernel(InfiniteNetwork()),
    NetworkKernel(InfiniteNetwork(depth=2, activation="erf")),
    GaussianKernel(2.0),
    CosineKernel(NetworkKernel(InfiniteNetwork()), 1e-3),
    CosineKernel(GaussianKernel(2.0), 0.1),
]


def pool(n: int, *, d: int = 6, seed: int = 0) -> Tensor:
    x = randn(n, d, seed=seed)
    return torch.cat([x, x + 0.2 * randn(n, d, seed=seed + 1)])


def dense_eigenvalues(K: Tensor, S: Tensor) -> Tensor:
    """All eigenvalues of S K, not symmetric, in descending order; they are real."""
    values = np.linalg.eigvals((S @ K).numpy())
    assert np.abs(values.imag).max() < 1e-9
    return torch.from_numpy(np.sort(values.real)[::-1].copy())


def assert_solves(K: Tensor, S: Tensor, a: Tensor, values: Tensor, atol: float) -> None:
    torch.testing.assert_close(a.mT @ K @ a, torch.eye(a.shape[1]).double(), rtol=0, atol=atol)
    error = S @ (K @ a) - a * values
    # Up to K's null space, where neither w = Φ^T a nor f = K a sees anything.
    assert float((K @ error).norm()) < atol


@given(n=integers(4, 20), k=integers(1, 3), seed=integers(0, 2**10), kernel=sampled_from(KERNELS))
def test_the_whole_route_equals_a_dense_decomposition(n: int, k: int, seed: int, kernel: object) -> None:
    x = pool(n, seed=seed)
    K, S = kernel(x), reference.dense_pair_matrix(n, 1, None, 2 * n)
    a, values = kernel_contrastive_pca(K, lambda block: S @ block, k)
    torch.testing.assert_close(values, dense_eigenvalues(K, S)[:k], rtol=0, atol=1e-9)
    assert_solves(K, S, a, values, 1e-7)


def test_lanczos_equals_the_whole_route(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 100
    K, S = KERNELS[3](pool(n)), reference.dense_pair_matrix(n, 1, torch.roll(torch.arange(n), 1)[:, None], 2 * n)
    a, expected = kernel_contrastive_pca(K, lambda block: S @ block, 3)
    torch.testing.assert_close(expected, dense_eigenvalues(K, S)[:3], rtol=0, atol=1e-9)
    monkeypatch.setattr(kernel_pca, "WHOLE_BELOW", n)
    b, found = kernel_contrastive_pca(K, lambda block: S @ block, 3)
    assert_solves(K, S, b, found, 1e-6)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=0)
    assert float(subspace_sines(K @ a, K @ b).max()) < 1e-6


def test_lanczos_above_a_thousand_points() -> None:
    """A kernel of 8 features, so that the dense decomposition is that of C = Φ^T S Φ, 8 × 8."""
    n = 550
    phi = torch.tanh(pool(n) @ randn(6, 8, seed=5))
    S = reference.dense_pair_matrix(n, 1, torch.roll(torch.arange(n), 1)[:, None], 2 * n)
    K = phi @ phi.mT
    assert len(K) > kernel_pca.WHOLE_BELOW
    a, found = kernel_contrastive_pca(K, lambda block: S @ block, 3)
    expected, W = torch.linalg.eigh(phi.mT @ S @ phi)
    torch.testing.assert_close(found, expected.flip(0)[:3], rtol=1e-7, atol=0)
    assert float(subspace_sines(phi.mT @ a, W[:, -3:]).max()) < 1e-6
    full = KERNELS[3](pool(n))  # and one of full rank
    a, found = kernel_contrastive_pca(full, lambda block: S @ block, 3)
    assert_solves(full, S, a, found, 1e-6)


@given(seed=integers(0, 2**10))
def test_finite_features_and_their_kernel_have_the_same_solution(seed: int) -> None:
    """C = Φ^T S Φ against S K with K = ΦΦ^T: the same λ, and w = Φ^T a."""
    phi, S = randn(24, 5, seed=seed), reference.dense_pair_matrix(8, 2, None, 24)
    a, values = kernel_contrastive_pca(phi @ phi.mT, lambda block: S @ block, 1)
    expected, W = torch.linalg.eigh(phi.mT @ S @ phi)
    torch.testing.assert_close(values, expected.flip(0)[:1], rtol=0, atol=1e-10)
    assert float(subspace_sines(phi.mT @ a, W[:, -1:]).max()) < 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_components_than_positive_eigenvalues_are_refused(dtype: torch.dtype) -> None:
    x = pool(4).to(dtype)
    S = reference.dense_pair_matrix(4, 1, None, 8).to(dtype)
    with pytest.raises(InputError, match=r"n_components=8, but only \d eigenvalues are positive"):
        kernel_contrastive_pca(KERNELS[0](x), lambda block: S @ block, 8)
    for n in (6, 1100):  # S repels everywhere, by either route
        phi = randn(n, 5, dtype=dtype)
        with pytest.raises(InputError, match="n_components=1, but only 0 eigenvalues are positive"):
            kernel_contrastive_pca(phi @ phi.mT, lambda block: -block, 1)


@given(n_landmarks=integers(1, 10), seed=integers(0, 2**10), kernel=sampled_from(KERNELS))
def test_landmark_features_are_exact_at_landmarks_and_below_elsewhere(
    n_landmarks: int, seed: int, kernel: object
) -> None:
    x = randn(14, 6, seed=seed)
    Z = x[:n_landmarks]
    features = nystrom_features(kernel, Z)
    phi, K = features(x), kernel(x)
    assert phi.shape == (14, features.n_features)
    torch.testing.assert_close(phi @ phi[:n_landmarks].mT, K[:, :n_landmarks], rtol=0, atol=1e-7)
    left = torch.linalg.eigvalsh(K - phi @ phi.mT)
    assert float(left.min()) > -1e-7


def test_duplicated_landmarks_are_dropped_and_blank_ones_refused() -> None:
    x = randn(5, 4)
    features = nystrom_features(KERNELS[0], torch.cat([x, x]))
    assert features.n_features == 5
    assert torch.isfinite(features(x)).all()
    with pytest.raises(InputError, match="the kernel is zero on the landmarks"):
        nystrom_features(KERNELS[0], torch.zeros(3, 4).double())


def test_tiles_of_landmark_features_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x = randn(30, 4)
    features = nystrom_features(KERNELS[0], x[:7])
    whole = features(x)
    monkeypatch.setattr(kernel_pca, "KERNEL_TILE", {"cpu": 20})
    torch.testing.assert_close(features(x), whole, rtol=0, atol=1e-13)
    plain = KernelFeatures(KERNELS[0], x[:7])
    assert plain.n_features == 7
    assert torch.equal(plain(x), KERNELS[0](x, x[:7]))
