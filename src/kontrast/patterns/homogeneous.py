"""Homogeneous activations, h(cz) = c^p h(z) for c > 0, which paper C assumes: then h(w^T x) = w^T x̃, x̃ = x·h(z)/z."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kontrast.checks import is_number, require_finite_not_negative, require_floating, require_whole
from kontrast.errors import InputError
from kontrast.nets import Activation, Pointwise, activation_from

_CHOICES = "relu, leaky_relu, leaky_relu:a, linear, monomial:p or relu_power:p"
_GRID = torch.logspace(-3, 3, 61, dtype=torch.float64)  # the |z| where homogeneity is checked
_ROUNDING = 1e-6  # of float32, in which a function may compute


@dataclass(frozen=True)
class Homogeneous:
    r"""$h(z) = \text{right}\, z^p$ for z > 0, $\text{left}\, |z|^p$ for z < 0, and h(0) = 0, with p = `degree` ≥ 1.

    ReLU is (1, 1, 0), leaky ReLU (1, 1, −slope), linear (1, 1, −1), the monomial of degree p (p, 1, (−1)^p). Paper C
    (Assumption 1) has p = 1 and writes x̃ = x h'(z); `gate` is h(z)/z = h'(z)/p, so that h(w^T x) = w^T x̃ for every p.
    """

    degree: float = 1.0
    right: float = 1.0
    left: float = 0.0

    def __post_init__(self) -> None:
        for name in ("degree", "right", "left"):
            value = getattr(self, name)
            if not is_number(value) or not math.isfinite(value):
                raise InputError(f"{name} of a homogeneous activation must be a finite number, got {value!r}")
            object.__setattr__(self, name, float(value))
        if self.degree < 1:
            raise InputError(f"an activation of degree {self.degree:g} is too steep at 0; take a degree of 1 or more")
        if self.right == 0 == self.left:
            raise InputError("the activation is identically zero; give it a right or a left that is not 0")

    def __call__(self, z: Tensor) -> Tensor:
        """h(z)."""
        require_floating("z", z)
        if self.degree == 1:  # no power: the gradient at 0 is then the gate, as for torch.relu
            return torch.where(z > 0, self.right * z, -self.left * z)
        return _choose(z > 0, self.right, self.left, z) * z.abs() ** self.degree

    def gate(self, z: Tensor, tolerance: float = 0.0) -> Tensor:
        """h(z)/z, which is h'(z) for p = 1; z up to `tolerance` counts as z ≤ 0.

        So ReLU's gate is closed at 0 (paper C: h'(0) = 0) and at round-off, and the gate of a linear function is 1.
        """
        require_floating("z", z)
        require_finite_not_negative(tolerance=tolerance)
        sides = _choose(z > tolerance, self.right, 0.0 - self.left, z)
        return sides if self.degree == 1 else sides * z.abs() ** (self.degree - 1)

    def gate_slope(self, z: Tensor) -> Tensor:
        """(p − 1)·h(z)/z², the slope of the gate away from 0; at 0 its limit from the left. Zero for p = 1."""
        require_floating("z", z)
        if self.degree == 1:
            return torch.zeros_like(z)
        sides = _choose(z > 0, self.right, self.left, z)
        slope = (self.degree - 1) * sides * z.abs() ** (self.degree - 2)
        return torch.where(sides == 0, 0.0, slope)  # for p < 2 the power is infinite at 0, on a flat side too

    @property
    def jump(self) -> float:
        """The jump of the gate at z = 0: right + left for p = 1, and 0 for p > 1."""
        return self.right + self.left if self.degree == 1 else 0.0


def homogeneous_from(activation: str | Homogeneous | Activation | nn.Module | Pointwise) -> Homogeneous:
    """The homogeneous activation for a name ("relu", "leaky_relu:0.2", "monomial:3", …), a module or a function.

    Modules and functions are tried on |z| from 1e-3 to 1e3; one that is not homogeneous (tanh, gelu, …) is refused with
    the reason. A learnable module, such as `nn.PReLU`, is taken with its current parameters.
    """
    if isinstance(activation, Homogeneous):
        return activation
    if isinstance(activation, str):
        return _named(activation)
    if not callable(activation):
        raise InputError(f"activation must be {_CHOICES}, a module or a function of a tensor, got {activation!r}")
    return _probed(_in_double(activation) if isinstance(activation, nn.Module) else activation)


def _choose(condition: Tensor, right: float, left: float, z: Tensor) -> Tensor:
    """`right` where the condition holds, else `left`, in z's number type: for floats `torch.where` gives float32."""
    return torch.where(condition, z.new_full((), right), z.new_full((), left))


def _named(name: str) -> Homogeneous:
    kind, _, argument = name.partition(":")
    if kind in ("monomial", "relu_power"):
        try:
            degree = float(argument)
        except ValueError:
            raise InputError(f"activation {name!r} needs its degree, as in '{kind}:2'") from None
        if kind == "relu_power":
            return Homogeneous(degree, 1.0, 0.0)
        if not degree.is_integer():
            raise InputError(
                f"activation {name!r} needs a whole degree, as in 'monomial:3'; or use 'relu_power:{argument}'"
            )
        return Homogeneous(degree, 1.0, (-1.0) ** require_whole("the degree of a monomial", int(degree)))
    try:
        found = activation_from(name)
    except InputError as error:
        if kind == "leaky_relu":
            raise
        raise InputError(f"activation must be {_CHOICES}, got {name!r}") from error
    return _probed(found)


def _in_double(module: nn.Module) -> nn.Module:
    """A float64 copy on the CPU, so that number type and device do not matter, nor does state that a call changes."""
    try:
        return copy.deepcopy(module).to("cpu", torch.float64)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"activation {type(module).__name__} cannot be copied for a trial: {str(error).splitlines()[0]}; "
            f"use {_CHOICES}"
        ) from error


def _probed(function: Activation | Pointwise) -> Homogeneous:
    """The activation with right = h(1), left = h(−1) and degree log₂ h(2)/h(1); refuses h if it is not homogeneous."""
    activation = activation_from(function)
    z = torch.cat([_GRID, -_GRID])
    origin, right, left, up, down = _values(activation, torch.tensor([0.0, 1.0, -1.0, 2.0, -2.0]).double()).tolist()
    values, parts = _values(activation, z), torch.cat([_values(activation, _GRID), _values(activation, -_GRID)])
    if not bool(values.isfinite().all()):
        bad = int((~values.isfinite()).nonzero()[0])
        raise InputError(f"activation {activation.name} is {values[bad]:.3g} at z = {z[bad]:.3g}; use {_CHOICES}")
    if not torch.allclose(values, parts, rtol=_ROUNDING, atol=0):
        raise InputError(
            f"activation {activation.name} is random, or mixes the entries of a tensor; pass an elementwise function"
        )
    if abs(origin) > 0:
        raise InputError(
            f"activation {activation.name} is {origin:.3g} at z = 0, where a homogeneous one is 0; use {_CHOICES}"
        )
    degree = _degree(up / right if right else down / left if left else 2.0)
    _check_homogeneous(activation.name, z, values, degree, right, left)
    return Homogeneous(degree, right, left)


def _values(activation: Activation, z: Tensor) -> Tensor:
    try:
        with torch.no_grad():
            return activation(z)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise InputError(
            f"activation {activation.name} fails on a tensor of {len(z)} numbers: {str(error).splitlines()[0]}; "
            f"use {_CHOICES}, or an elementwise function"
        ) from error


def _degree(ratio: float) -> float:
    """The p with 2^p = `ratio`, rounded if it is nearly whole; 1, which the check refuses, if there is none."""
    degree = math.log2(ratio) if ratio > 0 else 1.0
    return float(round(degree)) if abs(degree - round(degree)) < _ROUNDING else degree


def _check_homogeneous(name: str, z: Tensor, values: Tensor, degree: float, right: float, left: float) -> None:
    size = z.abs() ** degree
    wanted = _choose(z > 0, right, left, z) * size
    error = (values - wanted).abs() / (size * max(abs(right), abs(left), torch.finfo(z.dtype).tiny))
    worst = int(error.argmax())
    if error[worst] > _ROUNDING:
        raise InputError(
            f"activation {name} is not homogeneous: h(z) is {values[worst]:.3g} at z = {z[worst]:.3g}, where its "
            f"values at ±1 and ±2 (degree {degree:.3g}) predict {wanted[worst]:.3g}; use {_CHOICES}"
        )
