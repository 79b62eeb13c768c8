"""The contrastive covariance of paper C and the losses behind it, by loops over pairs as the formulas are printed."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor


def contrastive_covariance(
    a: Tensor, b: Tensor, alpha: Tensor, a_view: Tensor, b_view: Tensor, pull: Tensor | None = None
) -> Tensor:
    """Paper C, (3), with all j; `pull` replaces the weights Σ_j α_ij of the second term."""
    n = len(a)
    total = torch.zeros(a.shape[1], b.shape[1], dtype=a.dtype)
    for i, j in product(range(n), range(n)):
        total += alpha[i, j] * torch.outer(a[i] - a[j], b[i] - b[j])
        if pull is None:
            total -= alpha[i, j] * torch.outer(a[i] - a_view[i], b[i] - b_view[i])
    if pull is not None:
        for i in range(n):
            total -= pull[i] * torch.outer(a[i] - a_view[i], b[i] - b_view[i])
    return total / (2 * n**2)


def adjusted_covariance(a: Tensor, features: Tensor) -> Tensor:
    """Σ_l z_l² V_{p̃_l}[a], one component at a time."""
    total = torch.zeros(a.shape[1], a.shape[1], dtype=a.dtype)
    for component in features.mT:
        z = component.mean()
        if z > 0:
            p = component / component.sum()
            centered = a - (p[:, None] * a).sum(0)
            total += z**2 * (centered.mT * p) @ centered
    return total


def half_square(u: Tensor, v: Tensor) -> float:
    """d² = ‖u − v‖²/2."""
    return float((u - v).square().sum()) / 2


def gaussian(f: Tensor, view: Tensor, temperature: float) -> Tensor:
    """α of Lemma 1."""
    return _pairs(f, lambda i, j: math.exp(-half_square(f[i], f[j]) / temperature))


def info_nce(f: Tensor, view: Tensor, temperature: float, epsilon: float) -> Tensor:
    """α of the loss (1)."""

    def e(u: Tensor, v: Tensor) -> float:
        return math.exp(-half_square(u, v) / temperature)

    def weight(i: int, j: int) -> float:
        others = sum(e(f[i], f[k]) for k in range(len(f)) if k != i)
        return e(f[i], f[j]) / (epsilon * e(f[i], view[i]) + others)

    return _pairs(f, weight)


def triplet(f: Tensor, view: Tensor, margin: float) -> Tensor:
    """1 where the triplet's term is not cut off."""
    return _pairs(f, lambda i, j: float(half_square(f[i], view[i]) - half_square(f[i], f[j]) + margin > 0))


def spectral(f: Tensor, view: Tensor) -> Tensor:
    """2 f_i·f_j/(n − 1)."""
    return _pairs(f, lambda i, j: 2 * float(f[i] @ f[j]) / (len(f) - 1))


def quadratic_loss(f: Tensor, view: Tensor) -> float:
    """Σ_i Σ_{j≠i} (d_i² − d_ij²)."""
    n = len(f)
    return sum(half_square(f[i], view[i]) - half_square(f[i], f[j]) for i in range(n) for j in range(n) if j != i)


def info_nce_loss(f: Tensor, view: Tensor, temperature: float, epsilon: float) -> float:
    """Paper C, (1)."""
    total = 0.0
    for i in range(len(f)):
        own = math.exp(-half_square(f[i], view[i]) / temperature)
        others = sum(math.exp(-half_square(f[i], f[j]) / temperature) for j in range(len(f)) if j != i)
        total -= temperature * math.log(own / (epsilon * own + others))
    return total


def triplet_loss(f: Tensor, view: Tensor, margin: float) -> float:
    """Σ_i Σ_{j≠i} max(0, d_i² − d_ij² + margin)."""
    n = len(f)
    return sum(
        max(0.0, half_square(f[i], view[i]) - half_square(f[i], f[j]) + margin)
        for i in range(n)
        for j in range(n)
        if j != i
    )


def spectral_loss(f: Tensor, view: Tensor) -> float:
    """−2 Σ_i f_i·f'_i + Σ_{i≠j} (f_i·f_j)²/(n − 1)."""
    n = len(f)
    apart = sum(float(f[i] @ f[j]) ** 2 for i in range(n) for j in range(n) if j != i)
    return apart / (n - 1) - 2 * sum(float(f[i] @ view[i]) for i in range(n))


def gaussian_loss(f: Tensor, temperature: float) -> float:
    """τ Σ_{i≠j} α_ij, the loss of the Gaussian α without views."""
    return temperature * float(gaussian(f, f, temperature).sum())


def _pairs(f: Tensor, weight: object) -> Tensor:
    assert callable(weight)
    n = len(f)
    rows = [[0.0 if i == j else float(weight(i, j)) for j in range(n)] for i in range(n)]
    return torch.tensor(rows, dtype=f.dtype)
