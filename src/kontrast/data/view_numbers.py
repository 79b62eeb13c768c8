"""The numbers in a view: how they are drawn, how one per sample is applied, and how they are written.

Random numbers are drawn on the generator's device and then moved, so a generator gives the same view wherever x lies.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor


def uniform(*shape: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Numbers uniform in [0, 1), always in float64, so that every number type of samples gets the same view."""
    return torch.rand(*shape, generator=generator, device=generator.device, dtype=torch.float64).to(device)


def per_sample(values: Tensor, x: Tensor) -> Tensor:
    """One value per sample, (n,), in the number type of x and of a shape that broadcasts against it."""
    return values.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))


class WrittenView:
    """A view of numbers alone: `str` writes its name and these, which `parse_view` reads."""

    name: ClassVar[str]

    def __str__(self) -> str:
        return f"{self.name}:{written(*vars(self).values())}"


def written(*values: float) -> str:
    """Numbers as a view's text holds them, so that reading gives them back to the last bit."""
    return ",".join(repr(float(value)).replace("e+", "e") for value in values)  # a "+" would split the view's text
