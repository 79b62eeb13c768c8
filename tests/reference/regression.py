"""Kernel regression as it is defined: a solve for every prediction, a regression for every point left out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def ridge_prediction(K: Tensor, cross: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """k(x, X) (K + ridge I)^-1 Y."""
    G = K.double() + ridge * torch.eye(len(K), dtype=torch.float64)
    return cross.double() @ torch.linalg.solve(G, targets.double())


def retrained_without(K: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """The target of each point less what a regression on all the others predicts there."""
    errors = []
    for i in range(len(K)):
        rest = torch.tensor([j for j in range(len(K)) if j != i], dtype=torch.long)
        errors.append(targets[i] - ridge_prediction(K[rest][:, rest], K[i, rest][None], targets[rest], ridge)[0])
    return torch.stack(errors)


def kernel_by_entries(k: Callable[[Tensor, Tensor], float], x: Tensor, y: Tensor) -> Tensor:
    """The matrix of a function of two samples."""
    return torch.tensor([[k(a, b) for b in y] for a in x], dtype=torch.float64)
