"""Kernels of infinite networks by their definition: Gaussian expectations pair by pair, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Expectations = Callable[[float, float, float], tuple[float, float]]


def by_quadrature(phi: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Expectations:
    """E[φ(u)φ(v)] and E[φ'(u)φ'(v)] on a fine grid over two independent normal numbers; for smooth φ."""
    z = (torch.arange(500, dtype=torch.float64) + 0.5) * 0.036 - 9
    weights = 0.036 * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    def expectations(kx: float, ky: float, k: float) -> tuple[float, float]:
        u = math.sqrt(kx) * z[:, None]
        along = k / math.sqrt(kx) if kx > 0 else 0.0
        v = along * z[:, None] + math.sqrt(max(ky - along**2, 0.0)) * z
        return tuple(float(weights @ (f(u).expand_as(v) * f(v)) @ weights) for f in (phi, slope))  # type: ignore[return-value]

    return expectations


def leaky_relu(slope: float = 0.0) -> Expectations:
    """The arc-cosine formulas (Cho and Saul); good to 1e-8 near identical points, where a cosine loses the angle."""

    def expectations(kx: float, ky: float, k: float) -> tuple[float, float]:
        scale = math.sqrt(kx * ky)
        theta = math.acos(max(-1.0, min(1.0, k / scale))) if scale > 0 else math.pi / 2
        bend = (1 - slope) ** 2 / (2 * math.pi)
        value = scale * bend * (math.sin(theta) + (math.pi - theta) * math.cos(theta)) + slope * k
        return value, bend * (math.pi - theta) + slope

    return expectations


def kernels(
    x: Tensor,
    y: Tensor,
    expectations: Expectations,
    *,
    depth: int,
    weight_std: float = 1.0,
    bias_std: float = 0.0,
    input_scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """(NTK, NNGP) between every row of x and every row of y."""
    w2, b2 = weight_std**2, bias_std**2
    ntk, nngp = (torch.empty(len(x), len(y), dtype=torch.float64) for _ in range(2))
    for i, u in enumerate(x.double()):
        for j, v in enumerate(y.double()):
            kx, ky, k = (w2 * input_scale * float(a @ b) + b2 for a, b in ((u, u), (v, v), (u, v)))
            theta = k
            for _ in range(depth):
                value, slope = expectations(kx, ky, k)
                kx, ky = (w2 * expectations(d, d, d)[0] + b2 for d in (kx, ky))
                k = w2 * value + b2
                theta = k + w2 * slope * theta
            ntk[i, j], nngp[i, j] = theta, k
    return ntk, nngp
