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
from kontrast.linalg import solves
from tests.cases import DTYPES, generator, randn
from tests.reference import regression as reference


def gaussian_kernel(x: Tensor, y: Tensor) -> Tensor:
    return torch.exp(-0.5 * torch.cdist(x, y).square())


SIZES = {"seed": integers(0, 2**16), "n": integers(1, 25), "ridge": floats(1e-3, 10)}


@given(**SIZES)
def test_the_inverse_is_the_inverse(seed: int, n: int, ridge: float) -> None:
    K = gaussian_kernel(*(2 * [randn(n, 3, seed=seed)]))
    inverse = linalg.RidgeSystem(K, ridge=ridge).inverse()
    one = torch.eye(n, dtype=K.dtype)
    torch.testing.assert_close(inverse @ (K + ridge * one), one, rtol=0, atol=1e-9)
    with pytest.raises(InputError, match="needs a Cholesky factor; pass a torch matrix"):
        linalg.RidgeSystem(K, ridge=ridge, method="cg").inverse()


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


# ------------------------------------------------------------------------------------------ preconditioners, rounding


def ill_conditioned(n: int = 300, *, dtype: torch.dtype = torch.float64, decay: float = 2.0) -> Tensor:
    """Eigenvalues i^-decay, in a random basis."""
    U = torch.linalg.qr(randn(n, n, seed=9)).Q
    K = (U * torch.arange(1, n + 1).double() ** -decay) @ U.mT
    return ((K + K.mT) / 2).to(dtype)


@given(seed=integers(0, 2**16), n=integers(1, 25), ridge=floats(1e-3, 10), rank=integers(1, 30))
def test_a_preconditioner_changes_the_steps_and_not_the_solution(seed: int, n: int, ridge: float, rank: int) -> None:
    x = randn(n, 3, seed=seed)
    K, y = gaussian_kernel(x, x), randn(n, 2, seed=seed + 1)
    P = linalg.nystrom_preconditioner(K, ridge=ridge, rank=rank, generator=generator(seed))
    solution = linalg.ridge_solve(K, y, ridge=ridge, method="cg", preconditioner=P)
    torch.testing.assert_close(solution.weights, linalg.ridge_solve(K, y, ridge=ridge).weights, rtol=1e-6, atol=1e-7)
    assert solution.residuals.max() <= 1e-10
    assert solution.n_steps > 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_preconditioned_steps_are_few(dtype: torch.dtype) -> None:
    K, y = ill_conditioned(dtype=dtype), randn(300, 2)
    for kernel in (K, lambda block: K @ block, K.numpy()):
        plain, better = (
            linalg.ridge_solve(
                kernel, y, ridge=1e-4, method="cg", preconditioner=P, tolerance=1e-3, dtype=dtype
            ).n_steps
            for P in (
                None,
                linalg.nystrom_preconditioner(kernel, ridge=1e-4, rank=100, n=300, dtype=dtype)
                if callable(kernel)
                else linalg.nystrom_preconditioner(kernel, ridge=1e-4, rank=100),
            )
        )
        assert 3 * better < plain


def test_a_preconditioner_of_full_rank_is_the_inverse() -> None:
    x = randn(20, 3)
    K, ridge = gaussian_kernel(x, x), 0.1
    P = linalg.nystrom_preconditioner(K, ridge=ridge, rank=99)
    inverse = torch.linalg.inv(K + ridge * torch.eye(20, dtype=K.dtype))
    torch.testing.assert_close(
        P(torch.eye(20, dtype=K.dtype)), (P.floor + ridge) * inverse, rtol=0, atol=1e-10 * float(inverse.max())
    )
    torch.testing.assert_close(P.values, torch.linalg.eigvalsh(K).flip(0), rtol=0, atol=1e-10)


def test_a_preconditioner_of_a_kernel_of_low_rank_keeps_that_rank() -> None:
    phi = randn(40, 5)
    P = linalg.nystrom_preconditioner(phi @ phi.mT, ridge=0.1, rank=20)
    assert len(P.values) == 5
    solution = linalg.ridge_solve(phi @ phi.mT, randn(40), ridge=0.1, method="cg", preconditioner=P)
    assert solution.n_steps <= 3


@pytest.mark.parametrize("form", ["tensor", "array"])
def test_float32_reaches_a_residual_that_its_recursion_only_claims(form: str) -> None:
    """One start ends 1e-5 away from the truth, which only a residual in float64 sees and only new starts mend."""
    K, y = ill_conditioned(dtype=torch.float32, decay=2.5), randn(300, 2)
    kernel = K if form == "tensor" else K.numpy()
    P = linalg.nystrom_preconditioner(kernel, ridge=1e-6, rank=100)
    solution = linalg.ridge_solve(kernel, y, ridge=1e-6, method="cg", preconditioner=P, tolerance=1e-7)
    error = (K.double() @ solution.weights + 1e-6 * solution.weights - y).norm(dim=0) / y.norm(dim=0)
    assert error.max() <= 1e-7
    torch.testing.assert_close(solution.residuals, error, rtol=1e-3, atol=0)
    exact = torch.linalg.solve(K.double() + 1e-6 * torch.eye(300, dtype=torch.float64), y)
    assert float((solution.weights - exact).norm() / exact.norm()) < 1e-4
    with pytest.raises(ConvergenceError, match=r"rounding allows no less: give targets in float64, raise ridge"):
        linalg.ridge_solve(kernel, y.float(), ridge=1e-6, method="cg", preconditioner=P, tolerance=1e-7)
    with pytest.raises(ConvergenceError, match=r"rounding allows no less: give a kernel in float64"):
        linalg.ridge_solve(lambda v: K @ v, y, ridge=1e-6, preconditioner=P, tolerance=1e-7, dtype=torch.float32)


def test_float64_targets_of_a_float32_kernel_have_float64_weights() -> None:
    x = randn(30, 3, dtype=torch.float32)
    K, y = x @ x.mT, randn(30, seed=1)
    K = (K + K.mT) / 2
    expected = torch.linalg.solve(K.double() + 0.1 * torch.eye(30, dtype=torch.float64), y)
    for method, tolerance in (("cholesky", 1e-11), ("cg", 1e-3)):
        weights = linalg.ridge_solve(K, y, ridge=0.1, method=method).weights
        torch.testing.assert_close(weights, expected, rtol=0, atol=tolerance)


# --------------------------------------------------------------------------------------------------- leave one out


@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=integers(0, 2**10), n=integers(1, 12), ridge=floats(1e-2, 3), c=sampled_from([0, 2]))
def test_errors_at_points_left_out_are_those_of_retraining(
    dtype: torch.dtype, seed: int, n: int, ridge: float, c: int
) -> None:
    x = randn(n, 3, seed=seed, dtype=dtype)
    K, y = gaussian_kernel(x, x), randn(n, c, seed=seed + 1) if c else randn(n, seed=seed + 1)
    expected = reference.retrained_without(K, y, ridge)
    loose = 1e-8 if dtype == torch.float64 else 3e-4
    for kernel, method in ((K, "auto"), (K, "cg"), (lambda v: K @ v, "auto")):
        ours = linalg.leave_one_out(kernel, y.to(dtype), ridge=ridge, method=method, n_points=n, dtype=dtype)
        torch.testing.assert_close(ours.residuals.double(), expected, rtol=loose, atol=loose)
        torch.testing.assert_close(ours.mean_square.double(), expected.square().mean(0), rtol=4 * loose, atol=loose)
        assert not ours.standard_error.any()


def test_the_variance_from_conjugate_gradients_is_never_too_small() -> None:
    K, cross = ill_conditioned(), randn(5, 300)
    exact = linalg.RidgeSystem(K, ridge=1e-3).reduction(cross)
    for tolerance in (0.3, 0.03, 1e-3):
        found = linalg.RidgeSystem(K, ridge=1e-3, method="cg", tolerance=tolerance).reduction(cross)
        short = (exact - found) / exact
        assert (short >= -1e-12).all()
        # the error squared: r^T G^-1 r, not b^T G^-1 r
        assert float(short.max()) < 1e3 * tolerance**2 * float(cross.norm(dim=1).square().max()) / float(exact.min())


def test_drift_in_float32_does_not_show_in_the_variance() -> None:
    """By b·x alone, which is right for exact conjugate gradients, it would be off by 1e-7."""
    K, cross = ill_conditioned(dtype=torch.float32, decay=2.5), randn(5, 300)
    P = linalg.nystrom_preconditioner(K, ridge=1e-6, rank=60)
    found = linalg.RidgeSystem(K, ridge=1e-6, method="cg", preconditioner=P, tolerance=1e-5).reduction(cross)
    torch.testing.assert_close(found, linalg.RidgeSystem(K.double(), ridge=1e-6).reduction(cross), rtol=1e-9, atol=0)


# ---------------------------------------------------------------------------------------------- Gaussian processes


@given(seed=integers(0, 2**16), n=integers(1, 20), m=integers(1, 10), noise=floats(1e-2, 2), c=sampled_from([0, 2]))
def test_posterior_is_the_conditional_of_the_joint_gaussian(seed: int, n: int, m: int, noise: float, c: int) -> None:
    x, t = randn(n, 2, seed=seed), randn(m, 2, seed=seed + 1)
    y = randn(n, c, seed=seed + 2) if c else randn(n, seed=seed + 2)
    K, cross, K_test = gaussian_kernel(x, x), gaussian_kernel(t, x), gaussian_kernel(t, t)
    inverse = torch.linalg.inv(K + noise * torch.eye(n, dtype=K.dtype))
    covariance = K_test - cross @ inverse @ cross.mT
    posterior = linalg.gp_posterior(K, cross, K_test.diagonal(), y, noise_variance=noise)
    torch.testing.assert_close(posterior.mean, cross @ inverse @ y, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(posterior.variance, covariance.diagonal(), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(
        linalg.gp_covariance(K, cross, K_test, noise_variance=noise), covariance, rtol=1e-9, atol=1e-10
    )
    weights = linalg.ridge_solve(K, y, ridge=noise).weights
    torch.testing.assert_close(posterior.mean, cross @ weights, rtol=1e-9, atol=1e-10)


def test_without_noise_the_process_goes_through_its_targets() -> None:
    x, y = 3 * randn(15, 2), randn(15, seed=1)
    K = gaussian_kernel(x, x)
    posterior = linalg.gp_posterior(K, K, K.diagonal(), y, noise_variance=0.0)
    torch.testing.assert_close(posterior.mean, y, rtol=1e-7, atol=1e-8)
    assert posterior.variance.min() >= 0
    assert posterior.variance.max() < 1e-8


@given(seed=integers(0, 2**16), n=integers(1, 15), noise=floats(1e-2, 3))
def test_likelihood_is_scipys_normal_density(seed: int, n: int, noise: float) -> None:
    x, y = randn(n, 2, seed=seed), randn(n, 2, seed=seed + 1)
    K = gaussian_kernel(x, x)
    ours = linalg.log_marginal_likelihood(K, y, noise_variance=noise)
    normal = stats.multivariate_normal(np.zeros(n), (K + noise * torch.eye(n, dtype=K.dtype)).numpy())
    assert ours.tolist() == pytest.approx(np.atleast_1d(normal.logpdf(y.T.numpy())).tolist(), rel=1e-9)
    assert linalg.log_marginal_likelihood(K, y[:, 0], noise_variance=noise).shape == ()


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
    with pytest.raises(InputError, match=r"pass noise_variance=\S+ or more") as error:
        linalg.gp_posterior(K, K, K.diagonal(), K[0], noise_variance=0.0)
    named = float(re.search(r"pass noise_variance=(\S+) or more", str(error.value)).group(1))
    assert 0 < named < 1e-12
    linalg.gp_posterior(K, K, K.diagonal(), K[0], noise_variance=named)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", ["cholesky", "cg"])
def test_the_first_rows_that_coincide_are_named(dtype: torch.dtype, method: str) -> None:
    x = randn(30, 40, dtype=dtype)
    x[[7, 20]] = x[3].clone()
    x[25] = x[11]
    with pytest.raises(
        InputError, match=r"ridge=0: rows 3 and 7 of K coincide.*; leave one out or pass ridge="
    ) as error:
        linalg.ridge_solve(x @ x.mT, randn(30, dtype=dtype), ridge=0.0, method=method)
    named = float(re.search(r"pass ridge=(\S+) or more", str(error.value)).group(1))
    assert named < 0.01
    linalg.ridge_solve(x @ x.mT, randn(30, dtype=dtype), ridge=named)


@pytest.mark.parametrize("pair", [(3, 28), (12, 17), (25, 28), (29, 30)])
def test_rows_that_coincide_are_named_wherever_they_are(pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four strips of rows, the first of the two in any, the other in the same or a later one."""
    monkeypatch.setattr(solves, "STRIP", 31 * 10)
    x = randn(31, 40)
    x[pair[1]] = x[pair[0]]
    with pytest.raises(InputError, match=rf"rows {pair[0]} and {pair[1]} of K coincide"):
        linalg.ridge_solve(x @ x.mT, randn(31), ridge=0.0)
    phi = randn(31, 20)  # singular, and no two rows alike
    with pytest.raises(InputError, match="the smallest eigenvalue of K is about"):
        linalg.ridge_solve(phi @ phi.mT, randn(31), ridge=0.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_differ_do_not_coincide(dtype: torch.dtype) -> None:
    """k_00 + k_11 − 2 k_01 = 0, as of equal rows, but of a matrix that is no kernel and has rows that differ."""
    K = torch.tensor([[1.0, 1.0, 0.5], [1.0, 1.0, -0.5], [0.5, -0.5, 1.0]], dtype=dtype)
    with pytest.raises(InputError, match=r"the smallest eigenvalue of K is about -0.37 and the largest 2"):
        linalg.ridge_solve(K, K[0], ridge=0.0)


@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=integers(0, 2**10), n=integers(3, 40))
def test_every_singular_kernel_is_refused(dtype: torch.dtype, seed: int, n: int) -> None:
    """Cholesky alone goes through half of them, whose smallest eigenvalue rounds to above zero."""
    phi = randn(n, n - 1, seed=seed, dtype=dtype)
    with pytest.raises(InputError, match=r"the smallest eigenvalue of K is about \S+ and the largest"):
        linalg.ridge_solve(phi @ phi.mT, phi[:, 0], ridge=0.0)


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
        (lambda: linalg.ridge_solve(K, Y / 0, ridge=1), r"targets holds NaN or infinite"),
        (lambda: linalg.ridge_solve(K, Y, ridge=-1), r"ridge must be a finite number of at least 0, got -1"),
        (lambda: linalg.ridge_solve(K, Y, ridge=math.nan), r"got nan"),
        (lambda: linalg.ridge_solve(K + K.roll(1, 0), Y, ridge=1), r"K must be symmetric"),
        (lambda: linalg.ridge_solve(K[:3], Y, ridge=1), r"K must be square"),
        (
            lambda: linalg.gp_posterior(K, K[:, :2], Y[:2], Y, noise_variance=1),
            r"K_cross must have shape \(m, 4\), got \(4, 2\).* is it transposed",
        ),
        (
            lambda: linalg.gp_posterior(K, K[:2], K[:2, :2], Y, noise_variance=1),
            r"k_test must have shape \(2,\), got \(2, 2\).*gp_covariance",
        ),
        (lambda: linalg.gp_posterior(K, 9 * K, K.diagonal(), Y, noise_variance=1), r"do not belong to one kernel"),
        (
            lambda: linalg.gp_posterior(K, K, K.diagonal(), Y, noise_variance=-1),
            r"noise_variance must be a finite number",
        ),
        (
            lambda: linalg.gp_posterior(K.float(), K.float(), Y, Y, noise_variance=1),
            r"targets are torch.float64 on cpu and the k",
        ),
        (
            lambda: linalg.ridge_solve(K, Y.numpy(), ridge=1),
            r"targets must be a tensor of floating-point numbers, got ndarray",
        ),
        (lambda: linalg.ridge_solve(K, torch.arange(4), ridge=1), r"for class labels pass one column per class"),
        (lambda: linalg.ridge_solve(K, Y, ridge=1, method="lu"), r"method must be one of auto, cholesky, cg, got 'lu'"),
        (
            lambda: linalg.ridge_solve(K, Y, ridge=1, tolerance=2),
            r"tolerance must be a number above 0 and below 1, got 2",
        ),
        (lambda: linalg.ridge_solve(K, Y, ridge=1, max_steps=0), r"max_steps must be a whole number of at least 1"),
        (lambda: linalg.ridge_solve(K, Y, ridge=1, preconditioner=K), r"preconditioner must be a function"),
        (
            lambda: linalg.ridge_solve(K, Y, ridge=1, method="cg", preconditioner=lambda r: -r),
            r"preconditioner must be positive definite",
        ),
        (
            lambda: linalg.ridge_solve(K, Y, ridge=1, method="cg", preconditioner=lambda r: r[:2]),
            r"preconditioner must map \(4, 1\) to finite numbers of that shape, got torch.float64 \(2, 1\)",
        ),
        (lambda: linalg.ridge_solve(K.numpy(), Y, ridge=1, method="cholesky"), r"K must be a torch matrix here"),
        (lambda: linalg.nystrom_preconditioner(K, ridge=-1), r"ridge must be a number of 0 or more, got -1"),
        (lambda: linalg.nystrom_preconditioner(K, ridge=1, rank=0), r"rank must be a whole number of at least 1"),
        (lambda: linalg.nystrom_preconditioner(-K, ridge=1), r"K is zero or negative definite"),
        (lambda: linalg.leave_one_out(K, Y, ridge=1, n_points=9), r"n_points must be .* at most 4, got 9"),
        (lambda: linalg.leave_one_out(K, Y, ridge=1, n_points=True), r"n_points must be .*, got True"),
        (lambda: linalg.leave_one_out(K, Y, ridge=1, n_points=2, generator=3), r"generator must be .*, got int"),
        (lambda: linalg.nystrom_preconditioner(K, ridge=1, generator=3), r"generator must be .*, got int"),
        (lambda: linalg.nystrom_preconditioner(K, ridge=1, rank=True), r"rank must be .*, got True"),
        (lambda: linalg.leave_one_out(K, Y, ridge=1, n_points=2), r"2 of 4 points are drawn at random: pass generator"),
        (lambda: linalg.RidgeSystem(K, ridge=1).reduction(K[:, :2]), r"K_cross must have shape \(m, 4\)"),
        (lambda: linalg.gp_covariance(K, K[:2], K, noise_variance=1), r"K_test must have shape \(2, 2\), got \(4, 4\)"),
        (lambda: linalg.gp_covariance(K, 9 * K, K, noise_variance=1), r"do not belong to one kernel"),
        (lambda: linalg.log_marginal_likelihood(K.numpy(), Y, noise_variance=1), r"K must be a torch matrix here"),
    ],
)
def test_what_cannot_work_is_refused_with_the_fix(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_a_cross_kernel_of_another_kind_is_refused() -> None:
    K, cross = torch.eye(3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)
    for bad, message in (
        (cross.float(), "K_cross must be like K_train, torch.float64 on cpu, got torch.float32"),
        (cross * float("nan"), "K_cross holds NaN or infinite values"),
    ):
        with pytest.raises(InputError, match=message):
            linalg.gp_posterior(K, bad, torch.ones(2, dtype=torch.float64), K[:, 0], noise_variance=0.1)
