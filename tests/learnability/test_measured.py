"""Training sets drawn from finite domains, compared with all of them and with predictions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers

from kontrast.errors import InputError
from kontrast.learnability import Spectrum, eigensystem, learnability, measure_learning, predict_learning
from tests.cases import generator, randn
from tests.reference import learnability as reference

seeds = integers(0, 2**16)
M = 24


def kernel(seed: int, size: int = M) -> torch.Tensor:
    """A Gaussian kernel of points in the plane, with a little of its own at each."""
    x = randn(size, 2, seed=seed)
    return torch.exp(-torch.cdist(x, x).square() / 2) + 0.05 * torch.eye(size, dtype=torch.float64)


@given(seed=seeds, n=integers(1, 4), ridge=floats(0, 1))
@settings(max_examples=4)
def test_drawn_training_sets_average_to_all_of_them(seed: int, n: int, ridge: float) -> None:
    K, f = kernel(seed, 7), randn(7, seed=seed)
    share, error = reference.over_all_training_sets(K, f, n, ridge)
    found = measure_learning(K, f, n, n_draws=300, generator=generator(seed), ridge=ridge)
    assert found.learnability.shape == (300,)
    for drawn, exact in ((found.learnability, share), (found.test_error, error)):
        assert float(drawn.mean()) == pytest.approx(float(exact), abs=5 * float(drawn.std()) / math.sqrt(300) + 1e-12)


@given(seed=seeds, n=integers(0, M), ridge=floats(0, 1))
def test_measured_parts_fit_together(seed: int, n: int, ridge: float) -> None:
    K, f = kernel(seed), randn(M, 2, seed=seed)
    found = measure_learning(K, f, n, n_draws=3, generator=generator(seed), ridge=ridge)
    if 0 < n < M:
        whole = n / M * found.train_error + (1 - n / M) * found.unseen_error
        assert torch.allclose(found.test_error, whole, rtol=1e-9)
    if ridge == 0 and n:
        assert float(found.train_error.max()) < 1e-16
    if n == 0:
        assert torch.allclose(found.test_error, f.square().mean(0).expand(3, 2))
        assert not bool(found.learnability.any())
    if n == M and ridge == 0:
        assert torch.allclose(found.learnability, torch.ones(3, 2, dtype=torch.float64), atol=1e-9)


def test_prediction_is_what_training_sets_show() -> None:
    """On 400 points of a sphere: each mode's learnability and the error, with and without a ridge and replacement."""
    x = randn(400, 6, seed=1)
    x = 2 * x / x.norm(dim=1, keepdim=True)
    K = torch.exp(-torch.cdist(x, x) / 3)
    system, f = eigensystem(K), torch.sin(2 * x[:, :2])
    targets = torch.cat([f, system.functions[:, :30]], dim=1)
    for n, ridge, replacement in ((40, 0.0, False), (100, 0.0, False), (200, 1.0, False), (100, 0.3, True)):
        found = measure_learning(
            K, targets, n, n_draws=30, generator=generator(n), ridge=ridge, replacement=replacement
        )
        expected = predict_learning(system.spectrum, system.powers(targets), n, ridge=ridge, replacement=replacement)
        assert torch.allclose(found.learnability.mean(0), expected.learnability, atol=0.06)
        error = found.test_error[:, :2].mean(0) / expected.test_error[:2]
        assert error.tolist() == pytest.approx([1, 1], abs=0.06)
        if not replacement:
            error = found.unseen_error[:, :2].mean(0) / expected.unseen_error[:2]
            assert error.tolist() == pytest.approx([1, 1], abs=0.06)


def test_predictions_where_points_are_drawn_again() -> None:
    """From half the domain to twice as many draws as it has points."""
    x = randn(200, 6, seed=1)
    x = 2 * x / x.norm(dim=1, keepdim=True)
    K = torch.exp(-torch.cdist(x, x) / 3)
    system, f = eigensystem(K), torch.sin(2 * x[:, 0])
    for n in (100, 200, 400):
        drawn = measure_learning(K, f, n, n_draws=60, generator=generator(n), ridge=0.3, replacement=True)
        expected = predict_learning(system.spectrum, system.powers(f), n, ridge=0.3)
        as_if_new = predict_learning(Spectrum(system.eigenvalues, size=math.inf), system.powers(f), n, ridge=0.3)
        assert float(drawn.learnability.mean()) == pytest.approx(float(expected.learnability), abs=0.01)
        for name in ("test_error", "unseen_error", "train_error"):
            measured = float(getattr(drawn, name).mean())
            assert measured == pytest.approx(float(getattr(expected, name)), rel=0.05), name
        assert float(drawn.test_error.mean()) > 1.05 * float(as_if_new.test_error)


def test_learnability_of_functions() -> None:
    f = randn(10, 2, seed=1)
    assert learnability(f, 0.3 * f).tolist() == pytest.approx([0.3, 0.3])
    assert float(learnability(f[:, 0], torch.zeros(10, dtype=torch.float64))) == 0


BAD = {
    "infinite ridge": (lambda: measure(ridge=math.inf), "finite"),
    "no kernel": (lambda: measure(K=-kernel(0, 5)), "must not have negative eigenvalues"),
    "too many": (lambda: measure(n_samples=6), "at most the 5 points"),
    "no draws": (lambda: measure(n_draws=0), "n_draws"),
    "no generator": (lambda: measure(generator=None), "generator must be a torch.Generator"),
    "shapes": (lambda: learnability(torch.ones(3), torch.ones(4)), r"predicted must have shape \(3,\), got \(4,\)"),
    "no function": (lambda: learnability(torch.ones(3), [1, 2, 3]), "predicted"),
}


def measure(**changed: object) -> None:
    call = {"K": kernel(0, 5), "n_samples": 2, "n_draws": 2, "generator": generator(0), **changed}
    measure_learning(call.pop("K"), torch.ones(5), call.pop("n_samples"), **call)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name: str) -> None:
    act, text = BAD[name]
    with pytest.raises(InputError, match=text):
        act()


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    K, f = kernel(1), randn(M, 2, seed=1)
    one, other = (
        measure_learning(k, t, 8, n_draws=3, generator=generator(2), ridge=0.1)
        for k, t in ((K, f), (K.cuda(), f.cuda()))
    )
    assert other.test_error.is_cuda
    assert torch.allclose(one.test_error, other.test_error.cpu(), rtol=1e-9)
