"""Augmented views: batched, in plain torch, random through a generator alone.

Random numbers are drawn on the generator's device and then moved, so a generator gives the same view wherever x lies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from kontrast.data.datasets import Dataset
from kontrast.errors import InputError

IMAGES_AT_ONCE = 1024  # a crop's float64 copy and grid take 32 bytes a pixel; in slices they stay small


class View(Protocol):
    """A random map of a batch to a batch of the same shape, number type and device; `str` names it for `parse_view`."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A fresh random view of each sample."""
        ...


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random box of each image, resampled bilinearly to the full size.

    A box covers a share of the image uniform in `area`. `ratio` is its width over its height relative to the image's
    own, log-uniform, so the full image has ratio 1 whatever its shape; a side that would stick out is cut to the
    image's. The place is uniform among those inside the image. Boxes need not lie on whole pixels.
    """

    area: tuple[float, float] = (0.5, 1.0)
    ratio: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self) -> None:
        _require_range("area", self.area, largest=1.0)
        _require_range("ratio", self.ratio, largest=math.inf)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A fresh box of each image."""
        _require_images(x, "crop")
        u = torch.rand(len(x), 4, generator=generator, device=generator.device, dtype=torch.float64).to(x.device)
        area = self.area[0] + (self.area[1] - self.area[0]) * u[:, 0]
        log_ratio = math.log(self.ratio[0]) + math.log(self.ratio[1] / self.ratio[0]) * u[:, 1]
        sides = torch.stack([area.log() + log_ratio, area.log() - log_ratio], dim=1).div(2).exp().clamp(max=1.0)  # w, h
        centres = (1 - sides) * (2 * u[:, 2:] - 1)  # in [-1, 1], the coordinates of affine_grid
        # float64 throughout: float32 coordinates are off by 3e-6 pixel values at 28×28, and more for larger images
        boxes = torch.cat([torch.diag_embed(sides), centres[:, :, None]], dim=2)  # (n, 2, 3)
        slices = zip(torch.split(x, IMAGES_AT_ONCE), torch.split(boxes, IMAGES_AT_ONCE), strict=True)
        return torch.cat([_resample(images.double(), box).to(x.dtype) for images, box in slices])

    def __str__(self) -> str:
        bounds = self.area if self.ratio == (1.0, 1.0) else (*self.area, *self.ratio)
        return "crop:" + ",".join(map(_number, bounds))


@dataclass(frozen=True)
class HorizontalFlip:
    """Each image mirrored left to right with a probability of its own draw."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise InputError(f"flip probability must lie in 0 to 1, got {self.probability}; write flip:0.5")

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Each image or its mirror image."""
        _require_images(x, "flip")
        u = torch.rand(len(x), generator=generator, device=generator.device, dtype=torch.float64).to(x.device)
        return torch.where((u < self.probability)[:, None, None, None], x.flip(3), x)

    def __str__(self) -> str:
        return f"flip:{_number(self.probability)}"


@dataclass(frozen=True)
class GaussianNoise:
    """Independent noise N(0, std²) added to every value; for rows and images alike."""

    std: float = 0.1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.std) and self.std >= 0):
            raise InputError(f"noise std must be a number of at least 0, got {self.std}; write noise:0.1")

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Each sample with fresh noise."""
        _require_floating(x, "noise")
        noise = torch.randn(x.shape, generator=generator, device=generator.device, dtype=x.dtype).to(x.device)
        return x + self.std * noise

    def __str__(self) -> str:
        return f"noise:{_number(self.std)}"


@dataclass(frozen=True)
class Compose:
    """Views one after another; a composition inside a composition is laid flat."""

    views: tuple[View, ...]

    def __post_init__(self) -> None:
        if not self.views:
            raise InputError("a composition of views needs at least one view, got none; write crop or noise:0.1")
        flat: list[View] = []
        for view in self.views:
            flat.extend(view.views if isinstance(view, Compose) else (view,))
        object.__setattr__(self, "views", tuple(flat))

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Each sample through all views in turn."""
        for view in self.views:
            x = view(x, generator)
        return x

    def __str__(self) -> str:
        return "+".join(map(str, self.views))


def parse_view(text: str) -> View:
    """The view written as `text`.

    "crop", "crop:0.5,1.0" (area), "crop:0.5,1.0,0.8,1.25" (area and ratio), "flip", "flip:0.5", "noise", "noise:0.1",
    and any of these joined by "+". `str` of a view writes the same language.
    """
    views = [_parse_one(part.strip(), text) for part in text.split("+")]
    return views[0] if len(views) == 1 else Compose(tuple(views))


def default_view(dataset: Dataset) -> View:
    """The view taken where none is named: crops of half the area or more for images, noise of std 0.1 for rows."""
    return RandomResizedCrop() if dataset.is_image else GaussianNoise(0.1)


def _parse_one(part: str, text: str) -> View:
    makers: dict[tuple[str, int], Callable[..., View]] = {
        ("crop", 0): RandomResizedCrop,
        ("crop", 2): lambda *area: RandomResizedCrop(area),
        ("crop", 4): lambda low, high, *ratio: RandomResizedCrop((low, high), ratio),
        ("flip", 0): HorizontalFlip,
        ("flip", 1): HorizontalFlip,
        ("noise", 0): GaussianNoise,
        ("noise", 1): GaussianNoise,
    }
    name, colon, arguments = part.partition(":")
    try:
        numbers = [float(number) for number in arguments.split(",")] if colon else []
        make = makers[name, len(numbers)]
    except (ValueError, KeyError):
        raise InputError(
            f"cannot read {part!r} in the view {text!r}; write crop, crop:0.5,1.0, flip, flip:0.5 or noise:0.1, "
            "joined by +, as in crop+flip+noise:0.05"
        ) from None
    return make(*numbers)


def _resample(x: Tensor, boxes: Tensor) -> Tensor:
    """Boxes (n, 2, 3), as `affine_grid` takes them, of images x at the size of x; beyond the border, the border."""
    if len(x) == 0:  # affine_grid refuses an empty batch
        return x
    grid = F.affine_grid(boxes, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _number(value: float) -> str:
    return repr(float(value)).replace("e+", "e")  # a "+" would split the view's text


def _require_range(name: str, bounds: tuple[float, float], *, largest: float) -> None:
    low, high = bounds
    if not (0 < low <= high <= largest and math.isfinite(high)):
        limits = f"0 < low <= high{' <= 1' if largest == 1 else ''}"
        raise InputError(f"crop {name} must satisfy {limits}, got {low} and {high}; the default is crop:0.5,1.0")


def _require_floating(x: Tensor, name: str) -> None:
    if not x.is_floating_point():
        raise InputError(f"the view {name} needs floating samples, got {x.dtype}; convert them with x.float()")


def _require_images(x: Tensor, name: str) -> None:
    _require_floating(x, name)
    if x.dim() != 4:
        raise InputError(
            f"the view {name} needs images (n, c, h, w), got shape {tuple(x.shape)}; use a noise view such as "
            "noise:0.1, or give the data an image_shape"
        )
