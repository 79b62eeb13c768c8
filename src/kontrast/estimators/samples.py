"""Samples as people hand them to `fit` and `transform`, read in batches: arrays, memory maps, data frames, tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import validate_data
from torch import Tensor

from kontrast.checks import require_whole, resolve_device, resolve_dtype
from kontrast.data import Columns, ImageShape, channels_first
from kontrast.errors import InputError

Index = slice | Tensor


class Samples:
    """Samples as rows (n, d) or images (n, c, h, w), moved to a device and number type a batch at a time.

    Bytes count as pixels and are scaled to [0, 1]. Of a memory map only the batch is read. With `columns` they are
    standardised.
    """

    def __init__(
        self,
        source: Tensor | np.ndarray[Any, Any],
        device: torch.device,
        dtype: torch.dtype,
        columns: Columns | None = None,
    ) -> None:
        self.source, self.device, self.dtype, self.columns = source, device, dtype, columns

    def __len__(self) -> int:
        return len(self.source)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.source.shape[1:])

    @property
    def is_image(self) -> bool:
        """Whether samples are images (c, h, w)."""
        return len(self.shape) == 3

    def __getitem__(self, index: Index) -> Tensor:
        """A batch of samples."""
        if isinstance(self.source, Tensor):
            part = self.source[index if isinstance(index, slice) else index.to(self.source.device)]
        else:
            rows = self.source[index if isinstance(index, slice) else index.cpu().numpy()]
            # A copy, as memory maps may be read-only and are not contiguous, in the byte order that torch knows.
            kind = np.float64 if rows.dtype.itemsize > 8 else rows.dtype.newbyteorder("=")  # long doubles: not in torch
            part = torch.from_numpy(np.array(rows, dtype=kind))
        # Standardised first and rounded to the number type afterwards: beside a large mean little would be left.
        moved = part.to(device=self.device, dtype=self.dtype if self.columns is None else torch.float64)
        scaled = moved / 255 if part.dtype == torch.uint8 else moved
        return scaled if self.columns is None else self.columns.standardize(scaled).to(self.dtype)

    def batches(self, rows: int) -> list[slice]:
        """The samples in order, `rows` at a time."""
        return [slice(start, min(start + rows, len(self))) for start in range(0, len(self), rows)]


def read_samples(estimator: Any, X: Any, *, reset: bool, min_samples: int = 1, like: Tensor | None = None) -> Samples:
    """X checked as scikit-learn checks it, and finite throughout; images too, and tensors on any device.

    Sets `n_features_in_` with `reset`, and compares with it without. The device and the number type are those of the
    tensor `like`, or else the options of the estimator. Nothing is standardised here.
    """
    device, dtype = (estimator.device, estimator.dtype) if like is None else (like.device, like.dtype)
    image_shape = None if estimator.image_shape is None else read_image_shape(estimator.image_shape)
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):
        raise InputError("X has masked values; fill them in, or drop those samples")
    if isinstance(X, Tensor):
        source: Tensor | np.ndarray[Any, Any] = _tensor(X.detach(), image_shape, min_samples)
    elif isinstance(X, np.ndarray) and X.ndim in (3, 4):
        _require_numbers(X.dtype.kind in "biuf", X.dtype, X.shape, min_samples)
        source = channels_first(X, source="X", image_shape=image_shape)
        if X.dtype.kind == "f" and not all(np.isfinite(part).all() for part in np.array_split(X, -(-len(X) // 4096))):
            raise _not_finite()
    else:
        rows = validate_data(estimator, X, reset=reset, dtype="numeric", ensure_min_samples=min_samples)
        source = channels_first(np.asanyarray(rows), source="X", image_shape=image_shape)
    _count_features(estimator, tuple(source.shape[1:]), reset=reset)
    where = source.device if device is None and isinstance(source, Tensor) else resolve_device(device or "cpu")
    return Samples(source, where, _number_type(source.dtype, dtype))


def read_image_shape(given: Any) -> ImageShape:
    """The shape of images as plain integers; refuses what is none."""
    sizes = list(given) if isinstance(given, list | tuple) else []
    if len(sizes) not in (2, 3):
        raise InputError(f"image_shape must be (h, w) or (c, h, w), got {given!r}")
    whole = tuple(require_whole(f"each size of image_shape {tuple(sizes)}", size) for size in sizes)
    return (whole[0], whole[1]) if len(whole) == 2 else (whole[0], whole[1], whole[2])


def _tensor(X: Tensor, image_shape: ImageShape | None, min_samples: int) -> Tensor:
    """Channels come first, as everywhere in torch; (n, h, w) has one."""
    _require_numbers(not X.is_complex() and X.ndim in (2, 3, 4), X.dtype, tuple(X.shape), min_samples)
    if X.is_floating_point() and not bool(torch.isfinite(X).all()):
        raise _not_finite()
    X = X[:, None] if X.ndim == 3 else X
    if image_shape is None:
        return X
    shape = (1, *image_shape) if len(image_shape) == 2 else tuple(image_shape)
    if math.prod(shape) != math.prod(X.shape[1:]):
        raise InputError(f"image_shape {tuple(image_shape)} does not fit samples of shape {tuple(X.shape[1:])}")
    return X.reshape(len(X), *shape)


def _require_numbers(good: bool, dtype: Any, shape: tuple[int, ...], min_samples: int) -> None:
    if not good or 0 in shape[1:]:
        raise InputError(
            "X must hold real numbers in the shape (n, d), (n, h, w), (n, h, w, c) or (n, c, h, w), got "
            f"{dtype} {shape}"
        )
    if shape[0] < min_samples:
        raise InputError(f"n_samples = {shape[0]}, while a minimum of {min_samples} samples is required")


def _not_finite() -> InputError:
    return InputError("X holds NaN or infinite values; drop those samples or fill the values in")


def _count_features(estimator: Any, shape: tuple[int, ...], *, reset: bool) -> None:
    n, name = math.prod(shape), type(estimator).__name__
    if reset:
        estimator.n_features_in_, estimator.sample_shape_ = n, shape
        return
    if n != estimator.n_features_in_:
        raise InputError(f"X has {n} features, but {name} is expecting {estimator.n_features_in_} features as input")
    wanted = tuple(estimator.sample_shape_)
    if len(shape) == len(wanted) == 3 and shape != wanted:  # rows of that length may still be such images
        raise InputError(f"X has images of shape {shape}, but {name} is expecting {wanted} (channels, height, width)")


def _number_type(given: Any, asked: str | torch.dtype | None) -> torch.dtype:
    if asked is not None:
        return resolve_dtype(asked)
    small = ("float32", "float16", "bfloat16", "uint8")
    return torch.float32 if str(given).removeprefix("torch.") in small else torch.float64
