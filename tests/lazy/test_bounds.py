"""Paper A's bounds in real trainings: the provable forms hold, the printed ones fail where they must."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, sampled_from
from torch import Tensor

from kontrast.data import Pairs
from kontrast.dynamics import Trajectory, contrastive_problem, gradient_descent
from kontrast.errors import InputError
from kontrast.kernels import empirical_ntk
from kontrast.lazy import (
    Constants,
    constants_of,
    lemma7,
    lemma8,
    lemma11,
    lemma12,
    proposition10,
    theorem13,
)
from kontrast.losses import ContrastiveLoss, Cosine, Linear, Link, LogSoftmax, Softmax
from kontrast.nets import ACTIVATIONS, MLP, parameters_of, pure_function, two_layer_hessian_norm
from tests.cases import randn
from tests.lazy.networks import constants, net, some_pairs

SMOOTH = ["tanh", "sigmoid", "gelu", "softplus", "cosine", "linear"]


def moved(model: MLP, step: Mapping[str, Tensor]) -> MLP:
    other = MLP(model.d_in, model.width, model.d_out, activation=model.activation, dtype=torch.float64)
    other.load_state_dict({name: p + step[name] for name, p in parameters_of(model).items()})
    return other


def trained(
    model: MLP, pairs: Pairs, *, delta: float, rate: float, n_steps: int, link: Link | None = None
) -> Trajectory:
    return gradient_descent(
        pure_function(model),
        parameters_of(model),
        contrastive_problem(pairs, ContrastiveLoss(Cosine(delta), link or Linear())),
        learning_rate=rate,
        n_steps=n_steps,
        record_at=range(n_steps + 1),
        keep_parameters=True,
    )


@given(
    seed=integers(0, 2**16),
    activation=sampled_from(SMOOTH),
    width=sampled_from([1, 8, 64]),
    d=sampled_from([1, 5, 40]),
    radius=floats(0, 5),
    scale=sampled_from([0.1, 1.0, 4.0]),
)
def test_corrected_lemma7_bounds_the_hessian_at_any_distance(
    seed: int, activation: str, width: int, d: int, radius: float, scale: float
) -> None:
    model, pairs = net(d, width, activation=activation, seed=seed), some_pairs(d, seed=seed, scale=scale)
    k = constants_of(model, pairs, learning_rate=0.1)
    step = {name: randn(*p.shape, seed=seed + 7) for name, p in parameters_of(model).items()}
    step["output"][step["output"].abs() < step["output"].abs().max()] = 0  # all of it in one weight, the worst case
    total = sum(float(part.norm()) for part in step.values())
    step = {name: radius / total * part for name, part in step.items()}
    norm = float(two_layer_hessian_norm(moved(model, step), pairs.x).max())
    assert lemma7(k, radius).with_measured(norm).holds


def test_corrected_lemma7_needs_its_radius() -> None:
    """One unit where tanh bends most and W = 0: the curvature is all in how far W moved."""
    model, pairs = one_unit(0.0, math.atanh(1 / math.sqrt(3)), activation="tanh")
    k = constants_of(model, pairs, learning_rate=0.1)
    far = moved(model, {"hidden.0": torch.zeros(1, 1), "output": torch.full((1, 1), 100.0)})
    norm = float(two_layer_hessian_norm(far, pairs.x).max())
    assert 1 <= lemma7(k, 100.0).with_measured(norm).ratio < 1.02


def test_printed_lemma7_is_violated_by_a_linear_net() -> None:
    """β = 0, so nothing is left of the assumptions' constants but c_in: D = 100 makes ‖x‖₂ ten times that."""
    index = torch.arange(1)
    pairs = Pairs(torch.ones(2, 100, dtype=torch.float64), index, index[:, None] + 1, index[:, None])
    model = net(100, 8, activation="linear")
    k = constants_of(model, pairs, learning_rate=0.1)
    norm = float(two_layer_hessian_norm(model, pairs.x).max())
    assert lemma7(k, 0.0, form="printed").with_measured(norm).holds is False
    assert lemma7(k, 0.0).with_measured(norm).ratio == pytest.approx(1.0)


def test_relu_fails_assumption_5_and_has_no_finite_bound() -> None:
    found = lemma7(constants("relu"), 1.0)
    assert found.value == math.inf
    assert "5" in found.failed
    assert lemma7(constants("tanh"), 1.0).failed == ()


@given(seed=integers(0, 2**16), activation=sampled_from(["tanh", "gelu"]), radius=floats(0.01, 2))
@settings(max_examples=12)
def test_lemma8_holds_on_the_chord_for_smooth_nets(seed: int, activation: str, radius: float) -> None:
    model, x = net(4, 12, activation=activation, seed=seed), randn(3, 4, seed=seed)
    step = {name: randn(*p.shape, seed=seed + 1) for name, p in parameters_of(model).items()}
    total = math.sqrt(sum(float(part.square().sum()) for part in step.values()))
    chord = [moved(model, {n: s * radius / total * part for n, part in step.items()}) for s in torch.linspace(0, 1, 33)]
    epsilon = max(float(two_layer_hessian_norm(point, x).max()) for point in chord)
    kernels = [empirical_ntk(point, x) for point in chord]
    c_0 = max(float(torch.einsum("iikk->ik", K).max()) for K in kernels) ** 0.5
    # 33 points of the chord may miss the maximum by a little.
    found = lemma8(1.01 * epsilon, 1.01 * c_0, radius).with_measured(float((kernels[-1] - kernels[0]).abs().max()))
    assert found.holds
    assert found.trivial == pytest.approx(2 * (1.01 * c_0) ** 2)


def test_lemma8_fails_for_relu() -> None:
    """A step that moves one unit across its kink: the gradient jumps however short the step."""
    model = net(1, 1, activation="relu", d_out=1)
    with torch.no_grad():
        model.hidden[0].fill_(-1e-6)
        model.output.fill_(1.0)
    x = torch.ones(1, 1, dtype=torch.float64)
    other = moved(model, {"hidden.0": torch.full((1, 1), 2e-6), "output": torch.zeros(1, 1)})
    epsilon = max(float(two_layer_hessian_norm(point, x).max()) for point in (model, other))
    change = float((empirical_ntk(other, x) - empirical_ntk(model, x)).abs().max())
    found = lemma8(epsilon, 1.0, 2e-6, smooth=False).with_measured(change)
    assert found.holds is False
    assert found.failed == ("5 (smoothness)",)


def one_unit(w: float, v: float, *, activation: str = "linear") -> tuple[MLP, Pairs]:
    """D = Z = M = N = 1 with one positive pair of equal points x = 1, so that a linear net has f = wv at both."""
    model = net(1, 1, activation=activation, d_out=1)
    with torch.no_grad():
        model.hidden[0].fill_(v)
        model.output.fill_(w)
    index = torch.zeros(1, dtype=torch.int64)
    return model, Pairs(torch.ones(1, 1, dtype=torch.float64), index, index[:, None], torch.zeros(1, 0).long())


def test_lemma11_without_the_learning_rate_is_false() -> None:
    delta, rate = 0.01, 100.0
    model, pairs = one_unit(0.1, 0.05)  # |wv| = δ/2, where the loss is steepest
    k = constants_of(model, pairs, learning_rate=rate, delta=delta)
    run = trained(model, pairs, delta=delta, rate=rate, n_steps=1)
    assert run.parameters is not None
    change = float((run.parameters["hidden.0"][1] - run.parameters["hidden.0"][0]).abs().max())
    forms = {
        form: lemma11(k, 0.1, 0.05, form=form)[0].with_measured(change) for form in ("printed", "corrected", "sharp")
    }
    assert forms["printed"].holds is False
    assert forms["corrected"].holds
    assert forms["sharp"].holds
    assert forms["sharp"].ratio == pytest.approx(27 / 4, rel=1e-6)  # the steepest slope is 8/(27δ), the bound has 2/δ


def test_lemma11_forgets_the_value_at_zero() -> None:
    """V = 0 and φ = cos: the printed bound on |ΔW| is 0, with η or without; W moves all the same."""
    model, pairs = net(3, 4, activation="cosine"), some_pairs(3)
    with torch.no_grad():
        model.hidden[0].zero_()
    index = torch.arange(3)  # positives alone, as the pull and the push of equal outputs cancel
    pairs = Pairs(pairs.x, index, index[:, None] + 3, torch.zeros(3, 0).long())
    run = trained(model, pairs, delta=0.5, rate=1.0, n_steps=1)
    k = constants_of(model, pairs, learning_rate=1.0, delta=0.5)
    assert run.parameters is not None
    W = run.parameters["output"]
    change = float((W[1] - W[0]).abs().max())
    max_w = float(W[0].abs().max())
    assert change > 0.01
    assert lemma11(k, max_w, 0.0, form="printed")[1].with_measured(change).holds is False
    assert lemma11(k, max_w, 0.0, form="sharp")[1].with_measured(change).holds


@given(
    seed=integers(0, 2**16),
    activation=sampled_from(["tanh", "relu", "sigmoid", "cosine"]),
    width=sampled_from([2, 16]),
    link=sampled_from([Linear(), Softmax(0.5), LogSoftmax(0.5)]),
    delta=sampled_from([0.01, 0.3, 3.0]),
    rate=sampled_from([0.1, 5.0]),
)
@settings(max_examples=40)
def test_lemmas_11_12_and_13_hold_with_the_learning_rate(
    seed: int, activation: str, width: int, link: Link, delta: float, rate: float
) -> None:
    model, pairs, n_steps = net(3, width, activation=activation, seed=seed), some_pairs(3, seed=seed), 6
    run = trained(model, pairs, delta=delta, rate=rate, n_steps=n_steps, link=link)
    k = constants_of(model, pairs, learning_rate=rate, delta=delta, link=link)
    assert run.parameters is not None
    V, W = run.parameters["hidden.0"], run.parameters["output"]
    kernels = [
        empirical_ntk(model, pairs.x, parameters={name: p[t] for name, p in run.parameters.items()}) for t in run.steps
    ]
    for form in ("corrected", "sharp"):
        for t in range(n_steps):
            on_v, on_w = lemma11(k, float(W[t].abs().max()), float(V[t].abs().max()), form=form)
            assert on_v.with_measured(float((V[t + 1] - V[t]).abs().max())).holds
            assert on_w.with_measured(float((W[t + 1] - W[t]).abs().max())).holds
            change = max(float((p[t + 1] - p[0]).abs().max()) for p in (V, W))
            assert lemma12(k, t + 1, form=form).with_measured(change).holds
            drift = float((kernels[t + 1] - kernels[0]).abs().max())
            if ACTIVATIONS[activation].smooth:
                assert theorem13(k, t + 1, form=form).with_measured(drift).holds


def test_forms_are_ordered_and_start_at_zero() -> None:
    k = constants("sigmoid")
    assert lemma12(k, 0).value == 0
    assert lemma12(k, 5, form="sharp").value < lemma12(k, 5).value
    assert theorem13(k, 5, form="sharp").log10 < theorem13(k, 5).log10
    assert lemma12(k, 3).value == pytest.approx(_unrolled(k, 3), rel=1e-12)


def _unrolled(k: Constants, n_steps: int) -> float:
    """Lemma 12's recursion, step by step."""
    c = k.max_weight
    for _ in range(n_steps):
        on_v, on_w = lemma11(k, c, c)
        slopes = on_v.constants
        beta = max(slopes["β₁"], slopes["β₂"])
        c += (beta * c + slopes["β₃"]) / math.sqrt(k.width)
        assert c >= on_w.value
    return c - k.max_weight


def test_theorem13_as_printed_term_by_term() -> None:
    k, t = constants(delta=5.0), 2
    beta = 4 / 5.0 * k.c_in * 2 * 6  # δ = 5, c_l = 1, Q = 2, D = 6 > √Z
    growth = math.exp(beta * t / 8)
    R = k.max_weight * 8 * (math.sqrt(6) + math.sqrt(2)) * (growth - 1)
    alpha_1 = 4 * k.smoothness * k.c_in**2
    alpha_2 = 4 * k.c_in * (1 + k.smoothness * k.c_in * k.s_0 * k.c_s)
    expected = 2 * math.sqrt(2) * 6 * k.c_in * k.max_weight * growth * (alpha_1 * R**2 + alpha_2 * R) / 8
    assert theorem13(k, t, form="printed").value == pytest.approx(expected, rel=1e-10)


def test_theorem13_overflows_without_raising() -> None:
    found = theorem13(constants(delta=1e-4), 5000)
    assert found.value == math.inf
    assert 308 < found.log10 < math.inf
    assert found.vacuous
    assert "10^" in str(found.with_measured(0.1))
    assert theorem13(constants("relu"), 5).log10 == math.inf


def test_theorem13_sharp_gains_a_sixth_in_the_exponent() -> None:
    """After M^1/6 steps, at fixed largest weight: M^-1/6 as in the paper, and M^-1/3."""
    k = constants(delta=5.0)
    for form, exponent in (("printed", -1 / 6), ("corrected", -1 / 6), ("sharp", -1 / 3)):
        logs = []
        for steps in (1000, 10_000):
            width = steps**6
            wide = replace(k, width=width, scale=width**-0.5)
            logs.append(theorem13(wide, steps, form=form).log10)  # type: ignore[arg-type]
        assert (logs[1] - logs[0]) / 6 == pytest.approx(exponent, abs=0.01)


def test_unknown_forms_are_refused() -> None:
    with pytest.raises(InputError, match="printed, corrected"):
        lemma7(constants(), 1.0, form="sharp")


@pytest.mark.parametrize(
    "call",
    [
        lambda k: lemma7(k, -1.0),
        lambda k: lemma8(-1.0, 1.0, 1.0),
        lambda k: lemma11(k, math.nan, 1.0),
        lambda k: lemma12(k, -1),
        lambda k: theorem13(k, -1),
        lambda k: proposition10(0, 1.0),
    ],
)
def test_what_cannot_be_is_refused(call: Callable[[Constants], object]) -> None:
    with pytest.raises(InputError):
        call(constants("sigmoid"))
