"""The kernel, domains and training sets that the claims on learnability share."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from kontrast.claims.setting import Setting, generator
from kontrast.kernels import InfiniteNetwork, TangentKernel
from kontrast.learnability import MeasuredLearning, Parities, hypercube

EXACT = 1e-10
RIDGE = 0.1


def tangent_kernel(d: int) -> TangentKernel:
    """The NTK of ReLU networks with one hidden layer; biases make every eigenvalue on the hypercube positive."""
    return TangentKernel(InfiniteNetwork(depth=1, bias_std=0.5, input_scale=1 / d))


def cube(d: int, device: str) -> Tensor:
    """The NTK over the hypercube."""
    return tangent_kernel(d)(hypercube(d).to(device))


def digits(setting: Setting, n: int) -> Tensor:
    """The NTK over n images of the data."""
    x = setting.dataset().subsample(n, generator=generator("learnable digits")).rows.to(setting.device)
    return tangent_kernel(x.shape[1])(x)


def training_set(M: int, n: int) -> Tensor:
    """Indices of n among M points, none twice."""
    return torch.randperm(M, generator=generator("training set", M, n))[:n]


def by_level(found: MeasuredLearning, basis: Parities) -> Tensor:
    """Means over draws and over the parities of each level, (d + 1,)."""
    means = found.learnability.mean(0)
    return torch.stack([means[(basis.levels == k).to(means.device)].mean() for k in range(int(basis.levels.max()) + 1)])


def least(values: Iterable[float]) -> float:
    """The smallest value; NaN if one is."""
    return float(np.min(list(values)))
