"""How arrays become samples and labels: the same rules for every file format."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kontrast.checks import as_whole
from kontrast.errors import DataError, InputError

Array = npt.NDArray[Any]
ImageShape = tuple[int, int] | tuple[int, int, int]

CHANNEL_COUNTS = (1, 3, 4)  # gray, RGB, RGBA
LARGEST_EXACT = 2**53  # beyond it float64 skips integers, and unsigned labels near 2**64 would wrap in int64


def samples_to_tensor(array: Array, *, source: str, image_shape: ImageShape | None, dtype: torch.dtype) -> Tensor:
    """Samples as rows (n, d) or images (n, c, h, w), floating.

    * bytes (uint8), and images of any integer type whose values lie in 0..255, are scaled by 1/255; other numbers stay;
    * (n, h, w) has one channel; (n, h, w, c) with c of 1, 3 or 4 becomes channels first; (n, c, h, w) stays. A shape
      that reads both ways, such as (n, 3, 32, 4), has the smaller number as channels, the first where they are equal;
    * (n, d) becomes images when `image_shape`, (h, w) or (c, h, w), is given.
    """
    if array.dtype.kind not in "biuf":
        raise DataError(f"{source} holds samples of type {array.dtype}; save them as integers or floats")
    if array.ndim not in (2, 3, 4) or array.size == 0:
        raise DataError(
            f"{source} holds samples of shape {array.shape}; it must be (n, d), (n, h, w), (n, h, w, c) or "
            "(n, c, h, w), with no size of 0"
        )
    x = torch.from_numpy(_native(channels_first(array, source=source, image_shape=image_shape)))
    is_pixels = array.dtype == np.uint8 or (
        array.dtype.kind in "iu" and x.dim() == 4 and array.min() >= 0 and array.max() <= 255
    )
    x = x.to(dtype)
    return x.div_(255) if is_pixels else x


def labels_to_tensor(array: Array, *, source: str, n_samples: int) -> Tensor:
    """Labels as int64 (n,). Text becomes 0..k-1 in sorted order; floats must be whole; (n, 1) is flattened."""
    if array.shape not in ((n_samples,), (n_samples, 1)):
        raise DataError(
            f"{source} has {n_samples} samples but labels of shape {array.shape}; "
            f"give one label per sample, shape ({n_samples},) (for one-hot labels: labels.argmax(1))"
        )
    flat = array.reshape(-1)
    if flat.dtype.kind in "US":
        flat = np.unique(flat, return_inverse=True)[1]
    if flat.dtype.kind not in "biuf":
        raise DataError(f"{source} holds labels of type {array.dtype}; save them as integers or text")
    if flat.dtype.kind in "uf":
        whole = (flat == np.trunc(flat)) & (np.abs(flat) <= LARGEST_EXACT)  # false for nan and inf
        if not whole.all():
            raise DataError(f"{source} holds the label {flat[~whole][0]}; labels must be whole numbers or text")
    return torch.from_numpy(flat.astype(np.int64))


def channels_first(array: Array, *, source: str, image_shape: ImageShape | None) -> Array:
    """(n, d) as it is, everything else as (n, c, h, w); a given image shape splits rows and must fit images."""
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and _has_channels_last(array.shape[1], array.shape[3]):
        array = array.transpose(0, 3, 1, 2)
    if image_shape is None:
        return array
    sizes = image_sizes(image_shape)
    shape = (1, *sizes) if len(sizes) == 2 else sizes
    if array.ndim == 2 and array.shape[1] == math.prod(shape):
        return array.reshape(len(array), *shape)
    if array.ndim == 4 and array.shape[4 - len(sizes) :] == sizes:
        return array
    raise DataError(
        f"{source} holds samples of shape {array.shape[1:]}, which image_shape {sizes} does not fit; "
        "leave image_shape out or give sizes whose product is the number of values in a sample"
    )


def image_sizes(image_shape: ImageShape) -> tuple[int, ...]:
    """The sizes (h, w) or (c, h, w) as plain integers; refuses what are none."""
    sizes = tuple(as_whole(size) or 0 for size in image_shape) if isinstance(image_shape, Iterable) else ()
    if len(sizes) not in (2, 3) or min(sizes) < 1:
        raise InputError(f"image_shape must be (h, w) or (c, h, w), whole numbers of at least 1, got {image_shape!r}")
    return sizes


def _has_channels_last(first: int, last: int) -> bool:
    return last in CHANNEL_COUNTS and (first not in CHANNEL_COUNTS or last < first)


def _native(array: Array) -> Array:
    """The same numbers in a byte order and number type that torch knows."""
    kind = array.dtype.newbyteorder("=")
    with np.errstate(over="ignore"):  # long doubles beyond float64 become infinite, which the data set then refuses
        return np.ascontiguousarray(array, dtype=np.float64 if kind.itemsize > 8 else kind)
