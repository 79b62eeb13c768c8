"""Views of any samples, rows (n, d) and images alike: they know no neighbours and no colours."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.data.view_checks import a_sample, require_between, require_floating, uniform, written
from kontrast.errors import InputError


@dataclass(frozen=True)
class GaussianNoise:
    """Independent noise N(0, std²) added to every value; for rows and images alike."""

    std: float = 0.1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.std) and self.std >= 0):
            raise InputError(f"noise std must be a number of at least 0, got {self.std}; write noise:0.1")

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Each sample with fresh noise."""
        require_floating(x, "noise")
        noise = torch.randn(x.shape, generator=generator, device=generator.device, dtype=x.dtype).to(x.device)
        return x + self.std * noise

    def __str__(self) -> str:
        return f"noise:{written(self.std)}"


@dataclass(frozen=True)
class Masking:
    """Every value set to 0 with this probability, each by its own draw."""

    probability: float = 0.25

    def __post_init__(self) -> None:
        require_between("mask probability", self.probability, 0, 1, write="mask:0.25")

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Each sample with fresh holes."""
        require_floating(x, "mask")
        # float32 whatever x is: half the memory, one mask for every number type, and half floats would be too coarse
        u = torch.rand(x.shape, generator=generator, device=generator.device, dtype=torch.float32).to(x.device)
        return x.masked_fill(u < self.probability, 0.0)

    def __str__(self) -> str:
        return f"mask:{written(self.probability)}"


@dataclass(frozen=True)
class Mixup:
    """Each sample with a little of another one of its batch: (1 - λ) x_i + λ x_j.

    λ is uniform in [0, share], one number a sample, and j uniform among the others. A share of at most one half keeps
    x_i the larger part. A batch of one sample has no other and stays as it is.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        require_between("mixup share", self.share, 0, 0.5, write="mixup:0.2")

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Each sample, mixed afresh."""
        require_floating(x, "mixup")
        n = len(x)
        if n < 2:
            return x.clone()
        lam = a_sample(self.share * uniform(n, generator=generator, device=x.device), x)
        further = torch.randint(1, n, (n,), generator=generator, device=generator.device).to(x.device)
        other = (torch.arange(n, device=x.device) + further) % n  # 1 to n-1 places on: never the sample itself
        return x + lam * (x[other] - x)

    def __str__(self) -> str:
        return f"mixup:{written(self.share)}"
