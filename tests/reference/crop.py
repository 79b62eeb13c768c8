"""The slow, obvious random resized crop: one pixel at a time, in pixel coordinates and plain Python numbers."""

from __future__ import annotations

import math

import torch


def box(
    height: int, width: int, area: tuple[float, float], ratio: tuple[float, float], u: list[float]
) -> tuple[float, float, float, float]:
    """Left, top, width and height of the box, in pixels, that four uniform numbers stand for."""
    share = area[0] + u[0] * (area[1] - area[0])
    stretch = math.exp(math.log(ratio[0]) + u[1] * (math.log(ratio[1]) - math.log(ratio[0])))
    box_width = min(1.0, math.sqrt(share * stretch)) * width
    box_height = min(1.0, math.sqrt(share / stretch)) * height
    return u[2] * (width - box_width), u[3] * (height - box_height), box_width, box_height


def sources(start: float, length: float, size: int) -> list[float]:
    """Where the centres of `size` equal cells of [start, start + length] lie, counting from the centre of pixel 0."""
    return [min(max(start + (k + 0.5) * length / size - 0.5, 0.0), size - 1.0) for k in range(size)]


def bilinear(channel: torch.Tensor, row: float, column: float) -> float:
    total = 0.0
    for i in {math.floor(row), math.ceil(row)}:
        for j in {math.floor(column), math.ceil(column)}:
            total += max(0.0, 1 - abs(row - i)) * max(0.0, 1 - abs(column - j)) * float(channel[i, j])
    return total


def crop(x: torch.Tensor, area: tuple[float, float], ratio: tuple[float, float], u: torch.Tensor) -> torch.Tensor:
    """Crops of images x (n, c, h, w) from uniform numbers u (n, 4)."""
    out = torch.empty_like(x)
    n, n_channels, height, width = x.shape
    for image in range(n):
        left, top, box_width, box_height = box(height, width, area, ratio, u[image].tolist())
        for i, row in enumerate(sources(top, box_height, height)):
            for j, column in enumerate(sources(left, box_width, width)):
                for channel in range(n_channels):
                    out[image, channel, i, j] = bilinear(x[image, channel], row, column)
    return out
