"""Paper D's learnability word for word: explicit inverses, every training set there is, κ by bisection."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor


def transfer_matrix(eigenvalues: Tensor, functions: Tensor, rows: Tensor, ridge: float = 0.0) -> Tensor:
    """(33) with an explicit inverse."""
    Phi, Lambda = functions[rows].mT, torch.diag(eigenvalues)
    G = Phi.mT @ Lambda @ Phi + ridge * torch.eye(len(rows), dtype=functions.dtype)
    return Lambda @ Phi @ torch.linalg.inv(G) @ Phi.mT


def regression(K: Tensor, f: Tensor, rows: Tensor, ridge: float = 0.0) -> Tensor:
    """(5): the learned function at every point."""
    G = K[rows][:, rows] + ridge * torch.eye(len(rows), dtype=K.dtype)
    return K[:, rows] @ torch.linalg.inv(G) @ f[rows]


def over_all_training_sets(K: Tensor, f: Tensor, n: int, ridge: float = 0.0) -> tuple[Tensor, Tensor]:
    """L(f) of (6) and the mean squared error, averaged over every set of n points."""
    shares, errors = [], []
    for chosen in itertools.combinations(range(len(K)), n):
        learned = regression(K, f, torch.tensor(chosen), ridge)
        shares.append((f * learned).sum() / f.square().sum())
        errors.append((f - learned).square().mean())
    return torch.stack(shares).mean(), torch.stack(errors).mean()


def kappa(eigenvalues: list[float], n: float, ridge: float) -> float:
    """Σ λ/(λ + κ) + δ/κ = n by 300 bisections of log κ."""
    low, high = -700.0, 700.0
    for _ in range(300):
        middle = (low + high) / 2
        k = math.exp(middle)
        if sum(value / (value + k) for value in eigenvalues) + ridge / k > n:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)
