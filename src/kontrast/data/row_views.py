"""Views of any samples, rows (n, d) and images alike: they know nothing of neighbouring pixels or colours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kontrast.checks import require_between, require_finite_not_negative, require_floating
from kontrast.data.columns import Columns
from kontrast.data.view_numbers import DrawnView, WrittenView, per_sample, uniform, written
from kontrast.errors import InputError

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
class RelativeNoise(WrittenView):
    """Independent noise N(0, (share · σ)²), σ the deviation of each column: for columns of different units.

    σ is that of a whole data set, which `fit_view` takes in before the view is used, and not of a batch: that of a few
    samples would be off by much, and that of one is 0. The views are then the same however samples are batched, and
    those of new samples are made with the σ of the old ones. A constant column gets no noise.
    """

    name = "relative-noise"
    share: float = 0.1
    deviation: Tensor | None = field(default=None, compare=False, repr=False)  # of each column, of a sample's shape

    def __post_init__(self) -> None:
        require_finite_not_negative(share=self.share)

    def fitted(self, columns: Columns) -> RelativeNoise:
        """The view for the data set that has these columns."""
        return replace(self, deviation=columns.deviation)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Each sample with fresh noise."""
        require_floating("x", x, TO_FLOAT)
        if self.deviation is None:
            raise InputError(
                f"the view {self} is relative to the deviations of a data set, which it does not know yet; pass "
                "fit_view(view, [x])"
            )
        std = (self.share * self.deviation).to(x.device, x.dtype).reshape(x.shape[1:])
        noise = torch.randn(x.shape, generator=generator, device=generator.device, dtype=x.dtype).to(x.device)
        return x + std * noise

    def __str__(self) -> str:
        return f"{self.name}:{written(self.share)}"


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
class Mixup(WrittenView, DrawnView):
    """Each sample with a little of another one of its batch, (1 - λ) x_i + λ x_j: `Mixup(0.2)(x, generator)`.

    λ is uniform in [0, share], one number per sample, and j uniform among the others. A share of at most one half keeps
    x_i the larger part. A batch of one sample has no other and stays as it is.
    """

    name = "mixup"
    share: float = 0.2

    def __post_init__(self) -> None:
        require_between("share", self.share, 0, 0.5, fix="write mixup:0.2")

    def check(self, x: Tensor) -> None:
        """Refuse whole numbers."""
        require_floating("x", x, TO_FLOAT)

    def drawn(self, n: int, generator: torch.Generator, device: torch.device) -> dict[str, Tensor]:
        """λ of each sample, and the place in the batch of the one mixed in; one sample is its own, and draws none."""
        if n < 2:
            return {
                self.name: torch.zeros(n, dtype=torch.float64, device=device),
                "other": torch.arange(n, device=device),
            }
        lam = self.share * uniform(n, generator=generator, device=device)
        further = torch.randint(1, n, (n,), generator=generator, device=generator.device).to(device)
        other = (torch.arange(n, device=device) + further) % n  # 1 to n-1 places on: never the sample itself
        return {self.name: lam, "other": other}

    def applied(self, x: Tensor, numbers: Mapping[str, Tensor]) -> Tensor:
        """Each sample mixed with its other one."""
        if len(x) < 2:
            return x.clone()  # λ · (x - x) would be NaN where x is infinite
        lam = per_sample(numbers[self.name], x)
        return x + lam * (x[numbers["other"]] - x)
