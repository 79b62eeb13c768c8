"""The critical rate is 2/λ_max of the dense kernel, and the place where descent of the linearised network tips over."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from
from torch import nn

from kontrast.dynamics import critical_rate
from kontrast.errors import InputError
from kontrast.nets import MLP, PARAMETRIZATIONS, stack_of
from tests.cases import DTYPES, generator, randn
from tests.reference import ntk

SEEDS = integers(0, 2**16)


def mlp_of(seed, dtype=torch.float64, **options):
    return MLP(4, 9, 3, generator=generator(seed), dtype=dtype, **options)


class Half(nn.Module):
    """A small network of linear layers, one of which it does not use."""

    def __init__(self, seed):
        super().__init__()
        self.first, self.last, self.unused = (nn.Linear(*shape) for shape in ((4, 5), (5, 3), (2, 2)))
        with torch.no_grad():
            for i, p in enumerate(self.parameters()):
                p.copy_(0.5 * randn(*p.shape, seed=seed + i))
        self.double()

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def dense_rate(module, x, *, unit_length=False):
    """2/λ_max of J J^T/n from the whole Jacobian, one row and output at a time."""
    J = ntk.jacobian(module, x).flatten(0, 1)
    top = float(torch.linalg.eigvalsh(J @ J.T)[-1]) / len(x)
    length = float(module(x).detach().square().sum(1).mean()) if unit_length else 1.0
    return 2 * length / top


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=8)
@given(
    seed=SEEDS,
    unit_length=sampled_from([False, True]),
    depth=integers(1, 2),
    parametrization=sampled_from(PARAMETRIZATIONS),
)
def test_it_is_that_of_the_dense_kernel(dtype, seed, unit_length, depth, parametrization):
    x = randn(7, 4, seed=seed, dtype=dtype)
    net = mlp_of(seed, dtype, depth=depth, parametrization=parametrization)
    found = critical_rate(stack_of([net]), x.unsqueeze(0), unit_length=unit_length)
    assert found == pytest.approx(dense_rate(net, x, unit_length=unit_length), rel=0.01)


@settings(max_examples=4)
@given(seed=SEEDS)
def test_any_module_has_one_and_what_it_does_not_use_has_no_part(seed):
    x, net = randn(6, 4, seed=seed), Half(seed)
    for unit_length in (False, True):
        found = critical_rate(stack_of([net]), x.unsqueeze(0), unit_length=unit_length)
        assert found == pytest.approx(dense_rate(net, x, unit_length=unit_length), rel=0.01)


@settings(max_examples=5)
@given(seed=SEEDS)
def test_descent_of_the_linearised_network_converges_below_it_and_diverges_above(seed):
    """Half the mean squared error over n points: Δ ← Δ − η J^T (f_0 + JΔ − y)/n."""
    x, net = randn(5, 4, seed=seed), mlp_of(seed, activation="tanh")
    rate = critical_rate(stack_of([net]), x.unsqueeze(0))
    J, n = ntk.jacobian(net, x).flatten(0, 1), len(x)
    start = (net(x).detach() - randn(5, 3, seed=seed + 1)).flatten()

    def left(factor):
        delta = torch.zeros(J.shape[1], dtype=torch.float64)
        for _ in range(400):
            delta -= factor * rate * J.T @ (start + J @ delta) / n
        return float((start + J @ delta).norm() / start.norm())

    assert left(0.97) < 1
    assert left(0.97) < left(0.1)
    assert left(1.03) > 1e3


@given(seed=SEEDS, factor=sampled_from([0.5, 3.0]))
@settings(max_examples=4)
def test_cosines_do_not_see_the_length_of_outputs(seed, factor):
    """cW has outputs c times as long; of the kernel's two parts, that of V grows by c², like their squares."""
    x, net = randn(6, 4, seed=seed), mlp_of(seed)
    longer = mlp_of(seed)
    with torch.no_grad():
        longer.hidden[0].mul_(factor)  # ReLU: f(cV) = c f(V), and J for W grows by c as well
        longer.output.mul_(factor)  # so that both parts grow by c, and f by c²
    rates = [critical_rate(stack_of([it]), x.unsqueeze(0), unit_length=True) for it in (net, longer)]
    assert rates[1] == pytest.approx(factor**2 * rates[0], rel=0.02)


def test_a_network_that_no_parameter_moves_has_no_critical_rate() -> None:
    net = MLP(3, 4, 2, generator=generator(0))
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    with pytest.raises(InputError, match="the first kernel is zero: no parameter moves the outputs of these samples"):
        critical_rate(stack_of([net]), randn(1, 5, 3).float())
