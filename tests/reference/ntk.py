"""The tangent kernel by its definition: a product of Jacobians from automatic differentiation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev


def jacobian(module: nn.Module, x: Tensor) -> Tensor:
    """(n, c, p): the derivative of every output with respect to every parameter."""
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    blocks = jacrev(lambda p: functional_call(module, p, (x,)))(parameters)
    return torch.cat([block.flatten(2) for block in blocks.values()], dim=2)


def empirical_ntk(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """K_ij(x, y) = ∇f_i(x)·∇f_j(y), (n, m, c, c)."""
    return torch.einsum("nip,mjp->nmij", jacobian(module, x), jacobian(module, y))
