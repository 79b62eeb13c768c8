from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis.strategies import floats, integers, sampled_from
from scipy.sparse import csr_matrix

from kontrast.deep_linear import DeepLinearFlow, deep_linear_descent, deep_linear_flow, flow_law, train_deep_linear
from kontrast.dynamics import Problem, Status, gradient_descent
from kontrast.errors import InputError
from kontrast.linalg import fit_power_law, orthonormality_error, qr_retraction, random_frame
from kontrast.nets import MLP, parameters_of
from tests.cases import generator, randn
from tests.reference import deep_linear as reference

Tensor = torch.Tensor
FLOWS = ["grassmann", "polar", "oja"]
KINDS = ["mixed", "repeated", "zeros", "positive", "negative", "nothing"]
CASE = {
    "seed": integers(0, 2**16),
    "d": integers(1, 6),
    "z": integers(1, 3),
    "depth": integers(1, 4),
    "kind": sampled_from(KINDS),
    "flow": sampled_from(FLOWS),
}
FRAME = torch.tensor([[1, 1, 1], [1, -1, 1], [1, 1, -1], [1, -1, -1]], dtype=torch.float64) / 2  # orthonormal exactly


def spectrum(d: int, kind: str, seed: int) -> Tensor:
    """Eigenvalues of size 1 at most, ascending."""
    drawn = 2 * torch.rand(d, generator=generator(seed), dtype=torch.float64) - 1
    changed = {
        "mixed": drawn,
        "repeated": torch.where(drawn < 0, -0.7, 0.4).double(),
        "zeros": torch.where(drawn.abs() < 0.5, 0.0, drawn),
        "positive": drawn.abs() + 0.01,
        "negative": -drawn.abs() - 0.01,
        "nothing": torch.zeros(d, dtype=torch.float64),
    }
    return changed[kind].sort().values


def rotation(d: int, seed: int) -> Tensor:
    return random_frame(d, d, generator=generator(seed))


def matrix(values: Tensor, seed: int) -> Tensor:
    V = rotation(len(values), seed)
    C = V @ torch.diag(values) @ V.mT
    return (C + C.mT) / 2


def layers(d: int, z: int, depth: int, width: int, seed: int) -> list[np.ndarray]:
    sizes = [(width, d), *[(width, width)] * (depth - 1), (width, z)]
    return [random_frame(*size, generator=generator(seed + i)).numpy() for i, size in enumerate(sizes)]


def map_of(weights: Sequence[np.ndarray]) -> Tensor:
    """(d, z) of u(x) = W_l^T W_{l−1} … W_1 x."""
    *hidden, output = map(torch.from_numpy, weights)
    u = output.mT
    for W in reversed(hidden):
        u = u @ W
    return u.mT.contiguous()


def start_of(d: int, z: int, seed: int, *, width: int | None = None) -> Tensor:
    return map_of(layers(d, z, 1, d + z if width is None else width, seed))


def projectors(q: Tensor) -> Tensor:
    """What a rotation of the outputs does not change."""
    return q @ q.mT


def linear_net(d: int = 6, width: int = 12, z: int = 2, *, depth: int = 1, seed: int = 3, **options: object) -> MLP:
    given = {"activation": "linear", "parametrization": "orthogonal", "dtype": torch.float64, **options}
    return MLP(d, width, z, depth=depth, generator=generator(seed), **given)


# The laws


@settings(max_examples=10)
@given(**CASE, extra=integers(0, 3), scale=sampled_from([1e-6, 1.0, 1e6]))
def test_outputs_follow_the_flow_of_the_weights(
    seed: int, d: int, z: int, depth: int, kind: str, flow: str, extra: int, scale: float
) -> None:
    """Theorem 2 and its two siblings, for every width from the narrowest on, where singular values are 1."""
    z = min(z, d)
    C = matrix(spectrum(d, kind, seed), seed) * scale
    weights = layers(d, z, depth, d + extra, seed + 1)
    times = [0.0, 0.1 / scale, 0.6 / scale]
    flowed = deep_linear_flow(C, map_of(weights), times=times, flow=flow, depth=depth, method="dop853")
    expected = reference.weight_flow(weights, C.numpy(), times, flow)
    np.testing.assert_allclose(flowed.maps.numpy(), expected, rtol=0, atol=1e-8)


def best_method(flow: str) -> str:
    """The exact solution of Oja's flow for any number of outputs; of the others what there is."""
    return "exact" if flow == "oja" else "auto"


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_every_depth_has_its_law(flow: str, depth: int) -> None:
    C, weights, times = matrix(spectrum(4, "mixed", 3), 3), layers(4, 2, depth, 7, 3), [0.0, 0.3, 0.6]
    flowed = deep_linear_flow(C, map_of(weights), times=times, flow=flow, depth=depth, method="dop853")
    np.testing.assert_allclose(
        flowed.maps.numpy(), reference.weight_flow(weights, C.numpy(), times, flow), rtol=0, atol=1e-8
    )


def test_the_laws_by_name() -> None:
    laws = {(flow, depth): flow_law(flow, depth=depth) for flow in FLOWS for depth in (1, 4)}
    assert {key: (law.beta, law.gamma) for key, law in laws.items()} == {
        ("grassmann", 1): (2, 2),
        ("grassmann", 4): (2, 2),
        ("polar", 1): (3, 1),
        ("polar", 4): (6, 1),
        ("oja", 1): (4, 0),
        ("oja", 4): (10, 0),
    }


# Exact solutions


@settings(max_examples=8)
@given(**CASE, scale=sampled_from([1e-6, 1.0, 1e6]))
def test_exact_solutions_agree_with_the_equation(
    seed: int, d: int, z: int, depth: int, kind: str, flow: str, scale: float
) -> None:
    z = min(z, d) if flow == "oja" else 1
    values, law = spectrum(d, kind, seed), flow_law(flow, depth=depth)
    start, times = start_of(d, z, seed + 1), np.array([0.0, 1e-12, 0.1, 0.3, 4 / law.alpha])
    exact = deep_linear_flow(
        torch.diag(values) * scale, start, times=times / scale, flow=flow, depth=depth, method="exact"
    )
    expected = reference.output_flow(values.numpy(), start.numpy(), times, beta=law.beta, gamma=law.gamma)
    torch.testing.assert_close(projectors(exact.q), projectors(torch.from_numpy(expected)), rtol=0, atol=1e-8)
    if z == 1:  # its sign too
        np.testing.assert_allclose(exact.q.numpy(), expected, rtol=0, atol=1e-8)


@settings(max_examples=15)
@given(
    seed=integers(0, 2**16),
    z=integers(1, 3),
    kind=sampled_from(KINDS),
    missing=integers(0, 2),
    tiny=sampled_from([0.0, 1e-100, 1e-20, 1e-9]),
    time=sampled_from([1e-9, 0.3, 20.0, 300.0]),
)
@example(seed=48289, z=2, kind="negative", missing=2, tiny=1e-100, time=300.0)  # columns as far apart as the rows
@example(seed=2, z=2, kind="mixed", missing=2, tiny=1e-100, time=20.0)  # wrong by 1 unless the largest rows come first
def test_oja_with_hundreds_of_digits(seed: int, z: int, kind: str, missing: int, tiny: float, time: float) -> None:
    """Starts on which the fastest directions hardly appear, or not at all, at short and at long times, in parts."""
    values, start = spectrum(4, kind, seed), start_of(4, z, seed)
    start[:missing] *= tiny
    flowed = deep_linear_flow(torch.diag(values), start, times=[time / 7, time / 2, time], flow="oja", method="exact")
    expected = reference.oja_projector(values.numpy(), start.numpy(), time, beta=4)
    np.testing.assert_allclose(projectors(flowed.q[-1]).numpy(), expected, rtol=0, atol=1e-11)


def test_oja_goes_on_where_the_fastest_directions_are_missing() -> None:
    """Beside e^{−βλ₁t} of a row of zeros all others underflow in one long step; the limit is v₃, negative and alone."""
    C, start = torch.diag(torch.tensor([-1.0, -0.4, -0.1, 0.3, 0.8], dtype=torch.float64)), start_of(5, 2, 0)
    start[:2] = 0
    q = deep_linear_flow(C, start, times=[10.0, 200.0, 5000.0], flow="oja", method="exact").q
    expected = reference.oja_projector(C.diagonal().numpy(), start.numpy(), 10.0, beta=4)
    np.testing.assert_allclose(projectors(q[0]).numpy(), expected, rtol=0, atol=1e-11)
    limit = torch.diag(torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(projectors(q[1:]), limit.expand(2, 5, 5), rtol=0, atol=1e-11)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_rotation_of_exact_oja_tends_to_the_true_one_at_second_order(seed: int) -> None:
    """Three outputs, as rotations of two commute."""
    C, start = matrix(spectrum(5, "mixed", seed), seed), start_of(5, 3, seed)
    errors, n_times = [], [25, 50, 100]
    for n in n_times:
        options = {"times": np.linspace(0, 3, n + 1), "flow": "oja"}
        exact, true = (deep_linear_flow(C, start, method=method, **options).q for method in ("exact", "dop853"))
        errors.append(float((exact - true).abs().max()))
    assert errors[1] < 3e-4
    assert fit_power_law(n_times, errors).exponent == pytest.approx(-2, abs=0.05)


@settings(max_examples=10)
@given(
    seed=integers(0, 2**16),
    z=integers(1, 3),
    kind=sampled_from(KINDS),
    flow=sampled_from(FLOWS),
    time=sampled_from([1e-6, 1.0, 40.0]),
    method=sampled_from(["auto", "dop853"]),
)
def test_a_frame_stays_a_frame_and_all_flows_are_ojas(
    seed: int, z: int, kind: str, flow: str, time: float, method: str
) -> None:
    """h = d: q^T q = I for ever, also where C is positive and every smaller singular value would shrink to 0."""
    values, start = spectrum(4, kind, seed), FRAME[:, :z].contiguous()
    q = deep_linear_flow(
        torch.diag(values),
        start,
        times=[time / 3, time],
        flow=flow,
        method=best_method(flow) if method == "auto" else method,
    ).q[-1]
    assert orthonormality_error(q) < 1e-9
    expected = reference.oja_projector(values.numpy(), start.numpy(), time, beta=flow_law(flow).beta)
    np.testing.assert_allclose(projectors(q).numpy(), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("z", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_singular_values_of_one_are_seen_through_rounding(flow: str, z: int, dtype: torch.dtype) -> None:
    d = 100
    start = random_frame(d, z, generator=generator(5)).to(dtype)
    C = matrix(torch.linspace(1, 2, d, dtype=torch.float64), seed=6)
    flowed = deep_linear_flow(C, start, times=[20.0], flow=flow, method=best_method(flow))
    assert orthonormality_error(flowed.q[-1]) < 1e-9
    assert float(flowed.losses[-1]) >= z


@settings(max_examples=3)
@given(seed=integers(0, 2**16), flow=sampled_from(FLOWS), z=integers(1, 2), exponent=integers(1, 30))
def test_tiny_starts_grow_exactly(seed: int, flow: str, z: int, exponent: int) -> None:
    """A start of size s reaches at time t what one of size 1e-3 reaches later by log(1e-3/s)/α|λ|: the law is linear
    down there, to 1e-6 of itself."""
    small, law = 10.0**-exponent * 1e-3, flow_law(flow)
    C, start = -torch.eye(3, dtype=torch.float64), start_of(3, z, seed)
    late = [(9.0 + exponent * math.log(10)) / law.alpha]
    one = deep_linear_flow(C, small * start, times=late, flow=flow, method=best_method(flow)).q[-1]
    two = deep_linear_flow(C, 1e-3 * start, times=[9.0 / law.alpha], flow=flow).q[-1]
    assert float(one.norm()) > 0.1
    torch.testing.assert_close(projectors(one), projectors(two), rtol=0, atol=1e-5)
    by_steps = deep_linear_flow(C, small * start, times=late, flow=flow, method="dop853").q[-1]
    torch.testing.assert_close(projectors(one), projectors(by_steps), rtol=0, atol=1e-8)


@pytest.mark.parametrize("flow", FLOWS)
def test_the_smallest_numbers_are_no_zeros(flow: str) -> None:
    """|q|² of a start of 1e-200 underflows; q does not."""
    start = 1e-200 * torch.ones(2, 1, dtype=torch.float64)
    C = torch.diag(torch.tensor([-1.0, 1.0], dtype=torch.float64))
    q = deep_linear_flow(C, start, times=[1.0, 1e3], flow=flow, method=best_method(flow)).q
    grown = 1e-200 * math.exp(flow_law(flow).alpha)
    assert float(q[0, 0]) == pytest.approx(grown, rel=1e-9)
    assert q[1, :, 0].tolist() == pytest.approx([1.0, 0.0], abs=1e-12)


@settings(max_examples=10)
@given(**CASE, scale=sampled_from([1e-6, 1.0, 1e6]), width=integers(0, 3))
def test_exact_solutions_at_very_long_times(
    seed: int, d: int, z: int, depth: int, kind: str, flow: str, scale: float, width: int
) -> None:
    z = min(z, d) if flow == "oja" else 1
    values = spectrum(d, kind, seed)
    times = [1e2 / scale, 1e4 / scale, 1e6 / scale] if z == 1 else [1e2 / scale, 1e4 / scale]
    flowed = deep_linear_flow(
        matrix(values, seed) * scale,
        start_of(d, z, seed, width=d + width),
        times=times,
        flow=flow,
        depth=depth,
        method="exact",
    )
    assert torch.isfinite(flowed.q).all()
    assert float(torch.linalg.matrix_norm(flowed.q, 2).max()) <= 1 + 1e-12
    assert (flowed.losses.diff() <= 1e-12 * scale).all()
    if flow == "oja" and z > 1 and values[0] < -0.1 and values[1:].min() - values[0] > 0.1:
        assert float(flowed.projections(1)[-1]) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("z", [1, 2])
def test_long_times_do_not_wear_down_what_has_converged(flow: str, z: int) -> None:
    """Equal eigenvalues keep their shares for ever, to rounding: no e^{−λτ} of millions is formed."""
    C = torch.diag(torch.tensor([-1.0, -1.0, 0.0, 1.0], dtype=torch.float64))
    first, last = (1e2, 1e6) if z == 1 or flow == "oja" else (40, 100)
    q = deep_linear_flow(C, start_of(4, z, 1), times=[first, last], flow=flow, method=best_method(flow)).q
    torch.testing.assert_close(projectors(q[1]), projectors(q[0]), rtol=0, atol=1e-11)


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("method", ["auto", "dop853"])
@pytest.mark.parametrize("z", [1, 2])
def test_time_zero_zero_starts_and_no_data_stay(flow: str, method: str, z: int) -> None:
    C, start = matrix(spectrum(4, "mixed", 0), 0), start_of(4, z, 0)
    options = {"flow": flow, "method": method}
    torch.testing.assert_close(deep_linear_flow(C, start, times=[0.0], **options).maps[0], start)
    still = deep_linear_flow(torch.zeros_like(C), start, times=[0, 1, 1e9], **options)
    torch.testing.assert_close(still.maps, start.expand(3, 4, z))
    assert not deep_linear_flow(C, 0 * start, times=[0, 1, 30], **options).q.any()


def test_one_number_is_a_logistic_curve() -> None:
    """d = z = 1, (8): q' = −4λq(1 − q²), so that q² is logistic in 8|λ|t."""
    times = np.array([0.0, 0.1, 1.0, 3.0])
    for value in (-0.5, 0.5):
        C = torch.tensor([[value]], dtype=torch.float64)
        for method in ("exact", "dop853"):
            q = deep_linear_flow(C, torch.tensor([[-0.3]], dtype=torch.float64), times=times, method=method).q[:, 0, 0]
            odds = 0.09 / 0.91 * np.exp(-8 * value * times)
            np.testing.assert_allclose(q.numpy(), -np.sqrt(odds / (1 + odds)), rtol=0, atol=1e-9)


# Laws of the flow


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("z", [1, 2])
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_only_the_product_of_data_and_time_matters(flow: str, z: int, scale: float) -> None:
    C, start, times = matrix(spectrum(5, "mixed", 2), 2), start_of(5, z, 2), np.array([0.1, 1.0, 5.0])
    one, two = (deep_linear_flow(C * s, start, times=times / s, flow=flow).q for s in (1.0, scale))
    torch.testing.assert_close(projectors(two), projectors(one), rtol=0, atol=1e-9)


@settings(max_examples=6)
@given(**CASE, split=floats(0.01, 0.99))
def test_to_one_time_and_on_is_to_the_sum(
    seed: int, d: int, z: int, depth: int, kind: str, flow: str, split: float
) -> None:
    z = min(z, d)
    C, options = matrix(spectrum(d, kind, seed), seed), {"flow": flow, "depth": depth}
    whole = deep_linear_flow(C, start_of(d, z, seed), times=[split, 1.0], **options)
    rest = deep_linear_flow(C, whole.maps[0], times=[1 - split], **options)
    torch.testing.assert_close(projectors(rest.maps[0]), projectors(whole.maps[1]), rtol=0, atol=1e-8)


@settings(max_examples=6)
@given(**CASE)
def test_rotations_of_data_and_outputs_pass_through(
    seed: int, d: int, z: int, depth: int, kind: str, flow: str
) -> None:
    z = min(z, d)
    C, start = matrix(spectrum(d, kind, seed), seed), start_of(d, z, seed)
    turn, R = rotation(d, seed + 1), rotation(z, seed + 2)
    options = {"times": [0.2, 1.0], "flow": flow, "depth": depth}
    plain = deep_linear_flow(C, start, **options).maps
    rotated = deep_linear_flow(turn @ C @ turn.mT, turn @ start @ R, **options).maps
    torch.testing.assert_close(rotated, turn @ plain @ R, rtol=0, atol=1e-8)


@settings(max_examples=6)
@given(**CASE, extra=integers(0, 3))
def test_singular_values_stay_below_one_and_the_loss_never_rises(
    seed: int, d: int, z: int, depth: int, kind: str, flow: str, extra: int
) -> None:
    z = min(z, d)
    flowed = deep_linear_flow(
        matrix(spectrum(d, kind, seed), seed),
        start_of(d, z, seed, width=d + extra),
        times=[0, 0.01, 0.1, 0.5, 1, 3, 10],
        flow=flow,
        depth=depth,
    )
    assert float(torch.linalg.matrix_norm(flowed.q, 2).max()) <= 1 + 1e-9
    assert (flowed.losses.diff() <= 1e-9).all()


@settings(max_examples=6)
@given(
    seed=integers(0, 2**16),
    z=integers(1, 3),
    n_negative=integers(0, 5),
    extra=integers(0, 3),
    flow=sampled_from(FLOWS),
    depth=integers(1, 2),
)
def test_the_limit_is_the_most_negative_eigenspace(
    seed: int, z: int, n_negative: int, extra: int, flow: str, depth: int
) -> None:
    """Theorem 3, Conjecture 2. Of z outputs z − (h − d) can never vanish in a net of width h, whatever C is."""
    values = torch.linspace(-1, 1, 5, dtype=torch.float64).abs().add(0.2).cumsum(0)
    values = values - values[n_negative - 1] - 0.2 if n_negative else values
    C = matrix(values, seed)
    flowed = deep_linear_flow(C, start_of(5, z, seed, width=5 + extra), times=[120.0], flow=flow, depth=depth)
    kept = max(min(z, n_negative), z - extra)
    assert float(flowed.losses[-1]) == pytest.approx(float(flowed.eigenvalues[:kept].sum()), abs=1e-6)
    if kept == z:
        assert (1 - flowed.projections(z)[-1] < 1e-6).all()
    if extra >= z:
        assert float(flowed.losses[-1]) == pytest.approx(reference.best_loss(values.numpy(), z), abs=1e-6)


# The result


def test_maps_losses_outputs_and_projections_belong_together() -> None:
    C, start, x = matrix(spectrum(5, "mixed", 2), 2), start_of(5, 2, 2), randn(7, 5, seed=9)
    flowed = deep_linear_flow(C, start, times=[0.0, 0.7], flow="polar")
    assert flowed.times == (0.0, 0.7)
    torch.testing.assert_close(flowed.outputs(x)[0], x @ start)
    torch.testing.assert_close(flowed.outputs(x), x @ flowed.maps)
    by_trace = torch.stack([torch.trace(m.mT @ C @ m) for m in flowed.maps])
    torch.testing.assert_close(flowed.losses, by_trace)
    for q, found in zip(flowed.q, flowed.projections(5), strict=True):
        frame = qr_retraction(q)
        torch.testing.assert_close(found, (frame @ frame.mT).norm(dim=1))
    torch.testing.assert_close(flowed.outputs(x.float()).float(), flowed.outputs(x).float(), rtol=1e-5, atol=1e-5)


def test_projections_on_what_vanished_are_zero() -> None:
    nothing = deep_linear_flow(torch.eye(3).double(), torch.zeros(3, 2).double(), times=[1.0])
    assert not nothing.projections(3).any()
    half = deep_linear_flow(torch.eye(3).double(), torch.eye(3, 2).double() * torch.tensor([0.5, 0]), times=[0.1])
    assert half.projections(3)[0].tolist() == pytest.approx([1, 0, 0], abs=1e-12)


# Descent


@pytest.mark.parametrize("flow", FLOWS)
def test_the_discrete_law_tends_to_the_flow_at_first_order(flow: str) -> None:
    C, start = matrix(spectrum(6, "mixed", 4), 4), start_of(6, 2, 4)
    end = deep_linear_flow(C, start, times=[1.0], flow=flow, depth=2, method="dop853").q[-1]
    rates = [0.02, 0.01, 0.005, 0.0025]
    errors = [
        float((deep_linear_descent(C, start, learning_rate=r, n_steps=round(1 / r), flow=flow, depth=2).final_outputs
               - end).abs().max())
        for r in rates
    ]  # fmt: skip
    assert fit_power_law(rates, errors).exponent == pytest.approx(1, abs=0.1)


def test_the_printed_law_needs_twice_the_steps() -> None:
    C, start = matrix(spectrum(6, "mixed", 4), 4), start_of(6, 2, 4)
    best = reference.best_loss(spectrum(6, "mixed", 4).numpy(), 2)

    def steps_to_half(**options: object) -> int:
        losses = deep_linear_descent(C, start, learning_rate=0.01, n_steps=2000, **options).losses
        return int((losses < best / 2).nonzero()[0])

    assert steps_to_half(printed=True) / steps_to_half() == pytest.approx(2, abs=0.1)


def test_one_step_of_the_printed_law_is_11() -> None:
    values, start = spectrum(4, "mixed", 1), start_of(4, 2, 1)
    L = torch.diag(values)
    run = deep_linear_descent(L, start, learning_rate=0.1, n_steps=1, printed=True, keep_outputs=True)
    q = start
    by_hand = q - 0.1 * (2 * L @ q - L @ q @ q.mT @ q - q @ q.mT @ L @ q)
    torch.testing.assert_close(run.final_outputs, by_hand)
    assert run.outputs is not None
    torch.testing.assert_close(run.outputs[0], q)
    torch.testing.assert_close(run.losses[0], torch.trace(q.mT @ L @ q))


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("d, z", [(3, 3), (40, 7), (300, 12)])
def test_the_discrete_law_step_by_step(flow: str, d: int, z: int) -> None:
    """At sizes where a product written over its own factor goes wrong."""
    values, q, law = spectrum(d, "mixed", 1), start_of(d, z, 1), flow_law(flow, depth=2)
    run = deep_linear_descent(torch.diag(values), q, learning_rate=0.05, n_steps=5, flow=flow, depth=2)
    for _ in range(5):
        q = q + 0.05 * law.velocity(values[:, None], q)
    torch.testing.assert_close(run.final_outputs, q, rtol=0, atol=1e-12)


def test_descent_stops_where_it_has_converged_and_says_where_it_overflowed() -> None:
    C, start = matrix(spectrum(5, "mixed", 1), 1), start_of(5, 2, 1)
    assert deep_linear_descent(C, start, learning_rate=0.1, n_steps=10**5, tolerance=1e-6).status is Status.CONVERGED
    assert deep_linear_descent(C, start, learning_rate=1e3, n_steps=100).status is Status.DIVERGED


@pytest.mark.parametrize("flow", FLOWS)
def test_descent_stops_at_the_first_step_whose_velocity_is_below_the_tolerance(flow: str) -> None:
    C, start = matrix(spectrum(5, "mixed", 1), 1), start_of(5, 2, 1)
    run = deep_linear_descent(C, start, learning_rate=0.01, n_steps=10**4, tolerance=1e-3, flow=flow)
    assert run.status is Status.CONVERGED
    speed = float(flow_law(flow).velocity(torch.linalg.eigvalsh(C)[:, None], run.final_outputs).norm())
    assert 0.9e-3 < speed < 1e-3


# Networks


def training_error(net: MLP, C: Tensor, rate: float, flow: str, *, steps: object = None) -> float:
    """The largest distance of q to its flow at times 0.25 and 0.5 of training."""
    n = round(0.5 / rate)
    times, at = [0.25, 0.5], [n // 2, n]
    options = {"learning_rate": rate, "n_steps": n, "record_at": at, "keep_outputs": True}
    if steps is None:
        run = train_deep_linear(net, C, flow=flow, **options)
    else:
        values, basis = torch.linalg.eigh(C)
        problem = Problem(basis.mT.contiguous(), lambda q: (values[:, None] * q.square()).sum(), size=len(C))
        parameters = parameters_of(net)
        run = gradient_descent(net.at, parameters, problem, steps=dict.fromkeys(parameters, steps), **options)
    start = net(torch.eye(len(C), dtype=torch.float64))
    expected = deep_linear_flow(C, start, times=times, flow=flow, depth=net.depth, method="dop853").q
    assert run.outputs is not None
    return float((run.outputs - expected).abs().max())


@pytest.mark.parametrize(("flow", "depth"), [("grassmann", 3), ("polar", 1), ("polar", 3), ("oja", 3)])
def test_trained_networks_follow_their_flow_at_first_order(flow: str, depth: int) -> None:
    net, C = linear_net(depth=depth), matrix(spectrum(6, "mixed", 4), 4)
    rates = [0.01, 0.005, 0.0025]
    errors = [training_error(net, C, rate, flow) for rate in rates]
    assert fit_power_law(rates, errors).exponent == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("flow", FLOWS)
def test_trained_networks_are_close_to_their_flow_alone(flow: str) -> None:
    net, C = linear_net(depth=2), matrix(spectrum(6, "mixed", 4), 4)
    own = training_error(net, C, 0.01, flow)
    assert training_error(net, C, 4e-3, flow) <= 8e-3
    for other in set(FLOWS) - {flow}:
        start = net(torch.eye(6, dtype=torch.float64))
        apart = [deep_linear_flow(C, start, times=[0.5], flow=f, depth=2, method="dop853").q for f in (flow, other)]
        assert float((apart[0] - apart[1]).abs().max()) > 3 * own  # so that following one is not following another


def test_the_qr_factor_of_a_raw_step_follows_none() -> None:
    def raw(W: Tensor, G: Tensor, /, *, learning_rate: float) -> Tensor:
        return qr_retraction(W - learning_rate * G)

    net, C = linear_net(depth=2), matrix(spectrum(6, "mixed", 4), 4)
    for flow in FLOWS:
        coarse, fine = (training_error(net, C, rate, flow, steps=raw) for rate in (0.01, 0.005))
        assert fine > 2e-2
        assert fine == pytest.approx(coarse, rel=0.2)  # a smaller rate does not help


@settings(max_examples=4)
@given(seed=integers(0, 2**16), flow=sampled_from(FLOWS), depth=integers(1, 3), rate=floats(1e-3, 0.3))
def test_layers_stay_orthonormal_and_the_net_is_not_changed(seed: int, flow: str, depth: int, rate: float) -> None:
    net, C = linear_net(4, 6, 2, depth=depth, seed=seed), matrix(spectrum(4, "mixed", seed), seed)
    before = parameters_of(net)
    run = train_deep_linear(
        net,
        C,
        flow=flow,
        learning_rate=rate,
        n_steps=60,
        record_at=range(0, 61, 10),
        recorders={"error": lambda now: max(orthonormality_error(W) for W in now.parameters.values())},
    )
    assert run.records["error"].max() <= 1e-12
    assert all(torch.equal(before[name], W) for name, W in parameters_of(net).items())
    basis = torch.linalg.eigh(C).eigenvectors
    torch.testing.assert_close(run.final_outputs, net.at(run.final_parameters, basis.mT.contiguous()))
    torch.testing.assert_close(
        run.losses[-1], torch.trace(run.final_outputs.mT @ basis.mT @ C @ basis @ run.final_outputs)
    )


def test_training_reaches_the_optimum_and_stops() -> None:
    net, C = linear_net(5, 8, 2), matrix(spectrum(5, "mixed", 1), 1)
    for flow in FLOWS:
        run = train_deep_linear(net, C, flow=flow, learning_rate=0.2, n_steps=3000, tolerance=1e-4)
        assert run.status is Status.CONVERGED
        best = reference.best_loss(spectrum(5, "mixed", 1).numpy(), 2)
        assert float(run.losses[-1]) == pytest.approx(best, abs=1e-6)


def test_float32_networks_train_and_stay_orthonormal() -> None:
    net, C = linear_net(dtype=torch.float32), matrix(spectrum(6, "mixed", 4), 4).float()
    for flow in FLOWS:
        run = train_deep_linear(net, C, flow=flow, learning_rate=0.05, n_steps=150)
        assert run.final_outputs.dtype == torch.float32
        assert max(orthonormality_error(W) for W in run.final_parameters.values()) < 3e-6


# Bad input


C4, START = matrix(spectrum(4, "mixed", 0), 0), start_of(4, 2, 0)
UNSYMMETRIC = C4 + torch.triu(torch.ones(4, 4, dtype=torch.float64), 1)
NAN = torch.full((4, 4), math.nan, dtype=torch.float64)
BAD_BOTH = [
    ({"C": UNSYMMETRIC}, r"C must be symmetric.*up to 1 .*symmetrize=True"),
    ({"C": C4[:3]}, r"C must be square and not empty, got shape \(3, 4\)"),
    ({"C": torch.empty(0, 0)}, r"not empty, got shape \(0, 0\)"),
    ({"C": [[1.0]]}, "C must be a matrix, got list"),
    ({"C": C4.numpy()}, r"dense tensor of floating-point numbers, got ndarray; use torch.as_tensor\(C\).double\(\)"),
    ({"C": torch.eye(4, dtype=torch.int64)}, r"numbers, got torch.strided torch.int64; use C.double\(\)"),
    ({"C": C4.to_sparse()}, r"got torch.sparse_coo torch.float64; use C.to_dense\(\).double\(\)"),
    ({"C": csr_matrix(C4.numpy())}, r"got csr_matrix; use torch.as_tensor\(C.toarray\(\)\).double\(\)"),
    ({"C": C4.to(torch.complex128)}, "C must be real, got torch.complex128"),
    ({"C": NAN}, "C holds NaN or infinite values; check the data behind it$"),
    ({"C": NAN, "symmetrize": True}, "C holds NaN or infinite values; check the data behind it$"),
    ({"start": START.mT}, r"\(d, z\) with d = 4, as C is \(4, 4\), and 1 <= z <= d, .*got torch.float64 \(2, 4\)"),
    ({"start": START[:, 0]}, r"got torch.float64 \(4,\)"),
    ({"start": START[:, :0]}, r"1 <= z <= d, .*got torch.float64 \(4, 0\)"),
    ({"start": torch.zeros(4, 5)}, r"1 <= z <= d, .*got torch.float32 \(4, 5\)"),
    ({"start": START.tolist()}, "in a real tensor, got list"),
    ({"start": START.numpy()}, r"in a real tensor, got ndarray; use net\(torch.eye\(4\)\)"),
    ({"start": START * 1j}, r"in a real tensor, got torch.complex128 \(4, 2\)"),
    ({"start": 1.005 * FRAME[:, :2]}, "got 1.005; divide it by 1.005"),
    ({"start": NAN[:, :2]}, "start holds NaN or infinite values"),
    ({"start": 1.5 * torch.eye(4, 2)}, r"singular values of at most 1.*got 1.5; divide it by 1.5"),
    ({"flow": "stiefel"}, "flow must be one of grassmann, polar, oja, got 'stiefel'"),
    ({"depth": 0}, "depth must be a whole number of at least 1, got 0"),
    ({"depth": 1.5}, "depth must be a whole number of at least 1, got 1.5"),
]
BAD_FLOW = [
    *({"times": times} for times in ([], [1.0, 1.0], [2.0, 1.0], [-1.0, 1.0], [0.0, math.nan], [math.inf])),
    *({"times": times} for times in ([[0.0, 1.0]], 1.0, None, "soon", ["soon"])),
]


@pytest.mark.parametrize("options, message", BAD_BOTH)
def test_bad_problems_are_refused(options: dict[str, object], message: str) -> None:
    given = {"C": C4, "start": START, **options}
    with pytest.raises(InputError, match=message):
        deep_linear_flow(**{"times": [0.0, 1.0], **given})
    with pytest.raises(InputError, match=message):
        deep_linear_descent(**{"learning_rate": 0.1, "n_steps": 2, **given})


@pytest.mark.parametrize("options", BAD_FLOW)
def test_bad_times_are_refused_and_shown(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"times must be finite, increasing and start at 0 or later, got .+; pass"):
        deep_linear_flow(C4, START, **options)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"method": "rk4"}, "method must be one of auto, exact, dop853, got 'rk4'"),
        ({"method": "exact"}, r"no exact solution of the 'grassmann' flow is known for z = 2; use method='dop853'"),
        ({"method": "exact", "flow": "polar"}, "'polar' flow"),
        ({"tolerance": 0.0}, "tolerance must be a positive number, got 0"),
        ({"tolerance": 1e-20}, r"tolerance must be at least 1e-13.*got 1e-20; raise it"),
    ],
)
def test_bad_methods_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        deep_linear_flow(C4, START, times=[1.0], **options)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"learning_rate": 0.0}, "learning_rate must be a positive number, got 0"),
        ({"n_steps": -1}, "n_steps must be a whole number of at least 0, got -1"),
        ({"record_at": [3]}, "record_at must be a whole number of at most 2, got 3"),
        ({"tolerance": -1.0}, "tolerance must be a number of 0 or more, got -1"),
        ({"tolerance": math.nan}, "tolerance must be a number of 0 or more, got nan"),
    ],
)
def test_bad_descents_are_refused(options: dict[str, object], message: str) -> None:
    given = {"learning_rate": 0.1, "n_steps": 2, **options}
    with pytest.raises(InputError, match=message):
        deep_linear_descent(C4, START, **given)
    with pytest.raises(InputError, match=message):
        train_deep_linear(linear_net(4, 8, 2), C4, **given)


@pytest.mark.parametrize(
    "net, options, message",
    [
        (linear_net(4, 8, 2, activation="relu"), {}, r"must be MLP\(4, width, z, activation='linear'.*relu"),
        (linear_net(4, 8, 2, parametrization="ntk"), {}, r"parametrization='orthogonal'\), got MLP .*ntk"),
        (linear_net(5, 8, 2), {}, r"must be MLP\(4, .*got MLP 5 → 1 × 8 → 2"),
        (linear_net(4, 3, 2), {}, "a width of at least the 4 inputs, got 3; raise the width"),
        (torch.nn.Linear(4, 2), {}, r"net must be MLP, got Linear; pass MLP\(4,"),
        (linear_net(4, 8, 2), {"flow": "qr"}, "flow must be one of grassmann, polar, oja, got 'qr'"),
        (linear_net(4, 8, 2), {"C": UNSYMMETRIC}, r"C must be symmetric.*symmetrize=True"),
    ],
)
def test_bad_networks_are_refused(net: MLP, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        train_deep_linear(net, **{"C": C4, "learning_rate": 0.1, "n_steps": 2, **options})


def test_a_network_that_left_its_constraint_is_refused() -> None:
    net = linear_net(4, 8, 2)
    with torch.no_grad():
        net.output.mul_(1.1)
    with pytest.raises(InputError, match="'output' must start with orthonormal columns"):
        train_deep_linear(net, C4, learning_rate=0.1, n_steps=2)


def test_symmetrize_takes_the_mean_with_the_mirror_image() -> None:
    options = {"times": [0.5], "flow": "polar"}
    asked = deep_linear_flow(UNSYMMETRIC, START, symmetrize=True, **options)
    by_hand = deep_linear_flow((UNSYMMETRIC + UNSYMMETRIC.mT) / 2, START, **options)
    assert torch.equal(asked.q, by_hand.q)
    descent = deep_linear_descent(UNSYMMETRIC, START, learning_rate=0.1, n_steps=3, symmetrize=True)
    trained = train_deep_linear(linear_net(4, 8, 2), UNSYMMETRIC, learning_rate=0.1, n_steps=3, symmetrize=True)
    assert math.isfinite(float(descent.losses[-1] + trained.losses[-1]))


def test_rounding_above_one_and_across_the_mirror_is_forgiven() -> None:
    rough = C4 + 1e-12 * randn(4, 4)
    start = (1 + 1e-9) * FRAME[:, :2]
    one, two = (deep_linear_flow(c, s, times=[1.0]) for c, s in ((rough, start), (C4, FRAME[:, :2].contiguous())))
    torch.testing.assert_close(one.maps, two.maps, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "points, given",
    [
        (torch.ones(4), r"torch.float32 \(4,\)"),
        (torch.ones(2, 3), r"torch.float32 \(2, 3\)"),
        (torch.ones(1, 2, 4), r"torch.float32 \(1, 2, 4\)"),
        (np.ones((2, 4)), r"ndarray; convert an array with torch.as_tensor\(x\)"),
        ([[1.0] * 4], "list"),
        (torch.ones(2, 4) * 1j, r"torch.complex64 \(2, 4\)"),
    ],
)
def test_points_of_another_size_or_kind_are_refused(points: Tensor, given: str) -> None:
    with pytest.raises(InputError, match=rf"x must be rows \(n, 4\) in a real tensor, as C is \(4, 4\), got {given}"):
        result().outputs(points)


@pytest.mark.parametrize("k, message", [(0, "k must be a whole number of at least 1"), (5, "at most 4, got 5")])
def test_projections_of_eigenvectors_that_are_not_there_are_refused(k: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        result().projections(k)


def result() -> DeepLinearFlow:
    return deep_linear_flow(C4, START, times=[0.0])


# A GPU


@pytest.mark.gpu
@pytest.mark.parametrize("flow", FLOWS)
def test_a_gpu_gives_the_same_flow(flow: str) -> None:
    device = "cuda"
    for z in (1, 2):
        options = {"times": [0.0, 0.5, 5.0], "flow": flow}
        there = deep_linear_flow(C4.to(device), START[:, :z].to(device), **options)
        assert there.q.device.type == "cuda"
        assert there.outputs(torch.ones(3, 4)).device.type == "cuda"
        here = deep_linear_flow(C4, START[:, :z].contiguous(), **options)
        torch.testing.assert_close(there.maps.cpu(), here.maps, rtol=0, atol=1e-8)


@pytest.mark.gpu
@pytest.mark.parametrize("flow", FLOWS)
def test_a_gpu_trains_the_same_network(flow: str) -> None:
    device = "cuda"
    options = {"learning_rate": 0.05, "n_steps": 40, "flow": flow}
    here = train_deep_linear(linear_net(4, 8, 2, depth=2), C4, **options)
    there = train_deep_linear(linear_net(4, 8, 2, depth=2, device=device), C4.to(device), **options)
    torch.testing.assert_close(there.losses.cpu(), here.losses, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("flow", FLOWS)
def test_descent_without_eigenvectors_is_the_same(flow: str) -> None:
    """In the coordinates of x the equation has C in the place of Λ."""
    C, start = matrix(spectrum(7, "mixed", 3), 3), start_of(7, 3, 3)
    options = {"learning_rate": 0.02, "n_steps": 60, "flow": flow, "depth": 2}
    q, maps = (deep_linear_descent(C, start, eigenbasis=e, **options) for e in (True, False))
    _, basis = torch.linalg.eigh(C)
    torch.testing.assert_close(basis @ q.final_outputs, maps.final_outputs)
    torch.testing.assert_close(q.losses, maps.losses)


@pytest.mark.parametrize("scale", [1.0, 1e300])
def test_times_that_would_take_hours_are_refused(scale: float) -> None:
    options = {"times": [1e7 / scale], "flow": "oja"}
    with pytest.raises(
        InputError, match=r"is too long for eigenvalues of up to .* at most .* is followed step by step"
    ):
        deep_linear_flow(C4 * scale, START, **options)
    assert torch.isfinite(deep_linear_flow(C4 * scale, START, method="exact", **options).q).all()


@pytest.mark.parametrize("z", [1, 2])
@pytest.mark.parametrize("method", ["exact", "dop853"])
def test_times_that_no_float_holds_are_refused(z: int, method: str) -> None:
    with pytest.raises(
        InputError, match=r"time=1e\+200 × eigenvalues of up to 9.4e\+199 is beyond the range of floats"
    ):
        deep_linear_flow(C4 * 1e200, START[:, :z], times=[1e200], flow="oja", method=method)


@pytest.mark.parametrize("n_steps", [1.5, 9.999999, "3", True])
def test_half_a_step_is_refused(n_steps: object) -> None:
    with pytest.raises(InputError, match="n_steps must be a whole number"):
        deep_linear_descent(C4, START, learning_rate=0.1, n_steps=n_steps)
