from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from

from kontrast.dynamics import Status, regression_problem
from kontrast.errors import InputError
from kontrast.kernels import NTKOperator, empirical_ntk
from kontrast.learnability import learning_rates, linearization_gap, mse_training
from kontrast.nets import MLP
from tests.cases import DTYPES, generator, randn


def kernel_of(values: torch.Tensor, seed: int = 0) -> torch.Tensor:
    Q = torch.linalg.qr(randn(len(values), len(values), seed=seed))[0]
    return (Q * values) @ Q.mT


@given(seed=integers(0, 2**16), smallest=floats(0, 1), largest=floats(2, 1e4))
def test_rates_come_from_both_ends(seed: int, smallest: float, largest: float) -> None:
    values = torch.cat([torch.tensor([smallest]), torch.linspace(1, 2, 4), torch.tensor([largest])]).double()
    smallest, largest = float(values[0]), float(values[-1])
    rates = learning_rates(kernel_of(values, seed))
    assert rates.largest == pytest.approx(largest, rel=1e-12)
    assert rates.smallest == pytest.approx(smallest, abs=rates.error)
    assert rates.stable == pytest.approx(2 / largest, rel=1e-12)
    assert rates.critical == pytest.approx(2 / (smallest + largest), rel=1e-12)
    assert rates.critical <= rates.stable


@given(seed=integers(0, 2**16), share=floats(0.1, 1.9))
def test_critical_is_where_80_ends(seed: int, share: float) -> None:
    """‖1 − ηΘ‖ ≤ 1 − ηλ_min exactly up to 2/(λ_min + λ_max), and no further: paper D, (80)."""
    K = kernel_of(randn(6, seed=seed).square() + 0.1, seed)
    rates = learning_rates(K)
    rate = share * rates.critical
    norm = float(torch.linalg.matrix_norm(torch.eye(6).double() - rate * K, 2))
    assert (norm <= 1 - rate * rates.smallest + 1e-12) == (share <= 1 + 1e-12)


@given(seed=integers(0, 2**16), share=sampled_from([0.5, 0.99, 1.01, 1.5]))
def test_below_stable_the_linear_model_converges_and_above_it_grows(seed: int, share: float) -> None:
    K, start, targets = kernel_of(torch.linspace(0.5, 3, 6).double(), seed), randn(6, 1, seed=1), randn(6, 1, seed=2)
    training = mse_training(K, start, targets, learning_rate=share * learning_rates(K).stable, method="descent")
    losses = [training.loss(t) for t in (0, 400, 800)]
    assert (losses[2] < 1e-3 * losses[0]) if share < 1 else (losses[2] > losses[1] > losses[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [5, 40])
def test_a_network_s_kernel_in_all_its_forms(n: int, dtype: torch.dtype) -> None:
    """(n, n, z, z), the matrix of it, and the operator, which Lanczos multiplies (n = 40) without forming it."""
    net, x = MLP(4, 64, 2, generator=generator(1), dtype=dtype), randn(n, 4, dtype=dtype)
    K = empirical_ntk(net, x)
    dense = learning_rates(K)
    matrix = learning_rates(K.permute(0, 2, 1, 3).reshape(2 * n, 2 * n))
    free = learning_rates(NTKOperator(net, x))
    exact = torch.linalg.eigvalsh(K.double().permute(0, 2, 1, 3).reshape(2 * n, 2 * n))
    for rates in (dense, matrix, free):
        assert rates.stable == pytest.approx(2 / float(exact[-1]), rel=1e-5)
        assert rates.smallest == pytest.approx(float(exact[0]), abs=max(rates.error, 1e-6 * float(exact[-1])) * 1.01)
        assert rates.critical == pytest.approx(2 / float(exact[0] + exact[-1]), rel=2e-3)
    assert free.error <= 1.01e-3 * free.largest


def test_a_large_matrix_goes_through_lanczos(monkeypatch: pytest.MonkeyPatch) -> None:
    K = kernel_of(torch.cat([torch.linspace(0.5, 1, 118), torch.tensor([5.0, 30.0])]).double())
    exact = learning_rates(K)
    monkeypatch.setattr(import_module(learning_rates.__module__), "DIRECT", 50)
    found = learning_rates(K)
    assert exact.error < 1e-10 < found.error <= 1.01e-3 * found.largest
    assert found.stable == pytest.approx(exact.stable, rel=1e-9)
    assert exact.critical * (1 - 1e-3) <= found.critical <= exact.critical * (1 + 1e-9)


def test_a_network_follows_below_the_stable_rate_catapults_above_and_diverges_beyond() -> None:
    """Claim D.eta: at 1.5 times the stable rate the linear model diverges and a network still converges."""
    x, targets = randn(6, 3, seed=1), randn(6, 1, seed=2)
    net = MLP(3, 256, 1, generator=generator(4), dtype=torch.float64)
    stable = learning_rates(empirical_ntk(net, x)).stable

    def gap(share: float) -> object:
        problem = regression_problem(x, targets)
        return linearization_gap(net, problem, learning_rate=share * stable, n_steps=300)

    below, above, beyond = gap(0.9), gap(1.5), gap(4.0)
    assert below.linear_loss[-1] < below.linear_loss[0]
    assert below.status is below.linear_status is Status.STEP_LIMIT
    assert above.linear_loss[-1] > 1e100
    assert above.loss[-1] < above.loss[0]
    assert beyond.status is beyond.linear_status is Status.DIVERGED


def test_a_singular_kernel_has_rates_and_rounding_below_zero_is_no_matter() -> None:
    x = torch.cat([randn(4, 2), randn(4, 2)])  # every row twice
    rates = learning_rates(x @ x.mT)
    assert abs(rates.smallest) <= rates.error
    assert rates.critical == pytest.approx(rates.stable, rel=1e-14)
    assert rates.critical <= rates.stable
    below = learning_rates(torch.tensor([-4e-15, 1.0], dtype=torch.float64).diag())
    assert below.smallest == -4e-15
    assert below.critical == below.stable == 2


@pytest.mark.parametrize(
    "kernel, message",
    [
        (np.eye(3), "must be Tensor or NTKOperator, got ndarray"),
        ("kernel", "must be Tensor or NTKOperator, got str"),
        (torch.zeros(3, 3), "positive semi-definite and not zero"),
        (-torch.eye(3), "positive semi-definite and not zero, but its eigenvalues are -1 to -1"),
        (torch.diag(torch.tensor([1.0, -0.5])), "eigenvalues are -0.5 to 1"),
        (torch.ones(3, 2), "must be square"),
        (torch.ones(3), "must be square"),
        (torch.eye(3).long(), "floating-point"),
        (torch.eye(3) * float("nan"), "NaN"),
        (torch.tensor([[1.0, 2.0], [0.0, 1.0]]), "symmetric"),
    ],
)
def test_what_is_no_kernel_is_refused(kernel: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        learning_rates(kernel)
