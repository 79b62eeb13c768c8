"""Predictions at each unseen point: against training sets drawn, against one κ for all, and exact cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers

from kontrast.errors import InputError
from kontrast.learnability import eigensystem, predict_at_points, predict_learning
from tests.cases import generator, randn
from tests.reference import learnability as reference

seeds = integers(0, 2**16)


def kernel(seed: int, size: int = 30, *, dimensions: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """A kernel of Gaussian points, outliers among them, and two targets."""
    x = randn(size, dimensions, seed=seed)
    return torch.exp(-torch.cdist(x, x) / 3), torch.stack([torch.sin(2 * x[:, 0]), x[:, 1] * x[:, 2]], dim=1)


@settings(max_examples=25)
@given(seed=seeds, n=integers(1, 29), ridge=floats(0, 2), scale=floats(-200, 200))
def test_every_point_is_a_sample_equally_often(seed: int, n: int, ridge: float, scale: float) -> None:
    """H_xx = n/M at every x, at any scale of the kernel."""
    K, f = kernel(seed)
    K, ridge = K * 10**scale, ridge * 10**scale
    found = predict_at_points(K, f, n, ridge=ridge)
    shifted = K + ridge * torch.eye(30, dtype=torch.float64)
    H = shifted @ torch.linalg.inv(shifted + torch.diag(30 * found.kappas))
    assert H.diagonal().tolist() == pytest.approx([n / 30] * 30, rel=1e-7)
    assert torch.allclose(found.outputs, (H @ f - n / 30 * f) / (1 - n / 30), rtol=1e-6, atol=1e-8)


def test_outputs_and_errors_are_those_of_training_sets() -> None:
    """Outliers in the plane: the means and errors of 1000 training sets at every point, where one κ is 20 % off."""
    K, f = kernel(5, 120, dimensions=4)
    n, ridge = 40, 0.05
    found = predict_at_points(K, f, n, ridge=ridge)
    sums, squares, counts = torch.zeros(120, 2), torch.zeros(120, 2, 2), torch.zeros(120)
    draws = generator(6)
    for _ in range(1000):
        rows = torch.randperm(120, generator=draws)[:n]
        error = (f - reference.regression(K, f, rows, ridge)).index_fill(0, rows, 0.0)
        sums, squares = sums + error, squares + error[:, :, None] * error[:, None, :]
        counts = counts + 1 - torch.zeros(120).index_fill(0, rows, 1.0)
    bias, moments = sums / counts[:, None], squares / counts[:, None, None]
    assert float((f - found.outputs - bias).norm() / bias.norm()) < 0.04
    assert float((found.moments - moments).norm() / moments.norm()) < 0.05
    measured = moments.diagonal(dim1=1, dim2=2).mean(0)
    assert found.unseen_error.tolist() == pytest.approx(measured.tolist(), rel=0.03)
    covariance = moments - bias[:, :, None] * bias[:, None, :]
    # The spread, a tenth of the error, is right to leading order in 1/n: here 12 % low.
    assert float((found.covariance.mean(0) - covariance.mean(0)).norm() / covariance.mean(0).norm()) < 0.15
    system = eigensystem(K)
    with_one = predict_learning(system.spectrum, system.powers(f), n, ridge=ridge, replacement=False)
    assert float((with_one.unseen_error / measured).max()) < 0.9


@settings(max_examples=15)
@given(seed=seeds, n=integers(1, 15), ridge=floats(0, 2))
def test_where_all_points_are_alike_one_kappa_is_enough(seed: int, n: int, ridge: float) -> None:
    """Points of a circle: κ, the error and the learnabilities are those of `predict_learning`."""
    angle = torch.arange(16).double() * math.pi / 8
    K = torch.exp(torch.cos(angle[:, None] - angle)) + 0.1 * torch.eye(16, dtype=torch.float64)
    f, system = randn(16, 3, seed=seed), eigensystem(K)
    apart = predict_at_points(K, f, n, ridge=ridge)
    together = predict_learning(system.spectrum, system.powers(f), n, ridge=ridge, replacement=False)
    assert apart.kappas.tolist() == pytest.approx([together.kappa] * 16, rel=1e-8)
    assert apart.unseen_error.tolist() == pytest.approx(together.unseen_error.tolist(), rel=1e-8)


def test_leave_one_out_is_exact_in_the_mean() -> None:
    """n = M − 1: the prediction at x is that of all others, and has no spread but that of Bernoulli draws."""
    K, f = kernel(1, 60)
    exact = torch.stack(
        [reference.regression(K, f, torch.tensor([y for y in range(60) if y != x]), 0.3)[x] for x in range(60)]
    )
    found = predict_at_points(K, f, 59, ridge=0.3)
    assert float((found.outputs - exact).norm() / exact.norm()) < 0.01
    assert found.unseen_error.tolist() == pytest.approx((f - exact).square().mean(0).tolist(), rel=0.03)


@given(seed=seeds)
@settings(max_examples=10)
def test_covariances_are_covariances_in_the_mean(seed: int) -> None:
    K, f = kernel(seed)
    found = predict_at_points(K, f, 12, ridge=0.1)
    assert float(torch.linalg.eigvalsh(found.covariance).min()) > -1e-9
    one = predict_at_points(K, f[:, 0], 12, ridge=0.1)
    assert torch.allclose(one.moments[:, 0, 0], found.moments[:, 0, 0])
    assert one.outputs.shape == (30, 1)


def test_float32_kernel() -> None:
    K, f = kernel(2)
    one, other = predict_at_points(K.float(), f.float(), 10, ridge=0.1), predict_at_points(K, f, 10, ridge=0.1)
    assert one.unseen_error.tolist() == pytest.approx(other.unseen_error.tolist(), rel=1e-4)


BAD = {
    "numpy": (np.eye(4), torch.ones(4), 2, 0.1, "square float tensor"),
    "all seen": (torch.eye(4), torch.ones(4), 4, 0.1, "at most 3"),
    "none": (torch.eye(4), torch.ones(4), 0, 0.1, "at least 1"),
    "half": (torch.eye(4), torch.ones(4), 1.5, 0.1, "whole number"),
    "ridge": (torch.eye(4), torch.ones(4), 2, -0.1, "ridge"),
    "infinite ridge": (torch.eye(4), torch.ones(4), 2, math.inf, "finite"),
    "rank": (torch.ones(4, 4), torch.ones(4), 2, 0.0, "rank 1"),
    "zero point": (
        torch.diag(torch.tensor([1.0, 1.0, 1.0, 0.0])),
        torch.ones(4),
        2,
        0.0,
        r"1 points where k\(x, x\) = 0",
    ),
    "labels": (torch.eye(4), torch.arange(4), 2, 0.1, "one_hot"),
    "indefinite": (torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.ones(2), 1, 0.1, "must not have negative eigenvalues"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name: str) -> None:
    K, f, n, ridge, text = BAD[name]
    with pytest.raises(InputError, match=text):
        predict_at_points(K, f, n, ridge=ridge)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    K, f = kernel(3)
    here, there = predict_at_points(K, f, 12, ridge=0.1), predict_at_points(K.cuda(), f.cuda(), 12, ridge=0.1)
    assert there.moments.is_cuda
    assert torch.allclose(there.moments.cpu(), here.moments, rtol=1e-7, atol=1e-10)
