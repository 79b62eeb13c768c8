"""Paper B as slow loops, matrix exponentials and ordinary differential equations, one line per formula."""

from __future__ import annotations

import itertools

import numpy as np
import scipy.linalg
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from kontrast.data import Pairs
from tests.reference.contrastive import signed_pairs


def data_matrix(pairs: Pairs, features: Tensor) -> Tensor:
    """C̃ of (5), not symmetrised: attraction has the weight −1, repulsion its own."""
    C = torch.zeros(features.shape[1], features.shape[1], dtype=torch.float64)
    for anchor, partner, alpha in signed_pairs(pairs):
        C -= alpha * torch.outer(features[anchor].double(), features[partner].double())
    return C


def expected_data_matrix(x: Tensor, mean: Tensor) -> Tensor:
    """E C̃ over one negative among the others, all of them in turn."""
    n, d = x.shape
    C = torch.zeros(d, d, dtype=torch.float64)
    for i, j in itertools.product(range(n), range(n)):
        if i != j:
            C += torch.outer(x[i], x[j] - mean[i]) / (n - 1)
    return C


def linear_flow(C: Tensor, weights: Tensor, t: float, projector: Tensor | None = None) -> Tensor:
    """Θ(t) = Θ₀ e^{−2Ct}; behind a projector AΘ(t), vec AΘ = e^{−2t AA^T ⊗ C} vec AΘ₀ row by row."""
    if projector is None:
        return weights @ torch.from_numpy(scipy.linalg.expm(-2 * t * C.numpy()))
    G = projector @ weights
    system = torch.kron(projector @ projector.mT, C)
    return (torch.from_numpy(scipy.linalg.expm(-2 * t * system.numpy())) @ G.reshape(-1)).view_as(G)


def kernel_flow(K: Tensor, S: Tensor, outputs: Tensor, t: float) -> Tensor:
    """U(t) = e^{−2KSt} U₀."""
    return torch.from_numpy(scipy.linalg.expm(-2 * t * (K @ S).numpy())) @ outputs


def projected_weights_flow(C: Tensor, weights: Tensor, projector: Tensor, t: float) -> Tensor:
    """AΘ(t) from Θ' = −∇ Tr(AΘ C Θ^T A^T) = −2 A^T A Θ C itself, by DOP853."""

    def slope(_: float, flat: np.ndarray) -> np.ndarray:
        theta = torch.from_numpy(flat).view_as(weights)
        return (-2 * projector.mT @ projector @ theta @ C).reshape(-1).numpy()

    start = weights.reshape(-1).numpy()
    found = solve_ivp(slope, (0, t), start, method="DOP853", rtol=1e-12, atol=1e-13).y[:, -1]
    return projector @ torch.from_numpy(found.copy()).view_as(weights)


def trace_loss(W1: Tensor, W2: Tensor, C: Tensor) -> float:
    """L(W₁, W₂) of (4)."""
    W = W2.mT @ W1
    return float(torch.trace(W @ C @ W.mT))
