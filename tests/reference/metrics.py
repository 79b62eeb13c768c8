"""Numbers of embeddings as their authors print them: loops over samples, dense matrices, nothing clever."""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg
import scipy.special
from numpy.typing import NDArray

Array = NDArray[np.float64]


def rankme(Z: Array) -> float:
    """Garrido et al. (2023), eq. (1) and (2): σ of Z itself, p_k = σ_k / ‖σ‖₁ + ε with ε = 1e-7."""
    sigma = np.linalg.svd(Z, compute_uv=False)
    entropy = 0.0
    for k in range(min(Z.shape)):
        p = sigma[k] / np.abs(sigma).sum() + 1e-7
        entropy -= p * math.log(p)
    return math.exp(entropy)


def covariance(Z: Array) -> Array:
    """The mean outer product of the centred rows."""
    mean = Z.mean(0)
    return sum(np.outer(z - mean, z - mean) for z in Z) / len(Z)  # type: ignore[return-value]


def eigenvalues(Z: Array) -> Array:
    """Of the covariance, largest first."""
    return np.linalg.eigvalsh(covariance(Z))[::-1]


def alpha_req(Z: Array, first: int = 11, last: int = 100) -> float:
    """Agrawal et al. (2022): λ_i ∝ i^−α; normal equations of a line through (−log i, log λ_i) with weights 1/i."""
    values = eigenvalues(Z)
    A, y = np.zeros((2, 2)), np.zeros(2)
    for i in range(first, min(last, len(values)) + 1):
        row = np.array([-math.log(i), 1.0])
        A += np.outer(row, row) / i
        y += row * math.log(values[i - 1]) / i
    return float(np.linalg.solve(A, y)[0])


def lidar(views: Array, delta: float = 1e-4, epsilon: float = 1e-7) -> float:
    """Thilak et al. (2024): Σ_w^{-1/2} Σ_b Σ_w^{-1/2} formed entry by entry, p_i = λ_i / ‖λ‖₁ + ε."""
    n, q, d = views.shape
    mu_x = [views[i].mean(0) for i in range(n)]
    mu = sum(mu_x) / n
    between, within = np.zeros((d, d)), delta * np.eye(d)
    for i in range(n):
        between += np.outer(mu_x[i] - mu, mu_x[i] - mu) / n
        for j in range(q):
            within += np.outer(views[i, j] - mu_x[i], views[i, j] - mu_x[i]) / (n * q)
    root = np.linalg.inv(scipy.linalg.sqrtm(within).real)
    values = np.linalg.eigvalsh(root @ between @ root)
    p = values / np.abs(values).sum() + epsilon
    return math.exp(-(p * np.log(p)).sum())


def participation_ratio(Z: Array) -> float:
    return float(np.trace(covariance(Z)) ** 2 / (covariance(Z) ** 2).sum())


def stable_rank(Z: Array) -> float:
    centered = Z - Z.mean(0)
    return float((np.linalg.norm(centered, "fro") / np.linalg.norm(centered, 2)) ** 2)


def nesum(Z: Array) -> float:
    """He & Ozay (2022): Σ λ_i / λ_1."""
    values = eigenvalues(Z)
    return float(sum(value / values[0] for value in values))


def unit(Z: Array) -> Array:
    return np.stack([z / np.linalg.norm(z) if z.any() else z for z in Z])


def std_sqrt_d(Z: Array) -> float:
    return float(np.std(unit(Z), axis=0, ddof=1).mean() * math.sqrt(Z.shape[1]))


def spread(Z: Array) -> float:
    u = unit(Z)
    return float(((u - u.mean(0)) ** 2).sum() / (u**2).sum())


def alignment(A: Array, B: Array) -> float:
    """Wang & Isola (2020), eq. for α = 2."""
    return float(np.mean([np.linalg.norm(a - b) ** 2 for a, b in zip(unit(A), unit(B), strict=True)]))


def uniformity(Z: Array, t: float = 2.0) -> float:
    """Wang & Isola (2020): over distinct pairs, as their code has it."""
    u = unit(Z)
    n = len(u)
    terms = [math.exp(-t * np.linalg.norm(u[i] - u[j]) ** 2) for i in range(n) for j in range(i + 1, n)]
    return math.log(sum(terms) / len(terms))


def negatives(A: Array, B: Array) -> list[list[float]]:
    """For every anchor of both views, its cosine similarities with all other samples in both views."""
    u, n = np.concatenate([unit(A), unit(B)]), len(A)
    return [[float(u[i] @ u[j]) for j in range(2 * n) if j % n != i % n] for i in range(2 * n)]


def effective_negatives(A: Array, B: Array, temperature: float) -> float:
    counts = []
    for similarities in negatives(A, B):
        weights = scipy.special.softmax(np.array(similarities) / temperature)
        counts.append(math.exp(-sum(w * math.log(w) for w in weights if w > 0)))
    return float(np.mean(counts))


def neighbor_agreement(views: Array) -> float:
    n, v, d = views.shape
    u = unit(views.reshape(n * v, d))
    agreed = 0
    for i in range(n * v):
        others = [j for j in range(n * v) if j != i]
        agreed += max(others, key=lambda j: float(u[i] @ u[j])) // v == i // v
    return agreed / (n * v)
