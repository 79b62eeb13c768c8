"""Paper A, Sec. 4 as slow loops over pairs and units, one line per symbol of (6) to (10)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kontrast.data import Pairs
from kontrast.nets import MLP


def signed_pairs(pairs: Pairs) -> list[tuple[int, int, float]]:
    """(n, nq, α_q) for every pair, over the pool."""
    found = []
    for n in range(pairs.n_anchors):
        a = int(pairs.anchor[n])
        found += [(a, int(p), 1.0) for p in pairs.positive[n]]
        row = pairs.negative[n if len(pairs.negative) > 1 else 0]
        for q, b in enumerate(row):
            weight = 1.0 if pairs.negative_weight is None else float(pairs.negative_weight[n, q])
            found.append((a, int(b), -weight))
    return found


def hidden(net: MLP, x: Tensor) -> list[list[float]]:
    """φ(V x) by the definition: in "ntk" every layer but the first over √M, in "mup" the first times √M."""
    rows = []
    for point in x.flatten(1).double():
        h = point.tolist()
        for layer, V in enumerate(net.hidden):
            first, later = {"ntk": (0, -0.5), "mup": (0.5, 0)}.get(net.parametrization, (0, 0))
            scale = net.width ** (first if layer == 0 else later)
            a = [scale * sum(v * u for v, u in zip(row, h, strict=True)) for row in V.tolist()]
            h = net.activation(torch.tensor(a, dtype=torch.float64)).tolist()
        rows.append(h)
    return rows


def similarity(W: Tensor, phi_a: list[float], phi_b: list[float], delta: float | None) -> float:
    """s(x, x̃): f^T f̃ with f of (7) for the dot product, the right side of (9) with δ."""
    M, Z = W.shape
    f_a, f_b = ([sum(float(W[i, z]) * phi[i] for i in range(M)) for z in range(Z)] for phi in (phi_a, phi_b))
    product = sum(u * v for u, v in zip(f_a, f_b, strict=True))
    if delta is None:
        return product / M
    norm_a, norm_b = (math.sqrt(sum(u * u for u in phi)) for phi in (phi_a, phi_b))
    return product / ((norm_a + math.sqrt(M) * delta) * (norm_b + math.sqrt(M) * delta))


def loss(net: MLP, W: Tensor, pairs: Pairs, delta: float | None) -> float:
    """(6)."""
    phi = hidden(net, pairs.rows)
    total = sum(alpha * similarity(W, phi[a], phi[b], delta) for a, b, alpha in signed_pairs(pairs))
    return -total / pairs.n_anchors


def matrix(net: MLP, pairs: Pairs, delta: float | None) -> Tensor:
    """C_V of (8), or of (10) with δ; not symmetrised."""
    phi = torch.tensor(hidden(net, pairs.rows), dtype=torch.float64)
    M = net.width
    C = torch.zeros(M, M, dtype=torch.float64)
    for a, b, alpha in signed_pairs(pairs):
        if delta is None:
            C += alpha * torch.outer(phi[b], phi[a]) / M
        else:
            size = (phi[b].norm() + math.sqrt(M) * delta) * (phi[a].norm() + math.sqrt(M) * delta)
            C += alpha * torch.outer(phi[b], phi[a]) / size
    return C / pairs.n_anchors
