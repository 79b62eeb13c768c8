from __future__ import annotations

import math
import shutil
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, sampled_from
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from kontrast.errors import InputError
from kontrast.kernels import InfiniteNetwork, infinite_nngp, infinite_ntk
from kontrast.kernels.duals import HermiteSeries, dual_of
from kontrast.nets import ACTIVATIONS, activation_from
from tests.cases import randn
from tests.reference import infinite

HOMOGENEOUS = {"relu": 0.0, "leaky_relu": 0.01, "leaky_relu:0.3": 0.3, "linear": 1.0}
SMOOTH = ["erf", "sine", "cosine", "gaussian", "tanh", "sigmoid", "gelu", "softplus"]
CLOSED = [*HOMOGENEOUS, "erf", "sine", "cosine", "gaussian"]
ALL = [*HOMOGENEOUS, *SMOOTH]
DIFFERENTIATED = [*CLOSED, "tanh", "gelu"]  # an odd series and one that is neither odd nor even: the slow ones


def reference(x: Tensor, y: Tensor, activation: str, **network: Any) -> tuple[Tensor, Tensor]:
    if activation in HOMOGENEOUS:
        return infinite.kernels(x, y, infinite.leaky_relu(HOMOGENEOUS[activation]), **network)
    act = activation_from(activation)
    return infinite.kernels(x, y, infinite.by_quadrature(act.value, act.first), **network)


@settings(max_examples=25)
@given(
    seed=integers(0, 2**16),
    activation=sampled_from(ALL),
    depth=integers(1, 3),
    weight_std=floats(0.3, 1.6),
    bias_std=sampled_from([0.0, 0.1, 1.0]),
    input_scale=sampled_from([1.0, 0.25]),
)
def test_kernels_equal_their_definition(
    seed: int, activation: str, depth: int, weight_std: float, bias_std: float, input_scale: float
) -> None:
    network = {"depth": depth, "weight_std": weight_std, "bias_std": bias_std, "input_scale": input_scale}
    x, y = randn(2, 4, seed=seed), randn(3, 4, seed=seed + 1)
    ntk, nngp = reference(x, y, activation, **network)
    torch.testing.assert_close(infinite_ntk(x, y, activation=activation, **network), ntk, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(infinite_nngp(x, y, activation=activation, **network), nngp, rtol=1e-9, atol=1e-10)


def test_the_defaults_are_paper_a() -> None:
    x, y = torch.tensor([[2.0, 0.0]]).double(), torch.tensor([[0.0, 3.0]]).double()  # a right angle
    assert infinite_nngp(x, y).item() == pytest.approx(2 * 3 / (2 * math.pi), rel=1e-14)
    assert infinite_ntk(x, y).item() == pytest.approx(2 * 3 / (2 * math.pi), rel=1e-14)
    assert infinite_ntk(x).item() == pytest.approx(4 / 2 + 4 / 2, rel=1e-14)


def hard_rows(dtype: torch.dtype) -> Tensor:
    """Duplicates, opposites, collinear rows, a row of zeros, nearly equal rows, tiny and huge ones."""
    x = randn(12, 50, seed=3).abs().to(dtype)
    x[1], x[2], x[3], x[4] = x[0], -x[0], 2 * x[0], 0
    x[5] = x[0] * (1 + 1e-4 * randn(50, seed=4).to(dtype))
    x[6] = -x[0] * (1 + 1e-3 * randn(50, seed=5).to(dtype))
    x[7], x[8] = 1e-10 * x[7], 1e6 * x[8]
    return x


@pytest.mark.parametrize(
    "activation, depth, bias_std",
    [
        *((name, depth, std) for name in HOMOGENEOUS for depth in (1, 3) for std in (0.0, 0.7)),
        *((name, *net) for name in SMOOTH for net in ((1, 0.0), (3, 0.7))),
    ],
)
def test_hard_inputs_are_exact_in_float32(activation: str, bias_std: float, depth: int) -> None:
    x = hard_rows(torch.float32)
    net = InfiniteNetwork(depth, activation, 1.3, bias_std, 1 / 50)
    exact = net.ntk(x.double())
    scale = exact.diagonal().sqrt()
    scale = scale[:, None] * scale
    for kernel in (net.ntk(x), net.ntk(x, x.clone())):
        assert kernel.dtype == torch.float32
        worst = ((kernel - exact).abs() / scale.clamp_min(1e-30)).max()
        assert worst <= 1e-6, f"{float(worst):.1e}"
    # In float64 a duplicate has the diagonal's value, and an opposite row the value of the opposite angle.
    torch.testing.assert_close(exact[0, 1], exact[0, 0], rtol=1e-13, atol=0)
    torch.testing.assert_close(exact[0, 3], net.ntk(x[:1].double(), 2 * x[:1].double())[0, 0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("activation", HOMOGENEOUS)
def test_known_angles_to_the_last_digits(activation: str) -> None:
    slope, x = HOMOGENEOUS[activation], hard_rows(torch.float64)
    ntk, nngp = (kernel(x, activation=activation) for kernel in (infinite_ntk, infinite_nngp))
    square = float(x[0] @ x[0])
    gain = (1 + slope**2) / 2
    for j, factor in ((0, 1.0), (1, 1.0), (3, 2.0)):
        assert nngp[0, j].item() == pytest.approx(gain * factor * square, rel=1e-14)
        assert ntk[0, j].item() == pytest.approx(2 * gain * factor * square, rel=1e-14)
    assert nngp[0, 2].item() == pytest.approx(-slope * square, rel=1e-14, abs=1e-14 * square)
    assert ntk[0, 2].item() == pytest.approx(-2 * slope * square, rel=1e-14, abs=1e-14 * square)
    assert not ntk[4].any()
    assert not ntk[:, 4].any()


@pytest.mark.parametrize("activation", HOMOGENEOUS)
@pytest.mark.parametrize("depth", [1, 4])
def test_opposite_rows_never_give_nan(activation: str, depth: int) -> None:
    """Rounding takes some of these cosines below −1 and some above 1."""
    x = randn(300, 7, seed=5)
    y = torch.cat([-x, 3 * x])
    for dtype in (torch.float32, torch.float64):
        assert torch.isfinite(infinite_ntk(x.to(dtype), y.to(dtype), depth=depth, activation=activation)).all()
    point = x.clone().requires_grad_()
    kernel = infinite_ntk(point, y, depth=depth, activation=activation)
    (gradient,) = torch.autograd.grad(kernel.sum(), point)
    assert torch.isfinite(kernel).all()
    assert torch.isfinite(gradient).all()


def test_float32_keeps_small_angles_that_a_cosine_would_lose() -> None:
    x = torch.ones(1, 100)
    for gap in (1e-2, 1e-3, 1e-4):
        y = x.clone()
        y[0, ::2] += gap
        theta = 2 * math.asin(float((x.double() / 10 - y.double() / y.double().norm()).norm()) / 2)
        lost = 1 - infinite_ntk(x, y, depth=1).item() / (float(x.norm()) * float(y.norm()))
        # To first order in θ the tangent kernel falls by θ/(2π) of 1.
        assert lost == pytest.approx(theta / (2 * math.pi), rel=0.02, abs=2e-7)


@pytest.mark.parametrize("depth", [1, 5])
@pytest.mark.parametrize("activation", ALL)
def test_positive_semidefinite_symmetric_and_exact_on_the_diagonal(activation: str, depth: int) -> None:
    x = torch.cat([randn(20, 6, seed=1), 1e-3 * randn(4, 6, seed=2)])
    x[1], x[2] = x[0], -x[0]
    net = InfiniteNetwork(depth, activation)
    for dtype, floor in ((torch.float64, 1e-13), (torch.float32, 1e-6)):
        for kernel, diagonal in ((net.ntk, net.ntk_diagonal), (net.nngp, net.nngp_diagonal)):
            K = kernel(x.to(dtype))
            assert torch.equal(K, K.mT)
            assert torch.equal(K.diagonal(), diagonal(x.to(dtype)))
            values = torch.linalg.eigvalsh(K.double())
            assert values[0] >= -floor * values[-1]


@pytest.mark.parametrize("n", [1, 2, 1023, 1024, 1025])
def test_any_number_of_rows(n: int) -> None:
    x = randn(n, 3, dtype=torch.float32)
    K = infinite_ntk(x, depth=2)
    torch.testing.assert_close(K[-1:], infinite_ntk(x[-1:].double(), x.double(), depth=2).float(), rtol=2e-6, atol=2e-6)
    assert torch.equal(K, K.mT)


def test_mostly_collinear_rows_are_exact_too() -> None:
    x = 1 + 0.01 * randn(300, 40, dtype=torch.float32)  # every angle is below the threshold
    exact = infinite_ntk(x.double(), depth=2)
    assert ((infinite_ntk(x, depth=2) - exact).abs() / exact).max() <= 1e-6


@settings(max_examples=15)
@given(
    seed=integers(0, 2**16),
    activation=sampled_from(DIFFERENTIATED),
    depth=integers(1, 2),
    bias_std=sampled_from([0.0, 0.5]),
    tangent=sampled_from([True, False]),
)
def test_gradients_equal_finite_differences(
    seed: int, activation: str, depth: int, bias_std: float, tangent: bool
) -> None:
    net = InfiniteNetwork(depth, activation, 1.1, bias_std)
    kernel = net.ntk if tangent else net.nngp
    x, y = randn(2, 2, seed=seed).requires_grad_(), randn(1, 2, seed=seed + 1).requires_grad_()
    torch.testing.assert_close(kernel(x, y).detach(), kernel(x.detach(), y.detach()), rtol=1e-9, atol=1e-12)
    assert torch.autograd.gradcheck(kernel, (x, y), eps=1e-6, atol=1e-5, rtol=1e-4)


def central_difference(function: Any, x: Tensor, step: float = 1e-5) -> Tensor:
    gradient = torch.empty_like(x)
    for place in range(x.numel()):
        shift = torch.zeros(x.numel(), dtype=x.dtype)
        shift[place] = step
        shift = shift.view_as(x)
        gradient.view(-1)[place] = (function(x + shift) - function(x - shift)) / (2 * step)
    return gradient


@pytest.mark.parametrize(
    "activation, depth, bias_std",
    [*((name, *net) for name in CLOSED for net in ((1, 0.0), (2, 0.6))), ("tanh", 1, 0.0), ("gelu", 2, 0.6)],
)
def test_gradients_at_duplicates_and_on_the_diagonal(activation: str, bias_std: float, depth: int) -> None:
    net = InfiniteNetwork(depth, activation, 1.2, bias_std)
    x = randn(3, 2, seed=7)
    x[1] = x[0]
    other = x.clone()
    for function in (lambda t: net.ntk(t).sum(), lambda t: net.ntk(t, other).sum(), lambda t: net.ntk(t).trace()):
        point = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(function(point), point)
        # The kink at a duplicate is symmetric, so central differences see the mean of both sides, to O(step).
        torch.testing.assert_close(gradient, central_difference(function, x), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    "activation, bias_std", [*((name, std) for name in CLOSED for std in (0.0, 0.6)), ("tanh", 0.0), ("gelu", 0.6)]
)
def test_gradients_at_zero_rows(activation: str, bias_std: float) -> None:
    net = InfiniteNetwork(1, activation, 1.2, bias_std)
    x, y = torch.zeros(1, 4, dtype=torch.float64), randn(3, 4, seed=8)
    for kernel in (net.ntk, net.nngp):
        point = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(kernel(point, y).sum(), point)
        expected = central_difference(lambda t, kernel=kernel: kernel(t, y).sum(), x)
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)
    both = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    for depth in (1, 4):
        (gradient,) = torch.autograd.grad(InfiniteNetwork(depth, activation, 1.2, bias_std).ntk(both).sum(), both)
        assert torch.isfinite(gradient).all()


def test_gradients_in_float32_are_finite_and_float32() -> None:
    x = hard_rows(torch.float32).requires_grad_()
    (gradient,) = torch.autograd.grad(infinite_ntk(x, depth=3).sum(), x)
    assert gradient.dtype == torch.float32
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "gelu", "softplus"])
def test_the_stated_quadrature_error_holds(activation: str) -> None:
    """Truncate early on purpose: the true error stays below what is stated, and the bound is no wild guess."""
    act, k = ACTIVATIONS[activation], torch.tensor([4.0], dtype=torch.float64)
    coarse, fine = HermiteSeries(act, 32), HermiteSeries(act, 512)
    value, slope = coarse.remainder(k)
    worst = [0.0, 0.0]
    for c in (-1.0, -0.99, -0.5, 0.0, 0.5, 0.9, 0.98, 0.999, 1.0):
        got, exact = (dual.between(dual.rows(k), dual.rows(k), c * k[:, None]) for dual in (coarse, fine))
        squares = fine.diagonal(k)
        for kind, bound in enumerate((value, slope)):
            off = float((got[kind] - exact[kind]).abs() / squares[kind])
            assert off <= bound * abs(c) ** 32 + 1e-12
            worst[kind] = max(worst[kind], off)
            if abs(c) == 1:
                assert off <= 1e-12
    assert worst[1] > 1e-3 * slope


def test_quadrature_error_is_reported() -> None:
    x = randn(4, 5)
    assert InfiniteNetwork(activation="relu").quadrature_error(x).order == 0
    small, large = (InfiniteNetwork(2, "tanh", 1.0).quadrature_error(scale * x) for scale in (0.3, 30))
    assert small.slope < 1e-12
    assert large.order == 512
    assert 1e-6 < large.slope < 1


def test_any_callable_and_torch_functions_agree_with_the_closed_forms() -> None:
    x = 0.7 * randn(4, 3)
    for function, name in ((torch.sin, "sine"), (torch.erf, "erf"), (torch.tanh, "tanh"), (F.softplus, "softplus")):
        for kernel in (infinite_ntk, infinite_nngp):
            torch.testing.assert_close(
                kernel(x, activation=function, depth=2), kernel(x, activation=name, depth=2), rtol=1e-10, atol=1e-12
            )
    assert isinstance(dual_of(torch.relu, 1.0), HermiteSeries)
    by_series, exact = (infinite_nngp(x, activation=phi) for phi in (torch.relu, "relu"))
    bound = InfiniteNetwork(activation=torch.relu).quadrature_error(x).value
    assert 0 < (by_series - exact).abs().max() <= bound * exact.diagonal().max() < 1e-2


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on a CPU needs a C++ compiler (g++)")
def test_compiled_equals_eager() -> None:
    x = randn(30, 7, dtype=torch.float32)
    torch.testing.assert_close(infinite_ntk(x, depth=2, compile=True), infinite_ntk(x, depth=2))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"depth": 0}, "depth must be a whole number of at least 1, got 0"),
        ({"depth": 1.5}, "depth must be a whole number"),
        ({"depth": True}, "depth must be a whole number"),
        ({"weight_std": "a"}, "weight_std must be a positive number, got 'a'"),
        ({"bias_std": "x"}, "bias_std must be a finite number of at least 0, got 'x'"),
        ({"activation": "swoosh"}, "activation must be one of relu, .* got 'swoosh'"),
        ({"weight_std": 0.0}, "weight_std must be a positive number"),
        ({"bias_std": -1.0}, "bias_std must be a finite number of at least 0, got -1.0"),
        ({"bias_std": math.nan}, "bias_std must be a finite number of at least 0, got nan"),
        ({"input_scale": math.inf}, "input_scale must be a positive number"),
    ],
)
def test_settings_that_cannot_work(arguments: dict[str, Any], message: str) -> None:
    for kernel in (infinite_ntk, infinite_nngp):
        with pytest.raises(InputError, match=message):
            kernel(randn(2, 3), **arguments)


def test_rows_that_cannot_work() -> None:
    good, bad = randn(2, 3), randn(2, 3)
    bad[0, 0] = math.nan
    for x, y, message in (
        (bad, None, "x has NaN, infinite or too large entries"),
        (good, bad, "y has NaN, infinite or too large entries"),
        (good, randn(2, 4), "y has 4 columns but x has 3"),
        (good, good.float(), r"y must be torch.float64 on cpu like x, got torch.float32 on cpu; use y.to\(x\)"),
        (good[:0], None, r"x must be \(n, d\) with at least one row"),
        (good, good[:0], "y must be .* at least one row"),
        (good[0], None, r"x must be \(n, d\).* got shape \(3,\)"),
        (good.long(), None, "x must be a float32 or float64 tensor, got torch.int64"),
        (good.numpy(), None, r"x must be a float32 or float64 tensor, got ndarray; convert with torch.tensor"),
    ):
        with pytest.raises(InputError, match=message):
            infinite_ntk(x, y)  # type: ignore[arg-type]


def test_images_are_flattened() -> None:
    x = randn(3, 1, 2, 2)
    assert torch.equal(infinite_ntk(x), infinite_ntk(x.flatten(1)))


@pytest.mark.gpu
@pytest.mark.parametrize("bias_std", [0.0, 0.7])
@pytest.mark.parametrize("activation", ALL)
def test_the_gpu_agrees_with_the_cpu_at_hard_inputs(activation: str, bias_std: float) -> None:
    x = torch.cat([hard_rows(torch.float32), randn(400, 50, seed=9, dtype=torch.float32).abs()])
    for net in (InfiniteNetwork(depth, activation, 1.3, bias_std, 1 / 50) for depth in (1, 3)):
        for kernel, diagonal in ((net.ntk, net.ntk_diagonal), (net.nngp, net.nngp_diagonal)):
            exact, scale = kernel(x.double()), diagonal(x.double()).sqrt()
            for found in (kernel(x.cuda()), kernel(x.cuda(), x.flip(0).cuda()).flip(1)):
                off = (found.cpu() - exact).abs() / (scale[:, None] * scale).clamp_min(1e-30)
                assert off.max() <= 2e-6
            torch.testing.assert_close(kernel(x.double().cuda()).cpu(), exact, rtol=1e-11, atol=1e-11)
    near = 1 + 0.01 * randn(300, 40, dtype=torch.float32)
    exact = infinite_ntk(near.double(), depth=2)
    assert ((infinite_ntk(near.cuda(), depth=2).cpu() - exact).abs() / exact).max() <= 1e-6


def test_activations_without_moments_are_refused() -> None:
    x = randn(3, 4)
    with pytest.raises(InputError, match=r"has no finite E\[φ²\] or E\[φ'²\] at a standard deviation of"):
        infinite_ntk(3 * x, activation=lambda a: torch.exp(a * a))
    with pytest.raises(InputError, match="has no finite"):
        infinite_ntk(torch.zeros(2, 4, dtype=torch.float64), activation=lambda a: a.abs().sqrt())


def test_a_kernel_that_overflows_is_refused_not_returned() -> None:
    x = randn(3, 4, dtype=torch.float32)
    with pytest.raises(InputError, match=r"the kernel reaches .*, more than torch.float32 holds"):
        infinite_ntk(1e30 * x)
    with pytest.raises(InputError, match=r"more than torch.float32 holds"):
        infinite_nngp(x, 1e25 * x, weight_std=100.0, depth=10)
    assert torch.isfinite(infinite_ntk(1e30 * x.double())).all()


def test_piecewise_functions_come_close_to_their_closed_form() -> None:
    x = randn(4, 3)
    net = InfiniteNetwork(1, lambda a: torch.where(a > 0, a, 0.3 * a))
    bound = net.quadrature_error(x)
    exact = InfiniteNetwork(1, "leaky_relu:0.3")
    assert (net.nngp(x) - exact.nngp(x)).abs().max() <= bound.value * exact.nngp(x).diagonal().max()
    assert (net.ntk(x) - exact.ntk(x)).abs().max() <= (bound.value + bound.slope) * exact.ntk(x).diagonal().max()
    assert bound.integral == 0, "a kink at zero lies in the middle between two nodes"
    assert all(InfiniteNetwork(1, act).quadrature_error(5 * x).integral == 0 for act in ("tanh", "gelu", "softplus"))


@pytest.mark.parametrize("norm", [0.7, 1.3, 2.9])
@pytest.mark.parametrize("cosine", [0.3, 0.9, 1.0])
def test_kinks_away_from_zero_are_in_the_stated_error(norm: float, cosine: float) -> None:
    """hardtanh: E[φ'φ'] is the chance that both |u|, |v| < 1, E[φ φ] an integral, both to 1e-8 by scipy."""
    net = InfiniteNetwork(1, F.hardtanh)
    x = norm * torch.tensor([[1.0, 0.0], [cosine, math.sqrt(1 - cosine**2)]], dtype=torch.float64)
    bound = net.quadrature_error(x)
    assert 1e-4 < bound.integral < 0.05
    inside = stats.multivariate_normal(
        cov=[[norm**2, cosine * norm**2], [cosine * norm**2, norm**2]], allow_singular=True
    )
    corners = inside.cdf([1, 1]) - inside.cdf([1, -1]) - inside.cdf([-1, 1]) + inside.cdf([-1, -1])
    diagonal = stats.norm.cdf(1 / norm) - stats.norm.cdf(-1 / norm)
    exact_slope = diagonal if cosine == 1 else corners
    slope = (net.ntk(x) - net.nngp(x))[0, 1] / float(x[0] @ x[1])
    assert abs(float(slope) - exact_slope) <= (bound.slope * cosine**bound.order + bound.integral) * diagonal + 1e-5


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("activation", HOMOGENEOUS)
def test_a_zero_row_has_no_pull_on_the_others(activation: str, depth: int) -> None:
    """K(x, 0) = 0 for every x, so its gradient in x is zero, also where both points ask for gradients."""
    x = randn(3, 4, seed=9)
    x[1] = 0
    x.requires_grad_()
    for K in (
        infinite_ntk(x, depth=depth, activation=activation),
        infinite_ntk(x, x, depth=depth, activation=activation),
    ):
        (gradient,) = torch.autograd.grad(K[0, 1], x, retain_graph=True)
        assert gradient[0].abs().max() < 1e-14
        assert gradient[1].abs().max() > 0.1
        assert K[0, 1] == 0


@pytest.mark.parametrize("depth", [1, 3])
def test_small_angles_of_long_rows_in_float32(depth: int) -> None:
    """A product of 784 positive numbers loses 2e-7; at 1 − cos θ = 0.001 that alone would move the kernel by 2e-6."""
    base = randn(1, 784, seed=1).abs()
    for gap in (0.02, 0.05, 0.1, 0.2):
        x = (base + gap * randn(60, 784, seed=2)).float()
        exact = infinite_ntk(x.double(), depth=depth)
        assert ((infinite_ntk(x, depth=depth) - exact).abs() / exact).max() <= 1e-6


@pytest.mark.parametrize("activation", HOMOGENEOUS)
def test_norms_whose_products_leave_float32(activation: str) -> None:
    x = randn(6, 40, seed=3)
    x = (x / x.norm(dim=1, keepdim=True) * torch.tensor([1e-18, 1e-18, 1.0, 1.0, 1e18, 1e18])[:, None]).float()
    exact = infinite_ntk(x.double(), activation=activation)
    scale = exact.diagonal().sqrt()
    assert ((infinite_ntk(x, activation=activation) - exact).abs() / (scale[:, None] * scale)).max() <= 1e-6


@pytest.mark.parametrize("size", [1e-20, 1e20])
def test_an_input_scale_that_makes_up_for_the_norms(size: float) -> None:
    """The variances are tame; the products of the rows themselves leave float32."""
    x = randn(6, 40, seed=3)
    exact, found = infinite_ntk(x), infinite_ntk((size * x).float(), input_scale=size**-2)
    assert ((found - exact).abs() / exact.diagonal().max()).max() <= 1e-6


def test_gradients_at_zero_rows_on_the_other_side() -> None:
    x, zero = randn(3, 4, seed=8), torch.zeros(1, 4, dtype=torch.float64)
    point = zero.clone().requires_grad_()
    K = infinite_ntk(x, point)
    (gradient,) = torch.autograd.grad(K.sum(), point)
    assert not K.any()
    torch.testing.assert_close(
        gradient, central_difference(lambda t: infinite_ntk(x, t).sum(), zero), rtol=1e-4, atol=1e-4
    )
