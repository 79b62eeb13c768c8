from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers, sampled_from

from kontrast.dynamics import gradient_descent, regression_problem
from kontrast.errors import InputError
from kontrast.kernels import empirical_ntk
from kontrast.linalg import fit_power_law, orthonormality_error
from kontrast.nets import MLP, PARAMETRIZATIONS, hidden_activations, parameters_of
from tests.cases import TOLERANCE, generator, randn


def slow_forward(net: MLP, x: torch.Tensor) -> torch.Tensor:
    """Unit by unit, as the formula reads."""
    V, W = net.layers()
    rows = []
    for point in x.flatten(1):
        h = point
        for layer, V_l in enumerate(V):
            divisor = math.sqrt(net.width) if net.parametrization == "ntk" and layer else 1
            divisor = 1 / math.sqrt(net.width) if net.parametrization == "mup" and not layer else divisor
            h = torch.stack(
                [net.activation(sum(V_l[i, j] * h[j] for j in range(len(h))) / divisor) for i in range(net.width)]
            )
        divisor = math.sqrt(net.width) if net.parametrization in ("ntk", "mup") else 1
        rows.append(torch.stack([sum(W[i, z] * h[i] for i in range(net.width)) / divisor for z in range(net.d_out)]))
    return torch.stack(rows)


@given(
    seed=integers(0, 2**16),
    depth=integers(1, 3),
    width=integers(2, 6),
    parametrization=sampled_from(PARAMETRIZATIONS),
    activation=sampled_from(["relu", "tanh", "gelu"]),
)
def test_forward_is_the_formula(seed: int, depth: int, width: int, parametrization: str, activation: str) -> None:
    shape = {"depth": depth, "activation": activation, "parametrization": parametrization}
    net = MLP(3, width, 2, **shape, generator=generator(seed), dtype=torch.float64)
    x = randn(4, 3, seed=seed)
    torch.testing.assert_close(net(x), slow_forward(net, x), **TOLERANCE[torch.float64])


def test_one_hidden_layer_is_paper_a_eq_2() -> None:
    net = MLP(5, 7, 3, dtype=torch.float64, generator=generator(3))
    V, W, x = net.hidden[0], net.output, randn(4, 5)
    assert V.shape == (7, 5)
    assert W.shape == (7, 3)
    for n in range(4):
        torch.testing.assert_close(net(x)[n], W.T @ torch.relu(V @ x[n]) / math.sqrt(7), **TOLERANCE[torch.float64])


@pytest.mark.parametrize(
    "parametrization, spread",
    [("ntk", (1.0, 1.0)), ("standard", (1 / 50, 1 / 2000)), ("mup", (1 / 2000, 1 / 2000))],
)
def test_initial_variance(parametrization: str, spread: tuple[float, float]) -> None:
    net = MLP(50, 2000, 40, parametrization=parametrization, generator=generator())
    for weight, variance in zip((net.hidden[0], net.output), spread, strict=True):
        assert float(weight.detach().var()) == pytest.approx(variance, rel=0.03)
        assert float(weight.detach().mean()) == pytest.approx(0, abs=0.02 * math.sqrt(variance))


@given(d_in=integers(1, 12), width=integers(3, 12), seed=integers(0, 2**16))
def test_orthogonal_layers_are_semi_orthogonal(d_in: int, width: int, seed: int) -> None:
    net = MLP(d_in, width, 3, depth=2, parametrization="orthogonal", generator=generator(seed), dtype=torch.float64)
    V, W = net.layers()
    assert orthonormality_error(W) < 1e-12
    for V_l in V:
        assert orthonormality_error(V_l if V_l.shape[0] >= V_l.shape[1] else V_l.mT) < 1e-12


def test_same_seed_same_net_in_every_number_type() -> None:
    one = MLP(4, 6, 2, depth=2, generator=generator(5), dtype=torch.float64)
    two = MLP(4, 6, 2, depth=2, generator=generator(5), dtype=torch.float32)
    other = MLP(4, 6, 2, depth=2, generator=generator(6), dtype=torch.float64)
    for a, b, c in zip(one.parameters(), two.parameters(), other.parameters(), strict=True):
        assert torch.equal(a.float(), b)
        assert not torch.equal(a, c)


def test_images_are_flattened_and_repr_tells_the_net() -> None:
    net = MLP(12, 5, 2, depth=3, activation="tanh")
    assert net(torch.ones(2, 3, 2, 2)).shape == (2, 2)
    assert "12 → 3 × 5 → 2, tanh, ntk" in repr(net)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"width": 0}, "width must be a whole number of at least 1, got 0"),
        ({"width": 2.5}, "width must be a whole number of at least 1, got 2.5"),
        ({"depth": 0}, "depth must be a whole number of at least 1"),
        ({"parametrization": "lazy"}, "must be one of ntk, standard, orthogonal, mup, got 'lazy'"),
        ({"parametrization": "orthogonal", "width": 2}, "width 2 < 3; raise the width"),
        ({"activation": "swish"}, "activation must be one of"),
        *(
            ({name: value}, f"{name} must be a whole number of at least 1, got ")
            for name in ("d_in", "width", "d_out", "depth")
            for value in (True, np.True_, torch.tensor(True), 2.0)
        ),
        ({"dtype": "float16"}, "dtype must be one of float32, float64, got 'float16'"),
        ({"device": "tpu"}, "device must look like 'cpu', 'cuda'"),
        ({"generator": 0}, "generator must be a torch.Generator, got int"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MLP(**{"d_in": 4, "width": 8, "d_out": 3, **options})


@pytest.mark.parametrize("kind", [int, np.int64, np.uint8, np.array, torch.tensor])
def test_whole_numbers_of_any_kind_give_the_same_net(kind: Callable[[int], int]) -> None:
    net, same = MLP(4, 8, 3, depth=2), MLP(kind(4), kind(8), kind(3), depth=kind(2))
    assert all(type(size) is int for size in (same.d_in, same.width, same.d_out, same.depth))
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), same.parameters(), strict=True))


def test_device_and_dtype_are_names_or_torchs_objects() -> None:
    for dtype in ("float64", torch.float64):
        for device in ("cpu", torch.device("cpu")):
            assert MLP(4, 8, 3, dtype=dtype, device=device).output.dtype == torch.float64


# Maximal update


@given(seed=integers(0, 2**16), depth=integers(1, 3), width=integers(2, 9), activation=sampled_from(["relu", "tanh"]))
def test_mup_starts_with_the_features_and_the_kernel_of_ntk(seed: int, depth: int, width: int, activation: str) -> None:
    mup, ntk = (
        MLP(3, width, 2, depth=depth, activation=activation, parametrization=kind, generator=generator(seed)).double()
        for kind in ("mup", "ntk")
    )
    x = randn(4, 3, seed=seed)
    features = [hidden_activations(x, net.layers()[0], net.scales[:-1], net.activation) for net in (mup, ntk)]
    tolerance = {"rtol": 1e-5, "atol": 1e-6}  # the nets are rounded to float32 after one of them is divided by √width
    torch.testing.assert_close(*features, **tolerance)
    torch.testing.assert_close(math.sqrt(width) * mup(x), ntk(x), **tolerance)
    torch.testing.assert_close(*(empirical_ntk(net, x) for net in (mup, ntk)), **tolerance)


@given(seed=integers(0, 2**16), depth=integers(1, 3), width=integers(2, 9))
def test_mup_trains_as_ntk_over_the_root_of_the_width_at_the_width_times_the_rate(
    seed: int, depth: int, width: int
) -> None:
    options = {"depth": depth, "activation": "tanh", "dtype": torch.float64}
    mup, ntk = (MLP(3, width, 2, parametrization=kind, generator=generator(seed), **options) for kind in ("mup", "ntk"))
    problem = regression_problem(randn(4, 3, seed=seed), randn(4, 2, seed=seed + 1))
    runs = [
        gradient_descent(function, parameters_of(net), problem, learning_rate=rate, n_steps=8)
        for net, function, rate in (
            (mup, mup.at, 0.01),
            (ntk, lambda parameters, x: ntk.at(parameters, x) / math.sqrt(width), 0.01 * width),
        )
    ]
    a, b = (run.final_outputs for run in runs)
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("parametrization, low, high", [("mup", -0.1, 0.1), ("ntk", -0.6, -0.4)])
def test_features_move_at_every_width_in_mup_and_ever_less_in_ntk(
    parametrization: str, low: float, high: float, depth: int
) -> None:
    problem = regression_problem(randn(4, 5), randn(4, 2, seed=1))
    widths, moves = [64, 128, 256, 512], []
    for width in widths:
        squares = []
        for seed in range(12):  # the outputs of "ntk" at the start, and so its moves, differ by O(1)
            options = {"depth": depth, "activation": "tanh", "parametrization": parametrization}
            net = MLP(5, width, 2, **options, generator=generator(seed), dtype=torch.float64)
            start = parameters_of(net)
            end = gradient_descent(net.at, start, problem, learning_rate=0.05, n_steps=10).final_parameters
            before, after = (
                hidden_activations(problem.inputs, net.layers(p)[0], net.scales[:-1], net.activation)
                for p in (start, end)
            )
            squares.append(float((after - before).square().mean()))
        moves.append(math.sqrt(sum(squares) / len(squares)))
    law = fit_power_law(widths, moves)
    assert low < law.exponent < high, (law, moves)
    assert moves[-1] > 1e-3
