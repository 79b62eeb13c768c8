"""The problems of paper B's claims: half moons, matrices C with known spectra, networks with orthonormal layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from kontrast.claims.setting import generator
from kontrast.data import Pairs, draw_negatives, half_moons
from kontrast.deep_linear import data_matrix
from kontrast.linalg import random_frame
from kontrast.nets import MLP

NOISE_STD = 0.1  # of x^+ − x, and of the third coordinate of the half moons
MOONS = {"data": "half moons in R³", "n_samples": 200, "d": 3, "z": 2}  # the setting of B.fig3 and B.fig6


def moons(n: int, seed: int) -> Tensor:
    """The half moons of Fig. 1a as rows (n, 3)."""
    return half_moons(n, generator=generator("half moons", seed), third_std=NOISE_STD, dtype=torch.float64).rows


def noisy_pairs(x: Tensor, seed: int) -> Pairs:
    """Pairs of Example 1: every sample x is an anchor, x + ε its positive, another sample its negative."""
    draw, n = generator("noisy pairs", seed), len(x)
    positive = x + NOISE_STD * torch.randn(x.shape, generator=draw, dtype=x.dtype)
    anchor = torch.arange(n)
    return Pairs(torch.cat([x, positive]), anchor, anchor[:, None] + n, draw_negatives(n, 1, generator=draw))


def moon_pairs(n: int, seed: int) -> Pairs:
    """The pairs of Example 1 for half moons."""
    return noisy_pairs(moons(n, seed), seed)


def moon_matrix(n: int, seed: int) -> Tensor:
    """C of (5) for half moons, divided by the number of anchors so that the time scale does not depend on it."""
    return data_matrix(moon_pairs(n, seed)) / n


def matrix_with(eigenvalues: Tensor, seed: int) -> Tensor:
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    V = random_frame(len(eigenvalues), len(eigenvalues), generator=generator("eigenvectors", seed))
    C = (V * eigenvalues) @ V.mT
    return (C + C.mT) / 2


def mixed_matrix(d: int, seed: int) -> Tensor:
    """A matrix with eigenvalues between −1 and 1, at least two of them below −1/2."""
    draw = generator("mixed", seed)
    values = 2 * torch.rand(d, generator=draw, dtype=torch.float64) - 1
    values[:2] = -(1 + values[:2].abs()) / 2
    return matrix_with(values, seed)


def perturbed(W: Tensor, n: int, spread: float | None, draw: torch.Generator) -> Tensor:
    """A stack of n matrices: Gaussian ones, or W plus `spread` times Gaussian ones."""
    noise = torch.randn(n, *W.shape, generator=draw, dtype=W.dtype)
    return noise if spread is None else W + spread * noise


def orthogonal_net(d: int, width: int, z: int, seed: int, *, depth: int = 1, activation: str = "linear") -> MLP:
    """The network of Sec. 3 and 4: Haar-distributed layers without further factors, in float64."""
    options: Any = {"depth": depth, "activation": activation, "parametrization": "orthogonal"}
    return MLP(d, width, z, generator=generator("orthogonal", seed, width, depth), dtype=torch.float64, **options)


def start_of(net: MLP) -> Tensor:
    """The map (d, z) of a linear network."""
    with torch.no_grad():
        start: Tensor = net(torch.eye(net.d_in, dtype=net.output.dtype, device=net.output.device))
    return start


def output_velocity(K: Tensor, pairs: Pairs) -> Callable[[Tensor], Tensor]:
    """Equation of Prop. 1 as printed: u' at all m rows, from the outputs U (m, z) there and the kernel K (m, m)."""
    anchor, positive = pairs.anchor, pairs.positive[:, 0]
    towards = K[:, positive]
    if not pairs.n_negatives:
        return lambda U: K[:, anchor] @ U[positive] + towards @ U[anchor]
    negative = pairs.negative[:, 0]
    towards = towards - K[:, negative]
    return lambda U: K[:, anchor] @ (U[positive] - U[negative]) + towards @ U[anchor]


def runge_kutta(velocity: Callable[[Tensor], Tensor], start: Tensor, times: Sequence[float]) -> Tensor:
    """Integrate an equation by DOP853, with no use of its closed form: states (T, …) at `times`, which start at 0."""

    def flat(_: float, state: np.ndarray) -> np.ndarray:
        return np.asarray(velocity(torch.from_numpy(state).view(start.shape)).reshape(-1))

    first = np.asarray(start.reshape(-1))
    run = solve_ivp(flat, (0, times[-1]), first, "DOP853", times, rtol=1e-9, atol=1e-12)
    return torch.from_numpy(run.y.T.copy()).view(len(times), *start.shape)


def first_within(losses: Tensor, least: float, share: float) -> float:
    """The first step whose loss is within `share` of the least one, relative to it; NaN if there is none."""
    there = (losses <= least + share * abs(least)).nonzero()
    return float(there[0]) if len(there) else float("nan")
