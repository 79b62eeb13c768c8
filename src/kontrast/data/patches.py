"""Small squares of images as rows: samples of few dimensions whose patterns a one-layer network learns (paper C)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kontrast import checks
from kontrast.data.datasets import Dataset
from kontrast.errors import InputError

MOST_ROUNDS = 100  # of n_patches draws each, in search of patches that are not flat


def draw_patches(
    images: Tensor | Dataset, size: int, n_patches: int, *, generator: torch.Generator, min_std: float = 0.0
) -> Tensor:
    """Square patches at random places of random images, as rows (n_patches, c·size²); places may repeat.

    `patch.view(c, size, size)` is a row's picture. A patch whose deviation over all of its values is below `min_std`,
    such as the empty background of digits, is skipped, and another is drawn. Places are drawn on the generator's
    device, so the same seed gives the same patches for images on every device and in every number type.

    Args:
        images: (n, h, w) or (n, c, h, w), floating, or a data set of images.
        size: The side of a patch in pixels, at most that of the images.
        n_patches: How many patches.
        generator: Draws the images and the places.
        min_std: The least standard deviation of a patch's values.
    """
    x = _checked(images)
    side = checks.require_whole("size", size)
    n_patches = checks.require_whole("n_patches", n_patches)
    if side > min(x.shape[2:]):
        raise InputError(f"patches of side {side} do not fit in images {x.shape[2]}×{x.shape[3]}; take a smaller size")
    checks.require_finite_not_negative(min_std=min_std)
    checks.require_generator(generator)
    found: list[Tensor] = []
    for _ in range(MOST_ROUNDS):
        patches = _drawn(x, side, n_patches, generator)
        found.append(patches[patches.std(1, correction=0) >= min_std] if min_std > 0 else patches)
        if sum(map(len, found)) >= n_patches:
            return torch.cat(found)[:n_patches]
    raise InputError(
        f"only {sum(map(len, found))} of {MOST_ROUNDS * n_patches} random patches have a deviation of at least "
        f"{min_std:g}, and {n_patches} were asked for; take a smaller min_std, or images that are less flat"
    )


def _checked(images: Any) -> Tensor:
    """The images as (n, c, h, w)."""
    x = images.x if isinstance(images, Dataset) else images
    checks.require_floating("images", x, "pass such a tensor, or a data set of images")
    if x.dim() not in (3, 4) or x.numel() == 0:
        raise InputError(
            f"patches are cut from images (n, h, w) or (n, c, h, w), got samples of shape {tuple(x.shape)}; for rows "
            "give image_shape when loading, as in image_shape=(28, 28)"
        )
    checks.require_finite("images", x, "drop these images or fill the values")
    return x if x.dim() == 4 else x[:, None]


def _drawn(x: Tensor, side: int, count: int, generator: torch.Generator) -> Tensor:
    windows = x.unfold(2, side, 1).unfold(3, side, 1)  # (n, c, places down, places across, side, side), a view
    image, top, left = (
        torch.randint(windows.shape[axis], (count,), generator=generator, device=generator.device).to(x.device)
        for axis in (0, 2, 3)
    )
    return windows[image, :, top, left].flatten(1)
