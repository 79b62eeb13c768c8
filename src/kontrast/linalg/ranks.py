"""How many directions an embedding, or a kernel, uses: each convention by its own name."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kontrast.checks import require_floating, require_matrix
from kontrast.errors import InputError
from kontrast.linalg.alignment import strips
from kontrast.linalg.operators import Matrix, require_symmetric


def effective_rank(embedding: Tensor, *, centered: bool = True) -> float:
    """The exponential of the entropy of the (n, d) embedding's normalised singular values, in [1, min(n, d)].

    Roy & Vetterli (2007). `centered=True` subtracts the mean point first (the rank of the covariance);
    `centered=False` is the convention of RankMe and of paper B's collapse to one direction. NaN for an embedding with
    no spread at all, which has no directions to count, and for one that has overflowed.
    """
    matrix = _checked(embedding, centered=centered)
    if not torch.isfinite(matrix).all():
        return math.nan
    values = torch.linalg.svdvals(matrix)
    share = values / values.sum()
    return float(torch.exp(torch.special.entr(share).sum()))


def relative_spread(embedding: Tensor) -> float:
    """Share of the embedding's squared norm that is not its mean: 1 is centred data, 0 complete collapse."""
    total = _checked(embedding, centered=False).pow(2).sum()
    return float(_checked(embedding, centered=True).pow(2).sum() / total)


def _checked(embedding: Tensor, *, centered: bool) -> Tensor:
    require_floating("embedding", embedding)
    if embedding.ndim != 2 or embedding.shape[0] < 2:
        raise InputError(f"embedding must be (n, d) with n >= 2, got shape {tuple(embedding.shape)}")
    return embedding - embedding.mean(0) if centered else embedding


def participation_ratio(K: Matrix, *, memory: float | None = None) -> float:
    r"""$(\operatorname{tr} K)^2 / \|K\|_F^2 = (\sum\lambda)^2 / \sum\lambda^2$: how many eigenvalues carry K; one pass.

    In [1, n] for a kernel. It needs no eigenvalues and never exceeds `entropy_rank`.
    """
    require_symmetric(K, "K")
    trace, square = 0.0, 0.0
    for start, (strip,) in strips([K], memory, names=("K",)):
        trace += float(strip.diagonal(start).sum())
        square += float(strip.square().sum())
    if square == 0 or not math.isfinite(square):
        raise InputError(
            "K is zero everywhere, or its entries are too small or too large to square; "
            "divide it by its largest entry first"
        )
    return (trace / math.sqrt(square)) ** 2


def entropy_rank(eigenvalues: Tensor) -> float:
    """The exponential of the entropy of a kernel's normalised eigenvalues, in [1, n] (Roy & Vetterli 2007).

    The effective rank of the matrix K itself. An embedding's `effective_rank` counts its singular values,
    the square roots of its Gram matrix's eigenvalues, and so is at least as large. Negative eigenvalues of the size of
    rounding count as zero.
    """
    require_matrix("eigenvalues", eigenvalues, ("n",))
    values = eigenvalues.double()
    size = float(values.abs().max())
    if size == 0 or float(values.min()) < -len(values) * 10 * torch.finfo(eigenvalues.dtype).eps * size:
        raise InputError(
            f"eigenvalues must be those of a kernel, at least 0 and not all 0, got {float(values.min()):.3g} to "
            f"{float(values.max()):.3g}; is the matrix a kernel?"
        )
    share = values.clamp(min=0) / values.clamp(min=0).sum()
    return float(torch.exp(torch.special.entr(share).sum()))
