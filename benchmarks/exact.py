"""The kernels of the benchmarks in float64, and how far a measured kernel is from them."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_func import one_jacobian

import kontrast as kt


def relu_ntk(dot: Tensor, norm_x: Tensor, norm_y: Tensor, *, depth: int) -> Tensor:
    """Θ of an infinitely wide ReLU network from x·y, ‖x‖² and ‖y‖² (in float64, already times `input_scale`)."""
    covariance, tangent, q = dot, dot, torch.sqrt(norm_x * norm_y)
    for _ in range(depth):
        cosine = (covariance / q).clamp(-1, 1)
        angle = torch.acos(cosine)
        covariance = q / (2 * math.pi) * (torch.sqrt((1 - cosine) * (1 + cosine)) + (math.pi - angle) * cosine)
        tangent = covariance + tangent * (math.pi - angle) / (2 * math.pi)
        q = q / 2  # E[relu(u)²] = E[u²] / 2
    return tangent


@dataclass(frozen=True)
class Errors:
    """At worst over the entries; `scaled` is |K_ij − exact| / √(K_ii K_jj), the others are relative to the entry."""

    off_diagonal: float
    off_diagonal_scaled: float
    diagonal: float


def relu_ntk_errors(K: Tensor, x: Tensor, *, depth: int, input_scale: float, rows: int = 500) -> Errors:
    """Every entry of `K` against float64, in blocks of `rows`."""
    x = x.double()
    q = input_scale * x.square().sum(1)
    exact_diagonal = relu_ntk(q, q, q, depth=depth)
    diagonal = float(((K.diagonal() - exact_diagonal) / exact_diagonal).abs().max())
    relative = scaled = 0.0
    for start in range(0, len(x), rows):
        block = slice(start, min(start + rows, len(x)))
        exact = relu_ntk(input_scale * (x[block] @ x.mT), q[block, None], q[None, :], depth=depth)
        error = (K[block] - exact).abs_()
        error[:, block].fill_diagonal_(0)
        relative = max(relative, float((error / exact.abs()).max()))
        scaled = max(scaled, float((error / (exact_diagonal[block, None] * exact_diagonal).sqrt()).max()))
    return Errors(relative, scaled, diagonal)


def repeated(x: Tensor) -> Tensor:
    """`x` with every row again as it is, turned around, and doubled: (4n, d)."""
    return torch.cat([x, x, -x, 2 * x])


def repeated_errors(K: Tensor, x: Tensor, *, depth: int, input_scale: float) -> dict[str, float]:
    """The kernel of `repeated(x)` at the pairs of a row and its copies, against float64, over √(K_ii K_jj)."""
    n, q = len(x), input_scale * x.double().square().sum(1)
    own = relu_ntk(q, q, q, depth=depth)
    errors = {}
    for place, (name, factor) in enumerate({"duplicate": 1, "antipodal": -1, "collinear": 2}.items(), start=1):
        exact = relu_ntk(factor * q, q, factor**2 * q, depth=depth)
        error = K[:n, place * n : (place + 1) * n].diagonal() - exact
        errors[name] = float((error / (own * abs(factor))).abs().max())
    return errors


def two_layer_ntk_trace(x: Tensor, V: Tensor, W: Tensor) -> Tensor:
    """Σ_i K_ii(x, x) of f(x) = W^T relu(V x) / √M, in float64."""
    x, V, W = x.double(), V.double(), W.double()
    a = x @ V.mT
    h, slope = a.relu(), (a > 0).double()
    return (W.shape[1] * (h @ h.mT) + (x @ x.mT) * ((slope * W.square().sum(1)) @ slope.mT)) / len(V)


def network_ntk_trace(net: nn.Module, x: Tensor, *, checked: int = 3) -> Tensor:
    """Σ_i K_ii(x, x) of a network by kontrast in float64, the first rows checked against torch.func's Jacobian."""
    net, x = copy.deepcopy(net).double(), x.double()
    K = kt.kernels.empirical_ntk_trace(net, x)
    error = scaled_error(K[:checked, :checked], one_jacobian(net, x[:checked]))
    assert error < 1e-11, f"in float64 kontrast and torch.func differ by {error:.1e}"
    return K


def scaled_error(K: Tensor, exact: Tensor) -> float:
    """The largest |K_ij − exact_ij| / √(exact_ii exact_jj)."""
    size = exact.diagonal().sqrt()
    return float(((K - exact) / (size[:, None] * size)).abs().max())
