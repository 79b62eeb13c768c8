"""Single images to and from Pillow, for transforms that take nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kontrast.errors import InputError


def to_pil(sample: Tensor) -> Any:
    """An image (c, h, w) with values in [0, 1] and 1 or 3 channels, as an 8-bit Pillow image."""
    from PIL import Image

    if sample.ndim != 3 or sample.shape[0] not in (1, 3) or not sample.is_floating_point():
        raise InputError(
            f"only images (1, h, w) or (3, h, w) can be Pillow's, got {sample.dtype} {tuple(sample.shape)}"
        )
    low, high = float(sample.min()), float(sample.max())
    if low < 0 or high > 1:
        raise InputError(
            f"Pillow's images have values in [0, 1], got {low:.3g} to {high:.3g}; pass samples before normalisation"
        )
    array = sample.detach().cpu().mul(255).round().to(torch.uint8).numpy()
    return Image.fromarray(array[0] if len(array) == 1 else np.ascontiguousarray(array.transpose(1, 2, 0)))


def is_pil(value: Any) -> bool:
    """Whether it is a Pillow image; Pillow is not imported for the answer."""
    return any(kind.__module__.startswith("PIL.") for kind in type(value).__mro__)


def from_pil(image: Any) -> Tensor:
    """A Pillow image as a tensor (c, h, w), scaled to [0, 1] where it is of bytes."""
    array = np.array(image)
    array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    values = torch.from_numpy(np.ascontiguousarray(array))
    return values.float() / 255 if values.dtype == torch.uint8 else values.float()
