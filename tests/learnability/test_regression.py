"""Kernel regression: through its targets, equal to n retrainings, the posterior, and the same by both routes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, sampled_from
from torch import Tensor

from kontrast import linalg
from kontrast.errors import ConvergenceError, InputError
from kontrast.kernels import FeatureKernel, GaussianKernel, InfiniteNetwork, NetworkKernel, TangentKernel
from kontrast.learnability import kernel_regression, regression
from tests.cases import DTYPES, generator, randn
from tests.reference import regression as reference

KERNELS = [TangentKernel(InfiniteNetwork(depth=2)), NetworkKernel(InfiniteNetwork(bias_std=0.5)), GaussianKernel(2.0)]
EXACT, ITERATIVE = 10**6, 0  # `exact_below`
LOOSE = {torch.float64: 1e-8, torch.float32: 2e-4}


def targets_of(n: int, c: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return randn(n, c, seed=seed, dtype=dtype) if c else randn(n, seed=seed, dtype=dtype)


def close(ours: Tensor, expected: Tensor, tolerance: float) -> None:
    atol = tolerance * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(ours.double(), expected.double(), rtol=0, atol=atol)


@pytest.mark.parametrize("exact_below", [EXACT, ITERATIVE])
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=8)
@given(
    seed=integers(0, 2**10),
    n=integers(2, 15),
    ridge=floats(1e-2, 3),
    c=sampled_from([0, 2]),
    kernel=sampled_from(KERNELS),
)
def test_both_routes_are_the_definition(
    exact_below: int, dtype: torch.dtype, seed: int, n: int, ridge: float, c: int, kernel: TangentKernel
) -> None:
    """Predictions, the posterior of `gp_posterior`, and the errors of n retrainings."""
    x, new, y = randn(n, 4, seed=seed), randn(7, 4, seed=seed + 1), targets_of(n, c, seed=seed + 2)
    fit = kernel_regression(kernel, x.to(dtype), y.to(dtype), ridge=ridge, exact_below=exact_below)
    K, cross = kernel(x), kernel(new, x)
    predicted = fit.predict(new.to(dtype))
    assert predicted.dtype == dtype
    assert predicted.shape == (7, *y.shape[1:])
    assert (fit.n_steps > 0) == (exact_below == ITERATIVE)
    assert fit.residuals.shape == y.shape[1:]
    assert float(fit.residuals.max()) <= (1e-10 if dtype == torch.float64 else 1e-5)
    close(predicted, reference.ridge_prediction(K, cross, y, ridge), LOOSE[dtype])
    posterior = fit.posterior(new.to(dtype))
    expected = linalg.gp_posterior(K, cross, kernel.diagonal(new), y, noise_variance=ridge)
    close(posterior.mean, expected.mean, LOOSE[dtype])
    close(posterior.variance, expected.variance, LOOSE[dtype])
    assert posterior.variance.dtype == dtype
    left_out = fit.leave_one_out(n_points=n)
    close(left_out.residuals, reference.retrained_without(K, y, ridge), 10 * LOOSE[dtype])
    assert left_out.points.tolist() == list(range(n))


@pytest.mark.parametrize("exact_below", [EXACT, ITERATIVE])
@pytest.mark.parametrize("dtype", DTYPES)
def test_without_ridge_it_goes_through_its_targets(exact_below: int, dtype: torch.dtype) -> None:
    x, y = randn(40, 5, dtype=dtype), randn(40, 3, seed=1, dtype=dtype)
    fit = kernel_regression(KERNELS[0], x, y, ridge=0.0, exact_below=exact_below)
    close(fit.predict(x), y, LOOSE[dtype])
    assert float(fit.posterior(x).variance.max()) < 10 * LOOSE[dtype] * float(KERNELS[0].diagonal(x).max())


@settings(max_examples=12)
@given(seed=integers(0, 2**10), a=floats(-3, 3), exact_below=sampled_from([EXACT, ITERATIVE]))
def test_weights_are_linear_in_the_targets(seed: int, a: float, exact_below: int) -> None:
    x, y, z = randn(20, 3, seed=seed), randn(20, seed=seed + 1), randn(20, seed=seed + 2)

    def weights(targets: Tensor) -> Tensor:
        return kernel_regression(KERNELS[1], x, targets, ridge=0.1, exact_below=exact_below).weights

    close(weights(y + a * z), weights(y) + a * weights(z), 1e-7)


def test_a_plain_function_is_a_kernel() -> None:
    x, y, new = randn(30, 3), randn(30, seed=1), randn(300, 3, seed=2)
    plain = kernel_regression(lambda a, b: torch.exp(-torch.cdist(a, b).square() / 8), x, y, ridge=0.1)
    fit = kernel_regression(GaussianKernel(2.0), x, y, ridge=0.1)
    close(plain.predict(new), fit.predict(new), 1e-10)
    close(plain.posterior(new).variance, fit.posterior(new).variance, 1e-10)


def test_the_kernel_of_a_frozen_model_is_ridge_regression_on_its_outputs() -> None:
    """The dual of (Φ^T Φ + ρ)^-1 Φ^T y, images as samples."""
    x, y, new = randn(50, 1, 2, 3), randn(50, 2, seed=1), randn(9, 1, 2, 3, seed=2)

    def features(images: Tensor) -> Tensor:
        return torch.tanh(images.flatten(1)[:, :4])

    phi = features(x)
    heads = torch.linalg.solve(phi.mT @ phi + 0.3 * torch.eye(4, dtype=phi.dtype), phi.mT @ y)
    for exact_below in (EXACT, ITERATIVE):
        fit = kernel_regression(FeatureKernel(features), x, y, ridge=0.3, exact_below=exact_below)
        close(fit.predict(new), features(new) @ heads, 1e-8)


def test_strips_of_the_cross_kernel_do_not_matter_and_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, new = randn(30, 3), randn(30, seed=1), randn(23, 3, seed=2)
    widest = 0

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        nonlocal widest
        widest = max(widest, len(a))
        return GaussianKernel(1.0)(a, b)

    fit = kernel_regression(kernel, x, y, ridge=0.1)
    whole, posterior = fit.predict(new), fit.posterior(new)
    monkeypatch.setattr(regression, "KERNEL_TILE", {"cpu": 100})
    widest = 0
    close(fit.predict(new), whole, 1e-13)
    assert widest == 3
    close(fit.posterior(new).variance, posterior.variance, 1e-13)


def test_errors_of_drawn_points_are_those_of_all_and_their_mean_is_unbiased() -> None:
    x, y = randn(60, 3), randn(60, 2, seed=1)
    fit = kernel_regression(KERNELS[0], x, y, ridge=0.1)
    everywhere = fit.leave_one_out()
    assert everywhere.residuals.shape == (60, 2)
    assert not everywhere.standard_error.any()
    truth = everywhere.residuals.square().mean(0)
    torch.testing.assert_close(everywhere.mean_square, truth)
    drawn = [fit.leave_one_out(n_points=20, generator=generator(seed)) for seed in range(200)]
    for some in drawn[:3]:
        assert torch.equal(some.residuals, everywhere.residuals[some.points])
        assert some.points.unique().tolist() == some.points.tolist()
    means, errors = (torch.stack([getattr(some, name) for some in drawn]) for name in ("mean_square", "standard_error"))
    assert ((means.mean(0) - truth).abs() < 4 * means.std(0) / math.sqrt(200)).all()
    # the error it states is the spread over draws; without the share of points that are drawn it would be 1.22 of it
    torch.testing.assert_close(errors.square().mean(0).sqrt(), means.std(0), rtol=0.12, atol=0)


def test_conjugate_gradients_draw_a_hundred_points() -> None:
    x, y = randn(150, 3), randn(150, seed=1)
    fits = [kernel_regression(KERNELS[0], x, y, ridge=0.1, exact_below=k, rank=40) for k in (EXACT, 150)]
    some = fits[1].leave_one_out(generator=generator())
    assert len(some.points) == 100
    close(some.residuals, fits[0].leave_one_out().residuals[some.points], 1e-8)
    assert float(some.standard_error) > 0


def test_a_larger_preconditioner_leaves_fewer_steps() -> None:
    x, y = randn(400, 6), randn(400, seed=1)
    steps = [
        kernel_regression(KERNELS[2], x, y, ridge=1e-3, exact_below=0, rank=r, tolerance=1e-6).n_steps
        for r in (1, 60, 240)
    ]
    assert steps[0] > 2 * steps[1] > 4 * steps[2] > 0


# --------------------------------------------------------------------------------------------------------- errors

X, Y = randn(6, 3), randn(6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("exact_below", [EXACT, ITERATIVE])
def test_samples_that_coincide_are_named(kernel: TangentKernel, dtype: torch.dtype, exact_below: int) -> None:
    x = randn(12, 20, dtype=dtype)
    x[9] = x[4]
    with pytest.raises(InputError, match=r"rows 4 and 9 of K coincide.*leave one out or pass ridge=\S+ or more"):
        kernel_regression(kernel, x, randn(12, dtype=dtype), ridge=0.0, exact_below=exact_below)
    kernel_regression(kernel, x, randn(12, dtype=dtype), ridge=1e-3, exact_below=exact_below)


def test_a_singular_kernel_of_different_samples_names_its_smallest_eigenvalue() -> None:
    kernel = FeatureKernel(lambda x: x)
    with pytest.raises(InputError, match=r"the smallest eigenvalue of K is about \S+ and the largest"):
        kernel_regression(kernel, X, Y, ridge=0.0)


def test_too_few_steps_are_an_error() -> None:
    with pytest.raises(ConvergenceError, match=r"in 2 steps, not 1e-10"):
        kernel_regression(
            GaussianKernel(3.0), randn(100, 3), randn(100), ridge=1e-5, exact_below=0, rank=1, max_steps=2
        )


@pytest.mark.parametrize(
    "change, message",
    [
        ({"x": X.numpy()}, r"x must be samples.*got ndarray; convert it with torch.as_tensor"),
        ({"x": X.long()}, r"x must be samples.*got torch.int64"),
        ({"x": X[:, 0]}, r"x must be samples \(n, …\).*got torch.float64 \(6,\)"),
        ({"x": X / 0}, r"x holds NaN or infinite"),
        ({"targets": Y.numpy()}, r"targets must be a tensor of floating-point numbers, got ndarray"),
        ({"targets": torch.arange(6)}, r"got torch.int64 \(6,\); for class labels pass .*one_hot"),
        ({"targets": Y[:5]}, r"targets must have shape \(6,\) or \(6, c\), one row per sample, got \(5,\)"),
        ({"targets": Y[:, None, None]}, r"got \(6, 1, 1\)"),
        ({"targets": Y[:, None][:, :0]}, r"got \(6, 0\)"),
        ({"targets": Y / 0}, r"targets holds NaN or infinite"),
        ({"ridge": -0.1}, r"ridge must be a number of 0 or more, got -0.1"),
        ({"ridge": math.nan}, r"ridge must be a number of 0 or more, got nan"),
        ({"ridge": math.inf}, r"ridge must be a finite number of at least 0, got inf"),
        ({"ridge": "a"}, r"ridge must be a number of 0 or more, got 'a'"),
        ({"kernel": X}, r"kernel must be a function, got torch.float64 \(6, 3\); pass a Kernel"),
        ({"kernel": lambda a, b: a}, r"kernel must return \(6, 6\) floats"),
        ({"kernel": lambda a, b: (a @ b.mT).numpy()}, r"kernel must return \(6, 6\) floats"),
        ({"kernel": lambda a, b: a @ b.mT / 0}, r"the kernel matrix holds NaN or infinite"),
        ({"rank": 0}, r"rank must be a whole number of at least 1"),
        ({"max_steps": 0.5}, r"max_steps must be a whole number"),
        ({"exact_below": "all"}, r"exact_below must be a whole number"),
        ({"tolerance": 0}, r"tolerance must be a positive number"),
    ],
)
def test_what_cannot_work_is_refused_with_the_fix(change: dict[str, object], message: str) -> None:
    given_ = {"kernel": KERNELS[0], "x": X, "targets": Y, "ridge": 0.1} | change
    with pytest.raises(InputError, match=message):
        kernel_regression(given_.pop("kernel"), given_.pop("x"), given_.pop("targets"), **given_)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda fit: fit.predict(X.numpy()), r"x must be samples.*got ndarray"),
        (lambda fit: fit.predict(X[:, :2]), r"x must be like the training samples, \(m, 3\) of torch.float64"),
        (lambda fit: fit.predict(X.float()), r"x must be like the training samples.*got torch.float32"),
        (lambda fit: fit.posterior(np.ones(3)), r"x must be samples.*got ndarray"),
        (lambda fit: fit.leave_one_out(n_points=3), r"drawn at random: pass generator="),
        (lambda fit: fit.leave_one_out(n_points=7, generator=generator()), r"n_points must be .* at most 6, got 7"),
        (lambda fit: fit.leave_one_out(n_points=1, generator=generator()), r"n_points must be a whole number of at l"),
    ],
)
def test_a_fit_refuses_what_it_cannot_use(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(kernel_regression(KERNELS[0], X, Y, ridge=0.1))


@pytest.mark.gpu
@pytest.mark.parametrize("exact_below", [8000, 1], ids=["cholesky", "conjugate gradients"])
def test_on_a_gpu(exact_below: int) -> None:
    x, targets, new = randn(200, 5, seed=1), randn(200, 2, seed=2), randn(20, 5, seed=3)
    kernel = TangentKernel(InfiniteNetwork(depth=2))
    here = kernel_regression(kernel, x, targets, ridge=0.1)
    there = kernel_regression(kernel, x.cuda(), targets.cuda(), ridge=0.1, exact_below=exact_below, rank=50)
    found = there.predict(new.cuda())
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), here.predict(new), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(
        there.posterior(new.cuda()).variance.cpu(), here.posterior(new).variance, rtol=1e-6, atol=1e-8
    )
