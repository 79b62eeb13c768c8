"""Names shared by every layer: devices and number types as words."""

from __future__ import annotations

import torch
from torch import Tensor

from kontrast.errors import InputError

__all__ = ["DTYPES", "Tensor", "resolve_device", "resolve_dtype"]

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def resolve_dtype(name: str) -> torch.dtype:
    """The torch number type called `name`."""
    if name not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {name!r}")
    return DTYPES[name]


def resolve_device(name: str) -> torch.device:
    """The torch device called `name`; refuses a device this machine does not have."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device must look like 'cpu', 'cuda' or 'cuda:1', got {name!r}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {name!r} was asked for but torch sees no CUDA GPU here; use --device cpu")
    return device
