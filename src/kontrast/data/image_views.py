"""Views of images (n, c, h, w): where a pixel comes from (crop, flip, affine) and what its value is (the others)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kontrast.checks import is_number, require_between, require_floating
from kontrast.data.view_numbers import DrawnView, WrittenView, per_sample, uniform, written
from kontrast.errors import InputError

IMAGES_AT_ONCE = 1024  # a crop's float64 copy and grid take 32 bytes per pixel; in slices they stay small
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601


@dataclass(frozen=True)
class RandomResizedCrop(DrawnView):
    """A random box of each image, resampled bilinearly to the full size: `RandomResizedCrop((0.5, 1.0))(x, generator)`.

    A box covers a share of the image uniform in `area`. `ratio` is its width over its height relative to the image's
    own, log-uniform, so the full image always has ratio 1; a side that would stick out is cut to the
    image's. The place is uniform among those inside the image. Boxes need not lie on whole pixels.
    """

    area: tuple[float, float] = (0.5, 1.0)
    ratio: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self) -> None:
        _require_range("area", self.area, largest=1.0)
        _require_range("ratio", self.ratio, largest=math.inf)

    def check(self, x: Tensor) -> None:
        """Refuse what is no image."""
        _require_images(x, "crop")

    def drawn(self, n: int, generator: torch.Generator, device: torch.device) -> dict[str, Tensor]:
        """Area and log ratio of each box before sides are cut, and its centre: 0 the image's, ±1 the borders."""
        u = uniform(n, 4, generator=generator, device=device)
        area = self.area[0] + (self.area[1] - self.area[0]) * u[:, 0]
        log_ratio = math.log(self.ratio[0]) + math.log(self.ratio[1] / self.ratio[0]) * u[:, 1]
        centers = (1 - _sides(area, log_ratio)) * (2 * u[:, 2:] - 1)  # the coordinates of affine_grid
        return {"area": area, "log ratio": log_ratio, "x": centers[:, 0], "y": centers[:, 1]}

    def applied(self, x: Tensor, numbers: Mapping[str, Tensor]) -> Tensor:
        """These boxes of the images."""
        sides = _sides(numbers["area"], numbers["log ratio"])
        centers = torch.stack([numbers["x"], numbers["y"]], dim=1)
        # float64 throughout: float32 coordinates are off by 3e-6 pixel values at 28×28, and more for larger images
        boxes = torch.cat([torch.diag_embed(sides), centers[:, :, None]], dim=2)  # (n, 2, 3)
        slices = zip(torch.split(x, IMAGES_AT_ONCE), torch.split(boxes, IMAGES_AT_ONCE), strict=True)
        return torch.cat([_resample(images.double(), box).to(x.dtype) for images, box in slices])

    def __str__(self) -> str:
        bounds = self.area if self.ratio == (1.0, 1.0) else (*self.area, *self.ratio)
        return f"crop:{written(*bounds)}"


@dataclass(frozen=True)
class HorizontalFlip(WrittenView, DrawnView):
    """Each image mirrored left to right with this probability: `HorizontalFlip(0.5)(x, generator)`."""

    name = "flip"
    probability: float = 0.5

    def __post_init__(self) -> None:
        require_between("probability", self.probability, 0, 1, fix="write flip:0.5")

    def check(self, x: Tensor) -> None:
        """Refuse what is no image."""
        _require_images(x, self.name)

    def drawn(self, n: int, generator: torch.Generator, device: torch.device) -> dict[str, Tensor]:
        """Whether each image is mirrored."""
        return {self.name: uniform(n, generator=generator, device=device) < self.probability}

    def applied(self, x: Tensor, numbers: Mapping[str, Tensor]) -> Tensor:
        """Each image or its mirror image."""
        return torch.where(numbers[self.name][:, None, None, None], x.flip(3), x)


@dataclass(frozen=True)
class Affine(WrittenView, DrawnView):
    """Each image scaled and turned about its centre, then shifted: p ↦ s R p + t, in one bilinear resampling.

    The angle is uniform in ±`rotation` degrees, the shift in ±`shift` of the side along each axis, the factor s in
    1 ± `scale`. Angles are true in pixels for images of any shape. What comes from outside the image is zero, the
    background of digits. Coordinates have the number type of x (half floats: float32), so in float32 a strength of 0
    gives the image back up to some 1e-7 of its side times the steps between neighbouring pixels, not to the bit.
    """

    name = "affine"
    rotation: float = 15.0
    shift: float = 0.05
    scale: float = 0.2

    def __post_init__(self) -> None:
        fix = "write affine:15,0.05,0.2 (rotation in degrees, shift, scale)"
        require_between("rotation", self.rotation, 0, 180, fix=fix)
        require_between("shift", self.shift, 0, 1, fix=fix)
        require_between("scale", self.scale, 0, 0.99, fix=fix)  # a factor of 0 leaves no image

    def check(self, x: Tensor) -> None:
        """Refuse what is no image."""
        _require_images(x, self.name)

    def drawn(self, n: int, generator: torch.Generator, device: torch.device) -> dict[str, Tensor]:
        """Angles in degrees, anticlockwise; shifts right and down, as parts of the sides; factors."""
        u = 2 * uniform(n, 4, generator=generator, device=device) - 1
        shifts = self.shift * u[:, 1:3]
        factors = 1 + self.scale * u[:, 3]
        return {"rotation": self.rotation * u[:, 0], "shift x": shifts[:, 0], "shift y": shifts[:, 1], "scale": factors}

    def applied(self, x: Tensor, numbers: Mapping[str, Tensor]) -> Tensor:
        """Each image under its map."""
        shifts = torch.stack([numbers["shift x"], numbers["shift y"]], dim=1)
        return _moved(x, degrees=numbers["rotation"], shifts=shifts, factors=numbers["scale"])


@dataclass(frozen=True)
class Brightness(WrittenView, DrawnView):
    """Each image times a number of its own, uniform in 1 ± `strength`: `Brightness(0.4)(x, generator)`.

    Values are not clamped to [0, 1]: standardised images have other limits, and a clamped pixel has no gradient.
    """

    name = "brightness"
    strength: float = 0.4

    def __post_init__(self) -> None:
        require_between("strength", self.strength, 0, 1, fix="write brightness:0.4")

    def check(self, x: Tensor) -> None:
        """Refuse what is no image."""
        _require_images(x, self.name)

    def drawn(self, n: int, generator: torch.Generator, device: torch.device) -> dict[str, Tensor]:
        """By how much of its value each image is brighter, in ±strength."""
        return {self.name: _plus_minus(self.strength, n, generator, device)}

    def applied(self, x: Tensor, numbers: Mapping[str, Tensor]) -> Tensor:
        """Each image, brighter or darker."""
        return x * per_sample(1 + numbers[self.name], x)


@dataclass(frozen=True)
class Contrast(WrittenView, DrawnView):
    """Each image's distance from its mean gray value times a number of its own: `Contrast(0.4)(x, generator)`.

    The number is uniform in 1 ± `strength`. The mean gray value is one number per image: the mean luminance of three
    channels, and the plain mean of any other count. Values are not clamped, as for `Brightness`.
    """

    name = "contrast"
    strength: float = 0.4

    def __post_init__(self) -> None:
        require_between("strength", self.strength, 0, 1, fix="write contrast:0.4")

    def check(self, x: Tensor) -> None:
        """Refuse what is no image."""
        _require_images(x, self.name)

    def drawn(self, n: int, generator: torch.Generator, device: torch.device) -> dict[str, Tensor]:
        """By how much each image is harder, in ±strength."""
        return {self.name: _plus_minus(self.strength, n, generator, device)}

    def applied(self, x: Tensor, numbers: Mapping[str, Tensor]) -> Tensor:
        """Each image, harder or softer."""
        u = per_sample(numbers[self.name], x)
        channels = x.mean(dim=(2, 3), keepdim=True)
        mean = _luminance(channels) if x.shape[1] == 3 else channels.mean(dim=1, keepdim=True)
        return x + u * (x - mean)  # mean + (1 + u)(x - mean), and x to the bit where u = 0


@dataclass(frozen=True)
class Gray(WrittenView, DrawnView):
    """Each colour image replaced, with this probability, by its luminance in every channel: `Gray(0.2)(x, generator)`.

    Images of one channel are gray already and stay as they are.
    """

    name = "gray"
    probability: float = 0.2

    def __post_init__(self) -> None:
        require_between("probability", self.probability, 0, 1, fix="write gray:0.2")

    def check(self, x: Tensor) -> None:
        """Refuse what is no image, and channels that are no colours."""
        _require_images(x, self.name)
        if x.shape[1] not in (1, 3):
            raise InputError(
                f"the view gray needs images of 3 channels (red, green, blue) or 1, got {x.shape[1]} channels; "
                "leave gray out of the view, or pass x[:, :3] where the first three are the colours"
            )

    def drawn(self, n: int, generator: torch.Generator, device: torch.device) -> dict[str, Tensor]:
        """Whether each image is turned gray; drawn for one channel too, so that later views stay the same."""
        return {self.name: uniform(n, generator=generator, device=device) < self.probability}

    def applied(self, x: Tensor, numbers: Mapping[str, Tensor]) -> Tensor:
        """Each image or its gray values."""
        gray = _luminance(x) if x.shape[1] == 3 else x
        return torch.where(numbers[self.name][:, None, None, None], gray, x)


def _moved(x: Tensor, *, degrees: Tensor, shifts: Tensor, factors: Tensor) -> Tensor:
    """Images turned anticlockwise by `degrees` (n,) and enlarged by `factors` (n,), then shifted right and down.

    `shifts` (n, 2) are parts of the width and of the height; all three come in float64.
    """
    height, width = x.shape[2:]
    angle = degrees.deg2rad()
    cos, sin = angle.cos() / factors, angle.sin() / factors
    # A pixel p of the view shows the image at R^T (p - t) / s. Here p runs over [-1, 1] along both sides, the
    # coordinates of grid_sample; there a turn mixes the sides in the ratio of their lengths.
    turn = torch.stack([cos, -sin * height / width, sin * width / height, cos], dim=1).view(-1, 2, 2)
    start = -(turn @ (2 * shifts)[:, :, None])
    maps = torch.cat([turn, start], dim=2).to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    slices = zip(torch.split(x, IMAGES_AT_ONCE), torch.split(maps, IMAGES_AT_ONCE), strict=True)
    return torch.cat([_moved_slice(images, some) for images, some in slices])


def _moved_slice(x: Tensor, maps: Tensor) -> Tensor:
    if x.numel() == 0:  # grid_sample refuses it
        return x
    across, down = (
        (2 * torch.arange(size, dtype=maps.dtype, device=x.device) + 1 - size) / size
        for size in (x.shape[3], x.shape[2])
    )
    # Plain products, five times as fast as affine_grid's batched matrix products, and never in TF32 on a GPU.
    by_column, by_row, start = maps[..., None].unbind(2)  # (n, 2, 1) each
    grid = (by_column * across)[:, :, None, :] + (by_row * down + start)[..., None]  # (n, 2, h, w)
    seen = F.grid_sample(x.to(maps.dtype), grid.permute(0, 2, 3, 1), padding_mode="zeros", align_corners=False)
    return seen.to(x.dtype)


def _resample(x: Tensor, boxes: Tensor) -> Tensor:
    """Boxes (n, 2, 3), as `affine_grid` takes them, of images x at the size of x; beyond the border, the border."""
    if len(x) == 0:  # affine_grid refuses an empty batch
        return x
    grid = F.affine_grid(boxes, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _sides(area: Tensor, log_ratio: Tensor) -> Tensor:
    """Width and height (n, 2) of boxes relative to the image's, cut to it."""
    return torch.stack([area.log() + log_ratio, area.log() - log_ratio], dim=1).div(2).exp().clamp(max=1.0)


def _plus_minus(strength: float, n: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """One number per image, uniform in ±strength."""
    return strength * (2 * uniform(n, generator=generator, device=device) - 1)


def _luminance(x: Tensor) -> Tensor:
    """(n, 3, h, w) to (n, 1, h, w)."""
    red, green, blue = (weight * x[:, k : k + 1] for k, weight in enumerate(LUMINANCE))
    return red + green + blue


def _require_images(x: Tensor, name: str) -> None:
    require_floating("x", x, "convert the samples with x.float()")
    if x.dim() != 4:
        raise InputError(
            f"the view {name} needs images (n, c, h, w), got shape {tuple(x.shape)}; use a noise view such as "
            "noise:0.1, or give the data an image_shape"
        )


def _require_range(name: str, bounds: tuple[float, float], *, largest: float) -> None:
    numbers = isinstance(bounds, tuple | list) and len(bounds) == 2 and all(map(is_number, bounds))
    if not (numbers and 0 < bounds[0] <= bounds[1] <= largest and math.isfinite(bounds[1])):
        limits = f"0 < low <= high{' <= 1' if largest == 1 else ''}"
        raise InputError(f"{name} must be two numbers (low, high) with {limits}, got {bounds}; write crop:0.5,1.0")
