"""The transfer matrix of training sets on finite domains, and its laws."""

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
    eigensystem,
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
    "indefinite": (lambda: eigensystem(torch.tensor([[1.0, 2.0], [2.0, 1.0]])), "must not have negative eigenvalues"),
    "zero": (lambda: eigensystem(torch.zeros(3, 3)), "learns nothing"),
    "half": (lambda: eigensystem(torch.eye(3).half()), "float32 or float64"),
    "sparse": (lambda: eigensystem(torch.eye(3).to_sparse()), "dense"),
    "nan": (lambda: eigensystem(torch.full((2, 2), math.nan)), "NaN"),
    "no system": (lambda: transfer_matrix(torch.eye(3), torch.arange(2)), "Eigensystem"),
    "float rows": (lambda: transfer_matrix(system_of(), torch.ones(2)), "int64"),
    "rows outside": (lambda: transfer_matrix(system_of(), torch.tensor([1, 5])), "0 to 4"),
    "negative ridge": (lambda: transfer_matrix(system_of(), torch.arange(2), ridge=-0.1), "ridge"),
    "singular derivative": (lambda: transfer_derivative(system_of(), torch.tensor([1, 1])), "coincide"),
    "labels": (lambda: system_of().coefficients(torch.arange(5)), "one_hot"),
    "short targets": (lambda: system_of().coefficients(torch.ones(4)), r"\(5,\) or \(5, c\)"),
    "zero target": (lambda: system_of().coefficients(torch.zeros(5)), "nothing to learn"),
}


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
    predicted = predict_learning(there.spectrum, there.powers(f.cuda()), 8, ridge=0.1, replacement=False)
    expected = predict_learning(here.spectrum, here.powers(f), 8, ridge=0.1, replacement=False)
    assert torch.allclose(predicted.unseen_error.cpu(), expected.unseen_error, rtol=1e-8)
