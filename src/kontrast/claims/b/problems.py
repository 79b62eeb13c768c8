"""What the claims of paper B are measured on: half moons, matrices C with known spectra, orthogonal networks."""

from __future__ import annotations

import math

import torch

from kontrast._types import Tensor
from kontrast.claims.setting import generator
from kontrast.data import Pairs, draw_negatives
from kontrast.linalg import random_frame
from kontrast.nets import MLP
from kontrast.spectral import data_matrix

NOISE = 0.1  # the standard deviation of x^+ − x, and of the moons' third coordinate


def half_moons(n: int, seed: int) -> Tensor:
    """Paper B's Fig. 1a: two interleaving half circles in the plane and a little noise in the third direction."""
    draw = generator("half moons", seed)
    angle = math.pi * torch.rand(n, generator=draw, dtype=torch.float64)
    upper = (torch.arange(n) < n // 2)[:, None]
    circle = torch.stack([angle.cos(), angle.sin()], dim=1)
    plane = torch.where(upper, circle, torch.tensor([1.0, 0.5], dtype=torch.float64) - circle)
    third = NOISE * torch.randn(n, 1, generator=draw, dtype=torch.float64)
    return torch.cat([plane, third], dim=1)


def noisy_pairs(x: Tensor, seed: int, *, noise: float = NOISE) -> Pairs:
    """Each sample an anchor, x + ε its positive, another sample its negative (Example 1)."""
    draw, n = generator("noisy pairs", seed), len(x)
    positive = x + noise * torch.randn(x.shape, generator=draw, dtype=x.dtype)
    anchor = torch.arange(n)
    return Pairs(torch.cat([x, positive]), anchor, anchor[:, None] + n, draw_negatives(n, 1, generator=draw))


def moon_matrix(n: int, seed: int) -> Tensor:
    """C of (5) for half moons, over the number of anchors, so that the time scale does not depend on it."""
    return data_matrix(noisy_pairs(half_moons(n, seed), seed)) / n


def matrix_with(eigenvalues: Tensor, seed: int) -> Tensor:
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    V = random_frame(len(eigenvalues), len(eigenvalues), generator=generator("eigenvectors", seed))
    C = (V * eigenvalues) @ V.mT
    return (C + C.mT) / 2


def mixed_matrix(d: int, seed: int) -> Tensor:
    """A matrix with eigenvalues in ±1, at least two of them below −1/2."""
    draw = generator("mixed", seed)
    values = 2 * torch.rand(d, generator=draw, dtype=torch.float64) - 1
    values[:2] = -(1 + values[:2].abs()) / 2
    return matrix_with(values, seed)


def orthogonal_net(
    d: int, width: int, z: int, seed: int, *, depth: int = 1, activation: str = "linear", device: str = "cpu"
) -> MLP:
    """The network of Sec. 3 and 4: Haar-distributed layers, no factors, float64."""
    return MLP(
        d,
        width,
        z,
        depth=depth,
        activation=activation,
        parametrization="orthogonal",
        generator=generator("orthogonal", seed, width, depth),
        dtype=torch.float64,
        device=device,
    )


def start_of(net: MLP) -> Tensor:
    """The map (d, z) of a linear network."""
    with torch.no_grad():
        start: Tensor = net(torch.eye(net.d_in, dtype=net.output.dtype, device=net.output.device))
    return start
