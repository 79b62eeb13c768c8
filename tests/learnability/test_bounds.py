"""Paper D's bounds: the constants are those of the Jacobian itself, and what is proved holds in trainings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, sampled_from
from torch import Tensor
from torch.func import jacrev

from kontrast.dynamics import Problem, gradient_descent
from kontrast.errors import InputError
from kontrast.learnability import (
    JacobianBall,
    LinearizationConstants,
    closed_ball,
    gronwall,
    gronwall_at_new_point,
    jacobian_at,
    linearization_constants,
    required_width,
    taylor_remainder,
    theorem_b2,
    theorem_b3,
)
from kontrast.learnability.bounds import jacobian_on_ball
from kontrast.nets import MLP, Linearized, Parameters, parameters_of, pure_function, slopes_of
from tests.cases import generator, randn

SMOOTH = ["tanh", "erf", "sigmoid", "softplus", "linear"]


def net(width: int, *, d: int = 3, d_out: int = 1, activation: str = "tanh", seed: int = 1, **options: Any) -> MLP:
    options = {"dtype": torch.float64, "parametrization": "standard", **options}
    return MLP(d, width, d_out, activation=activation, generator=generator(seed), **options)


def jacobian(model: MLP, x: Tensor, point: Parameters | None = None) -> Tensor:
    """J as one matrix, by automatic differentiation."""
    rows = jacrev(lambda p: model.at(p, x))(parameters_of(model) if point is None else point)
    n_outputs = len(x) * model.d_out
    return torch.cat([part.reshape(n_outputs, -1) for part in rows.values()], dim=1)


def constants(model: MLP, x: Tensor, y: Tensor, rate: float = 0.1) -> LinearizationConstants:
    return linearization_constants(model, x, y, learning_rate=rate)


def unit_step(model: MLP, radius: float, seed: int) -> Parameters:
    step = {name: randn(*p.shape, seed=seed + k) for k, (name, p) in enumerate(parameters_of(model).items())}
    length = math.sqrt(sum(float(part.pow(2).sum()) for part in step.values()))
    return {name: radius * part / length for name, part in step.items()}


def shifted(model: MLP, step: Parameters) -> Parameters:
    return {name: p + step[name] for name, p in parameters_of(model).items()}


@given(seed=integers(0, 2**16), d_out=sampled_from([1, 2]), activation=sampled_from(SMOOTH))
@settings(max_examples=8)
def test_the_constants_are_those_of_the_jacobian(seed: int, d_out: int, activation: str) -> None:
    model, x, y = net(7, d_out=d_out, activation=activation, seed=seed), randn(4, 3, seed=seed), randn(4, d_out, seed=2)
    J, k = jacobian(model, x), constants(model, x, y)
    spectrum = torch.linalg.eigvalsh(J @ J.mT / 7)
    assert k.norm == pytest.approx(float(J.norm()) / math.sqrt(7))
    assert k.largest_start == pytest.approx(float(spectrum[-1]))
    assert k.smallest_start == pytest.approx(float(spectrum[0]), abs=1e-12)
    assert k.residual == pytest.approx(float((model(x).detach() - y).norm()))


def test_the_limit_is_reached_as_the_width_grows() -> None:
    """Θ is the NNGP kernel, one block for each output; n^-1/2 by chance and 1/n for the first layer's part."""
    x, y = randn(4, 3), randn(4, 2, seed=1)
    errors = [np.mean([constants(net(n, d_out=2, seed=s), x, y).kernel_error for s in range(4)]) for n in (100, 10000)]
    assert errors[1] < 0.15 * errors[0]
    assert errors[1] < 0.1 * constants(net(100, d_out=2), x, y).largest


@given(seed=integers(0, 2**16), d_out=sampled_from([1, 3]), activation=sampled_from(SMOOTH))
@settings(max_examples=6)
def test_the_slope_at_a_point_is_the_largest_over_directions(seed: int, d_out: int, activation: str) -> None:
    """Against the derivative of J by automatic differentiation, as one big matrix."""
    model, x = net(5, d=2, d_out=d_out, activation=activation, seed=seed), randn(3, 2, seed=seed)
    second = jacrev(jacrev(lambda p: model.at(p, x)))(parameters_of(model))
    n_outputs, n_parameters = 3 * d_out, 5 * (2 + d_out)
    sizes = [p.numel() for p in parameters_of(model).values()]
    blocks = [
        torch.cat([part.reshape(n_outputs * sizes[k], -1) for part in row.values()], dim=1)
        for k, row in enumerate(second.values())
    ]
    derivative = torch.cat(blocks)
    assert derivative.shape == (n_outputs * n_parameters, n_parameters)
    largest = float(torch.linalg.matrix_norm(derivative, 2)) / math.sqrt(5)
    assert jacobian_at(model, x).slope == pytest.approx(largest)


@given(seed=integers(0, 2**16), radius=floats(0.01, 3), d_out=sampled_from([1, 2]), activation=sampled_from(SMOOTH))
@settings(max_examples=12)
def test_lemma_b1_holds_on_the_ball(seed: int, radius: float, d_out: int, activation: str) -> None:
    model, x = net(6, d_out=d_out, activation=activation, seed=seed), randn(4, 3, seed=seed)
    ball = jacobian_on_ball(constants(model, x, randn(4, d_out)), radius)
    points = [shifted(model, unit_step(model, radius * share, seed + k)) for k, share in enumerate((1.0, 0.5))]
    first, second = (jacobian(model, x, point) for point in points)
    distance = math.sqrt(sum(float((points[0][n] - points[1][n]).pow(2).sum()) for n in points[0]))
    root = math.sqrt(6)
    assert float(first.norm()) <= ball.norm * root * (1 + 1e-9)
    assert float(torch.linalg.matrix_norm(first, 2)) <= ball.operator_norm * root * (1 + 1e-9)
    assert float((first - second).norm()) <= ball.slope * root * distance * (1 + 1e-9)
    found = jacobian_at(model, x, points)
    assert found.radius == pytest.approx(radius)
    for name in ("norm", "operator_norm", "slope"):
        assert getattr(found, name) <= getattr(ball, name) * (1 + 1e-9)


def test_a_linear_activation_meets_the_proved_slope() -> None:
    """Two equal rows, so that no inequality of the proof loses anything."""
    model = net(4, d=1, activation="linear")
    x = torch.ones(2, 1, dtype=torch.float64)
    ball = jacobian_on_ball(constants(model, x, randn(2, 1)), 0.0)
    assert jacobian_at(model, x).slope == pytest.approx(ball.slope)


@pytest.mark.parametrize("activation", ["tanh", "erf", "sigmoid"])
@pytest.mark.parametrize("share", [0.0, 0.3, 3.0])
def test_lemma_b1_is_nearly_met_at_the_edge_of_the_ball(activation: str, share: float) -> None:
    """One sample where φ'' is largest, and all of the way in the largest output weight: J turns by ω φ'' there."""
    model, x, radius = net(3, d=1, activation=activation), torch.ones(1, 1, dtype=torch.float64), 40.0
    grid = torch.linspace(0, 4, 4001, dtype=torch.float64)
    (V,), W = model.layers()
    with torch.no_grad():
        V.fill_(float(grid[model.activation.second(grid).abs().argmax()]))
        W.copy_(share * radius * torch.tensor([[0.5], [1.0], [-0.2]]))
    ball = jacobian_on_ball(constants(model, x, torch.ones(1, 1, dtype=torch.float64)), radius)
    inner, outer = ({name: p.clone() for name, p in parameters_of(model).items()} for _ in range(2))
    for point, turn in ((inner, 0.0), (outer, 1e-4)):
        (V,), W = model.layers(point)
        V[1] += turn
        W[1] += radius * (1 - 1e-6)
    turned = float((jacobian(model, x, outer) - jacobian(model, x, inner)).norm()) / 1e-4 / math.sqrt(3)
    assert 0.97 * ball.slope < turned <= ball.slope
    found = jacobian_at(model, x, [inner, outer])
    assert found.radius <= radius
    assert 0.97 * ball.slope < found.slope <= ball.slope
    assert found.norm <= ball.norm


def test_the_first_step_of_a_linear_activation_meets_the_taylor_remainder() -> None:
    """f = Σ w_i v_i x with v = w: J is constant in its slope, and the step turns both layers alike."""
    model, x, y = net(4, d=1, activation="linear"), torch.full((1, 1), 1.7).double(), torch.full((1, 1), -2.0).double()
    (V,), W = model.layers()
    with torch.no_grad():
        W.copy_(V)
    k = constants(model, x, y, 0.3)
    run, linear = descent(model, x, y, 0.3, 1), Linearized.of(model)
    point = {name: p[1] for name, p in run.parameters.items()}
    remainder = float((model.at(point, x) - linear(point, x)).norm())
    bound = taylor_remainder(k, jacobian_on_ball(k, 0.0), step=1, form="sharp")
    assert remainder > 1e-3
    assert bound.value == pytest.approx(remainder, rel=1e-9)


def descent(model: MLP, x: Tensor, y: Tensor, rate: float, n_steps: int) -> Any:
    return gradient_descent(
        pure_function(model),
        parameters_of(model),
        Problem(x, lambda f: (f - y).square().sum() / 2, len(x)),
        learning_rate=rate / model.width,
        n_steps=n_steps,
        record_at=range(n_steps + 1),
        keep_outputs=True,
        keep_parameters=True,
    )


@pytest.mark.parametrize(("activation", "share"), [("tanh", 1.0), ("erf", 1.0), ("tanh", 0.3)])
def test_where_all_assumptions_are_met_all_that_is_proved_holds(activation: str, share: float) -> None:
    """Orthogonal rows of length √d and a wide net; the rate is the largest that is allowed, or smaller."""
    x, y = 3.0 * torch.eye(3, 9, dtype=torch.float64), torch.tensor([[1.0], [-1.0], [1.0]], dtype=torch.float64)
    model = net(3000, d=9, activation=activation)
    first = constants(model, x, y)
    rate = share * 2 / (first.smallest_start + first.largest_start)
    k = constants(model, x, y, rate)
    ball = closed_ball(k)
    gap = theorem_b3(k, ball, form="sharp")
    assert gap.failed == ()
    assert gap.vacuous is False
    run = descent(model, x, y, rate, 40)
    linear = Linearized.of(model)
    twin = gradient_descent(
        linear,
        linear.origin,
        Problem(x, lambda f: (f - y).square().sum() / 2, 3),
        learning_rate=rate / 3000,
        n_steps=40,
        record_at=range(41),
        keep_outputs=True,
    )
    points = [{name: p[t] for name, p in run.parameters.items()} for t in range(41)]
    J_0, path = jacobian(model, x), 0.0
    for t, point in enumerate(points):
        before = points[max(t - 1, 0)]
        path += math.sqrt(sum(float((p - before[name]).pow(2).sum()) for name, p in point.items()))
        residual, length, drift = theorem_b2(k, ball, step=t, form="sharp")
        J = jacobian(model, x, point)
        remainder = float((model.at(point, x) - linear(point, x)).norm())
        assert residual.with_measured(float((run.outputs[t] - y).norm()) * (1 - 1e-9) - 1e-13).holds
        assert length.with_measured(path).holds
        assert drift.with_measured(float((J @ J.mT - J_0 @ J_0.mT).norm()) / 3000).holds
        assert remainder <= taylor_remainder(k, ball, step=t, form="sharp").value + 1e-12
        assert gap.with_measured(float((run.outputs[t] - twin.outputs[t]).norm())).holds


def test_the_printed_forms_are_the_formulas_of_the_paper() -> None:
    k = replace(some_constants(), smallest=0.5, residual=2.0, width=400, learning_rate=0.6)
    ball = JacobianBall(1.0, norm=1.5, operator_norm=1.2, slope=1.1, proved=True)
    residual, path, drift = theorem_b2(k, ball, step=3)
    q, K = 0.9, 1.5
    assert residual.value == pytest.approx(q**3 * 2)  # (57)
    assert path.value == pytest.approx(0.6 * K * 2 / 20 * (1 + q + q**2))  # (58), its sum
    assert theorem_b2(k, ball)[1].value == pytest.approx(3 * K * 2 / 0.5 / 20)  # and its limit
    assert drift.value == pytest.approx(6 * K**3 * 2 / 0.5 / 20)  # (59)
    changes = [3 * 0.6 * K**3 * 4 / 0.5 * q**t / 20 for t in range(3)]  # (110)
    assert taylor_remainder(k, ball, step=3).value == pytest.approx(sum(changes))
    assert theorem_b3(k, ball).value == pytest.approx(18 * K**3 * 4 / 0.25 / 20)
    assert required_width(k, ball) == pytest.approx((18 * K**3 * 2 / 0.25) ** 2)  # (91)


def some_constants() -> LinearizationConstants:
    return constants(net(50), randn(4, 3), randn(4, 1, seed=1))


def test_the_sharp_width_is_where_the_induction_closes() -> None:
    """1 − η_0λ_0 + 2η_0‖J‖K_2 r = 1 − η_0λ_0/3 there, with the reach r of (58)."""
    k, ball = some_constants(), JacobianBall(1.0, 1.5, 1.2, 0.3, proved=True)
    n = required_width(k, ball, form="sharp")
    slope = ball.slope * math.sqrt(k.width / n)  # at that width
    reach = 3 * ball.operator_norm * k.residual / (k.smallest_start * math.sqrt(n))
    assert 2 * ball.operator_norm * slope * reach == pytest.approx(2 / 3 * k.smallest_start)


@given(decay=floats(0.1, 2), share=floats(0.01, 0.95), residual=floats(0.1, 5))
@settings(max_examples=15)
def test_gronwall_bounds_the_worst_flow_there_is(decay: float, share: float, residual: float) -> None:
    """One sample with Θ̂_t = λ_0 − σ from the start on: sharp is exact, printed is above, both below their suprema."""
    k = replace(some_constants(), smallest_start=decay, residual=residual, learning_rate=0.7)
    drift = share * decay
    for time in (0.1, 1.0, 3.0, 20.0):
        tau = 0.7 * time
        gap = residual * (math.exp(-(decay - drift) * tau) - math.exp(-decay * tau))
        sharp, printed = (gronwall(k, drift, time=time, form=form) for form in ("sharp", "printed"))
        assert sharp.value == pytest.approx(gap, rel=1e-9)
        assert printed.value >= sharp.value * (1 - 1e-9)
        assert sharp.value <= gronwall(k, drift, form="sharp").value * (1 + 1e-9)
        assert printed.value <= gronwall(k, drift).value * (1 + 1e-9)
    times = np.linspace(0, 60 / decay, 20001) / 0.7
    for form in ("sharp", "printed"):
        best = max(gronwall(k, drift, time=float(t), form=form).value for t in times[::400])
        assert best <= gronwall(k, drift, form=form).value * (1 + 1e-9)  # type: ignore[arg-type]
    assert gronwall(k, drift, form="printed").value == pytest.approx(residual * share / (math.e * (1 - share)))


def test_gronwall_says_nothing_once_the_drift_reaches_the_smallest_eigenvalue() -> None:
    k = some_constants()
    assert gronwall(k, 0.0).value == 0
    beyond = gronwall(k, 1.01 * k.smallest_start)
    assert beyond.value == math.inf
    assert beyond.vacuous
    assert beyond.failed == ("σ < λ_0",)
    assert gronwall(k, k.smallest_start, form="sharp").value == pytest.approx(k.residual)


@given(decay=floats(0.1, 2), share=floats(0.01, 0.9), cross=floats(0, 3), cross_drift=floats(0, 1))
@settings(max_examples=10)
def test_at_a_new_point_the_bound_is_met_by_a_constant_drift(
    decay: float, share: float, cross: float, cross_drift: float
) -> None:
    """One sample: g' = −(λ_0 − σ)g, f(x)' = −(c + s)g; g_lin' = −λ_0 g_lin, f_lin(x)' = −c g_lin, at t = ∞."""
    k, drift = replace(some_constants(), smallest_start=decay, residual=1.0), share * decay
    exact = (cross + cross_drift) / (decay - drift) - cross / decay
    found = gronwall_at_new_point(k, drift, cross_norm=cross, cross_drift=cross_drift)
    assert found.value == pytest.approx(exact, abs=1e-12)


def test_the_closed_ball_is_the_smallest_that_closes() -> None:
    x = 3.0 * torch.eye(3, 9, dtype=torch.float64)
    k = constants(net(3000, d=9), x, torch.ones(3, 1, dtype=torch.float64))
    ball = closed_ball(k)

    def reach(radius: float) -> float:
        norm = jacobian_on_ball(k, radius).operator_norm
        return 3 * norm * k.residual / (k.smallest_start * math.sqrt(3000))

    assert reach(ball.radius) == pytest.approx(ball.radius)
    for share in (0.3, 0.7, 0.95):
        assert reach(share * ball.radius) > share * ball.radius
    assert closed_ball(constants(net(30, d=9), x, torch.ones(3, 1, dtype=torch.float64))).radius == math.inf


def test_a_kink_has_no_slope_and_every_bound_says_so() -> None:
    x, y = randn(4, 3), randn(4, 1, seed=1)
    k = constants(net(64, activation="relu"), x, y)
    assert slopes_of("relu")[1] == math.inf
    ball = closed_ball(k)
    assert not math.isfinite(ball.K)
    bound = theorem_b3(k, ball, form="sharp")
    assert bound.value == math.inf
    assert "(62)" in bound.failed


def test_a_rate_above_the_critical_one_is_told() -> None:
    x, y = randn(4, 3), randn(4, 1, seed=1)
    model = net(64)
    k = constants(model, x, y)
    for form in ("printed", "sharp"):
        least, most = (k.smallest, k.largest) if form == "printed" else (k.smallest_start, k.largest_start)
        for factor, fails in ((0.99, False), (1.01, True)):
            fast = constants(model, x, y, factor * 2 / (least + most))
            failed = theorem_b2(fast, jacobian_at(model, x), form=form)[0].failed  # type: ignore[arg-type]
            assert ("learning rate" in failed) is fails
            assert "Lemma B.1" in failed  # found at points, not proved


def test_79_asks_for_a_third_of_the_smallest_eigenvalue() -> None:
    ball = JacobianBall(1.0, 1.5, 1.2, 0.3, proved=True)
    for share, fails in ((0.99, False), (1.01, True), (8.9, True)):
        k = replace(some_constants(), smallest=0.6, kernel_error=share * 0.2)
        assert ("(79)" in theorem_b2(k, ball)[0].failed) is fails
        assert "(79)" not in [assumption.name for assumption in theorem_b2(k, ball, form="sharp")[0].assumptions]


def test_nothing_decays_at_a_rate_far_too_large() -> None:
    k, ball = replace(some_constants(), learning_rate=1e4), JacobianBall(1, 1, 1, 1, proved=True)
    for form in ("printed", "sharp"):
        residual, path, _ = theorem_b2(k, ball, step=3, form=form)  # type: ignore[arg-type]
        assert residual.value == path.value == math.inf
    assert theorem_b3(k, ball, form="sharp").value == math.inf


def test_equal_rows_have_no_full_rank() -> None:
    x = randn(3, 3)
    x[2] = x[0]
    k = constants(net(64), x, randn(3, 1, seed=1))
    for form in ("printed", "sharp"):
        assert "2 (full rank)" in theorem_b2(k, jacobian_on_ball(k, 0.0), form=form)[0].failed  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_number_types_give_the_same(dtype: torch.dtype) -> None:
    x, y = randn(4, 3), randn(4, 1, seed=1)
    found = constants(net(32, dtype=dtype), x.to(dtype), y.to(dtype))
    wanted = constants(net(32), x, y)
    for name in ("residual", "largest", "largest_start", "norm", "input_norm", "kernel_error"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-4)


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: constants(net(8, parametrization="ntk"), randn(4, 3), randn(4, 1)), "standard"),
    (lambda: constants(net(8, depth=2), randn(4, 3), randn(4, 1)), "depth=1"),
    (lambda: constants(torch.nn.Linear(3, 1), randn(4, 3), randn(4, 1)), "Linear"),  # type: ignore[arg-type]
    (lambda: constants(net(8), randn(4, 3), randn(3, 1)), "targets"),
    (lambda: constants(net(8), randn(4, 3), randn(4)), "targets"),
    (lambda: constants(net(8), randn(4, 3), randn(4, 1).numpy()), "targets"),  # type: ignore[arg-type]
    (lambda: constants(net(8), randn(4, 3), torch.zeros(4, 1, dtype=torch.long)), "targets"),
    (lambda: constants(net(8), randn(4, 3).numpy(), randn(4, 1)), "x must be a tensor of floating-point numbers"),  # type: ignore[arg-type]
    (lambda: constants(net(8), randn(4, 3) * math.nan, randn(4, 1)), "NaN"),
    (lambda: constants(net(8), randn(4, 3), randn(4, 1) * math.nan), "NaN"),
    (lambda: constants(net(8), randn(4, 3), randn(4, 1), -0.1), "learning_rate"),
    (lambda: jacobian_on_ball(some_constants(), -1.0), "radius"),
    (lambda: jacobian_at(net(8), randn(4, 5)), "rows"),
    (lambda: jacobian_at(net(8), randn(4, 3), [{"a": randn(1)}]), "parameters"),
    (lambda: theorem_b2(some_constants(), JacobianBall(1, 1, 1, 1, proved=True), step=-1), "step"),
    (lambda: theorem_b2(some_constants(), JacobianBall(1, 1, 1, 1, proved=True), step=1.5), "step"),
    (lambda: theorem_b2(some_constants(), JacobianBall(1, 1, 1, 1, proved=True), step=math.nan), "step"),
    (lambda: theorem_b3(some_constants(), JacobianBall(1, 1, 1, 1, proved=True), form="best"), "form"),  # type: ignore[arg-type]
    (lambda: closed_ball(some_constants(), form="corrected"), "form"),
    (lambda: gronwall(some_constants(), -1.0), "drift"),
    (lambda: gronwall(some_constants(), 0.1, time=-1.0), "time"),
    (lambda: gronwall_at_new_point(some_constants(), 0.1, cross_norm=-1.0, cross_drift=0.0), "cross_norm"),
]


@pytest.mark.parametrize(("call", "text"), BAD)
def test_bad_input_is_refused(call: Callable[[], object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        call()
