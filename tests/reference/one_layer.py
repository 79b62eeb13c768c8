"""A(w), the energy and the iteration of a one-layer network (paper C, Sec. 3), pair by pair and step by step."""

from __future__ import annotations

import torch
from torch import Tensor

from kontrast.patterns import Homogeneous


def behind_gates(x: Tensor, w: Tensor, h: Homogeneous) -> Tensor:
    """x̃ = x·h(z)/z, and 0 where z is not above 0 and h is flat there."""
    rows = []
    for sample in x:
        z = sample @ w
        slope = h.right if z > 0 else -h.left
        rows.append(sample * slope * z.abs() ** (h.degree - 1))
    return torch.stack(rows)


def covariance(a: Tensor, views: Tensor | None, alpha: Tensor, positive: Tensor) -> Tensor:
    """(3), (d, d), as its two sums: over pairs i ≠ j, and over the samples with their own views."""
    n, d = a.shape
    total = torch.zeros(d, d, dtype=a.dtype)
    for i in range(n):
        for j in range(n):
            total += alpha[i, j] * torch.outer(a[i] - a[j], a[i] - a[j])
        if views is not None:
            total -= positive[i] * torch.outer(a[i] - views[i], a[i] - views[i])
    return total / (2 * n**2)


def gated_covariance(
    x: Tensor, views: Tensor | None, w: Tensor, h: Homogeneous, alpha: Tensor, positive: Tensor
) -> Tensor:
    """A(w) = C_α[x̃], (d, d)."""
    other = None if views is None else behind_gates(views, w, h)
    return covariance(behind_gates(x, w, h), other, alpha, positive)


def energy(outputs: Tensor, views: Tensor | None, alpha: Tensor, positive: Tensor) -> Tensor:
    """C_α[h] of outputs (n,), differentiable."""
    apart = (alpha * (outputs[:, None] - outputs).square()).sum()
    if views is not None:
        apart = apart - (positive * (outputs - views).square()).sum()
    return apart / (2 * len(outputs) ** 2)


def iterate(x: Tensor, w: Tensor, n_steps: int) -> Tensor:
    """(94) for a ReLU, uniform α and no views: A(w) is the covariance of the open samples, the others at 0."""
    w = w / w.norm()
    for _ in range(n_steps):
        open_ = x * (x @ w > 0)[:, None]
        A = torch.cov(open_.mT, correction=0)
        w = A @ w / (A @ w).norm()
    return w
