"""Records of a cell: random streams of their own, and a step axis that all its runs share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def generator_for(*key: int) -> torch.Generator:
    """A generator for one purpose: independent streams for different keys."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence(key).generate_state(1)[0]))


def padded(values: Tensor | None, n_steps: int) -> np.ndarray:
    """Records on an axis of `n_steps`; those that a diverged run never reached are NaN."""
    row = np.full(n_steps, np.nan)
    if values is not None:
        row[: len(values)] = values.double().numpy()
    return row
