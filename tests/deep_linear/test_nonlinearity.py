from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from
from torch import nn

from kontrast.deep_linear import nonlinear_gap, output_gap, unit_slope
from kontrast.deep_linear.nonlinearity import NonlinearGap
from kontrast.errors import InputError
from kontrast.nets import ACTIVATIONS, MLP, PARAMETRIZATIONS, activation_from, parameters_of
from tests.cases import TOLERANCE, generator, randn

EXACT = TOLERANCE[torch.float64]
SMOOTH_SLOPES = ["tanh", "sigmoid", "erf", "gelu", "softplus", "sine"]
SHAPED = {"width": integers(3, 12), "depth": integers(1, 3), "parametrization": sampled_from(PARAMETRIZATIONS)}


def made(width: int, depth: int, parametrization: str, activation: str = "tanh", seed: int = 0) -> MLP:
    options = {"depth": depth, "parametrization": parametrization, "activation": activation}
    return MLP(3, width, 2, **options, generator=generator(seed), dtype=torch.float64)


@given(seed=integers(0, 2**16), activation=sampled_from(list(ACTIVATIONS)), **SHAPED)
def test_it_is_the_distance_to_a_second_net_with_the_same_draw(
    seed: int, activation: str, width: int, depth: int, parametrization: str
) -> None:
    shape, x = (width, depth, parametrization), randn(5, 3, seed=seed)
    net, twin = made(*shape, activation, seed), made(*shape, "linear", seed)
    gap = nonlinear_gap(net, x)
    with torch.no_grad():
        difference, linear = net(x) - twin(x), twin(x)
    for n in range(len(x)):
        assert float(gap.differences[n]) == pytest.approx(float(difference[n].norm()), rel=1e-10, abs=1e-12)
        assert float(gap.sizes[n]) == pytest.approx(float(linear[n].norm()), rel=1e-10)
    assert gap.absolute == pytest.approx(float(difference.norm()) / math.sqrt(5), rel=1e-10, abs=1e-12)
    assert gap.relative == pytest.approx(float(difference.norm() / linear.norm()), rel=1e-10, abs=1e-12)


@given(seed=integers(0, 2**16), **SHAPED)
def test_a_linear_network_has_no_gap(seed: int, width: int, depth: int, parametrization: str) -> None:
    gap = nonlinear_gap(made(width, depth, parametrization, "linear", seed), randn(4, 3, seed=seed))
    assert gap.absolute == gap.relative == 0
    assert (gap.sizes > 0).all()


@given(seed=integers(0, 2**16), activation=sampled_from(["tanh", "relu", "sigmoid"]), **SHAPED)
def test_other_weights_and_another_activation_are_those_of_a_net_that_has_them(
    seed: int, activation: str, width: int, depth: int, parametrization: str
) -> None:
    shape, x = (width, depth, parametrization), randn(4, 3, seed=seed)
    net, other = made(*shape, "gelu", seed), made(*shape, activation, seed + 1)
    found = nonlinear_gap(net, x, activation=activation, parameters=parameters_of(other))
    torch.testing.assert_close(found.differences, nonlinear_gap(other, x).differences, **EXACT)
    torch.testing.assert_close(found.sizes, nonlinear_gap(other, x).sizes, **EXACT)


def test_theorem_1_and_its_proof_hold_draw_by_draw() -> None:
    """‖u^φ − u^I‖ ≤ ‖φ(W₁x) − W₁x‖ ≤ (c/2)‖(W₁x)²‖ for orthonormal W₂ and |φ''| ≤ c, here tanh and sine."""
    for seed in range(20):
        net, x = made(50, 1, "orthogonal", seed=seed), randn(6, 3, seed=seed)
        (W_1,), _ = net.layers()
        a = x @ W_1.mT
        for name, c in (("tanh", 4 / (3 * math.sqrt(3))), ("sine", 1.0)):
            epsilon = (activation_from(name)(a) - a).norm(dim=1)
            assert (nonlinear_gap(net, x, activation=name).differences <= epsilon + 1e-14).all()
            assert (epsilon <= c / 2 * a.square().norm(dim=1) + 1e-14).all()


def test_relu_is_half_linear_at_any_scale_and_tanh_linear_at_small_ones() -> None:
    net, x = made(40, 1, "orthogonal"), randn(6, 3)
    relative = {
        (name, scale): nonlinear_gap(net, scale * x, activation=name).relative
        for name in ("relu", "tanh")
        for scale in (1.0, 1e-3)
    }
    assert relative["relu", 1e-3] == pytest.approx(relative["relu", 1.0], rel=1e-10)
    assert relative["tanh", 1e-3] < 1e-5 * relative["tanh", 1.0]


def test_outputs_of_two_networks() -> None:
    linear = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    gap = output_gap(linear + torch.tensor([[0.0, 5.0], [12.0, 0.0]]), linear)
    assert gap.differences.tolist() == [5, 12]
    assert gap.sizes.tolist() == [5, 0]
    assert gap.absolute == pytest.approx(math.sqrt(169 / 2))
    assert gap.relative == pytest.approx(13 / 5)
    assert math.isnan(NonlinearGap(torch.zeros(3), torch.zeros(3)).relative)


def test_what_cannot_be_compared_is_refused() -> None:
    net, x = made(5, 1, "orthogonal"), randn(4, 3)
    with pytest.raises(InputError, match=r"rows \(n, 3\)"):
        nonlinear_gap(net, randn(4, 2))
    with pytest.raises(InputError, match="float32"):
        nonlinear_gap(net, x.float())
    with pytest.raises(InputError, match="activation must be one of"):
        nonlinear_gap(net, x, activation="thanh")
    with pytest.raises(InputError, match="parameters are"):
        nonlinear_gap(net, x, parameters={"output": net.output.detach()})
    with pytest.raises(InputError, match=r"net must be MLP, got Linear; compare .* output_gap"):
        nonlinear_gap(nn.Linear(3, 2), x)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"nonlinear must have shape \(3, 2\), got \(4, 2\); .* same points"):
        output_gap(randn(4, 2), randn(3, 2))
    with pytest.raises(InputError, match=r"\(n, z\)"):
        output_gap(randn(0, 2), randn(0, 2))


@given(name=sampled_from(SMOOTH_SLOPES), a=floats(-3, 3))
def test_at_unit_slope_the_conditions_of_theorem_1_are_met(name: str, a: float) -> None:
    phi, own = unit_slope(name), activation_from(name)
    zero, point = torch.zeros((), dtype=torch.float64), torch.tensor(a, dtype=torch.float64)
    assert float(phi(zero)) == pytest.approx(0, abs=1e-15)
    assert float(phi.first(zero)) == pytest.approx(1, rel=1e-14)
    slope = float(own.first(zero))
    assert float(phi(point)) * slope + float(own(zero)) == pytest.approx(float(own(point)), rel=1e-12, abs=1e-14)
    for given_by, of in ((phi.first, phi.value), (phi.second, phi.first)):
        leaf = point.clone().requires_grad_()
        (derivative,) = torch.autograd.grad(of(leaf), leaf, allow_unused=True, materialize_grads=True)
        assert float(given_by(point)) == pytest.approx(float(derivative), rel=1e-9, abs=1e-12)


def test_sigmoid_at_unit_slope_is_a_wider_tanh() -> None:
    a = torch.linspace(-4, 4, 33, dtype=torch.float64)
    torch.testing.assert_close(unit_slope("sigmoid")(a), 2 * torch.tanh(a / 2), **EXACT)
    torch.testing.assert_close(unit_slope(lambda b: 3 * torch.tanh(b) + 1)(a), torch.tanh(a), **EXACT)


@pytest.mark.parametrize(
    ("activation", "why"),
    [("relu", "kink"), ("leaky_relu", "kink"), ("cosine", "the slope"), ("gaussian", "the slope"), (torch.abs, "kink")],
)
def test_a_kink_or_no_slope_at_zero_is_refused(activation: object, why: str) -> None:
    with pytest.raises(InputError, match=f"{why}.* at 0.*take a smooth one"):
        unit_slope(activation)  # type: ignore[arg-type]
