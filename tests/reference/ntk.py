"""The tangent kernel by its definition: every row alone, every output alone, one gradient each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def jacobian(module: nn.Module, x: Tensor, names: Sequence[str] | None = None) -> Tensor:
    """(n, c, p): the derivative of every output with respect to every parameter that trains, or the `names` of them."""
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    wanted = [p for name, p in trained.items() if names is None or name in names]
    rows = []
    for row in x.split(1):
        (f,) = module(row)
        gradients = [torch.autograd.grad(f_i, wanted, retain_graph=True, materialize_grads=True) for f_i in f]
        rows.append(torch.stack([torch.cat([part.flatten() for part in parts]) for parts in gradients]))
    return torch.stack(rows)


def empirical_ntk(module: nn.Module, x: Tensor, y: Tensor, names: Sequence[str] | None = None) -> Tensor:
    """K_ij(x, y) = ∇f_i(x)·∇f_j(y), (n, m, c, c)."""
    return torch.einsum("nip,mjp->nmij", jacobian(module, x, names), jacobian(module, y, names))
