"""The numbers in a view: how they are drawn and told, how one per sample is applied, and how they are written.

Random numbers are drawn on the generator's device and then moved, so a generator gives the same view wherever x lies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor


def uniform(*shape: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Numbers uniform in [0, 1), always in float64, so that every number type of samples gets the same view."""
    return torch.rand(*shape, generator=generator, device=generator.device, dtype=torch.float64).to(device)


def per_sample(values: Tensor, x: Tensor) -> Tensor:
    """One value per sample, (n,), in the number type of x and of a shape that broadcasts against it."""
    return values.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))


class DrawnView(ABC):
    """A view that a few numbers of each sample make: it draws them, and applies them, so that it can tell them.

    ``view(x, generator)`` is ``view.applied(x, view.drawn(len(x), generator, x.device))``.
    """

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A fresh view of each sample."""
        self.check(x)
        return self.applied(x, self.drawn(len(x), generator, x.device))

    @abstractmethod
    def check(self, x: Tensor) -> None:
        """Refuse samples that have no such view."""

    @abstractmethod
    def drawn(self, n: int, generator: torch.Generator, device: torch.device) -> dict[str, Tensor]:
        """The numbers of n samples, each (n,): float64 for a size, bool for yes or no, whole for another sample."""

    @abstractmethod
    def applied(self, x: Tensor, numbers: Mapping[str, Tensor]) -> Tensor:
        """The view that these numbers make of each sample."""


class WrittenView:
    """A view of numbers alone: `str` writes its name and these, which `parse_view` reads."""

    name: ClassVar[str]

    def __str__(self) -> str:
        return f"{self.name}:{written(*vars(self).values())}"


def written(*values: float) -> str:
    """Numbers as a view's text holds them, so that reading gives them back to the last bit."""
    return ",".join(repr(float(value)).replace("e+", "e") for value in values)  # a "+" would split the view's text
