"""Spectra of kernels on domains by their definitions: every matrix formed, every integral by a known function."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import torch
from scipy.special import iv
from torch import Tensor


def corners(d: int) -> Tensor:
    """All points of {±1}^d, in any order."""
    return torch.tensor(list(product((1.0, -1.0), repeat=d)), dtype=torch.float64)


def dense_eigenvalues(kernel: Callable[[Tensor, Tensor], Tensor], points: Tensor) -> Tensor:
    """Those of K/M over all points, descending."""
    return torch.linalg.eigvalsh(kernel(points, points) / len(points)).flip(0)


def parity_quotients(kernel: Callable[[Tensor, Tensor], Tensor], d: int) -> Tensor:
    """⟨χ, Kχ⟩/M² of χ = x_1 ⋯ x_k for k = 0, …, d."""
    points = corners(d)
    chi = torch.stack([points[:, :k].prod(1) for k in range(d + 1)])
    return (chi @ kernel(points, points) * chi).sum(1) / len(points) ** 2


def harmonics(d: int, k: int) -> int:
    """Homogeneous polynomials of degree k in d variables less those of degree k − 2, times |x|²."""
    return _monomials(d, k) - (_monomials(d, k - 2) if k >= 2 else 0)


def _monomials(d: int, k: int) -> int:
    return 1 if d == 1 else sum(_monomials(d - 1, k - first) for first in range(k + 1))


def exponential_on_the_sphere(d: int, k: int, scale: float) -> float:
    """λ_k of exp(scale · x·y) on S^{d−1}: Γ(d/2)(2/scale)^{d/2−1} I_{k+d/2−1}(scale)."""
    order = d / 2 - 1
    return math.gamma(d / 2) * (2 / scale) ** order * float(iv(k + order, scale))


def random_rows(n: int, d: int, generator: torch.Generator) -> Tensor:
    """Points of S^{d−1} drawn at random."""
    return torch.nn.functional.normalize(torch.randn(n, d, generator=generator, dtype=torch.float64), dim=1)
