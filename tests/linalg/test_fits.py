from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers
from scipy import stats

from kontrast.errors import InputError
from kontrast.linalg import fit_log_law, fit_power_law

WIDTHS = 2.0 ** np.arange(5, 12)


@given(exponent=floats(-3, 3), prefactor=floats(1e-6, 1e6), scale=floats(1e-3, 1e3))
def test_an_exact_law_is_found_and_units_do_not_matter(exponent: float, prefactor: float, scale: float) -> None:
    law = fit_power_law(WIDTHS, prefactor * WIDTHS**exponent)
    assert law.exponent == pytest.approx(exponent, abs=1e-9)
    assert law(100.0) == pytest.approx(prefactor * 100.0**exponent, rel=1e-8)
    assert law.high - law.low < 1e-6
    scaled = fit_power_law(scale * WIDTHS, prefactor * WIDTHS**exponent)
    assert scaled.exponent == pytest.approx(exponent, abs=1e-9)


@given(exponent=floats(-3, -0.1), level=floats(1e-4, 1e3))
def test_solve_inverts_the_law(exponent: float, level: float) -> None:
    law = fit_power_law(WIDTHS, 5 * WIDTHS**exponent)
    assert law(law.solve(level)) == pytest.approx(level, rel=1e-6)


@pytest.mark.parametrize("fit", [fit_power_law, fit_log_law])
def test_the_interval_covers_the_truth_as_often_as_it_says(fit) -> None:
    rng, hits = np.random.default_rng(0), 0
    for _ in range(1000):
        noise = 0.3 * rng.standard_normal(len(WIDTHS))
        y = np.exp(1 - 0.7 * np.log(WIDTHS) + noise) if fit is fit_power_law else 1 - 0.7 * np.log(WIDTHS) + noise
        law = fit(WIDTHS, y)
        hits += law.low <= -0.7 <= law.high
    assert 0.93 < hits / 1000 < 0.97


@given(seed=integers(0, 100), confidence=floats(0.5, 0.99))
def test_slope_and_interval_are_those_of_ordinary_regression(seed: int, confidence: float) -> None:
    y = np.exp(np.random.default_rng(seed).standard_normal(len(WIDTHS)))
    law, theirs = fit_power_law(WIDTHS, y, confidence=confidence), stats.linregress(np.log(WIDTHS), np.log(y))
    half = stats.t.ppf((1 + confidence) / 2, len(WIDTHS) - 2) * theirs.stderr
    assert law.exponent == pytest.approx(theirs.slope, rel=1e-9, abs=1e-12)
    assert (law.low, law.high) == pytest.approx((theirs.slope - half, theirs.slope + half), rel=1e-9, abs=1e-12)


@given(slope=floats(-5, 5), intercept=floats(-5, 5))
def test_an_exact_logarithm_is_found(slope: float, intercept: float) -> None:
    law = fit_log_law(WIDTHS, intercept + slope * np.log(WIDTHS))
    assert law.slope == pytest.approx(slope, abs=1e-9)
    assert law(77.0) == pytest.approx(intercept + slope * math.log(77), abs=1e-8)


def test_two_points_have_no_interval_and_say_so() -> None:
    law = fit_power_law([1, 2], [1, 4])
    assert law.exponent == pytest.approx(2)
    assert law.low == -math.inf
    assert "no interval" in str(law)


@given(seed=integers(0, 100))
def test_text_shows_exponent_and_interval(seed: int) -> None:
    law = fit_power_law(WIDTHS, np.exp(np.random.default_rng(seed).standard_normal(len(WIDTHS))))
    assert str(law) == f"{law.exponent:+.2f} [{law.low:+.2f}, {law.high:+.2f}]"


@pytest.mark.parametrize(
    "x, y",
    [([1, 2], [1, -1]), ([1, 2], [1, math.nan]), ([1, 2], [0, 1]), ([1, 1], [1, 2]), ([0, 1], [1, 2]), ([1, 2], [1])],
)
def test_points_that_cannot_be_fitted_are_refused(x: list[float], y: list[float]) -> None:
    with pytest.raises(InputError):
        fit_power_law(x, y)


@pytest.mark.parametrize("confidence", [0, 1, math.nan, True, "0.95"])
def test_a_confidence_lies_between_0_and_1(confidence: float) -> None:
    with pytest.raises(InputError, match="confidence must be a number above 0 and below 1, got"):
        fit_log_law([1, 2], [1, 2], confidence=confidence)
