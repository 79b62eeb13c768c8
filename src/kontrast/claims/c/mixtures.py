"""Populations that are mixtures of Gaussians: with augmented views, and drawn at random."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from kontrast.claims.setting import generator
from kontrast.patterns import Homogeneous, MixtureCovariance, OneLayerField

RELU = Homogeneous()
KINDS = ("relu", "leaky", "views", "leaky_views")


class Population(OneLayerField, Protocol):
    """A smooth field with all quantities of Theorem 1."""

    def matrix(self, w: Tensor) -> Tensor:
        """A(w), (d, d), for w (d,)."""

    def roughness(self, w: Tensor) -> float:
        """ρ(w)."""

    def stability_margin(self, w: Tensor) -> float:
        """λ − λ_max(P(A + R)P)."""


class AugmentedMixture:
    r"""x_0 is μ_s with probability p_s and its views are μ_s + σξ: by (33), $A(w) = \mathbb V_s\mathbb E[\tilde x|s]$.

    With η_s = E[h|s] and the unit vector e along w, E[x̃|s] = E[gate|s]μ_s + Jσφ(e^T μ_s/σ)e, and
    $\frac{d}{d\varepsilon} A(w + \varepsilon u) w = R u$ with $R = J\,\mathrm{Cov}_s(\eta_s, M_s)$, M_s = E[xx^T
    δ(w^T x)|s]. Unlike −J·E[h]·M, which is R without views, it can have any sign even for a ReLU.
    """

    coupled = False

    def __init__(self, means: Tensor, probabilities: Tensor, noise: float, *, activation: Homogeneous) -> None:
        self.means, self.probabilities, self.noise, self.activation = means, probabilities, noise, activation

    def product(self, weights: Tensor) -> Tensor:
        """A(w)w for unit rows w of (k, d)."""
        gate, density, outputs = self._moments(weights)
        pull = self._centered(outputs) * self.probabilities
        along = (pull * density).sum(1, keepdim=True) * self.activation.jump * self.noise
        return (pull * gate) @ self.means + along * torch.nn.functional.normalize(weights)

    def gates(self, weights: Tensor) -> Tensor:
        """(k, 0)."""
        return torch.empty(len(weights), 0, dtype=torch.bool)

    def matrix(self, w: Tensor) -> Tensor:
        """A(w), (d, d)."""
        gate, density, _ = self._moments(w[None])
        jumps = self.activation.jump * self.noise * torch.outer(density[0], w / w.norm())
        inputs = self._centered((gate[0, :, None] * self.means + jumps).mT)  # (d, s)
        return (inputs * self.probabilities) @ inputs.mT

    def roughness_matrix(self, w: Tensor) -> Tensor:
        """R, (d, d), for a unit w."""
        _, density, outputs = self._moments(w[None])
        P = torch.eye(len(w)).to(w) - torch.outer(w, w)
        weights = self.activation.jump * self.probabilities * self._centered(outputs)[0] * density[0] / self.noise
        inside = self.means @ P
        return inside.mT @ (weights[:, None] * inside) + self.noise**2 * weights.sum() * P

    def roughness(self, w: Tensor) -> float:
        """ρ = ‖R‖₂."""
        return float(torch.linalg.matrix_norm(self.roughness_matrix(w), ord=2))

    def stability_margin(self, w: Tensor) -> float:
        """λ − λ_max(P(A + R)P) on the tangent space."""
        A, T = self.matrix(w), tangent_basis(w[None])[0]
        return float(w @ A @ w - torch.linalg.eigvalsh(T.mT @ (A + self.roughness_matrix(w)) @ T)[-1])

    def _moments(self, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """E[gate|s], φ(a) and E[h|s] at unit weights, (k, s) each."""
        z = torch.nn.functional.normalize(weights) @ self.means.mT
        a, h = z / self.noise, self.activation
        density = torch.exp(-a * a / 2) / math.sqrt(2 * math.pi)
        gate = h.jump * torch.special.ndtr(a) - h.left
        return gate, density, gate * z + h.jump * self.noise * density

    def _centered(self, values: Tensor) -> Tensor:
        return values - (values @ self.probabilities)[..., None]


def tangent_basis(w: Tensor) -> Tensor:
    """Orthonormal columns orthogonal to each row w of (k, d): (k, d, d − 1)."""
    return torch.as_tensor(torch.linalg.qr(w[:, :, None], mode="complete").Q[:, :, 1:])


def random_mixture(kind: str, seed: int) -> tuple[Population, Tensor]:
    """A mixture of 2 to 6 Gaussians in 2 to 4 dimensions, of random width, away from the origin; and starts."""
    draw = generator(f"mixture {kind}", seed)

    def uniform(*size: int) -> Tensor:
        return torch.rand(*size, generator=draw, dtype=torch.float64)

    s, d = 2 + int(5 * uniform(1)), 2 + int(3 * uniform(1))
    means = torch.randn(s + 1, d, generator=draw, dtype=torch.float64)
    means, p = means[1:] + means[0], 0.05 + uniform(s)
    noise = float(10 ** (-0.7 + uniform(1)))
    activation = Homogeneous(1.0, 1.0, -0.9 * float(uniform(1))) if kind.startswith("leaky") else RELU
    make = AugmentedMixture if kind.endswith("views") else MixtureCovariance
    field: Population = make(means, p / p.sum(), noise, activation=activation)
    return field, torch.randn(12, d, generator=draw, dtype=torch.float64)
