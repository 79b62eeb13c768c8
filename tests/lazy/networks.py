"""Small networks, pairs and their constants, for the bounds of paper A."""

from __future__ import annotations

import torch

from kontrast.data import Pairs
from kontrast.lazy import Constants, constants_of
from kontrast.nets import MLP
from tests.cases import generator, randn


def some_pairs(d: int, *, n: int = 3, seed: int = 0, scale: float = 1.0) -> Pairs:
    index = torch.arange(n)
    return Pairs(scale * randn(2 * n, d, seed=seed), index, index[:, None] + n, index.roll(1)[:, None])


def net(d: int, width: int, *, activation: str = "tanh", d_out: int = 2, seed: int = 1) -> MLP:
    return MLP(d, width, d_out, activation=activation, generator=generator(seed), dtype=torch.float64)


def constants(activation: str = "tanh", *, width: int = 64, d: int = 6, delta: float = 0.01) -> Constants:
    return constants_of(net(d, width, activation=activation), some_pairs(d), learning_rate=0.1, delta=delta)
