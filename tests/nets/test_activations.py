from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats, sampled_from

from kontrast.errors import InputError
from kontrast.nets import ACTIVATIONS, Activation, activation_from, leaky_relu
from tests.cases import DTYPES

NAMES = ["relu", "tanh", "sigmoid", "erf", "gelu", "softplus", "sine", "cosine", "gaussian", "leaky_relu", "linear"]


def test_the_promised_activations_are_there() -> None:
    assert list(ACTIVATIONS) == NAMES


@given(name=sampled_from(NAMES), a=floats(-8, 8))
def test_derivatives_equal_automatic_ones(name: str, a: float) -> None:
    act, point = ACTIVATIONS[name], torch.tensor(a, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(act(point), point, create_graph=True)
    torch.testing.assert_close(act.first(point.detach()), first.detach(), rtol=1e-9, atol=1e-12)
    if act.smooth and name != "linear":
        (second,) = torch.autograd.grad(first, point)
        torch.testing.assert_close(act.second(point.detach()), second, rtol=1e-7, atol=1e-11)
    else:
        assert act.second(point.detach()) == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_number_type_and_shape_are_kept(name: str, dtype: torch.dtype) -> None:
    a = torch.linspace(-3, 3, 6, dtype=dtype).view(2, 3)
    for values in (ACTIVATIONS[name](a), ACTIVATIONS[name].first(a), ACTIVATIONS[name].second(a)):
        assert values.dtype == dtype
        assert values.shape == a.shape


def test_leaky_relu_takes_a_slope() -> None:
    a = torch.tensor([-2.0, 3.0])
    assert activation_from("leaky_relu:0.25")(a).tolist() == [-0.5, 3.0]
    assert leaky_relu(0.25).name == "leaky_relu:0.25"


@pytest.mark.parametrize("name", ["relo", "leaky_relu:2", "leaky_relu:x", ""])
def test_unknown_activations_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"must be one of relu, tanh|slope"):
        activation_from(name)


@given(a=floats(-4, 4))
def test_any_pointwise_function_is_an_activation(a: float) -> None:
    act, point = activation_from(lambda t: t**3 + torch.sin(t)), torch.tensor([a], dtype=torch.float64)
    torch.testing.assert_close(act(point), point**3 + torch.sin(point))
    torch.testing.assert_close(act.first(point), 3 * point**2 + torch.cos(point))
    torch.testing.assert_close(act.second(point), 6 * point - torch.sin(point))
    assert not act.smooth
    assert not act.first(point).requires_grad


def test_a_function_with_a_known_name_is_not_taken_for_the_known_one() -> None:
    def erf(a: torch.Tensor) -> torch.Tensor:
        return 2 * a

    assert activation_from(erf).name == "erf()"


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(InputError, match="or a function of a tensor, got 3"):
        activation_from(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "function, first",
    [
        (lambda a: torch.where(a > 0, a, 0.1 * a), [0.1, 1.0]),
        (lambda a: a.clamp(-1, 1), [0.0, 1.0]),
        (lambda a: 2 * a, [2.0, 2.0]),
        (torch.sign, [0.0, 0.0]),
        (torch.ones_like, [0.0, 0.0]),
        (lambda a: a.relu_(), [0.0, 1.0]),
    ],
)
def test_functions_in_pieces_have_their_slopes(
    function: Callable[[torch.Tensor], torch.Tensor], first: list[float]
) -> None:
    act, points = activation_from(function), torch.tensor([-2.0, 0.5], dtype=torch.float64)
    kept = points.clone()
    assert act.first(points).tolist() == first
    assert act.second(points).tolist() == [0, 0]
    assert torch.equal(act(points), function(kept.clone()))
    assert torch.equal(points, kept), "an activation that works in place must not reach the caller's tensor"


@pytest.mark.parametrize(
    "function, message",
    [
        (lambda a: 1.0, r"turns torch.float64 \(3,\) into float;"),
        (lambda a: a.sum(), r"into torch.float64 \(\)"),
        (lambda a: a.float(), r"into torch.float32 \(3,\)"),
        (lambda a: (a, a), "into tuple"),
        (lambda a, b: a, "fails on a float64 tensor: .*missing 1 required positional argument"),
        (torch.nn.ReLU, "into ReLU"),
        (torch.nn.PReLU(), "fails on a float64 tensor"),
    ],
)
def test_functions_that_are_not_pointwise_are_refused(function: Callable[..., object], message: str) -> None:
    with pytest.raises(InputError, match=f"activation .*{message}"):
        activation_from(function)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*NAMES, "leaky_relu:0.25"])
def test_named_activations_are_pickled_and_copied(name: str) -> None:
    """Their derivatives are lambdas, which pickle cannot hold, so the name goes alone."""
    act, a = activation_from(name), torch.linspace(-2, 2, 9, dtype=torch.float64)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(act, protocol))
        assert again.name == act.name
        for one, other in ((act.value, again.value), (act.first, again.first), (act.second, again.second)):
            assert torch.equal(one(a), other(a))
    assert copy.deepcopy(act)(a).tolist() == act(a).tolist()


def test_activations_of_ones_own_keep_their_function() -> None:
    """One that happens to be called like a known one, or like a slope, is not mistaken for it."""
    a = torch.linspace(-2, 2, 9, dtype=torch.float64)
    for name in ("mine", "relu", "leaky_relu:0.5"):
        act = Activation(name, torch.square, torch.zeros_like, torch.zeros_like, smooth=True)
        assert torch.equal(copy.deepcopy(act)(a), a.square())
        assert torch.equal(pickle.loads(pickle.dumps(act))(a), a.square())
    own = activation_from(lambda t: t**3)
    assert torch.equal(copy.deepcopy(own)(a), a**3)
    with pytest.raises((pickle.PicklingError, AttributeError), match=r"lambda|local"):
        pickle.dumps(own)
