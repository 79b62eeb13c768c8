from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from
from scipy import stats
from torch import Tensor

from kontrast import linalg
from kontrast.errors import ConvergenceError, InputError
from tests.cases import DTYPES, randn


def gaussian_kernel(x: Tensor, y: Tensor) -> Tensor:
    return torch.exp(-0.5 * torch.cdist(x, y).square())


SIZES = {"seed": integers(0, 2**16), "n": integers(1, 25), "ridge": floats(1e-3, 10)}


@given(**SIZES, c=sampled_from([0, 1, 3]))
def test_cholesky_and_conjugate_gradients_solve_the_system(seed: int, n: int, ridge: float, c: int) -> None:
    x = randn(n, 3, seed=seed)
    K, y = gaussian_kernel(x, x), randn(n, c, seed=seed + 1) if c else randn(n, seed=seed + 1)
    expected = torch.linalg.solve(K + ridge * torch.eye(n, dtype=K.dtype), y)
    for kernel in (K, lambda v: K @ v, K.numpy()):
        solution = linalg.ridge_solve(kernel, y, ridge=ridge)
        torch.testing.assert_close(solution.weights, expected, rtol=1e-6, atol=1e-7)
        assert solution.weights.shape == y.shape
        assert solution.residuals.shape == y.shape[1:]
        assert solution.residuals.max() <= 1e-10
        assert (solution.n_steps == 0) == (kernel is K)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("free", [False, True])
def test_number_type_is_kept_and_residuals_are_true(dtype: torch.dtype, free: bool) -> None:
    x = randn(60, 3, dtype=dtype)
    K, y = gaussian_kernel(x, x), randn(60, 2, seed=1, dtype=dtype)
    solution = linalg.ridge_solve((lambda v: K @ v) if free else K, y, ridge=0.1, dtype=dtype)
    error = (K.double() @ solution.weights.double() + 0.1 * solution.weights.double() - y.double()).norm(dim=0)
    assert solution.weights.dtype == solution.residuals.dtype == dtype
    assert (error / y.double().norm(dim=0)).max() < (1e-10 if dtype == torch.float64 else 1e-5)


def test_targets_of_different_difficulty_and_zero_targets_stand_still_when_done() -> None:
    """An eigenvector is done in one step, a zero target in none, beside one that takes many."""
    x = randn(50, 2)
    K = 1e6 * gaussian_kernel(x, x)  # large, so that a step too many would be seen
    y = torch.stack([torch.linalg.eigh(K).eigenvectors[:, -1], torch.zeros(50, dtype=K.dtype), randn(50, seed=1)], 1)
    solution = linalg.ridge_solve(lambda v: K @ v, y, ridge=1e4)
    expected = torch.linalg.solve(K + 1e4 * torch.eye(50, dtype=K.dtype), y)
    torch.testing.assert_close(solution.weights, expected, rtol=1e-6, atol=1e-12)
    assert (solution.weights[:, 1] == 0).all()
    assert solution.residuals[1] == 0


def test_a_memory_map_is_solved(tmp_path: Path) -> None:
    x = randn(40, 3)
    K, y = gaussian_kernel(x, x), randn(40, seed=2)
    np.save(tmp_path / "kernel.npy", K.numpy())
    mapped = linalg.ridge_solve(np.load(tmp_path / "kernel.npy", mmap_mode="r"), y, ridge=0.5)
    torch.testing.assert_close(mapped.weights, linalg.ridge_solve(K, y, ridge=0.5).weights, rtol=1e-8, atol=1e-9)


# ---------------------------------------------------------------------------------------------- Gaussian processes


@given(seed=integers(0, 2**16), n=integers(1, 20), m=integers(1, 10), noise=floats(1e-2, 2), c=sampled_from([0, 2]))
def test_posterior_is_the_conditional_of_the_joint_gaussian(seed: int, n: int, m: int, noise: float, c: int) -> None:
    x, t = randn(n, 2, seed=seed), randn(m, 2, seed=seed + 1)
    y = randn(n, c, seed=seed + 2) if c else randn(n, seed=seed + 2)
    K, cross, K_test = gaussian_kernel(x, x), gaussian_kernel(t, x), gaussian_kernel(t, t)
    inverse = torch.linalg.inv(K + noise * torch.eye(n, dtype=K.dtype))
    covariance = K_test - cross @ inverse @ cross.mT
    posterior = linalg.gp_posterior(K, cross, K_test.diagonal(), y, noise=noise)
    torch.testing.assert_close(posterior.mean, cross @ inverse @ y, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(posterior.variance, covariance.diagonal(), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(linalg.gp_covariance(K, cross, K_test, noise=noise), covariance, rtol=1e-9, atol=1e-10)
    weights = linalg.ridge_solve(K, y, ridge=noise).weights
    torch.testing.assert_close(posterior.mean, cross @ weights, rtol=1e-9, atol=1e-10)


def test_without_noise_the_process_goes_through_its_targets() -> None:
    x, y = 3 * randn(15, 2), randn(15, seed=1)
    K = gaussian_kernel(x, x)
    posterior = linalg.gp_posterior(K, K, K.diagonal(), y, noise=0.0)
    torch.testing.assert_close(posterior.mean, y, rtol=1e-7, atol=1e-8)
    assert posterior.variance.min() >= 0
    assert posterior.variance.max() < 1e-8


@given(seed=integers(0, 2**16), n=integers(1, 15), noise=floats(1e-2, 3))
def test_likelihood_is_scipys_normal_density(seed: int, n: int, noise: float) -> None:
    x, y = randn(n, 2, seed=seed), randn(n, 2, seed=seed + 1)
    K = gaussian_kernel(x, x)
    ours = linalg.log_marginal_likelihood(K, y, noise=noise)
    normal = stats.multivariate_normal(np.zeros(n), (K + noise * torch.eye(n, dtype=K.dtype)).numpy())
    assert ours.tolist() == pytest.approx(np.atleast_1d(normal.logpdf(y.T.numpy())).tolist(), rel=1e-9)
    assert linalg.log_marginal_likelihood(K, y[:, 0], noise=noise).shape == ()


# --------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [5, 40, 1100])
def test_the_ridge_that_the_error_names_is_enough_and_not_much_too_large(n: int, dtype: torch.dtype) -> None:
    x = randn(n, 4, dtype=dtype)
    K = x @ x.mT / n - 0.5 * torch.eye(n, dtype=dtype)  # the smallest eigenvalue is −½
    with pytest.raises(
        InputError, match=r"K \+ ridge·I is not positive definite with ridge=0.1: the smallest"
    ) as error:
        linalg.ridge_solve(K, x[:, 0], ridge=0.1)
    named = float(re.search(r"pass ridge=(\S+) or more", str(error.value)).group(1))
    assert 0.5 <= named < 0.55
    weights = linalg.ridge_solve(K, x[:, 0], ridge=named).weights
    assert torch.isfinite(weights).all()


def test_a_singular_kernel_is_refused_with_a_ridge_of_the_size_of_rounding() -> None:
    K = torch.ones(6, 6, dtype=torch.float64)
    with pytest.raises(InputError, match=r"pass noise=\S+ or more") as error:
        linalg.gp_posterior(K, K, K.diagonal(), K[0], noise=0.0)
    named = float(re.search(r"pass noise=(\S+) or more", str(error.value)).group(1))
    assert 0 < named < 1e-12
    linalg.gp_posterior(K, K, K.diagonal(), K[0], noise=named)


def test_conjugate_gradients_meet_an_indefinite_kernel() -> None:
    K = torch.diag(torch.linspace(-1, 1, 100, dtype=torch.float64))
    with pytest.raises(InputError, match=r"not positive definite.*smallest eigenvalue of K is about -1 "):
        linalg.ridge_solve(lambda v: K @ v, randn(100), ridge=0.1)


def test_conjugate_gradients_say_how_far_they_came() -> None:
    K = torch.diag(10.0 ** torch.linspace(-8, 0, 200, dtype=torch.float64))
    with pytest.raises(ConvergenceError, match=r"in 20 steps, not 1e-10; raise ridge \(now 1e-09\)"):
        linalg.ridge_solve(lambda v: K @ v, randn(200), ridge=1e-9, max_steps=20)


K, Y = torch.eye(4, dtype=torch.float64), randn(4)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: linalg.ridge_solve(K, Y[:3], ridge=1),
            r"targets must be \(4,\) or \(4, c\) like the kernel, got \(3,\)",
        ),
        (lambda: linalg.ridge_solve(K, Y.float(), ridge=1), r"targets are torch.float32 on cpu and the kernel is"),
        (lambda: linalg.ridge_solve(K, Y / 0, ridge=1), r"targets hold NaN or infinite"),
        (lambda: linalg.ridge_solve(K, Y, ridge=-1), r"ridge must be a finite number of at least 0, got -1"),
        (lambda: linalg.ridge_solve(K, Y, ridge=math.nan), r"got nan"),
        (lambda: linalg.ridge_solve(K + K.roll(1, 0), Y, ridge=1), r"K must be symmetric"),
        (lambda: linalg.ridge_solve(K[:3], Y, ridge=1), r"K must be square"),
        (lambda: linalg.gp_posterior(K, K[:, :2], Y[:2], Y, noise=1), r"K_cross must be \(m, 4\).* is it transposed"),
        (lambda: linalg.gp_posterior(K, K[:2], K[:2, :2], Y, noise=1), r"k_test must be \(2,\).*gp_covariance"),
        (lambda: linalg.gp_posterior(K, 9 * K, K.diagonal(), Y, noise=1), r"do not belong to one kernel"),
        (lambda: linalg.gp_posterior(K, K, K.diagonal(), Y, noise=-1), r"noise must be a finite number"),
        (lambda: linalg.gp_covariance(K, K[:2], K, noise=1), r"K_test must be \(2, 2\), got \(4, 4\)"),
        (lambda: linalg.gp_covariance(K, 9 * K, K, noise=1), r"do not belong to one kernel"),
        (lambda: linalg.log_marginal_likelihood(K.numpy(), Y, noise=1), r"K must be a torch matrix here"),
    ],
)
def test_what_cannot_work_is_refused_with_the_fix(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_a_cross_kernel_of_another_kind_is_refused() -> None:
    K, cross = torch.eye(3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)
    for bad in (cross.float(), cross * float("nan")):
        with pytest.raises(InputError, match="K_cross must be finite and like K_train"):
            linalg.gp_posterior(K, bad, torch.ones(2, dtype=torch.float64), K[:, 0], noise=0.1)
