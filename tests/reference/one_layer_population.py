"""A(w) and M of a Gaussian mixture as the integrals they are: 2-D quadrature split at the plane, and plain sampling."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch

Gate = Callable[[np.ndarray], np.ndarray]


def moments_2d(
    means: np.ndarray, probabilities: np.ndarray, noise: float, w: np.ndarray, gate: Gate
) -> tuple[np.ndarray, float]:
    """V[x·gate(w^T x)] and E[h(w^T x)] by the Gauss–Legendre rule on either side of the plane w^T x = 0."""
    e = w / np.linalg.norm(w)
    across = np.array([-e[1], e[0]])
    first, second, output = np.zeros(2), np.zeros((2, 2)), 0.0
    for mu, p in zip(means, probabilities, strict=True):
        y, y_weight = _rule(mu @ across, noise, [mu @ across - 13 * noise, mu @ across + 13 * noise])
        edges = sorted(
            {mu @ e - 13 * noise, min(max(0.0, mu @ e - 13 * noise), mu @ e + 13 * noise), mu @ e + 13 * noise}
        )
        z, z_weight = _rule(mu @ e, noise, edges)
        for zi, weight in zip(z, z_weight, strict=True):
            x = zi * e + y[:, None] * across  # (points, 2)
            gated = x * gate(x @ w)[:, None]
            mass = p * weight * y_weight
            first += mass @ gated
            second += gated.T @ (mass[:, None] * gated)
            output += mass @ (gated @ w)
    return second - np.outer(first, first), output


def boundary_2d(means: np.ndarray, probabilities: np.ndarray, noise: float, w: np.ndarray) -> np.ndarray:
    """E[x x^T δ(w^T x)] as an integral along the line w^T x = 0."""
    length = np.linalg.norm(w)
    across = np.array([-w[1], w[0]]) / length
    y = np.linspace(-40, 40, 80_001)
    line = y[:, None] * across
    M = np.zeros((2, 2))
    for mu, p in zip(means, probabilities, strict=True):
        density = np.exp(-((line - mu) ** 2).sum(1) / (2 * noise**2)) / (2 * np.pi * noise**2)
        M += p / length * (y[1] - y[0]) * line.T @ (density[:, None] * line)
    return M


def sampled_moments(
    means: torch.Tensor,
    probabilities: torch.Tensor,
    noise: float,
    w: torch.Tensor,
    gate: Callable[[torch.Tensor], torch.Tensor],
    *,
    n: int,
    n_batches: int,
    generator: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of `n_batches` sample covariances of x·gate(w^T x), and its standard error."""
    found = []
    for _ in range(n_batches):
        state = torch.multinomial(probabilities, n, replacement=True, generator=generator)
        x = means[state] + noise * torch.randn(n, means.shape[1], generator=generator, dtype=means.dtype)
        found.append(torch.cov((x * gate(x @ w)[:, None]).mT))
    A = torch.stack(found)
    return A.mean(0), A.std(0) / n_batches**0.5


def _rule(center: float, noise: float, edges: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Nodes between neighbouring edges, and their weights times the density of N(centre, noise²)."""
    nodes, weights = np.polynomial.legendre.leggauss(90)
    z = np.concatenate([(b - a) / 2 * nodes + (a + b) / 2 for a, b in itertools.pairwise(edges)])
    dz = np.concatenate([(b - a) / 2 * weights for a, b in itertools.pairwise(edges)])
    return z, dz * np.exp(-((z - center) ** 2) / (2 * noise**2)) / (noise * np.sqrt(2 * np.pi))
