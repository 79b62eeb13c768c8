"""The kernel and the domains that paper D's claims on learnability share."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from torch import Tensor

from kontrast.kernels import InfiniteNetwork, TangentKernel
from kontrast.learnability import hypercube

EXACT = 1e-10


def tangent_kernel(d: int) -> TangentKernel:
    """Of a ReLU network with one hidden layer; its bias gives every level of the hypercube an eigenvalue above 0."""
    return TangentKernel(InfiniteNetwork(depth=1, bias_std=0.5, input_scale=1 / d))


def cube(d: int, device: str) -> Tensor:
    """The NTK over the hypercube."""
    return tangent_kernel(d)(hypercube(d).to(device))


def least(values: Iterable[float]) -> float:
    """The smallest; NaN where one is."""
    return float(np.min(list(values)))
