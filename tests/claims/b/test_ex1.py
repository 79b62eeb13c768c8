"""The scaled network of Example 1."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from

from kontrast.claims.b.ex1 import scaled_network
from kontrast.claims.b.problems import noisy_pairs, orthogonal_net
from kontrast.deep_linear import scaled_loss
from kontrast.dynamics import contrastive_problem
from kontrast.losses import contrastive_trace_loss
from kontrast.nets import parameters_of
from tests.cases import randn


@given(seed=integers(0, 2**16), activation=sampled_from(["tanh", "relu", "linear"]), factor=floats(0.2, 5))
def test_the_loss_of_the_scaled_network_is_the_scaled_loss(seed: int, activation: str, factor: float) -> None:
    net = orthogonal_net(3, 7, 2, seed, activation=activation)
    weights = {name: factor * p + 0.1 * randn(*p.shape, seed=seed) for name, p in parameters_of(net).items()}
    pairs = noisy_pairs(randn(6, 3, seed=seed), seed)
    objective = contrastive_problem(pairs, contrastive_trace_loss).objective
    found = objective(scaled_network(net)(weights, pairs.rows))
    wanted = scaled_loss(contrastive_trace_loss(*pairs.split(net.at(weights, pairs.rows))).total, *weights.values())
    assert float(found) == pytest.approx(float(wanted), rel=1e-10, abs=1e-12)
