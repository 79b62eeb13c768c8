from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from
from torch import nn

from kontrast.errors import InputError
from kontrast.kernels import empirical_ntk, empirical_ntk_trace
from kontrast.nets import ACTIVATIONS, MLP, PARAMETRIZATIONS, parameters_of
from tests.cases import DTYPES, generator, randn
from tests.reference import ntk

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


@settings(max_examples=60)
@given(
    seed=integers(0, 2**16),
    depth=integers(1, 3),
    width=sampled_from([3, 8, 33]),
    activation=sampled_from(list(ACTIVATIONS)),
    parametrization=sampled_from(PARAMETRIZATIONS),
    dtype=sampled_from(DTYPES),
)
def test_layerwise_ntk_equals_the_jacobian_product(
    seed: int, depth: int, width: int, activation: str, parametrization: str, dtype: torch.dtype
) -> None:
    shape = {"depth": depth, "activation": activation, "parametrization": parametrization}
    net = MLP(5, width, 3, **shape, generator=generator(seed), dtype=dtype)
    x, y = randn(4, 5, seed=seed, dtype=dtype), randn(6, 5, seed=seed + 1, dtype=dtype)
    K = ntk.empirical_ntk(net, x, y)
    scale = max(1.0, float(K.abs().max()))
    assert (empirical_ntk(net, x, y) - K).abs().max() <= TOLERANCE[dtype] * scale
    trace = torch.einsum("nmii->nm", K)
    assert (empirical_ntk_trace(net, x, y) - trace).abs().max() <= 3 * TOLERANCE[dtype] * scale


@given(seed=integers(0, 2**16), depth=integers(1, 3))
def test_the_kernel_is_symmetric_and_positive(seed: int, depth: int) -> None:
    net, x = MLP(5, 16, 2, depth=depth, generator=generator(seed), dtype=torch.float64), randn(6, 5, seed=seed)
    K = empirical_ntk(net, x)
    torch.testing.assert_close(K, K.permute(1, 0, 3, 2), rtol=0, atol=1e-13 * float(K.abs().max()))
    torch.testing.assert_close(K, empirical_ntk(net, x, x), rtol=0, atol=1e-12)
    matrix = K.permute(0, 2, 1, 3).reshape(12, 12)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-12 * torch.linalg.matrix_norm(matrix, 2)


def test_at_other_parameters_than_the_nets_own() -> None:
    net, other = (MLP(4, 9, 2, depth=2, generator=generator(s), dtype=torch.float64) for s in (1, 2))
    x = randn(3, 4)
    torch.testing.assert_close(empirical_ntk(net, x, parameters=parameters_of(other)), empirical_ntk(other, x))
    torch.testing.assert_close(
        empirical_ntk_trace(net, x, parameters=parameters_of(other)), empirical_ntk_trace(other, x)
    )


def test_parameters_of_another_net_are_refused() -> None:
    with pytest.raises(InputError, match=r"the net's parameters are \['hidden.0', 'output'\], got \['output'\]"):
        empirical_ntk(MLP(4, 9, 2), torch.ones(3, 4), parameters={"output": torch.ones(9, 2)})


def test_the_trace_is_a_sum_not_a_mean() -> None:
    net, x = MLP(4, 9, 5, dtype=torch.float64), randn(3, 4)
    K = empirical_ntk(net, x)
    torch.testing.assert_close(empirical_ntk_trace(net, x), sum(K[:, :, i, i] for i in range(5)))


def test_a_zero_input_has_a_zero_kernel_under_relu() -> None:
    net = MLP(4, 9, 2)
    assert torch.equal(empirical_ntk(net, torch.zeros(2, 4)), torch.zeros(2, 2, 2, 2))


@pytest.mark.parametrize(
    "module, x, message",
    [
        (nn.Linear(4, 2), torch.ones(2, 4), "written for kontrast.nets.MLP, got Linear"),
        (MLP(4, 3, 2), torch.ones(4), r"x must be \(n, 4\), got shape \(4,\)"),
        (MLP(4, 3, 2), torch.ones(2, 5), "x has 5 features but the net takes 4"),
        (MLP(4, 3, 2), torch.ones(2, 4, dtype=torch.float64), r"float64 on cpu but the net is torch.float32"),
    ],
)
def test_bad_input_is_refused(module: nn.Module, x: torch.Tensor, message: str) -> None:
    for kernel in (empirical_ntk, empirical_ntk_trace):
        with pytest.raises(InputError, match=message):
            kernel(module, x)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_the_gpu_as_on_the_cpu() -> None:
    net, x = MLP(5, 64, 3, depth=2, generator=generator(1), dtype=torch.float64), randn(6, 5)
    on_cpu = empirical_ntk(net, x)
    torch.testing.assert_close(empirical_ntk(net.cuda(), x.cuda()).cpu(), on_cpu, rtol=1e-12, atol=1e-12)
