"""Paper B's half moons and nonlinear networks: each claim notices what breaks the code it rests on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from

from kontrast.claims import select
from kontrast.claims.b import half_moons, nonlinear
from kontrast.claims.b.problems import noisy_pairs, orthogonal_net
from kontrast.deep_linear import nonlinearity, scaled_loss
from kontrast.dynamics import contrastive_problem
from kontrast.losses import contrastive_trace_loss
from kontrast.nets import MLP, parameters_of
from tests.cases import generator, randn
from tests.claims.breaks import Break, assert_noticed


def without_constraint(real: Any) -> Any:
    """A plain step in the place of the projected one."""
    return lambda W, G, *, learning_rate: W - learning_rate * G


def of_equal_size(real: Any) -> Any:
    """The Frobenius norm is kept, as in Prop. 2, and not orthonormality."""

    def step(W: torch.Tensor, G: torch.Tensor, *, learning_rate: float) -> torch.Tensor:
        moved = W - learning_rate * G
        return moved * (W.norm() / moved.norm())

    return step


def gaussian_layers(real: Any) -> Any:
    """Entries N(0, 1/fan-in) in the place of orthonormal columns."""

    def net(d: int, width: int, z: int, seed: int, **options: Any) -> MLP:
        return MLP(d, width, z, activation="linear", parametrization="standard", generator=generator(seed)).double()

    return net


def tied_layers(real: Any) -> Any:
    """Orthonormal layers, but no independent ones: W₂ is a part of W₁."""

    def net(d: int, width: int, z: int, seed: int, **options: Any) -> MLP:
        made: MLP = real(d, width, z, seed, **options)
        with torch.no_grad():
            made.output.copy_(made.hidden[0][:, :z])
        return made

    return net


def linear_from_elsewhere(real: Any) -> Any:
    """The linear network starts from other weights than the nonlinear ones."""
    return lambda d, width, z, seed, **options: real(
        d, width, z, seed + 100 * (options["activation"] == "linear"), **options
    )


def twin_of_another_size(real: Any) -> Any:
    """Compared with nine tenths of the linear outputs."""
    return lambda outputs, linear: real(outputs, 0.9 * linear)


def not_rotated(real: Any) -> Any:
    """The identity in the place of the best rotation."""
    return lambda A, B: torch.eye(A.shape[1], dtype=A.dtype)


def unscaled(real: Any) -> Any:
    """The loss as it was."""
    return lambda loss, *weights: loss


def negatives_for_positives(real: Any) -> Any:
    """Attraction and repulsion swapped."""
    return lambda anchor, positives, negatives: real(anchor, negatives, positives)


# claim, where the name is looked up, the name, how it is broken, starts with which the unbroken claim is as recorded
BROKEN: list[tuple[str, Any, str, Break, int | None]] = [
    ("B.ex1", half_moons, "scaled", unscaled, 1),
    ("B.ex1", half_moons, "contrastive_trace_loss", negatives_for_positives, 1),
    ("B.ex1", half_moons, "polar_step", of_equal_size, 1),
    ("B.thm1", nonlinear, "orthogonal_net", gaussian_layers, None),
    ("B.thm1", nonlinear, "orthogonal_net", tied_layers, None),
    ("B.thm1", nonlinearity, "output_gap", twin_of_another_size, None),
    ("B.fig2", nonlinear, "polar_step", without_constraint, 2),
    ("B.fig2", nonlinear, "orthogonal_net", linear_from_elsewhere, 2),
    ("B.fig2", nonlinear, "best_rotation", not_rotated, 2),
]


@pytest.mark.parametrize(
    ("claim_id", "where", "name", "broken", "n_seeds"),
    BROKEN,
    ids=[f"{claim_id}-{broken.__name__}" for claim_id, _, _, broken, _ in BROKEN],
)
def test_a_broken_implementation_changes_the_verdict(
    claim_id: str, where: Any, name: str, broken: Break, n_seeds: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_noticed(claim_id, where, name, broken, monkeypatch, n_seeds=n_seeds)


def test_every_claim_here_is_broken() -> None:
    assert {claim_id for claim_id, *_ in BROKEN} == {claim.id for claim in select(["B.ex1", "B.thm1", "B.fig2"])}


@given(seed=integers(0, 2**16), activation=sampled_from(["tanh", "relu", "linear"]), factor=floats(0.2, 5))
def test_the_loss_of_the_scaled_network_is_the_scaled_loss(seed: int, activation: str, factor: float) -> None:
    net = orthogonal_net(3, 7, 2, seed, activation=activation)
    weights = {name: factor * p + 0.1 * randn(*p.shape, seed=seed) for name, p in parameters_of(net).items()}
    pairs = noisy_pairs(randn(6, 3, seed=seed), seed)
    objective = contrastive_problem(pairs, contrastive_trace_loss).objective
    found = objective(half_moons.scaled_network(net)(weights, pairs.rows))
    wanted = scaled_loss(contrastive_trace_loss(*pairs.split(net.at(weights, pairs.rows))).total, *weights.values())
    assert float(found) == pytest.approx(float(wanted), rel=1e-10, abs=1e-12)


@given(exponent=floats(-2, 1), n_seeds=integers(1, 5), seed=integers(0, 2**16))
def test_the_typical_law_is_that_of_the_geometric_mean(exponent: float, n_seeds: int, seed: int) -> None:
    """Factors that are the same at every width change no exponent, however wild they are."""
    widths = np.array([10.0, 30, 100, 300])
    factors = np.exp(3 * randn(n_seeds, seed=seed).numpy())
    values = xr.DataArray(np.outer(widths**exponent, factors), coords={"width": widths, "seed": np.arange(n_seeds)})
    law = nonlinear.typical_law(values)
    assert law.value == pytest.approx(exponent, abs=1e-9)
    values[1, 0] = math.nan
    assert math.isnan(nonlinear.typical_law(values).value)


def test_training_starts_at_the_net_and_keeps_its_weights_orthonormal() -> None:
    """Outputs of orthonormal weights are no longer than their inputs, at every step."""
    net, pairs = orthogonal_net(3, 20, 2, 0, activation="tanh"), noisy_pairs(randn(10, 3), 0)
    problem, before = contrastive_problem(pairs, contrastive_trace_loss), parameters_of(net)
    outputs = nonlinear.trained_outputs(net, problem, [0, 1, 20])
    assert outputs.shape == (3, 20, 2)
    assert torch.equal(outputs[0], net(pairs.rows).detach())
    assert (outputs.norm(dim=2) <= pairs.rows.norm(dim=1) + 1e-12).all()
    assert all(torch.equal(p, before[name]) for name, p in parameters_of(net).items())  # the net is not changed
    losses = torch.stack([problem.objective(u) for u in outputs])
    assert losses[2] < losses[0]


def test_outputs_that_overflow_are_not_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nonlinear, "polar_step", lambda W, G, *, learning_rate: 1e60 * W)
    problem = contrastive_problem(noisy_pairs(randn(10, 3), 0), contrastive_trace_loss)
    u = nonlinear.trained_outputs(orthogonal_net(3, 8, 2, 0), problem, [0, 1, 20])
    assert torch.isfinite(u[0]).all()
    assert torch.isnan(u[2]).all()
