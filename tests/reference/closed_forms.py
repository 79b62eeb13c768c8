"""The matrices and objectives of the closed forms as loops over samples, pairs, views and patches, in float64."""

from __future__ import annotations

import itertools
import math

import numpy as np
import scipy.linalg
import torch
from torch import Tensor


def pair_matrix(anchors: Tensor, positives: Tensor, negatives: Tensor | None) -> Tensor:
    """C̃ of paper A, (8) and (10): features of anchors (n, M), positives (n, P, M) and negatives (n, Q, M).

    Without negatives every other anchor is one, at equal weight.
    """
    a, p = anchors.double(), positives.double()
    n, M = a.shape
    C = torch.zeros(M, M, dtype=torch.float64)
    for i in range(n):
        others = [a[j] for j in range(n) if j != i] if negatives is None else list(negatives[i].double())
        for one in p[i]:
            C += torch.outer(a[i], one) / len(p[i]) / n
        for one in others:
            C -= torch.outer(a[i], one) / len(others) / n
    return (C + C.mT) / 2


def pair_loss(anchors: Tensor, positives: Tensor, negatives: Tensor | None) -> float:
    """(6) with the linear loss, of embeddings: the mean similarity to negatives minus that to positives."""
    a, p = anchors.double(), positives.double()
    n, total = len(a), 0.0
    for i in range(n):
        others = [a[j] for j in range(n) if j != i] if negatives is None else list(negatives[i].double())
        total -= sum(float(a[i] @ one) for one in p[i]) / len(p[i])
        total += sum(float(a[i] @ one) for one in others) / len(others)
    return total / n


def view_covariances(views: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, Σ, G and B of claim A.spec for features of views (v, n, M); B over all pairs of different views."""
    views = views.double()
    v, n, M = views.shape
    mean = sum(views[a, i] for a in range(v) for i in range(n)) / (v * n)
    covariance, of_means, between = (torch.zeros(M, M, dtype=torch.float64) for _ in range(3))
    for i in range(n):
        of_sample = sum(views[a, i] for a in range(v)) / v - mean
        of_means += torch.outer(of_sample, of_sample) / n
        for a, b in itertools.product(range(v), repeat=2):
            product = torch.outer(views[a, i] - mean, views[b, i] - mean)
            if a == b:
                covariance += product / (n * v)
            else:
                between += product / (n * v * (v - 1))
    return mean, covariance, of_means, between


def whitened(between: Tensor, covariance: Tensor, k: int, *, ridge: float) -> tuple[Tensor, Tensor]:
    """The k largest λ and w of B w = λ(Σ + ρ Tr Σ I)w, W^T(Σ + ρ Tr Σ I)W = I."""
    regular = covariance + ridge * torch.trace(covariance) * torch.eye(len(covariance), dtype=torch.float64)
    values, vectors = scipy.linalg.eigh(between.numpy(), regular.numpy())
    return torch.from_numpy(values[::-1][:k].copy()), torch.from_numpy(vectors[:, ::-1][:, :k].copy())


def spectral_loss(views: Tensor) -> Tensor:
    """−2 E f·f⁺ + E(f·f')² of outputs (v, n, k): over two views of a sample, and over any two views of any samples."""
    v, n, _ = views.shape
    everything = list(itertools.product(range(v), range(n)))
    alike, apart = views.new_zeros(()), views.new_zeros(())
    for a, i in everything:
        for b in range(v):
            if b != a:
                alike = alike + views[a, i] @ views[b, i] / (n * v * (v - 1))
        for b, j in everything:
            apart = apart + (views[a, i] @ views[b, j]) ** 2 / (n * v) ** 2
    return -2 * alike + apart


def dense_pair_matrix(n: int, n_positives: int, negative: Tensor | None, m: int) -> Tensor:
    """S (m, m) over a pool of n anchors, their first positives, their second, … and what negatives there are."""
    S = torch.zeros(m, m, dtype=torch.float64)
    for i in range(n):
        places = [j for j in range(n) if j != i] if negative is None else negative[i].tolist()
        for p in range(n_positives):
            S[i, i + (p + 1) * n] += 1 / (n * n_positives)
        for place in places:
            S[i, place] -= 1 / (n * len(places))
    return (S + S.mT) / 2


def cells(length: int, grid: int) -> list[range]:
    """The bounds of adaptive average pooling: floor and ceiling of even shares."""
    return [range(i * length // grid, math.ceil((i + 1) * length / grid)) for i in range(grid)]


def patch_features(
    images: np.ndarray,
    patches: np.ndarray,
    n_filters: int,
    *,
    side: int,
    grid: int,
    threshold: float,
    two_sided: bool,
    contrast_floor: float,
    whitening_floor: float,
    flat: float,
) -> np.ndarray:
    """Coates & Ng's features of images (n, c, h, w), from raw patches (k, c·side²), one patch after the other."""

    def normalized(patch: np.ndarray) -> np.ndarray:
        return (patch - patch.mean()) / np.sqrt(patch.var() + contrast_floor**2)

    rows = np.array([normalized(patch) for patch in patches])
    mean = rows.mean(0)
    values, vectors = np.linalg.eigh(np.cov(rows.T, bias=True))
    Z = vectors @ np.diag(1 / np.sqrt(values + whitening_floor)) @ vectors.T
    filters = [Z @ (row - mean) for row in rows if (row**2).mean() > flat][:n_filters]
    filters = [d / np.linalg.norm(d) for d in filters]
    found = []
    for image in images:
        _, h, w = image.shape
        up, across = h - side + 1, w - side + 1
        response = np.empty((n_filters, up, across))
        for top, left in itertools.product(range(up), range(across)):
            patch = normalized(image[:, top : top + side, left : left + side].reshape(-1))
            response[:, top, left] = [d @ (Z @ (patch - mean)) for d in filters]
        sides = [response, -response] if two_sided else [response]
        found.append(
            [
                np.mean([max(one[j, top, left] - threshold, 0) for top in rows_ for left in columns])
                for one in sides
                for j in range(n_filters)
                for rows_ in cells(up, grid)
                for columns in cells(across, grid)
            ]
        )
    return np.array(found)
