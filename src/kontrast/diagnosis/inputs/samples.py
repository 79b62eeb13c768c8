"""Samples as users hold them, arrays or tensors, as tensors (n, …)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kontrast.checks import in_words, require_finite
from kontrast.data import samples_to_tensor
from kontrast.errors import InputError


def is_array(value: Any) -> bool:
    """Whether it is a tensor or an array of numpy."""
    return isinstance(value, Tensor | np.ndarray)


def as_samples(name: str, value: Any) -> Tensor:
    """Samples (n, …): bytes are scaled to [0, 1], arrays (n, h, w, c) get their channels first, as in `load_data`.

    Other tensors and whole numbers, such as tokens, stay what they are. Numbers that are not finite are refused.
    """
    if not is_array(value):
        raise InputError(f"{name} must be a tensor or an array (n, …), got {in_words(value)}; use torch.stack")
    if value.ndim < 2 or 0 in value.shape:
        raise InputError(f"{name} must be samples (n, …) with no size of 0, got shape {tuple(value.shape)}")
    given = torch.from_numpy(value) if isinstance(value, np.ndarray) and value.dtype == np.uint8 else value
    if isinstance(given, Tensor) and given.dtype == torch.uint8 and given.ndim <= 4:
        bytes_ = given.detach().cpu().numpy()
        return samples_to_tensor(bytes_, source=name, image_shape=None, dtype=torch.float32).to(given.device)
    if isinstance(given, np.ndarray):
        given = _from_numpy(name, given)
    if given.is_complex():
        raise InputError(f"{name} must be real, got complex numbers; pass real and imaginary parts as columns")
    if given.is_floating_point():
        require_finite(name, given, "remove or replace these samples")
    return given.detach()


def _from_numpy(name: str, array: np.ndarray[Any, Any]) -> Tensor:
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} must hold numbers, got an array of {array.dtype}; convert it")
    if array.dtype.kind == "f":
        dtype = torch.float64 if array.dtype.itemsize >= 8 else torch.float32
        if array.ndim == 4:
            return samples_to_tensor(array, source=name, image_shape=None, dtype=dtype)
        return torch.from_numpy(np.array(array, dtype=np.float64 if dtype == torch.float64 else np.float32))
    return torch.from_numpy(np.array(array, dtype=bool if array.dtype.kind == "b" else np.int64))
