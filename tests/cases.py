"""What the tests share: one tolerance table by number type, seeded generators, data files that may be absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

TOLERANCE = {torch.float64: {"rtol": 1e-11, "atol": 1e-12}, torch.float32: {"rtol": 2e-5, "atol": 1e-6}}
DTYPES = [torch.float64, torch.float32]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=dtype)


def real_data(name: str) -> Path:
    """A file of real data below KONTRAST_DATA, or a skip that says how to have it."""
    folder = os.environ.get("KONTRAST_DATA")
    if not folder or not (Path(folder) / name).exists():
        pytest.skip(f"{name} is not below KONTRAST_DATA; set it to a folder that holds the real data files")
    return Path(folder) / name
