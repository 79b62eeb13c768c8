"""Views of any samples, rows (n, d) and images alike: they know nothing of neighbouring pixels or colours."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.checks import require_between, require_finite_not_negative, require_floating
from kontrast.data.view_numbers import WrittenView, per_sample, uniform

TO_FLOAT = "convert the samples with x.float()"


@dataclass(frozen=True)
class GaussianNoise(WrittenView):
    """Independent noise N(0, std²) added to every value: `GaussianNoise(0.1)(x, generator)`."""

    name = "noise"
    std: float = 0.1

    def __post_init__(self) -> None:
        require_finite_not_negative(std=self.std)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Each sample with fresh noise."""
        require_floating("x", x, TO_FLOAT)
        noise = torch.randn(x.shape, generator=generator, device=generator.device, dtype=x.dtype).to(x.device)
        return x + self.std * noise


@dataclass(frozen=True)
class Masking(WrittenView):
    """Every value set to 0 with this probability, each by its own draw: `Masking(0.25)(x, generator)`."""

    name = "mask"
    probability: float = 0.25

    def __post_init__(self) -> None:
        require_between("probability", self.probability, 0, 1, fix="write mask:0.25")

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Each sample with fresh holes."""
        require_floating("x", x, TO_FLOAT)
        # float32 for every x: half the memory, one mask for every number type, and half floats would be too coarse
        u = torch.rand(x.shape, generator=generator, device=generator.device, dtype=torch.float32).to(x.device)
        return x.masked_fill(u < self.probability, 0.0)


@dataclass(frozen=True)
class Mixup(WrittenView):
    """Each sample with a little of another one of its batch, (1 - λ) x_i + λ x_j: `Mixup(0.2)(x, generator)`.

    λ is uniform in [0, share], one number per sample, and j uniform among the others. A share of at most one half keeps
    x_i the larger part. A batch of one sample has no other and stays as it is.
    """

    name = "mixup"
    share: float = 0.2

    def __post_init__(self) -> None:
        require_between("share", self.share, 0, 0.5, fix="write mixup:0.2")

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Each sample, mixed afresh."""
        require_floating("x", x, TO_FLOAT)
        n = len(x)
        if n < 2:
            return x.clone()
        lam = per_sample(self.share * uniform(n, generator=generator, device=x.device), x)
        further = torch.randint(1, n, (n,), generator=generator, device=generator.device).to(x.device)
        other = (torch.arange(n, device=x.device) + further) % n  # 1 to n-1 places on: never the sample itself
        return x + lam * (x[other] - x)
