"""Names shared by every layer: devices, number types and tensors as words."""

from __future__ import annotations

import torch
from torch import Tensor

from kontrast.errors import InputError

__all__ = ["DTYPES", "Tensor", "in_words", "resolve_device", "resolve_dtype"]

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def resolve_dtype(name: str) -> torch.dtype:
    """The torch number type called `name`."""
    if name not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {name!r}")
    return DTYPES[name]


def resolve_device(name: str) -> torch.device:
    """The torch device called `name`; refuses a device this machine does not have."""
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not (index.isascii() and index.isdigit())):
        raise InputError(f"device must look like 'cpu', 'cuda' or 'cuda:1', got {name!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {name!r} was asked for but torch sees no CUDA GPU here; use --device cpu")
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise InputError(f"device {name!r} was asked for but there are {torch.cuda.device_count()} GPUs; use cuda:0")
    return torch.device("cpu") if kind == "cpu" else torch.device(name)


def in_words(given: object) -> str:
    """What was given where a tensor was asked for: its number type and shape, or the type of something else."""
    return f"{given.dtype} {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
