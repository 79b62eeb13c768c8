from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers, sampled_from
from torch import nn

from kontrast.errors import InputError
from kontrast.nets import MLP, Linearized, parameters_of, pure_function
from tests.cases import generator, randn
from tests.reference import ntk


def convnet() -> nn.Module:
    torch.manual_seed(0)  # layers of torch draw from the global state; the library itself never does
    return (
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.GELU(), nn.Flatten(), nn.Linear(12, 2)).double().eval()
    )


def test_any_module_is_a_pure_function_of_its_parameters() -> None:
    net, x = convnet(), randn(5, 1, 4, 4)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    f, p = pure_function(net), parameters_of(net)
    assert torch.equal(f(p, x), net(x))
    doubled = {k: 2 * v for k, v in p.items()}
    assert not torch.equal(f(doubled, x), f(p, x))
    net.train()
    f(p, x)  # batch statistics would write the running mean here
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


def test_an_mlp_is_the_same_pure_function_by_its_shorter_way() -> None:
    net, other = (MLP(3, 8, 2, depth=2, generator=generator(s), dtype=torch.float64) for s in (1, 2))
    x = randn(4, 3)
    assert torch.equal(pure_function(net)(parameters_of(other), x), other(x))
    assert torch.equal(
        pure_function(nn.Sequential(net))({f"0.{k}": v for k, v in parameters_of(other).items()}, x), other(x)
    )


def test_parameters_are_copies() -> None:
    net = MLP(3, 4, 2)
    p = parameters_of(net)
    p["output"].zero_()
    assert net.output.abs().sum() > 0


@given(seed=integers(0, 2**16), activation=sampled_from(["tanh", "gelu", "relu"]), depth=integers(1, 2))
def test_linearized_net_is_its_tangent(seed: int, activation: str, depth: int) -> None:
    net = MLP(3, 8, 2, depth=depth, activation=activation, generator=generator(seed), dtype=torch.float64)
    lin, x = Linearized.of(net), randn(4, 3, seed=seed)
    step = {k: randn(*v.shape, seed=seed + 1) for k, v in lin.origin.items()}
    moved = {k: v + step[k] for k, v in lin.origin.items()}
    flat = torch.cat([s.flatten() for s in step.values()])
    expected = net(x) + torch.einsum("ncp,p->nc", ntk.jacobian(net, x), flat)
    torch.testing.assert_close(lin(moved, x), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(lin(lin.origin, x), net(x))
    torch.testing.assert_close(lin.change(moved, x), expected - net(x), rtol=1e-10, atol=1e-11)
    assert not lin.change(lin.origin, x).any()


def test_linearization_error_is_second_order() -> None:
    net = MLP(3, 16, 2, activation="tanh", dtype=torch.float64)
    lin, f, x = Linearized.of(net), pure_function(net), randn(4, 3)
    errors = []
    for size in (1e-2, 1e-3):
        moved = {k: v + size * randn(*v.shape, seed=1) for k, v in lin.origin.items()}
        errors.append(float((lin(moved, x) - f(moved, x)).norm()))
    assert errors[0] / errors[1] == pytest.approx(100, rel=0.1)


@given(seed=integers(0, 2**16))
def test_kernel_product_is_the_jacobian_product(seed: int) -> None:
    net, x, v = convnet(), randn(3, 1, 4, 4, seed=seed), randn(3, 2, seed=seed)
    K = ntk.empirical_ntk(net, x, x)
    torch.testing.assert_close(
        Linearized.of(net).kernel_product(x, v), torch.einsum("xyij,yj->xi", K, v), rtol=1e-9, atol=1e-11
    )


def test_a_module_without_parameters_is_refused() -> None:
    with pytest.raises(InputError, match="ReLU has no parameters"):
        parameters_of(nn.ReLU())


def test_a_module_with_two_outputs_is_refused() -> None:
    with pytest.raises(InputError, match="must return one tensor, got tuple"):
        pure_function(nn.LSTM(3, 2))({}, torch.ones(1, 3))


def test_tied_weights_stay_tied() -> None:
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False)).double()
    net[2].weight = net[0].weight
    f, p, x = pure_function(net), parameters_of(net), randn(2, 3)
    assert list(p) == ["0.weight"]
    A = randn(3, 3, seed=5)
    torch.testing.assert_close(f({"0.weight": A}, x), torch.tanh(x @ A.T) @ A.T)
