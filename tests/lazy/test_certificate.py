"""The certificate is never below the truth, agrees with dense derivatives, and says so where it does not apply."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, sampled_from
from torch import Tensor, nn
from torch.func import hessian, jacrev

from kontrast.data import default_view, load, make_pairs
from kontrast.dynamics import contrastive_problem, gradient_descent
from kontrast.errors import InputError
from kontrast.kernels import empirical_ntk
from kontrast.lazy import lemma8, ntk_certificate
from kontrast.lazy.certificate import _Chord, _integrals, clenshaw_curtis_points
from kontrast.losses import ContrastiveLoss, Cosine, Linear
from kontrast.nets import MLP, parameters_of, pure_function, two_layer_hessian_norm
from tests.cases import DTYPES, TOLERANCE, generator, randn

SMOOTH = ["tanh", "sigmoid", "erf", "gelu", "softplus", "sine", "gaussian", "linear"]


def net(
    *, activation: str = "tanh", width: int = 8, seed: int = 0, dtype: torch.dtype = torch.float64, **options: Any
) -> MLP:
    return MLP(4, width, 2, activation=activation, generator=generator(seed), dtype=dtype, **options)


def shifted(start: Mapping[str, Tensor], radius: float, seed: int) -> dict[str, Tensor]:
    steps = {name: randn(*p.shape, seed=seed + i, dtype=p.dtype) for i, (name, p) in enumerate(start.items())}
    total = math.sqrt(sum(float(step.square().sum()) for step in steps.values()))
    return {name: p + radius / total * steps[name] for name, p in start.items()}


def smooth_module(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    layers = (
        nn.Conv2d(1, 3, 3),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 5),
        nn.Softplus(),
        nn.Linear(5, 2),
    )
    return nn.Sequential(*layers).double()


@given(
    seed=integers(0, 2**16),
    depth=sampled_from([1, 2, 3]),
    activation=sampled_from(SMOOTH),
    radius=floats(0, 4),
    order=sampled_from([1, 2]),
    dtype=sampled_from(DTYPES),
)
@settings(max_examples=6)
def test_never_below_the_truth_anywhere_on_the_chord(
    seed: int, depth: int, activation: str, radius: float, order: int, dtype: torch.dtype
) -> None:
    model, x = net(depth=depth, activation=activation, seed=seed, dtype=dtype), randn(3, 4, seed=seed, dtype=dtype)
    start = parameters_of(model)
    end = shifted(start, radius, seed)
    found = ntk_certificate(model, start, end, x, order=order)
    assert found.valid
    assert found.holds
    K = empirical_ntk(model, x, parameters=start)
    for s in (0.2, 0.7):
        between = {name: p + s * (end[name] - p) for name, p in start.items()}
        assert ((empirical_ntk(model, x, parameters=between) - K).abs() <= found.bound).all()
    moved = empirical_ntk(model, x, parameters=end) - K
    torch.testing.assert_close(found.change, moved, rtol=1e-9, atol=1e3 * torch.finfo(dtype).eps * float(K.abs().max()))
    assert found.radius == pytest.approx(radius, rel=1e-4, abs=1e-5)


@given(seed=integers(0, 2**16), radius=floats(0.01, 1))
@settings(max_examples=2)
def test_a_convolutional_net_is_certified(seed: int, radius: float) -> None:
    model, x = smooth_module(seed), randn(2, 1, 6, 6, seed=seed)
    start = parameters_of(model)
    end = shifted(start, radius, seed)
    for order in (1, 2):
        found = ntk_certificate(model, start, end, x, order=order)
        assert found.valid
        assert found.holds
    moved = empirical_ntk(model, x, parameters=end) - empirical_ntk(model, x, parameters=start)
    torch.testing.assert_close(found.change, moved, **TOLERANCE[torch.float64])


def dense(
    model: nn.Module, start: Mapping[str, Tensor], end: Mapping[str, Tensor], x: Tensor, s: float
) -> list[Tensor]:
    """K, K', K'' at θ(s) from dense gradients, Hessians and third derivatives of each output at each point."""
    sizes = [p.numel() for p in start.values()]
    flat0, flat1 = (torch.cat([p.flatten() for p in point.values()]) for point in (start, end))
    step, at, f = flat1 - flat0, flat0 + s * (flat1 - flat0), pure_function(model)

    def output(flat: Tensor, row: Tensor, z: int) -> Tensor:
        parts = zip(start.items(), flat.split(sizes), strict=True)
        return f({name: part.view_as(p) for (name, p), part in parts}, row[None])[0, z]

    g, d, t = [], [], []
    for row in x:
        for z in range(2):
            H = hessian(output)(at, row, z)
            third = jacrev(hessian(output))(at, row, z)
            g.append(jacrev(output)(at, row, z))
            d.append(H @ step)
            t.append(third @ step @ step)
    G, D, T = (torch.stack(rows) for rows in (g, d, t))
    return [G @ G.mT, D @ G.mT + G @ D.mT, T @ G.mT + 2 * D @ D.mT + G @ T.mT]


@pytest.mark.parametrize("layered", [True, False], ids=["layer by layer", "by gradients"])
@pytest.mark.parametrize("options", [{"depth": 1}, {"depth": 2}, {"depth": 2, "parametrization": "mup"}], ids=str)
def test_derivatives_agree_with_dense_ones(layered: bool, options: dict[str, Any]) -> None:
    model, x = net(width=3, **options), randn(2, 4, seed=3)
    start = parameters_of(model)
    end = shifted(start, 1.0, 5)
    step = {name: end[name] - p for name, p in start.items()}
    chord = _Chord(pure_function(model), start, step, x, 2, None, model if layered else None)
    for s in (0.0, 0.6):
        for found, expected in zip(chord.kernels(s), dense(model, start, end, x, s), strict=True):
            torch.testing.assert_close(found, expected, **TOLERANCE[torch.float64])


def test_both_orders_are_their_integrals() -> None:
    model, x = net(width=3), randn(2, 4, seed=3)
    start = parameters_of(model)
    end = shifted(start, 0.5, 5)
    step = {name: end[name] - p for name, p in start.items()}
    chord = _Chord(pure_function(model), start, step, x, 2, None, model)  # its derivatives agree with dense ones
    grid = torch.linspace(0, 1, 31, dtype=torch.float64)
    with torch.no_grad():
        derivatives = [chord.kernels(float(s)) for s in grid]
    bounds = []
    for order in (1, 2):
        weight = torch.ones_like(grid) if order == 1 else 1 - grid
        integrand = torch.stack([w * d[order].abs() for w, d in zip(weight, derivatives, strict=True)])
        expected = torch.trapezoid(integrand, grid, dim=0) + (derivatives[0][1].abs() if order == 2 else 0)
        found = ntk_certificate(model, start, end, x, order=order, nodes=17)
        bound = (found.bound - found.quadrature_error).permute(0, 2, 1, 3).reshape(4, 4)
        torch.testing.assert_close(bound, expected, rtol=2e-3, atol=1e-6)
        bounds.append(found.bound)
    assert (bounds[0] <= bounds[1] * (1 + 1e-6)).all()


@pytest.mark.parametrize("order", [1, 2])
def test_blocks_and_layers_change_nothing(order: int) -> None:
    model, x = net(depth=2), randn(3, 4)
    start = parameters_of(model)
    end = shifted(start, 1.0, 2)
    whole = ntk_certificate(model, start, end, x, order=order)
    n_parameters = sum(p.numel() for p in start.values())
    memory = 2.5 * 4 * (order + 1) * 2 * n_parameters * 8  # two points at once

    def plain(p: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        return model.at(p, rows)

    parts = ntk_certificate(plain, start, end, x, order=order, memory=memory)
    for name in ("bound", "change", "quadrature_error"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-8, atol=1e-10)


def test_the_rule_integrates_absolute_values_of_polynomials() -> None:
    s = clenshaw_curtis_points(5)
    total, gap = _integrals((s**4)[:, None], weight=lambda s: 1 - s)
    assert float(total) == pytest.approx(1 / 30, rel=1e-12)  # ∫(1 − s)s⁴
    assert float(gap) > 1e-3  # the three-point interpolant is no quartic
    total, gap = _integrals((s - 0.3)[:, None], weight=lambda s: 1.0)
    assert float(total) == pytest.approx((0.3**2 + 0.7**2) / 2, rel=1e-3)
    assert float(gap) < 1e-14


class Functional(nn.Module):
    """A kink that no list of modules shows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x))


@pytest.mark.parametrize(
    "make, kink",
    [
        (lambda: net(activation="relu"), "relu"),
        (lambda: net(activation="leaky_relu:0.2"), "leaky_relu"),
        (lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), "relu"),
        (lambda: nn.Sequential(nn.Linear(4, 5), nn.ELU(), nn.Linear(5, 2)), "elu"),
        (lambda: nn.Sequential(nn.Linear(4, 6), nn.MaxPool1d(3)), "max_pool"),
        (Functional, "relu"),
    ],
)
def test_kinks_are_named_and_void_the_certificate(make, kink: str) -> None:  # type: ignore[no-untyped-def]
    model = make().double()
    start = parameters_of(model)
    found = ntk_certificate(model, start, shifted(start, 0.1, 1), randn(2, 4))
    assert not found.valid
    assert found.as_bound().failed == ("5 (smoothness)",)
    assert kink in found.assumptions[0].detail
    assert "assumptions that fail" in str(found)


def test_a_kink_really_breaks_it() -> None:
    model = MLP(1, 1, 1, activation="relu", dtype=torch.float64)
    start = {"hidden.0": torch.full((1, 1), -1e-6).double(), "output": torch.ones(1, 1).double()}
    end = {"hidden.0": torch.full((1, 1), 1e-6).double(), "output": torch.ones(1, 1).double()}
    found = ntk_certificate(model, start, end, torch.ones(1, 1, dtype=torch.float64))
    assert not found.valid
    assert not found.holds


@pytest.mark.parametrize("depth", [1, 3])
def test_trained_nets_are_certified_far_below_lemma8(depth: int) -> None:
    data = load("digits", dtype=torch.float64)
    draw = generator(3)
    x = data.x[torch.randperm(len(data.x), generator=draw)[:10]]
    pairs = make_pairs(x, views=default_view(data), generator=draw)
    model = MLP(64, 256, 10, depth=depth, activation="tanh", generator=draw, dtype=torch.float64)
    start = parameters_of(model)
    loss = contrastive_problem(pairs, ContrastiveLoss(Cosine(), Linear()))
    end = gradient_descent(pure_function(model), start, loss, learning_rate=0.1, n_steps=60).final_parameters
    probes = pairs.rows[:6]
    found = ntk_certificate(model, start, end, probes)
    assert found.holds
    assert 1 <= found.ratio < 5
    assert 1 <= float((found.bound / found.change.abs()).median()) < 5
    if depth == 1:
        K = empirical_ntk(model, probes)
        c_0 = math.sqrt(float(torch.einsum("iikk->ik", K).max()))
        epsilon = float(two_layer_hessian_norm(model, probes).max())  # at the start alone: the lemma wants more
        assert lemma8(epsilon, c_0, found.radius).value > 5 * found.value


def test_refuses_what_it_cannot_judge() -> None:
    model, x = net(), randn(2, 4)
    start = parameters_of(model)
    with pytest.raises(InputError, match="2\\^k"):
        ntk_certificate(model, start, start, x, nodes=6)
    with pytest.raises(InputError, match="order"):
        ntk_certificate(model, start, start, x, order=3)
    with pytest.raises(InputError, match="output"):
        ntk_certificate(model, start, {"hidden.0": start["hidden.0"]}, x)
    with pytest.raises(InputError, match="diverged"):
        ntk_certificate(model, start, {name: p * math.nan for name, p in start.items()}, x)
    with pytest.raises(InputError, match="memory"):
        ntk_certificate(
            smooth_module(),
            parameters_of(smooth_module()),
            parameters_of(smooth_module()),
            randn(2, 1, 6, 6),
            memory=10,
        )


class Masked(torch.nn.Module):
    """A ReLU that no list of kinked layers knows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 4, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.layer(x)
        return a * (a > 0)


def test_a_comparison_is_a_kink() -> None:
    model = Masked()
    start = parameters_of(model)
    found = ntk_certificate(model, start, {name: p + 0.1 for name, p in start.items()}, randn(2, 3))
    assert not found.valid
    assert "gt" in found.assumptions[0].detail


class Doubled(MLP):
    """Another function than the MLP it is made of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x) ** 2

    def at(self, parameters: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return 2 * super().at(parameters, x) ** 2


def test_a_subclass_with_its_own_forward_is_not_taken_for_an_mlp() -> None:
    net = Doubled(3, 5, 2, activation="tanh", dtype=torch.float64)
    start = parameters_of(net)
    end = {name: p + 0.1 * randn(*p.shape, seed=k) for k, (name, p) in enumerate(start.items())}
    x = randn(2, 3, seed=9)
    found = ntk_certificate(net, start, end, x)

    def kernel(parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        jacobian = torch.func.jacrev(lambda p: net.at(p, x))(dict(parameters))
        J = torch.cat([part.flatten(2) for part in jacobian.values()], dim=2)  # (n, c, p)
        return torch.einsum("aip,bjp->abij", J, J)

    torch.testing.assert_close(found.change, kernel(end) - kernel(start))


@pytest.mark.parametrize("seed", range(2))
def test_large_moves_are_resolved_or_said_not_to_be(seed: int) -> None:
    """The bound holds all along the chord, or the certificate says that its quadrature is not resolved."""
    net = MLP(3, 16, 2, depth=3, activation="tanh", generator=generator(seed), dtype=torch.float64)
    start = parameters_of(net)
    end = {name: p + 10 * randn(*p.shape, seed=100 * seed + k) for k, (name, p) in enumerate(start.items())}
    x = randn(3, 3, seed=seed)
    found = ntk_certificate(net, start, end, x)
    K0 = empirical_ntk(net, x)
    for s in torch.linspace(0.08, 1, 13).tolist():
        at = {name: p + s * (end[name] - p) for name, p in start.items()}
        within = bool(((empirical_ntk(net, x, parameters=at) - K0).abs() <= found.bound).all())
        assert within or not found.valid
    assert ntk_certificate(net, start, end, x, nodes=5).valid is False  # five points resolve no such way
