from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from
from torch import Tensor, nn

from kontrast.errors import InputError
from kontrast.nets import ACTIVATIONS, activation_from
from kontrast.patterns import Homogeneous
from kontrast.patterns.homogeneous import homogeneous_from
from tests.cases import DTYPES

# every name, with the (degree, right, left) it stands for and the plain function it must equal
NAMED: dict[str, tuple[tuple[float, float, float], Callable[[Tensor], Tensor]]] = {
    "relu": ((1, 1, 0), torch.relu),
    "leaky_relu": ((1, 1, -0.01), nn.functional.leaky_relu),
    "leaky_relu:0.2": ((1, 1, -0.2), nn.LeakyReLU(0.2)),
    "linear": ((1, 1, -1), lambda z: z),
    "monomial:1": ((1, 1, -1), lambda z: z),
    "monomial:2": ((2, 1, 1), lambda z: z**2),
    "monomial:3": ((3, 1, -1), lambda z: z**3),
    "relu_power:2": ((2, 1, 0), lambda z: z.relu() ** 2),
    "relu_power:1.5": ((1.5, 1, 0), lambda z: z.relu() ** 1.5),
}
NAMES = list(NAMED)
REFUSED = [name for name in ACTIVATIONS if name not in ("relu", "leaky_relu", "linear")]


def numbers(seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Both signs and many sizes, 0 among them."""
    z = torch.randn(40, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return torch.cat([z, 1e3 * z, 1e-3 * z, z.new_zeros(1)])


@pytest.mark.parametrize("name", NAMES)
def test_names_give_the_promised_activation(name: str) -> None:
    constants, function = NAMED[name]
    h = homogeneous_from(name)
    assert h == Homogeneous(*constants)
    torch.testing.assert_close(h(numbers(0)), function(numbers(0)), rtol=1e-14, atol=0)


@given(seed=integers(0, 2**16), name=sampled_from(NAMES), dtype=sampled_from(DTYPES))
def test_gate_times_z_is_the_value(seed: int, name: str, dtype: torch.dtype) -> None:
    h, z = homogeneous_from(name), numbers(seed, dtype)
    assert h(z).dtype == h.gate(z).dtype == h.gate_slope(z).dtype == dtype
    torch.testing.assert_close(h.gate(z) * z, h(z), rtol=8 * torch.finfo(dtype).eps, atol=0)


@given(degree=floats(1, 4), right=floats(-2, 2), left=floats(-2, 2), scale=floats(0.01, 100), seed=integers(0, 2**16))
def test_scaling_z_scales_the_value_by_the_degree(
    degree: float, right: float, left: float, scale: float, seed: int
) -> None:
    h, z = Homogeneous(degree, right + 3, left), numbers(seed)
    torch.testing.assert_close(h(scale * z), scale**degree * h(z), rtol=1e-12, atol=0)
    torch.testing.assert_close(h.gate(scale * z), scale ** (degree - 1) * h.gate(z), rtol=1e-12, atol=0)


@given(seed=integers(0, 2**16), name=sampled_from(NAMES))
def test_slopes_obey_euler(seed: int, name: str) -> None:
    """h'(z) z = p h(z), and the same for the gate, which has degree p − 1; slopes by autograd."""
    h, z = homogeneous_from(name), numbers(seed)[:-1].requires_grad_()
    (slope,) = torch.autograd.grad(h(z).sum(), z)
    torch.testing.assert_close(slope * z, h.degree * h(z), rtol=1e-12, atol=0)
    torch.testing.assert_close(slope, h.degree * h.gate(z), rtol=1e-12, atol=0)
    if h.degree == 1:
        assert not h.gate_slope(z).any()
        return
    (gate_slope,) = torch.autograd.grad(h.gate(z).sum(), z)
    torch.testing.assert_close(h.gate_slope(z), gate_slope, rtol=1e-12, atol=0)
    torch.testing.assert_close(h.gate_slope(z) * z, (h.degree - 1) * h.gate(z), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_at_zero(name: str) -> None:
    h, zero = homogeneous_from(name), torch.zeros(1, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(h(zero).sum(), zero)
    assert h(zero) == 0
    assert torch.equal(slope, h.degree * h.gate(zero)), "the gradient at 0 must be the one the gate says"
    assert h.gate_slope(zero).isfinite().all()


def test_gates_are_closed_at_round_off_within_the_tolerance() -> None:
    z = torch.tensor([-1.0, -1e-12, 0.0, 1e-12, 1e-9, 1.1e-9, 1.0], dtype=torch.float64)
    relu, linear, leaky = (homogeneous_from(name) for name in ("relu", "linear", "leaky_relu:0.2"))
    assert relu.gate(z).tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert relu.gate(z, 1e-9).tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert leaky.gate(z, 1e-9).tolist() == [0.2, 0.2, 0.2, 0.2, 0.2, 1, 1]
    assert linear.gate(z, 1e-9).tolist() == [1] * 7


@pytest.mark.parametrize("name", NAMES)
def test_jump_is_that_of_the_gate(name: str) -> None:
    h = homogeneous_from(name)
    below, above = h.gate(torch.tensor([-1e-30, 1e-30], dtype=torch.float64)).tolist()
    assert h.jump == pytest.approx(above - below, abs=1e-14)


@pytest.mark.parametrize(
    "thing, constants",
    [
        (nn.ReLU(), (1, 1, 0)),
        (nn.ReLU(inplace=True), (1, 1, 0)),
        (torch.relu, (1, 1, 0)),
        (ACTIVATIONS["relu"], (1, 1, 0)),
        (nn.LeakyReLU(0.2), (1, 1, -0.2)),
        (nn.PReLU(init=0.25), (1, 1, -0.25)),  # float32 and learnable
        (nn.Identity(), (1, 1, -1)),
        (torch.abs, (1, 1, 1)),
        (lambda z: z**3, (3, 1, -1)),
        (lambda z: -1e-8 * z, (1, -1e-8, 1e-8)),
        (lambda z: -((-z).relu() ** 2), (2, 0, -1)),  # the degree comes from the other side
        (lambda z: z.relu() ** (4 / 3), (4 / 3, 1, 0)),
        (lambda z: z.float().relu().double(), (1, 1, 0)),
    ],
)
def test_modules_and_functions_are_recognized(thing: Any, constants: tuple[float, float, float]) -> None:
    h = homogeneous_from(thing)
    assert (h.degree, h.right, h.left) == pytest.approx(constants, rel=1e-15)
    assert homogeneous_from(h) is h


@given(degree=floats(1, 6), right=floats(-2, 2), left=floats(-2, 2))
def test_what_is_probed_is_found_again(degree: float, right: float, left: float) -> None:
    h = Homogeneous(degree, right + 3, left)
    found = homogeneous_from(h.__call__)
    assert (found.right, found.left) == (h.right, h.left)
    assert found.degree == pytest.approx(degree, abs=2e-6)  # whole numbers are snapped to


def test_a_learnable_module_is_taken_as_it_is_now_and_left_as_it_was() -> None:
    module = nn.PReLU(init=0.5)
    assert homogeneous_from(module).left == -0.5
    with torch.no_grad():
        module.weight.fill_(0.125)
    assert homogeneous_from(module).left == -0.125
    assert module.weight.dtype == torch.float32


@pytest.mark.parametrize("name", REFUSED)
def test_activations_that_are_not_homogeneous_are_refused(name: str) -> None:
    with pytest.raises(
        InputError, match=rf"activation {name} is (not homogeneous: h\(z\)|\S+ at z = 0).*use relu, leaky"
    ):
        homogeneous_from(name)
    with pytest.raises(InputError, match=rf"activation {name} is"):
        homogeneous_from(ACTIVATIONS[name])


@pytest.mark.parametrize(
    "thing, reason",
    [
        (nn.ELU(), r"not homogeneous: h\(z\) is -1 at z = -1e\+03, .* predict -632"),
        (nn.GELU(), "not homogeneous"),
        (nn.ReLU6(), r"is 6 at z = 1e\+03"),
        (nn.Softshrink(), "is 0 at z = 0.001"),
        (lambda z: torch.where(z > 0, z, -z * z), "not homogeneous"),
        (lambda z: z + 1e-6 * z * z, "not homogeneous"),
        (lambda z: z * torch.sin(torch.pi * z).round(), "not homogeneous"),  # 0 at ±1 and ±2
        (torch.cos, "is 1 at z = 0"),
        (torch.ones_like, "is 1 at z = 0"),
        (torch.zeros_like, "identically zero"),
        (torch.sign, "degree 0 is too steep at 0"),
        (lambda z: z.abs().sqrt(), "degree 0.5 is too steep at 0"),
        (torch.sqrt, "is nan at z = -0.001"),
        (lambda z: z**200, "is inf at z = "),
        (lambda z: z / z.norm(), "random, or mixes"),
        (nn.RReLU(), "random, or mixes"),
        (nn.PReLU(3), "fails on a float64 tensor"),
        (nn.Linear(3, 3), "fails on a tensor of 5 numbers"),
        (nn.ReLU, r"turns torch.float64 \(3,\) into ReLU"),
        (lambda z: 1.0, r"turns torch.float64 \(3,\) into float"),
    ],
)
def test_functions_are_refused_with_the_reason(thing: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        homogeneous_from(thing)


@pytest.mark.parametrize(
    "name, reason",
    [
        ("foo", "must be relu, leaky_relu, .* got 'foo'"),
        ("", "must be relu"),
        ("monomial", "needs its degree"),
        ("monomial:x", "needs its degree"),
        ("monomial:0", "whole number of at least 1"),
        ("monomial:2.5", "whole degree, .* 'relu_power:2.5'"),
        ("relu_power:0.5", "degree 0.5 is too steep"),
        ("relu_power:nan", "finite number"),
        ("leaky_relu:3", "slope between 0 and 1"),
        (3, "a module or a function of a tensor, got 3"),
        (None, "a module or a function of a tensor, got None"),
    ],
)
def test_names_that_stand_for_nothing_are_refused(name: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        homogeneous_from(name)


@pytest.mark.parametrize("constants", [(0.5, 1, 0), (1, 0, 0), (float("inf"), 1, 0), (1, "1", 0), (1, 1, True)])
def test_constants_that_cannot_work_are_refused(constants: tuple[Any, Any, Any]) -> None:
    with pytest.raises(InputError, match=r"too steep at 0|identically zero|finite number"):
        Homogeneous(*constants)


@pytest.mark.parametrize("z", [torch.ones(3, dtype=torch.int64), torch.ones(3).numpy(), 1.0, "relu"])
def test_what_is_no_float_tensor_is_refused(z: Any) -> None:
    for function in (Homogeneous(), Homogeneous().gate, Homogeneous().gate_slope):
        with pytest.raises(InputError, match="z must be a tensor of floating-point numbers"):
            function(z)


@pytest.mark.parametrize("tolerance", [-1e-9, float("nan"), float("inf"), "0", None])
def test_tolerances_that_cannot_work_are_refused(tolerance: Any) -> None:
    with pytest.raises(InputError, match="tolerance"):
        Homogeneous().gate(torch.ones(2), tolerance)


def test_they_are_values() -> None:
    h = Homogeneous(2, 1, 0)
    assert hash(h) == hash(Homogeneous(2.0, 1.0, 0.0))
    assert pickle.loads(pickle.dumps(h)) == copy.deepcopy(h) == h
    assert eval(repr(h)) == h
    assert activation_from(h)(torch.tensor([-3.0, 3.0])).tolist() == [0, 9], "any network takes one"
