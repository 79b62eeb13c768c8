"""Learnability on finite domains: the transfer matrix and its laws; training sets drawn, beside predictions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers

from kontrast.errors import InputError
from kontrast.kernels import infinite_ntk
from kontrast.learnability import (
    Eigensystem,
    Spectrum,
    eigensystem,
    learnability,
    measure_learning,
    predict_learning,
    transfer_derivative,
    transfer_matrix,
)
from tests.cases import generator, randn
from tests.reference import learnability as reference

seeds = integers(0, 2**16)
M = 24


def kernel(seed: int, size: int = M) -> torch.Tensor:
    """A Gaussian kernel of points in the plane, with a little of its own at each."""
    x = randn(size, 2, seed=seed)
    return torch.exp(-torch.cdist(x, x).square() / 2) + 0.05 * torch.eye(size, dtype=torch.float64)


def draw(seed: int, n: int, size: int = M) -> torch.Tensor:
    return torch.randperm(size, generator=generator(seed))[:n]


@given(seed=seeds)
def test_eigenfunctions_are_orthonormal_and_make_the_kernel(seed: int) -> None:
    K = kernel(seed)
    system = eigensystem(K)
    gram = system.functions.mT @ system.functions / M
    assert torch.allclose(gram, torch.eye(M, dtype=torch.float64), atol=1e-12)
    assert torch.allclose((system.functions * system.eigenvalues) @ system.functions.mT, K, atol=1e-12)
    assert bool((system.eigenvalues.diff() <= 0).all())
    f = randn(M, 3, seed=seed)
    assert torch.allclose(system.functions @ system.coefficients(f), f, atol=1e-12)
    assert float(system.powers(f).sum()) == pytest.approx(float(f.square().mean(0).sum()))


@given(seed=seeds, n=integers(1, M), ridge=floats(0, 2))
def test_transfer_matrix_is_the_formula_and_the_regression(seed: int, n: int, ridge: float) -> None:
    K, rows = kernel(seed), draw(seed, n)
    system, f = eigensystem(K), randn(M, seed=seed + 1)
    T = transfer_matrix(system, rows, ridge=ridge)
    expected = reference.transfer_matrix(system.eigenvalues, system.functions, rows, ridge)
    assert torch.allclose(T, expected, atol=1e-9)
    learned = reference.regression(K, f, rows, ridge)
    assert torch.allclose(system.functions @ T @ system.coefficients(f), learned, atol=1e-9)


@given(seed=seeds, n=integers(0, M), ridge=floats(1e-3, 2))
def test_conservation(seed: int, n: int, ridge: float) -> None:
    """Theorem 2.2, in any orthonormal basis; and what a ridge takes away."""
    K, rows = kernel(seed), draw(seed, n)
    system = eigensystem(K)
    T = transfer_matrix(system, rows)
    basis = torch.linalg.qr(randn(M, M, seed=seed))[0]
    shares = (basis * (T @ basis)).sum(0)  # L of the function with coefficients basis[:, k]
    assert float(T.diagonal().sum()) == pytest.approx(n, abs=1e-10)
    assert float(shares.sum()) == pytest.approx(n, abs=1e-10)
    assert bool((T.diagonal() > -1e-12).all() and (T.diagonal() < 1 + 1e-12).all())
    lost = ridge * float(torch.linalg.inv(K[rows][:, rows] + ridge * torch.eye(n, dtype=torch.float64)).trace())
    assert float(transfer_matrix(system, rows, ridge=ridge).trace()) == pytest.approx(n - lost, abs=1e-9)


@given(seed=seeds)
def test_points_drawn_twice_count_once(seed: int) -> None:
    system, rows = eigensystem(kernel(seed)), draw(seed, 6)
    once = transfer_matrix(system, rows)
    assert torch.allclose(transfer_matrix(system, torch.cat([rows, rows[:3]])), once, atol=1e-9)


def test_conservation_of_a_kernel_near_singular() -> None:
    x = torch.linspace(-1, 1, M, dtype=torch.float64)[:, None]
    system = eigensystem(torch.exp(-torch.cdist(x, x).square() / 0.3))  # condition 1e16 and more
    assert float(transfer_matrix(system, torch.arange(0, M, 3)).trace()) == pytest.approx(8, abs=1e-10)


@settings(max_examples=20)
@given(seed=seeds, n=integers(1, 12), ridge=floats(0, 1))
def test_derivative_is_that_of_the_transfer_matrix(seed: int, n: int, ridge: float) -> None:
    system, rows = eigensystem(kernel(seed)), draw(seed, n)
    found = transfer_derivative(system, rows, ridge=ridge)

    def diagonal(eigenvalues: torch.Tensor) -> torch.Tensor:
        return reference.transfer_matrix(eigenvalues, system.functions, rows, ridge).diagonal()

    jacobian = torch.autograd.functional.jacobian(diagonal, system.eigenvalues).mT  # [i, j] = dT_jj/dλ_i
    assert torch.allclose(found, jacobian, rtol=1e-6, atol=1e-6 * float(jacobian.abs().max()))
    off = found - torch.diag(found.diagonal())
    noise = 1e-9 * float(found.abs().max())
    assert float(found.diagonal().min()) >= -noise  # (9)
    assert float(off.max()) <= 0  # (10)


@given(seed=seeds, n=integers(1, 4), ridge=floats(0, 1))
@settings(max_examples=10)
def test_drawn_training_sets_average_to_all_of_them(seed: int, n: int, ridge: float) -> None:
    K, f = kernel(seed, 7), randn(7, seed=seed)
    share, error = reference.over_all_training_sets(K, f, n, ridge)
    found = measure_learning(K, f, n, n_draws=600, generator=generator(seed), ridge=ridge)
    assert found.learnability.shape == (600,)
    for drawn, exact in ((found.learnability, share), (found.test_error, error)):
        assert float(drawn.mean()) == pytest.approx(float(exact), abs=5 * float(drawn.std()) / math.sqrt(600) + 1e-12)


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


def test_float32_kernel_is_decomposed_in_float64() -> None:
    K = kernel(3)
    system = eigensystem(K.float())
    assert system.functions.dtype == torch.float64
    assert torch.allclose(system.eigenvalues, eigensystem(K).eigenvalues, atol=1e-6)


def test_small_eigenvalues_of_a_large_float32_kernel_are_no_rounding() -> None:
    """λ_max grows with the number of points, and rounding of the entries only with its root."""
    x = torch.nn.functional.normalize(randn(900, 10, seed=4), dim=1)
    K = infinite_ntk(x, depth=1)
    one, other = eigensystem(K.float()).spectrum, eigensystem(K).spectrum
    assert one.rank == other.rank == 900
    assert torch.allclose(one.eigenvalues, other.eigenvalues, rtol=1e-3)
    assert eigensystem((x @ x.mT).float()).spectrum.rank == 10


def system_of(size: int = 5) -> Eigensystem:
    return eigensystem(kernel(0, size))


BAD = {
    "numpy kernel": (lambda: eigensystem(np.eye(3)), "square float tensor"),
    "oblong kernel": (lambda: eigensystem(torch.ones(2, 3)), "square"),
    "asymmetric": (lambda: eigensystem(torch.tensor([[1.0, 2.0], [0.0, 1.0]])), "symmetric"),
    "indefinite": (lambda: eigensystem(torch.tensor([[1.0, 2.0], [2.0, 1.0]])), "no negative eigenvalues"),
    "zero": (lambda: eigensystem(torch.zeros(3, 3)), "learns nothing"),
    "half": (lambda: eigensystem(torch.eye(3).half()), "float32 or float64"),
    "sparse": (lambda: eigensystem(torch.eye(3).to_sparse()), "dense"),
    "infinite ridge": (lambda: measure(ridge=math.inf), "finite"),
    "no kernel": (lambda: measure(K=-kernel(0, 5)), "no negative eigenvalues"),
    "nan": (lambda: eigensystem(torch.full((2, 2), math.nan)), "NaN"),
    "no system": (lambda: transfer_matrix(torch.eye(3), torch.arange(2)), "Eigensystem"),
    "float rows": (lambda: transfer_matrix(system_of(), torch.ones(2)), "int64"),
    "rows outside": (lambda: transfer_matrix(system_of(), torch.tensor([1, 5])), "0 to 4"),
    "negative ridge": (lambda: transfer_matrix(system_of(), torch.arange(2), ridge=-0.1), "ridge"),
    "singular derivative": (lambda: transfer_derivative(system_of(), torch.tensor([1, 1])), "coincide"),
    "labels": (lambda: system_of().coefficients(torch.arange(5)), "one_hot"),
    "short targets": (lambda: system_of().coefficients(torch.ones(4)), r"\(5,\) or \(5, c\)"),
    "zero target": (lambda: system_of().coefficients(torch.zeros(5)), "nothing to learn"),
    "too many": (lambda: measure(n_samples=6), "at most 5"),
    "no draws": (lambda: measure(n_draws=0), "n_draws"),
    "no generator": (lambda: measure(generator=None), "random"),
    "shapes": (lambda: learnability(torch.ones(3), torch.ones(4)), "differ"),
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
    here, there = eigensystem(K), eigensystem(K.cuda())
    assert torch.allclose(there.eigenvalues.cpu(), here.eigenvalues, atol=1e-12)
    rows = draw(1, 8)
    assert torch.allclose(
        transfer_matrix(there, rows.cuda(), ridge=0.1).trace().cpu(), transfer_matrix(here, rows, ridge=0.1).trace()
    )
    one, other = (
        measure_learning(k, t, 8, n_draws=3, generator=generator(2), ridge=0.1)
        for k, t in ((K, f), (K.cuda(), f.cuda()))
    )
    assert other.test_error.is_cuda
    assert torch.allclose(one.test_error, other.test_error.cpu(), rtol=1e-9)
    predicted = predict_learning(there.spectrum, there.powers(f.cuda()), 8, ridge=0.1, replacement=False)
    expected = predict_learning(here.spectrum, here.powers(f), 8, ridge=0.1, replacement=False)
    assert torch.allclose(predicted.unseen_error.cpu(), expected.unseen_error, rtol=1e-8)
