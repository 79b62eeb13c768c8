"""Collapse of an embedding, its two kinds kept apart.

*Complete* collapse: every point maps to the same vector (`relative_spread` → 0). *Dimensional* collapse: the points
spread, but along few directions (`effective_rank` → 1). One number cannot tell both: on a constant plus small noise a
centred rank is full and an uncentred one is 1.
"""

from __future__ import annotations

import math

import torch

from kontrast._types import Tensor
from kontrast.errors import InputError


def effective_rank(embedding: Tensor, *, centred: bool = True) -> float:
    """The exponential of the entropy of the (n, d) embedding's normalised singular values, in [1, min(n, d)].

    Roy & Vetterli (2007). `centred=True` subtracts the mean point first (the rank of the covariance);
    `centred=False` is the convention of RankMe and of paper B's collapse to one direction. NaN for an embedding with
    no spread at all, which has no directions to count, and for one that has overflowed.
    """
    matrix = _checked(embedding, centred=centred)
    if not torch.isfinite(matrix).all():
        return math.nan
    values = torch.linalg.svdvals(matrix)
    share = values / values.sum()
    return float(torch.exp(torch.special.entr(share).sum()))


def relative_spread(embedding: Tensor) -> float:
    """Share of the embedding's squared norm that is not its mean: 1 is centred data, 0 complete collapse."""
    total = _checked(embedding, centred=False).pow(2).sum()
    return float(_checked(embedding, centred=True).pow(2).sum() / total)


def _checked(embedding: Tensor, *, centred: bool) -> Tensor:
    if embedding.ndim != 2 or embedding.shape[0] < 2:
        raise InputError(f"an embedding is (n, d) with n >= 2, got shape {tuple(embedding.shape)}")
    return embedding - embedding.mean(0) if centred else embedding
