"""Linearised training the slow obvious way: in long double steps, by a matrix exponential, over random networks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.reference import ntk

Array = NDArray[np.longdouble]


def long(x: Tensor) -> Array:
    return x.detach().numpy().astype(np.longdouble)


def kernel_steps(K: Tensor, start: Tensor, targets: Tensor, *, learning_rate: float, n_steps: int) -> Tensor:
    """f ← f − ηK(f − Y), n_steps times, in 64-bit mantissas: what is left is the closed form's own rounding."""
    Y, rate = long(targets).reshape(len(K), -1), np.longdouble(learning_rate)
    K_, f = long(K), long(start).reshape(len(K), -1)
    for _ in range(n_steps):
        f = f - rate * (K_ @ (f - Y))
    return torch.from_numpy(f.reshape(start.shape).astype(np.float64))


@dataclass(frozen=True)
class Simulated:
    outputs: Tensor
    new_outputs: Tensor
    move: Tensor  # θ_t − θ_0 as one vector


def parameter_steps(
    net: nn.Module,
    x: Tensor,
    targets: Tensor,
    new: Tensor,
    *,
    learning_rate: float,
    n_steps: int,
    center: bool = False,
) -> Simulated:
    """δ ← δ − ηJ^T(f_0 + Jδ − Y) with the whole Jacobian, in long double; centred, without f_0."""
    with torch.no_grad():
        start, start_new = ((0 if center else 1) * long(net(rows)) for rows in (x, new))
    J, J_new = (long(ntk.jacobian(net, rows).flatten(0, 1)) for rows in (x, new))  # (n·z, p)
    delta, rate, Y = np.zeros(J.shape[1], np.longdouble), np.longdouble(learning_rate), long(targets).ravel()
    for _ in range(n_steps):
        delta = delta - rate * (J.T @ (start.ravel() + J @ delta - Y))
    moved, moved_new = (J @ delta).reshape(start.shape), (J_new @ delta).reshape(start_new.shape)
    return Simulated(*(torch.from_numpy(a.astype(np.float64)) for a in (start + moved, start_new + moved_new, delta)))


def flow(K: Tensor, start: Tensor, targets: Tensor, *, learning_rate: float, time: float) -> Tensor:
    """Y + e^{−ηKt}(f_0 − Y) by scipy's matrix exponential."""
    residual = (start - targets).reshape(len(K), -1).numpy()
    left = scipy.linalg.expm(-learning_rate * time * K.numpy()) @ residual
    return targets + torch.from_numpy(left).view_as(targets)


def random_ensemble(
    x: Tensor, targets: Tensor, new: Tensor, *, width: int, n_draws: int, generator: torch.Generator, n_steps: float
) -> Tensor:
    """f_lin(new), (n_draws, m), of ReLU nets f = W^T φ(Vx)/√width, after unit-rate descent or, for ∞, its limit."""
    points = torch.cat([x, new])
    V, W = (torch.randn(n_draws, width, k, generator=generator, dtype=x.dtype) for k in (x.shape[1], 1))
    z = points @ V.mT  # (draws, n + m, width)
    hidden, slope = z.relu() / math.sqrt(width), (z > 0) * W.mT / math.sqrt(width)
    f = (hidden @ W)[..., 0]
    K = hidden @ hidden.mT + (slope @ slope.mT) * (points @ points.mT)
    n, K_xx = len(x), K[:, : len(x), : len(x)]
    residual = targets[:, 0] - f[:, :n]
    if math.isinf(n_steps):
        a = torch.linalg.solve(K_xx, residual)
    else:
        a = torch.zeros_like(residual)
        for _ in range(int(n_steps)):
            a = a + residual - (K_xx @ a[..., None])[..., 0]
    return f[:, n:] + (K[:, n:, :n] @ a[..., None])[..., 0]
