"""Pointwise activations φ with φ' and φ'' in closed form (autograd would give φ'' = 0 at kinks silently too)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kontrast.checks import in_words, require_between, require_choice
from kontrast.errors import InputError

Pointwise = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Activation:
    """φ and its first two derivatives; calling it applies φ.

    `smooth` says whether φ'' exists everywhere (paper A, Assumption 5). For ReLU-like activations φ'' is the zero
    that holds almost everywhere and `smooth` is False, so that bounds which need β_φ can refuse.
    """

    name: str
    value: Pointwise
    first: Pointwise
    second: Pointwise
    smooth: bool

    def __call__(self, a: Tensor) -> Tensor:
        """φ(a)."""
        return self.value(a)

    def __repr__(self) -> str:
        return f"Activation({self.name!r})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickled by name where there is one: lambdas cannot be."""
        return (activation_from, (self.name,)) if self.is_named else super().__reduce__()

    @property
    def is_named(self) -> bool:
        """Whether `activation_from(name)` gives this very object."""
        known = self.name in ACTIVATIONS or self.name.startswith("leaky_relu:")
        return known and activation_from(self.name) is self

    @property
    def stored_name(self) -> str:
        """The name, where `activation_from` makes this activation of it; refuses a function of the user's own."""
        if not self.is_named:
            raise InputError(
                f"the activation {self.name} is a function of your own, which a file cannot hold; use one of kontrast's"
            )
        return self.name


_DENSITY = 1 / math.sqrt(2 * math.pi)  # standard normal density at 0
_ERF_SLOPE = 2 / math.sqrt(math.pi)  # erf'(0)


def _normal_density(a: Tensor) -> Tensor:
    return _DENSITY * torch.exp(-0.5 * a * a)


def _sigmoid_first(a: Tensor) -> Tensor:
    s = torch.sigmoid(a)
    return s * (1 - s)


def _sigmoid_second(a: Tensor) -> Tensor:
    s = torch.sigmoid(a)
    return s * (1 - s) * (1 - 2 * s)


def _tanh_second(a: Tensor) -> Tensor:
    t = torch.tanh(a)
    return -2 * t * (1 - t * t)


@functools.lru_cache(maxsize=64)  # the same slope, the same object
def leaky_relu(slope: float = 0.01) -> Activation:
    """max(a, slope·a) for a slope in [0, 1]; 0 is ReLU, 1 is linear."""
    require_between("slope", slope, 0, 1)
    return Activation(
        name="leaky_relu" if slope == 0.01 else f"leaky_relu:{slope!r}",
        value=lambda a: F.leaky_relu(a, slope),
        first=lambda a: torch.where(a > 0, torch.ones_like(a), slope),
        second=torch.zeros_like,
        smooth=slope == 1,
    )


ACTIVATIONS: dict[str, Activation] = {
    act.name: act
    for act in (
        Activation("relu", torch.relu, lambda a: torch.heaviside(a, a.new_zeros(())), torch.zeros_like, smooth=False),
        Activation("tanh", torch.tanh, lambda a: 1 - torch.tanh(a) ** 2, _tanh_second, smooth=True),
        Activation("sigmoid", torch.sigmoid, _sigmoid_first, _sigmoid_second, smooth=True),
        Activation(
            "erf",
            torch.erf,
            lambda a: _ERF_SLOPE * torch.exp(-a * a),
            lambda a: -2 * _ERF_SLOPE * a * torch.exp(-a * a),
            smooth=True,
        ),
        Activation(  # a·Φ(a), exact: φ' = Φ + a·n(a), φ'' = (2 − a²)·n(a) with n the normal density
            "gelu",
            F.gelu,
            lambda a: torch.special.ndtr(a) + a * _normal_density(a),
            lambda a: (2 - a * a) * _normal_density(a),
            smooth=True,
        ),
        Activation(  # ln(1 + e^a): φ' and φ'' are the sigmoid and its slope
            "softplus", F.softplus, torch.sigmoid, _sigmoid_first, smooth=True
        ),
        Activation("sine", torch.sin, torch.cos, lambda a: -torch.sin(a), smooth=True),
        Activation("cosine", torch.cos, lambda a: -torch.sin(a), lambda a: -torch.cos(a), smooth=True),
        Activation(
            "gaussian",
            lambda a: torch.exp(-a * a),
            lambda a: -2 * a * torch.exp(-a * a),
            lambda a: (4 * a * a - 2) * torch.exp(-a * a),
            smooth=True,
        ),
        leaky_relu(),
        Activation("linear", lambda a: a, torch.ones_like, torch.zeros_like, smooth=True),
    )
}


def _slope_of(function: Pointwise) -> Pointwise:
    def slope(a: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = a if a.requires_grad else a.detach().requires_grad_()
            value = function(leaf)
            if not value.requires_grad:  # constant pieces
                return torch.zeros_like(a)
            (gradient,) = torch.autograd.grad(value.sum(), leaf, create_graph=True, materialize_grads=True)
        return gradient if a.requires_grad else gradient.detach()

    return slope


def _checked(function: Pointwise, name: str) -> Pointwise:
    """The function on copies, as it may work in place; refuses one that is not pointwise in float64."""

    def value(a: Tensor) -> Tensor:
        return function(a.clone())

    probe = torch.tensor([-1.0, 0.0, 0.5], dtype=torch.float64)
    wanted = "it must take a tensor of any float type and return one of the same shape and type"
    try:
        found = value(probe)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise InputError(
            f"activation {name} fails on a float64 tensor: {str(error).splitlines()[0]}; {wanted}"
        ) from error
    if not isinstance(found, Tensor) or found.shape != probe.shape or found.dtype != probe.dtype:
        raise InputError(f"activation {name} turns torch.float64 (3,) into {in_words(found)}; {wanted}")
    return value


def activation_from(activation: str | Activation | Pointwise) -> Activation:
    """An activation by name ("relu", "leaky_relu:0.2", …), as it is, or from any pointwise function of a tensor.

    A function's derivatives come from autograd; it counts as not smooth, since nothing says that it is.
    """
    if isinstance(activation, Activation):
        return activation
    if not isinstance(activation, str):
        if not callable(activation):
            raise InputError(
                f"activation must be one of {', '.join(ACTIVATIONS)} or a function of a tensor, got {activation!r}"
            )
        name = getattr(activation, "__name__", type(activation).__name__) + "()"  # never the name of one known here
        value = _checked(activation, name)
        first = _slope_of(value)
        return Activation(name, value, first, _slope_of(first), smooth=False)
    name, _, argument = activation.partition(":")
    if name == "leaky_relu" and argument:
        try:
            return leaky_relu(float(argument))
        except ValueError:
            raise InputError(
                f"activation {activation!r} needs a slope between 0 and 1, as in 'leaky_relu:0.2'"
            ) from None
    require_choice("activation", activation, ACTIVATIONS)
    return ACTIVATIONS[activation]
