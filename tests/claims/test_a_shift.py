"""The shift of hidden units, on which the NTK's law in the width depends (claim A.fig3)."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, sampled_from
from scipy import stats

from kontrast.claims import Setting
from kontrast.claims.a import fig3
from kontrast.claims.a.runs import cosine_drift, unit_shift
from kontrast.dynamics.trajectory import Snapshot
from kontrast.nets import MLP, parameters_of
from tests.cases import generator

QUICK = Setting(scale="quick")
SLOPES = {"tanh": lambda a: 1 / math.cosh(a) ** 2, "relu": lambda a: float(a > 0)}


@settings(max_examples=8, deadline=None)
@given(seed=integers(0, 2**16), activation=sampled_from(["tanh", "relu"]))
def test_the_shift_is_that_of_a_loop_over_units(seed: int, activation: str) -> None:
    pairs = QUICK.pairs(10, seed=0)
    net = MLP(pairs.rows.shape[1], 5, 2, activation=activation, generator=generator(seed), dtype=torch.float64)
    moved = {name: p + 0.3 * torch.randn_like(p) for name, p in parameters_of(net).items()}
    found = float(unit_shift(net, pairs)(Snapshot(1, torch.empty(0), moved)))
    largest = 0.0
    for x in pairs.rows[pairs.anchor]:
        top = bottom = 0.0
        for v, w in zip(net.hidden[0].detach(), moved["hidden.0"], strict=True):
            weight = SLOPES[activation](float(v @ x)) ** 2
            top, bottom = top + weight * float((w - v) @ x) ** 2, bottom + weight
        largest = max(largest, math.sqrt(top / bottom) if bottom else 0.0)
    assert found == pytest.approx(largest, rel=1e-9)


def test_a_probe_without_an_active_unit_does_not_shift() -> None:
    pairs = QUICK.pairs(10, seed=0)
    pairs = dataclasses.replace(pairs, x=torch.zeros_like(pairs.x))
    net = MLP(pairs.rows.shape[1], 5, 2, generator=generator(0), dtype=torch.float64)
    moved = {name: p + 1 for name, p in parameters_of(net).items()}
    assert float(unit_shift(net, pairs)(Snapshot(1, torch.empty(0), moved))) == 0


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_norm_of_the_inputs_drops_out_for_relu_only(activation: str) -> None:
    """Inputs ten times as long: ReLU moves its weights as before, and its NTK is a hundred times as large."""
    short, long = (
        cosine_drift(QUICK, [64], [0, 1], [0, 30], activation=activation, largest_square=square).sel(t=30)
        for square in (16.0, 1600.0)
    )
    ratios = {name: long[name].values / short[name].values for name in ("change", "weights_moved", "shift")}
    assert (long.largest_square == 1600).all()
    if activation == "relu":  # up to δ/‖f‖
        np.testing.assert_allclose(ratios["change"], 100, rtol=1e-2)
        np.testing.assert_allclose(ratios["shift"], 10, rtol=1e-2)
        np.testing.assert_allclose(ratios["weights_moved"], 1, rtol=1e-2)
    else:
        assert (abs(ratios["change"] / 100 - 1) > 0.1).all()
        assert (abs(ratios["weights_moved"] - 1) > 0.05).all()


@given(at=floats(0.05, 5), slope=floats(0.05, 1))
def test_the_crossover_of_a_line_is_where_it_passes_three_quarters(at: float, slope: float) -> None:
    shift = np.array([0.1, 0.4, 1.0, 3.0])
    found, crossover = fig3._crossover(shift, -0.75 + slope * np.log(shift / at))
    assert found == pytest.approx(slope)
    assert math.exp(crossover) == pytest.approx(at)


def test_there_is_no_crossover_without_points_or_with_a_falling_line() -> None:
    shift = np.array([0.1, 0.2, 0.4])
    for exponent in ([-0.5, -0.7, -1], [-1, math.nan, -0.5]):
        assert math.isnan(fig3._crossover(shift, np.array(exponent))[1])
    for few in (shift[:0], shift[:2], np.full(4, 0.3)):
        assert math.isnan(fig3._crossover(few, few - 1)[1])


def test_a_shift_that_no_point_has_gives_no_number() -> None:
    points = [
        fig3._Point("tanh", 100, exponent, shift, reach)
        for exponent, shift, reach in ((-1.1, 0.01, 0.1), (-0.9, 0.15, 0.3), (-0.7, 0.5, 0.2), (-0.4, 0.8, 0.0))
    ]
    found = fig3._summary(points)
    assert (found["much"], found["per_reach"]) == (-0.4, 0.3)
    between = fig3._summary(points[2:3])
    assert all(math.isnan(between[name]) for name in ("much", "slope", "ln_crossover"))


@pytest.mark.parametrize(("shift", "exponent"), [(0.15, -0.9), (0.16, math.nan)])
def test_the_law_of_little_shift_needs_a_little_shift(shift: float, exponent: float) -> None:
    widths = np.array([256.0, 512.0, 1024.0])
    change = np.outer(widths**-0.9, [1.0, 2.0, 3.0])[..., None]
    sizes = ("width", "seed", "t")
    found = xr.Dataset(
        {"change": (sizes, change), "shift": (sizes, np.full_like(change, shift))},
        coords={"width": widths, "seed": range(3), "t": [10]},
    )
    law = fig3._law_of_little_shift(found)
    assert law.value == pytest.approx(exponent, nan_ok=True)
    if shift == 0.15:  # all seeds fall alike
        assert law.high - law.low < 1e-9


@given(seed=integers(0, 2**16), n=integers(2, 9))
def test_the_jackknife_of_a_mean_is_students_interval(seed: int, n: int) -> None:
    x = np.random.default_rng(seed).normal(size=n)
    found = fig3.jackknife(x.mean(), [np.delete(x, k).mean() for k in range(n)])
    expected = stats.t.interval(0.95, n - 1, loc=x.mean(), scale=x.std(ddof=1) / math.sqrt(n))
    assert (found.low, found.high) == pytest.approx(expected)


def test_the_jackknife_of_one_seed_or_without_a_number_says_nothing() -> None:
    for left_out in ([], [1.0], [1.0, math.nan]):
        assert fig3.jackknife(1.0, left_out).low == -math.inf
