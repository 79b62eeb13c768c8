"""What the views share: their random numbers, how their numbers are written, and which numbers and samples they take.

Random numbers are drawn on the generator's device and then moved, so a generator gives the same view wherever x lies.
"""

from __future__ import annotations

from numbers import Real

import torch
from torch import Tensor

from kontrast.errors import InputError


def uniform(*shape: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Numbers uniform in [0, 1), in float64 whatever the samples are, so that no number type sees another view."""
    return torch.rand(*shape, generator=generator, device=generator.device, dtype=torch.float64).to(device)


def a_sample(values: Tensor, x: Tensor) -> Tensor:
    """One value a sample, (n,), in the number type of x and of a shape that broadcasts against it."""
    return values.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))


def written(*values: float) -> str:
    """Numbers as a view's text holds them, so that reading gives them back to the last bit."""
    return ",".join(repr(float(value)).replace("e+", "e") for value in values)  # a "+" would split the view's text


def require_between(what: str, value: float, low: float, high: float, *, write: str) -> None:
    """Raise `InputError` unless the value is a number from `low` to `high`."""
    if not isinstance(value, Real) or not low <= value <= high:  # NaN compares as False
        raise InputError(f"{what} must lie in {low:g} to {high:g}, got {value!r}; write {write}")


def require_floating(x: Tensor, name: str) -> None:
    """Raise `InputError` unless the samples are floating numbers."""
    if not x.is_floating_point():
        raise InputError(f"the view {name} needs floating samples, got {x.dtype}; convert them with x.float()")


def require_images(x: Tensor, name: str) -> None:
    """Raise `InputError` unless the samples are images of floating numbers."""
    require_floating(x, name)
    if x.dim() != 4:
        raise InputError(
            f"the view {name} needs images (n, c, h, w), got shape {tuple(x.shape)}; use a noise view such as "
            "noise:0.1, or give the data an image_shape"
        )
