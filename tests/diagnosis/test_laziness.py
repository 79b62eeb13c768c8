"""Lazy or learning: every number against a slow one, and its zero where the model is linear."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers
from torch import Tensor, nn

from kontrast.diagnosis import collapse, laziness
from kontrast.diagnosis.inputs import has_statistics
from kontrast.diagnosis.subject import Subject
from kontrast.kernels import empirical_ntk_trace
from kontrast.linalg import Estimate, kernel_drift
from tests.cases import randn
from tests.diagnosis.subjects import drawn, mlp, moved, normed, squared_distance, state_of, subject_of
from tests.reference import diagnosis as slow

VIEWS = randn(24, 6, seed=2)


def measured(subject: Subject) -> tuple[dict[str, dict[str, Estimate]], dict[str, str], Any]:
    """The numbers by point and name, why some are missing, and the stored result."""
    seen = [collapse.look(subject, label, state) for label, state in subject.checkpoints]
    result, why = laziness.measure(subject, seen, lambda: None)
    names = [it.name for it in laziness.QUANTITIES if it.name in result]
    points = map(str, result.point.values)
    return {p: {n: Estimate(*map(float, result[n].sel(point=p).values)) for n in names} for p in points}, why, result


def at_the_end(module: nn.Module, start: Any, end: Any, **given: Any) -> dict[str, Estimate]:
    return measured(subject_of(module, start, end, **given))[0]["end"]


# --- a model that is linear in its parameters -----------------------------------------------------------------------


@settings(max_examples=8)
@given(by=floats(0.01, 3), seed=integers(0, 99))
def test_a_linear_model_is_its_own_linearisation(by: float, seed: int) -> None:
    module = drawn(nn.Linear(6, 3), seed)
    found = at_the_end(module, state_of(module), moved(module, by, seed=seed), n_points=24)
    assert found["linearization_error"].value == pytest.approx(0, abs=1e-9)
    assert found["drift"].value == pytest.approx(0, abs=1e-12)
    assert found["largest_change"].value == pytest.approx(0, abs=1e-12)
    assert found["alignment_with_first_kernel"].value == pytest.approx(1, abs=1e-12)
    assert found["explained_share"].value > 0.9  # the kernel is ⟨x, x'⟩ + 1, and the change a linear function


# --- against slow references ----------------------------------------------------------------------------------------


@settings(max_examples=8)
@given(by=floats(0.05, 1), seed=integers(0, 99))
def test_kernels_and_the_linearisation_are_those_computed_slowly(by: float, seed: int) -> None:
    module = mlp(seed=seed)
    start, end = state_of(module), moved(module, by, seed=seed)
    subject = subject_of(module, start, end)
    found = measured(subject)[0]["end"]
    expected = slow.linearization_error(module, start, end, subject.x)
    assert found["linearization_error"].value == pytest.approx(expected, rel=1e-7)
    points = subject.x[:8]
    K, K0 = (empirical_ntk_trace(module, points, parameters=state) for state in (end, start))
    assert torch.allclose(K0, slow.tangent_kernel(module, start, points), rtol=1e-10)
    drift = kernel_drift(K, K0)
    assert found["drift"].value == pytest.approx(drift.relative, rel=1e-9)
    assert found["alignment_with_first_kernel"].value == pytest.approx(drift.alignment, rel=1e-9)
    assert found["largest_change"].value == pytest.approx(drift.largest / float(K0.abs().max()), rel=1e-9)
    change = slow.outputs(module, end, subject.x) - slow.outputs(module, start, subject.x)
    first = slow.outputs(module, start, subject.x)
    assert found["movement"].value == pytest.approx(float(change.norm() / (first - first.mean(0)).norm()), rel=1e-9)


def test_the_explained_share_is_that_of_refits() -> None:
    module = mlp()
    start, end = state_of(module), moved(module, 0.3)
    subject = subject_of(module, start, end, n_points=12)
    change = slow.outputs(module, end, subject.x[:12]) - slow.outputs(module, start, subject.x[:12])
    K0 = slow.tangent_kernel(module, start, subject.x[:12])
    ridges = torch.as_tensor(laziness.RIDGES) * torch.linalg.eigvalsh(K0)[-1]
    found = measured(subject)[0]["end"]["explained_share"]
    assert found.value == pytest.approx(slow.explained_share(K0, change, ridges), rel=1e-6)
    assert found.low < found.value < found.high <= 1


def test_running_statistics_are_a_part_of_the_linearisation() -> None:
    module = normed()
    start, end = state_of(module), moved(module, 0.05)
    end["1.running_mean"] = end["1.running_mean"] + 0.2 * randn(12, seed=3)
    end["1.running_var"] = end["1.running_var"] * (1 + 0.2 * randn(12, seed=6).tanh())
    subject = subject_of(module, start, end, statistics="own")
    expected = slow.linearization_error(module, start, end, subject.x)
    found = measured(subject)[0]["end"]["linearization_error"]
    assert found.value == pytest.approx(expected, rel=0.02)
    without = {**end, **{name: start[name] for name in start if "running" in name}}
    assert slow.linearization_error(module, start, without, subject.x) != pytest.approx(expected, rel=0.1)


def test_movement_of_the_parameters_by_hand() -> None:
    module = mlp()
    start = state_of(module)
    end = {**start, "0.weight": 3 * start["0.weight"], "0.bias": 3 * start["0.bias"]}
    _, _, result = measured(subject_of(module, start, end))
    table = result.parameter_movement.sel(point="end")
    assert table.sel(parameter="0").item() == pytest.approx(2)
    assert table.sel(parameter="2").item() == 0
    start["2.weight"] *= 0
    start["2.bias"] *= 0
    _, _, result = measured(subject_of(module, start, state_of(module)))
    assert result.parameter_movement.sel(point="end", parameter="2").item() == math.inf


# --- projections ----------------------------------------------------------------------------------------------------


def deep(d_out: int) -> nn.Module:
    """Four linear layers; of the last two the sum over outputs is exact, and needs no directions."""
    layers = [layer for _ in range(3) for layer in (nn.Linear(6, 6), nn.Tanh())]
    return drawn(nn.Sequential(*layers, nn.Linear(6, d_out)))


def test_the_interval_of_projected_outputs_holds_the_exact_drift_at_most_seeds() -> None:
    module = deep(40)
    start, end = state_of(module), moved(module, 0.4)
    exact = at_the_end(module, start, end, outputs="all")["drift"].value
    held, far = [], []
    for seed in range(20):
        found = at_the_end(module, start, end, outputs="project:4", seed=seed, views=(VIEWS, VIEWS))["drift"]
        held.append(found.low <= exact <= found.high)
        far.append(found.value / exact - 1)
    assert sum(held) >= 16
    assert 0 < np.std(far) < 0.3
    assert abs(np.mean(far)) < 0.25  # a little too large: the norm of a difference that is drawn


def test_all_directions_are_the_trace_and_two_layers_need_none() -> None:
    module = deep(5)
    start, end = state_of(module), moved(module, 0.4)
    exact, whole, few = (
        at_the_end(module, start, end, outputs=how)["drift"] for how in ("all", "project:5", "project:3")
    )
    assert whole.value == pytest.approx(exact.value, rel=1e-12)
    assert few.value != pytest.approx(exact.value, rel=1e-6)
    assert few.low <= exact.value <= few.high
    module = mlp(d_out=20)
    start, end = state_of(module), moved(module, 0.4)
    exact, few = (at_the_end(module, start, end, outputs=how)["drift"] for how in ("all", "project:2"))
    assert few.value == pytest.approx(exact.value, rel=1e-12)


# --- the loss -------------------------------------------------------------------------------------------------------


def descended(module: nn.Module, pairs: Tensor, loss: Any, rate: float, *, n_steps: int = 1) -> dict[str, Tensor]:
    """The state after full-batch gradient descent on these pairs."""
    state = state_of(module)
    for _ in range(n_steps):
        parameters = {name: p.clone().requires_grad_() for name, p in state.items()}
        value = loss(*torch.func.functional_call(module, parameters, (pairs,)).chunk(2))
        gradients = torch.autograd.grad(value, list(parameters.values()))
        state = {name: p - rate * g for (name, p), g in zip(state.items(), gradients, strict=True)}
    return state


@pytest.mark.parametrize("loss", [None, squared_distance])
def test_a_tiny_step_of_descent_is_one_under_the_first_kernel(loss: Any) -> None:
    module = mlp()
    start = state_of(module)
    subject = subject_of(module, start, moved(module, 0.1), loss=loss)
    pairs, fall = torch.cat(subject.pair), subject.value_of_loss
    for rate, bound in ((1e-5, 1e-4), (1e-4, 1e-3)):
        subject = subject_of(module, start, descended(module, pairs, fall, rate), loss=loss)
        found = measured(subject)[0]["end"]
        assert found["fixed_kernel_error"].value < bound
        assert found["linearization_error"].value < bound
    away = at_the_end(module, start, moved(module, 0.5), loss=loss)
    assert away["fixed_kernel_error"].value > 0.5  # noise is no descent


def test_the_fixed_kernel_pulls_as_the_whole_kernel_does() -> None:
    module = mlp()
    subject = subject_of(module, state_of(module), moved(module, 0.1))
    pairs, c = torch.cat(subject.pair), randn(48, 3, seed=4)
    ground = laziness._Ground(subject, slow.outputs(module, subject.start, subject.x))
    encoder = subject.encoder
    found = ground._pulled(encoder.parameters(subject.start), encoder.buffers(subject.start), c)
    K = slow.full_kernel(module, subject.start, pairs)
    assert torch.allclose(found, (K @ c.flatten()).reshape(48, 3), rtol=1e-9)


class Held(nn.Module):
    """One number w, which the embedding holds in all places: losses are functions of w."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * (1 + x.square())


@pytest.mark.parametrize(
    "of_w, end, expected",
    [
        (lambda w: w, 0.5, 1.0),  # as steep as before
        (lambda w: w.square(), 0.0, None),  # at the minimum
        (lambda w: w.square(), 0.5, (0.5 - 0.25 * laziness.CARRIED_ON) / 0.75),
    ],
)
def test_the_slope_that_is_left(of_w: Any, end: float, expected: float | None) -> None:
    module = Held()

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return of_w((a / (1 + subject.pair[0][: len(a)].square())).mean())

    start = {"w": torch.ones(1, dtype=torch.float64)}
    subject = subject_of(module, start, {"w": torch.full((1,), end, dtype=torch.float64)}, loss=loss)
    found = measured(subject)[0]["end"]["slope_left"].value
    if expected is None:
        assert -laziness.CARRIED_ON <= found <= 0.0  # past the minimum the loss rises again
    else:
        assert found == pytest.approx(expected, rel=1e-9)


def test_a_loss_that_has_not_fallen_has_no_slope_left() -> None:
    module = mlp()
    start, end = state_of(module), moved(module, 0.2)
    worse = {name: 5 * value for name, value in end.items()}
    found, why, _ = measured(subject_of(module, start, worse, loss=squared_distance))
    assert math.isnan(found["end"].get("slope_left", Estimate(math.nan, 0, 0)).value)
    assert why["slope_left"].startswith("the loss has not fallen: ")


# --- the control ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [mlp, normed])
@pytest.mark.parametrize("statistics", ["data", "own", "start"])
def test_the_lazy_control_is_lazy(make: Any, statistics: str) -> None:
    module = make(width=40)
    if statistics != "data" and not has_statistics(module):
        return
    subject = subject_of(module, state_of(module), moved(module, 0.5), control=True, statistics=statistics)
    found = measured(subject)[0]
    control, end = found["control"], found["end"]
    assert 0 < control["movement"].value < 0.05
    assert control["linearization_error"].value < 0.05 < end["linearization_error"].value
    assert control["drift"].value < 0.05 < end["drift"].value
    assert control["fixed_kernel_error"].value < 0.1
    assert control["alignment_with_first_kernel"].value > 0.999


# --- statistics -----------------------------------------------------------------------------------------------------


def test_statistics_change_what_they_should() -> None:
    module = normed()
    start, end = state_of(module), moved(module, 0.3)
    end["1.running_var"] = 9 * end["1.running_var"]
    found = {how: at_the_end(module, start, end, statistics=how) for how in ("data", "own", "start")}
    drifts = {how: it["drift"].value for how, it in found.items()}
    assert len({f"{value:.6f}" for value in drifts.values()}) == 3
    # Those of the start at both ends: the drift does not know what the checkpoint says.
    other = {**end, "1.running_var": 50 * end["1.running_var"]}
    assert at_the_end(module, start, other, statistics="start")["drift"].value == drifts["start"]
    assert at_the_end(module, start, other, statistics="data")["drift"].value == drifts["data"]
    assert at_the_end(module, start, other, statistics="own")["drift"].value != drifts["own"]
    K, K0 = (empirical_ntk_trace(module, subject_of(module, start, end).x[:8], parameters=s) for s in (end, start))
    assert drifts["own"] == pytest.approx(kernel_drift(K, K0).relative, rel=1e-9)


def test_the_same_weights_have_moved_nothing() -> None:
    for make in (mlp, normed):
        module = make()
        found, why, _ = measured(subject_of(module, state_of(module), state_of(module)))
        assert found["end"]["movement"].value == 0
        assert found["end"]["drift"].value == 0
        assert why["linearization_error"] == "the embedding is the same as at the start"


def test_a_start_without_any_spread_is_left_far_behind() -> None:
    module = mlp()
    nothing = {name: 0 * value for name, value in state_of(module).items()}
    assert at_the_end(module, nothing, state_of(module))["movement"].value == math.inf
    assert at_the_end(module, nothing, nothing)["movement"].value == 0


def test_a_loss_without_any_gradient_ends_nothing() -> None:
    module = mlp()
    subject = subject_of(module, state_of(module), moved(module, 0.5), loss=lambda a, b: (a * 0).sum() + 1)
    found, why, _ = measured(subject)
    assert math.isnan(found["end"]["fixed_kernel_error"].value)
    assert "all zero" in why["fixed_kernel_error"]
    assert found["end"]["linearization_error"].value > 0
