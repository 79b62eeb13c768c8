"""Every labelled sample predicted from all the others, against the regressions that leave it out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats, integers
from torch import Tensor

from kontrast.errors import InputError
from kontrast.learnability import Spectrum, kappa, left_out, predict_learning
from kontrast.learnability.left_out import wilson
from tests.cases import generator, randn

seeds = integers(0, 2**16)


def kernel(seed: int, n: int = 20) -> Tensor:
    x = randn(n, 2, seed=seed)
    return torch.exp(-torch.cdist(x, x).square() / 2) + 0.05 * torch.eye(n, dtype=torch.float64)


def refitted(K: Tensor, y: Tensor, ridge: float) -> Tensor:
    """The residuals of n regressions with the mean of their own labels, (n, c)."""
    residuals = []
    for i in range(len(K)):
        others = torch.arange(len(K)) != i
        center = y[others].mean(0)
        G = K[others][:, others] + ridge * torch.eye(len(K) - 1, dtype=torch.float64)
        residuals.append(y[i] - center - K[i, others] @ torch.linalg.solve(G, y[others] - center))
    return torch.stack(residuals)


@given(seed=seeds, ridge=floats(0, 3))
def test_leaving_one_out_is_fitting_all_the_others(seed: int, ridge: float) -> None:
    K, y = kernel(seed), randn(20, 3, seed=seed + 1)
    found, expected = left_out(K, y, ridge=ridge), refitted(K, y, ridge)
    torch.testing.assert_close(found.residuals, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.outputs, y - expected, rtol=1e-10, atol=1e-10)
    share = float(expected.square().mean(0).sum() / y.var(0, correction=0).sum())
    assert found.error.value == pytest.approx(share)
    assert found.accuracy is None


@given(seed=seeds, shift=floats(-9, 9), scale=floats(0.1, 9))
def test_targets_have_no_unit_and_no_origin(seed: int, shift: float, scale: float) -> None:
    K, y = kernel(seed), randn(20, seed=seed + 1)
    one, other = left_out(K, y, ridge=0.1), left_out(scale * K, scale * y + shift, ridge=0.1 * scale)
    assert other.error.value == pytest.approx(one.error.value, rel=1e-7)
    assert other.overfitting == pytest.approx(one.overfitting, rel=1e-9)
    assert other.kappa == pytest.approx(scale * one.kappa, rel=1e-9)


def test_class_labels_have_an_accuracy() -> None:
    K = kernel(3)
    labels = torch.tensor([7, -1] * 10)
    found = left_out(K, labels, ridge=0.1)
    y = torch.nn.functional.one_hot((labels == 7).long()).double()
    expected = (y - refitted(K, y, 0.1)).argmax(1) == (labels == 7)
    assert found.accuracy is not None
    assert found.accuracy.value == pytest.approx(float(expected.double().mean()))
    assert found.accuracy.low < found.accuracy.value < found.accuracy.high
    torch.testing.assert_close(found.error_by_target, found.error_by_target.flip(0))  # of two classes


def test_kappa_and_overfitting_are_those_of_the_spectrum() -> None:
    """Gaussian features of a known covariance; both concentrate around the values that the formula gives."""
    values = torch.arange(1, 2001, dtype=torch.float64) ** -1.3
    x = randn(400, 2000, seed=1) * values.sqrt()
    found = left_out(x @ x.mT, x[:, 0], ridge=0.3)
    spectrum = Spectrum(values, size=math.inf)
    expected = predict_learning(spectrum, values, 400, ridge=0.3)
    assert found.kappa == pytest.approx(kappa(spectrum, 400, ridge=0.3), rel=0.03)
    assert found.overfitting == pytest.approx(expected.overfitting, rel=0.03)


def test_the_interval_covers_the_error_of_the_regression() -> None:
    """95 % of 60 problems, with a binomial margin: linear regression of noisy targets, whose true error is known."""
    hits = 0
    for seed in range(60):
        x, noise = randn(80, 5, seed=seed), randn(80, seed=1000 + seed)
        w = torch.ones(5, dtype=torch.float64)
        y = x @ w + noise
        found = left_out(x @ x.mT, y, ridge=1.0)
        learned = torch.linalg.solve(x.mT @ x + torch.eye(5, dtype=torch.float64), x.mT @ (y - y.mean()))
        true = float((w - learned).square().sum() + y.mean() ** 2 + 1) / float(y.var(correction=0))
        hits += found.error.low <= true <= found.error.high
    assert hits >= 51


@given(share=floats(0, 1), n=integers(1, 500))
def test_an_interval_of_a_share_holds_it(share: float, n: int) -> None:
    found = wilson(share, n)
    assert 0 <= found.low <= share <= found.high <= 1
    assert found.high > found.low


def test_float32_kernel() -> None:
    K, y = kernel(2), randn(20, seed=3)
    one, other = left_out(K.float(), y.float(), ridge=0.1), left_out(K, y, ridge=0.1)
    assert one.residuals.dtype == torch.float64
    assert one.error.value == pytest.approx(other.error.value, rel=1e-4)


EYE = torch.eye(4, dtype=torch.float64)
BAD = {
    "length": (EYE, torch.ones(3), 0.1, "one for each of the 4 samples"),
    "numpy": (EYE, [1, 2, 3, 4], 0.1, "targets must be class labels"),
    "columns of labels": (EYE, torch.ones(4, 2).long(), 0.1, r"class labels must have shape \(4,\)"),
    "constant": (EYE, torch.ones(4), 0.1, "the same at every sample"),
    "one class": (EYE, torch.ones(4).long(), 0.1, "the same at every sample"),
    "NaN": (EYE, torch.tensor([1.0, math.nan, 0.0, 0.0]), 0.1, "NaN"),
    "two": (EYE[:2, :2], torch.arange(2.0), 0.1, "leaves too few"),
    "ridge": (EYE, torch.arange(4.0), -1.0, "ridge must be"),
    "twice": (torch.ones(4, 4), torch.arange(4.0), 0.0, "rows 0 and 1 of K coincide"),
    "no kernel": (EYE[:3], torch.arange(3.0), 0.1, "square"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name: str) -> None:
    K, targets, ridge, text = BAD[name]
    with pytest.raises(InputError, match=text):
        left_out(K, targets, ridge=ridge)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    K, labels = kernel(1), torch.randint(3, (20,), generator=generator(1))
    here, there = left_out(K, labels, ridge=0.1), left_out(K.cuda(), labels, ridge=0.1)
    assert there.residuals.is_cuda
    torch.testing.assert_close(there.residuals.cpu(), here.residuals)
