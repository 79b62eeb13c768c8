"""Finite networks at random initialisation approach the infinite ones at rate 1/√width (claims A.init and D.nngp)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kontrast.kernels import InfiniteNetwork, empirical_ntk_trace
from kontrast.linalg import fit_power_law
from kontrast.nets import MLP
from tests.cases import generator, randn

WIDTHS = [32, 64, 128, 256]
SEEDS = 96
CLOSED = ["relu", "leaky_relu:0.3", "erf", "linear", "sine", "cosine", "gaussian"]


def last_features(net: MLP, x: Tensor) -> Tensor:
    h = x
    for scale, V in zip(net.scales, net.hidden, strict=False):
        h = net.activation(scale * h @ V.detach().mT)
    return net.scales[-1] * h


@pytest.mark.slow
@pytest.mark.parametrize("activation, depth", [*((name, 1) for name in CLOSED), ("relu", 3), ("erf", 3)])
def test_kernels_converge_at_the_square_root_of_the_width(activation: str, depth: int) -> None:
    x = randn(5, 4, seed=11) / 2
    infinite = InfiniteNetwork(depth, activation)
    ntk, nngp = infinite.ntk(x), infinite.nngp(x)
    errors: dict[str, list[float]] = {"ntk": [], "nngp": []}
    for width in WIDTHS:
        squares = torch.zeros(2, dtype=torch.float64)
        for seed in range(SEEDS):
            net = MLP(
                4,
                width,
                1,
                depth=depth,
                activation=activation,
                generator=generator(1000 * width + seed),
                dtype=torch.float64,
            )
            features = last_features(net, x)
            squares[0] += (empirical_ntk_trace(net, x) - ntk).square().sum() / ntk.square().sum()
            squares[1] += (features @ features.mT - nngp).square().sum() / nngp.square().sum()
        errors["ntk"].append(math.sqrt(squares[0] / SEEDS))
        errors["nngp"].append(math.sqrt(squares[1] / SEEDS))
    for name, measured in errors.items():
        law = fit_power_law(WIDTHS, measured)
        assert -0.6 <= law.exponent <= -0.4, f"{name}: {law.exponent:.3f}, errors {measured}"
        assert measured[-1] < 0.25, f"{name} is {measured[-1]:.2f} off at width {WIDTHS[-1]}"
