"""Borders of a made-up map lie where its formulas put them, with the exponent of those formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, integers
from scipy import stats

from kontrast.dynamics import Ending
from kontrast.study import Thresholds
from kontrast.study.map.borders import Border, borders_of, crossing, divergence, level_law
from tests.cases import randn
from tests.study.map.cells import cell

RATES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
WIDTHS = (32, 64, 128, 256, 512)


def row(values, name="gap", rates=RATES, **fields):
    return [cell(rate=rate, **{name: value}, **fields) for rate, value in zip(rates, values, strict=True)]


@given(exponent=floats(0.3, 3.0), at=floats(0.031, 9.9))
def test_a_power_of_the_rate_crosses_its_level_where_it_does(exponent, at):
    values = [0.15 * (rate / at) ** exponent for rate in RATES]
    assert crossing(row(values), "map_gap", 0.15) == pytest.approx(at)
    falling = [0.15 * (rate / at) ** -exponent for rate in RATES]
    assert crossing(row(falling), "map_gap", 0.15) == pytest.approx(at)


def test_it_is_the_first_of_several_crossings():
    assert crossing(row([0.1, 0.2, 0.1, 0.2, 0.1, 0.2]), "map_gap", 0.15) < 0.1


@given(exponent=floats(0.3, 3.0), outside=floats(-0.95, 0.95))
def test_a_line_is_carried_on_by_half_a_step_and_no_further(exponent, outside):
    """`outside` steps below the lowest rate, or above the highest, in logarithms."""
    for step, end in ((0.1 / 0.03, 0.03), (3.0 / 10.0, 10.0)):
        at = end * step ** -abs(outside)
        found = crossing(row([0.15 * (rate / at) ** exponent for rate in RATES]), "map_gap", 0.15)
        if abs(outside) < 0.49:
            assert found == pytest.approx(at)
        elif abs(outside) > 0.51:
            assert math.isnan(found)


def test_a_border_is_not_carried_on_into_rates_that_diverge():
    at = 3.5  # just above the last rate with a gap
    values = [0.15 * (rate / at) if rate < 10 else math.nan for rate in RATES]
    assert math.isnan(crossing(row(values), "map_gap", 0.15))
    assert crossing(row(values[:-1], rates=RATES[:-1]), "map_gap", 0.15) == pytest.approx(at)


def test_there_is_none_where_nothing_crosses():
    assert math.isnan(crossing(row([0.5] * 6), "map_gap", 0.15))
    assert math.isnan(crossing(row([0.001 * rate for rate in RATES]), "map_gap", 0.15))
    assert math.isnan(crossing(row([math.nan] * 6), "map_gap", 0.15))
    assert math.isnan(crossing(row([0.1], rates=(1.0,)), "map_gap", 0.15))
    # A share below zero, of a loss that rises, is below every level; it crosses on the way from above.
    found = crossing(row([0.5, 0.4, 0.3, -0.2, -0.1, -0.1], "still_falling"), "map_still_falling", 0.125)
    assert 0.3 < found < 1.0


# Divergence


def test_divergence_takes_all_steps_at_the_border():
    """The step of divergence falls as 1/(rate − 2), say; carried on, it takes all 1000 steps below the first."""
    steps = [math.nan, math.nan, math.nan, math.nan, 100.0, 20.0]
    slope = math.log(10 / 3) / math.log(20 / 100)
    found = divergence(row(steps, "diverged_at"), 120)
    assert found == pytest.approx(3.0 * (120 / 100) ** slope)
    assert 1.0 < found < 3.0


@given(first=integers(1, 5), max_steps=integers(10, 10**6), fall=floats(1.01, 100))
def test_divergence_lies_between_the_two_rates(first, max_steps, fall):
    steps = [math.nan] * first + [10.0 / fall**k for k in range(6 - first)]
    found = divergence(row(steps, "diverged_at"), max_steps)
    assert RATES[first - 1] <= found <= RATES[first]
    if first == 5:  # one step is no line to carry on
        assert found == pytest.approx(math.sqrt(RATES[4] * RATES[5]))


def test_divergence_of_all_or_none_has_no_border_and_equal_steps_have_the_middle():
    assert math.isnan(divergence(row([math.nan] * 6, "diverged_at"), 100))
    assert math.isnan(divergence(row([10.0] * 6, "diverged_at"), 100))
    equal = [math.nan] * 3 + [10.0] * 3
    assert divergence(row(equal, "diverged_at"), 100) == pytest.approx(math.sqrt(0.3))


# Laws


def panel(exponent, noise=0.0, widths=WIDTHS, seed=0):
    """Cells with gap = 0.15 · rate / r(width), r = 0.05 · width^exponent · e^noise, and divergence at rate 10."""
    shift = noise * randn(len(widths), seed=seed)
    return [
        cell(
            width=width,
            rate=rate,
            gap=0.15 * rate / (0.05 * width**exponent * math.exp(float(e))),
            still_falling=0.5 if rate < 0.2 else 0.01,
            diverged_at=20.0 if rate == 10 else math.nan,
        )
        for width, e in zip(widths, shift, strict=True)
        for rate in RATES
    ]


@given(exponent=floats(-0.05, 0.8))
def test_the_law_of_a_border_is_that_of_the_formula(exponent):
    borders = {border.name: border for border in borders_of(panel(exponent), Thresholds(), 100)}
    assert list(borders) == ["settled", "kernel", "diverged"]
    kernel = borders["kernel"]
    assert (kernel.loss, kernel.sizes) == ("nt_xent", WIDTHS)
    assert kernel.law is not None
    assert kernel.law.exponent == pytest.approx(exponent, abs=1e-9)
    assert kernel.law.high - kernel.law.low < 1e-6
    assert kernel.rate_at(1000).mean == pytest.approx(0.05 * 1000**exponent)
    if exponent > 0.01:
        width = kernel.size_at(kernel.rate_at(700).mean)
        assert (width.low, width.mean, width.high) == (pytest.approx(700), pytest.approx(700), pytest.approx(700))
    elif exponent <= 0:
        assert math.isinf(kernel.size_at(1.0).mean)  # it never rises above a rate
    assert borders["diverged"].law is not None
    assert borders["diverged"].law.exponent == pytest.approx(0.0, abs=1e-9)
    assert borders["diverged"].rates == (pytest.approx(math.sqrt(30)),) * 5


def test_noise_widens_the_interval_around_the_exponent():
    held = 0
    for seed in range(20):
        [kernel] = [it for it in borders_of(panel(0.5, 0.1, seed=seed), Thresholds(), 100) if it.name == "kernel"]
        assert kernel.law is not None
        assert kernel.law.low < kernel.law.exponent < kernel.law.high
        held += kernel.law.low <= 0.5 <= kernel.law.high
    assert held >= 17  # of 20, at 95 %


def test_the_tolerance_moves_the_kernel_border_alone():
    borders = [
        {it.name: it.rates for it in borders_of(panel(0.5), Thresholds(gap_tolerance=gap), 100)} for gap in (0.15, 0.3)
    ]
    assert borders[1]["kernel"] == pytest.approx([2 * rate for rate in borders[0]["kernel"]])
    assert borders[1]["settled"] == borders[0]["settled"]
    assert borders[1]["diverged"] == borders[0]["diverged"]


def test_a_law_needs_two_widths():
    [kernel] = [it for it in borders_of(panel(0.5, widths=(64,)), Thresholds(), 100) if it.name == "kernel"]
    assert kernel.law is None
    assert kernel.rate_at(64).mean == kernel.rates[0]
    assert math.isnan(kernel.rate_at(65).mean)
    assert math.isinf(kernel.size_at(1.0).mean)
    assert kernel.rates == (pytest.approx(0.05 * 8),)
    [two] = [it for it in borders_of(panel(0.5, widths=(64, 256)), Thresholds(), 100) if it.name == "kernel"]
    assert two.law is not None
    assert math.isinf(two.law.high)
    assert not borders_of([cell(rate=rate) for rate in RATES], Thresholds(), 100)  # nothing crosses, no border


def test_cells_may_come_in_any_order():
    cells = panel(0.5)
    assert borders_of(cells[::-1], Thresholds(), 100) == borders_of(cells, Thresholds(), 100)
    assert all(isinstance(border, Border) for border in borders_of(cells, Thresholds(), 100))


@settings(max_examples=20)
@given(b=floats(0.3, 0.7), c=floats(-0.8, -0.2), seed=integers(0, 2**16))
def test_the_law_of_a_level_is_that_of_the_gap_around_it(b, c, seed):
    """gap = rate^b size^c · noise: the border is rate ∝ size^(−c/b), and its interval holds that in most draws."""
    rng = np.random.default_rng(seed)

    def drawn(noise, **fields):
        return [
            cell(width=w, rate=r, gap=0.15 * r**b * (w / 128) ** c * math.exp(noise * rng.normal()), **fields)
            for w in (32, 64, 128, 256, 512)
            for r in RATES
        ]

    exact_law = level_law(drawn(0.0), 0.15)
    assert exact_law.exponent == pytest.approx(-c / b)
    assert exact_law(128) == pytest.approx(1.0)
    held = [law.low <= -c / b <= law.high for law in (level_law(drawn(0.02), 0.15) for _ in range(20))]
    assert sum(held) >= 13  # of 20 intervals of 95 %; fewer has a chance of 1e-6
    # Cells that have not settled, and those far from the level, have no say.
    others = [*drawn(1.0, endings=(Ending.STEP_LIMIT,) * 3), cell(width=64, rate=1.0, gap=0.9), cell(gap=0.01)]
    assert level_law([*drawn(0.0), *others], 0.15) == exact_law


def test_a_place_on_a_border_has_fiellers_interval():
    """Both ends are where a + b log rate + c log size is t standard errors away from 0."""
    law = level_law(panel(0.5, 0.1, seed=3), 0.15)
    V, t = np.array(law.covariance), stats.t.ppf(0.975, len(WIDTHS) - 2)
    for found, place in (
        (law.size_at(2.0), lambda size: np.array([1.0, math.log(2.0), math.log(size)])),
        (law.rate_at(100), lambda rate: np.array([1.0, math.log(rate), math.log(100)])),
    ):
        assert found.low < found.mean < found.high
        assert place(found.mean) @ law.coefficients == pytest.approx(0.0, abs=1e-12)
        for end in (found.low, found.high):
            at = place(end)
            assert abs(at @ law.coefficients) / math.sqrt(at @ V @ at) == pytest.approx(t)
    flat = level_law(panel(0.0, 0.3, seed=1), 0.15)  # of no known slope in the width
    assert (flat.size_at(10.0).low, flat.size_at(10.0).high) == (0.0, math.inf)


def test_fiellers_interval_holds_the_width_of_the_border_in_most_draws():
    truth = (2.0 / 0.05) ** 2  # rate 0.05·width^0.5
    found = [level_law(panel(0.5, 0.1, seed=seed), 0.15).size_at(2.0) for seed in range(40)]
    assert sum(it.low <= truth <= it.high for it in found) >= 33  # of 40, at 95 %: fewer once in 1,400


def test_the_interval_of_a_level_is_the_delta_method_where_the_estimates_depend_on_each_other():
    """Cells along the border alone, so that b and c are tied; the derivatives of −c/b in every gap by differences."""
    b, c, n, step = 0.5, -0.3, 20, 1e-5
    sizes = np.repeat((32.0, 64.0, 128.0, 256.0, 512.0), 4)
    rates = np.tile((0.4, 0.7, 1.0, 1.6), 5) * (sizes / 128) ** (-c / b)
    X = np.stack([np.ones(n), np.log(rates), np.log(sizes)], axis=1)
    y = X @ [-c * math.log(128), b, c] + 0.05 * np.random.default_rng(0).normal(size=n)

    def law(y):
        places = zip(sizes, rates, y, strict=True)
        return level_law([cell(width=int(w), rate=r, gap=0.15 * math.exp(v)) for w, r, v in places], 0.15)

    derivatives = [(law(y + e).exponent - law(y - e).exponent) / (2 * step) for e in step * np.eye(n)]
    residuals = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
    # Here widths are off by more than their cells, as though they had errors of their own.
    of_cells, of_sizes = np.square(residuals).sum() / (n - 3), 4 * np.square(residuals.reshape(5, 4).mean(1)).sum() / 3
    assert of_sizes > of_cells
    half = stats.t.ppf(0.975, 5 - 2) * math.sqrt(of_sizes * np.square(derivatives).sum())
    found = law(y)
    assert (found.low, found.high) == pytest.approx((found.exponent - half, found.exponent + half), rel=1e-6)


def test_a_level_needs_four_cells_at_two_widths_and_rates_and_a_gap_that_grows():
    grid = [cell(width=w, rate=r, gap=0.15 * r**0.5 * (w / 64) ** -0.5) for w in (64, 128) for r in (0.5, 1.0, 2.0)]
    assert level_law(grid, 0.15) is not None
    assert level_law(grid[:3], 0.15) is None
    assert level_law([it for it in grid if it.size == 64] * 2, 0.15) is None  # one width
    assert (
        level_law([cell(width=it.size, rate=1 / it.rate, gap=it.numbers["map_gap"].mean) for it in grid], 0.15) is None
    )
