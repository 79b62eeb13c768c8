"""Training and exponents of Fig. 2."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis.strategies import floats, integers

from kontrast.claims.b import fig2
from kontrast.claims.b.problems import noisy_pairs, orthogonal_net
from kontrast.dynamics import contrastive_problem
from kontrast.losses import contrastive_trace_loss
from kontrast.nets import parameters_of
from tests.cases import randn


@given(exponent=floats(-2, 1), n_seeds=integers(1, 5), seed=integers(0, 2**16))
def test_the_typical_law_is_that_of_the_geometric_mean(exponent: float, n_seeds: int, seed: int) -> None:
    """Factors that are the same at every width change no exponent, however wild they are."""
    widths = np.array([10.0, 30, 100, 300])
    factors = np.exp(3 * randn(n_seeds, seed=seed).numpy())
    values = xr.DataArray(np.outer(widths**exponent, factors), coords={"width": widths, "seed": np.arange(n_seeds)})
    law = fig2.typical_law(values)
    assert law.value == pytest.approx(exponent, abs=1e-9)
    values[1, 0] = math.nan
    assert math.isnan(fig2.typical_law(values).value)


def test_training_starts_at_the_net_and_keeps_its_weights_orthonormal() -> None:
    """Outputs of orthonormal weights are no longer than their inputs, at every step."""
    net, pairs = orthogonal_net(3, 20, 2, 0, activation="tanh"), noisy_pairs(randn(10, 3), 0)
    problem, before = contrastive_problem(pairs, contrastive_trace_loss), parameters_of(net)
    outputs = fig2.trained_outputs(net, problem, [0, 1, 20])
    assert outputs.shape == (3, 20, 2)
    assert torch.equal(outputs[0], net(pairs.rows).detach())
    assert (outputs.norm(dim=2) <= pairs.rows.norm(dim=1) + 1e-12).all()
    assert all(torch.equal(p, before[name]) for name, p in parameters_of(net).items())  # the net is not changed
    losses = torch.stack([problem.objective(u) for u in outputs])
    assert losses[2] < losses[0]


def test_outputs_that_overflow_are_not_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fig2, "polar_step", lambda W, G, *, learning_rate: 1e60 * W)
    problem = contrastive_problem(noisy_pairs(randn(10, 3), 0), contrastive_trace_loss)
    u = fig2.trained_outputs(orthogonal_net(3, 8, 2, 0), problem, [0, 1, 20])
    assert torch.isfinite(u[0]).all()
    assert torch.isnan(u[2]).all()
