"""Eigenpairs, kernel alignment and Hessians by their definitions, with every matrix formed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacfwd, jacrev


def eigenvalues_in_metric(A: Tensor, K: Tensor, *, rank: int) -> Tensor:
    """Eigenvalues of A on R^n / ker K, descending: A compressed to the top `rank` eigenvectors of K."""
    s, U = torch.linalg.eigh(K)
    s, U = s[-rank:], U[:, -rank:]
    B = s.sqrt()[:, None] * (U.mT @ A @ U) / s.sqrt()
    return torch.linalg.eigvalsh((B + B.mT) / 2).flip(0)


def cka(K1: Tensor, K2: Tensor) -> float:
    """tr(H K1 H K2 H) / (‖H K1 H‖ ‖H K2 H‖)."""
    n = len(K1)
    H = torch.eye(n, dtype=torch.float64) - 1 / n
    a, b = H @ K1.double() @ H, H @ K2.double() @ H
    return float((a * b).sum() / (a.norm() * b.norm()))


def dense_hessian(module: nn.Module, x: Tensor, output: int, second: Callable[..., Any] = jacfwd) -> Tensor:
    """(p, p): the second derivatives of Σ_n f_z(x_n) in all parameters."""
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    blocks = second(jacrev(lambda p: functional_call(module, p, (x,))[:, output].sum()))(parameters)
    sizes = {name: p.numel() for name, p in parameters.items()}
    rows = [torch.cat([blocks[a][b].reshape(sizes[a], sizes[b]) for b in sizes], dim=1) for a in sizes]
    return torch.cat(rows)


def dense_hessian_by_reverse_mode(module: nn.Module, x: Tensor, output: int) -> Tensor:
    """`dense_hessian` for modules that forward mode cannot differentiate."""
    return dense_hessian(module, x, output, jacrev)
