"""A bound as a value: ratios at their edges, verdicts, and numbers beyond the range of floats."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis.strategies import floats

from kontrast.bounds import Assumption, Bound


def bound(value: float = 2.0, **others: object) -> Bound:
    return Bound(name="x", source="here", value=value, **others)  # type: ignore[arg-type]


def test_without_a_measurement_nothing_is_judged() -> None:
    assert math.isnan(bound().ratio)
    assert bound().holds is None
    assert bound().vacuous is None


@pytest.mark.parametrize(
    "value, measured, ratio, holds",
    [
        (2.0, 1.0, 2.0, True),
        (1.0, 2.0, 0.5, False),
        (2.0, 0.0, math.inf, True),
        (0.0, 0.0, math.nan, True),
        (math.inf, 1.0, math.inf, True),
        (2.0, math.nan, math.nan, None),
        (1.0, 1.0 + 1e-12, 1.0, True),  # rounding is no violation
        (1.0, 1.0 + 1e-6, 1.0, False),
    ],
)
def test_ratio_and_verdict(value: float, measured: float, ratio: float, holds: bool | None) -> None:
    found = bound(value).with_measured(measured)
    assert found.ratio == pytest.approx(ratio, rel=1e-5, nan_ok=True)
    assert found.holds is holds


def test_vacuous_is_no_better_than_trivial() -> None:
    assert bound(2.0, trivial=1.0).vacuous is True
    assert bound(2.0, trivial=3.0).vacuous is False
    assert bound(2.0).with_measured(1.0, trivial=2.0).vacuous is True
    assert bound(math.inf).vacuous is True


@given(value=floats(1e-300, 1e300))
def test_the_logarithm_agrees_with_the_value(value: float) -> None:
    assert 10 ** bound(value).log10 == pytest.approx(value, rel=1e-12)


def test_a_bound_beyond_floats_keeps_its_logarithm() -> None:
    found = bound(math.inf, log10=4321.5).with_measured(0.1)
    assert found.log10 == 4321.5
    assert "10^4322" in str(found)
    assert "vacuous" in str(found)


def test_the_text_names_what_fails_in_one_line() -> None:
    smooth = Assumption("5", False, "β = inf: relu has a kink")
    found = bound(1.0, assumptions=(smooth, Assumption("1", True, "δ = 0.01"))).with_measured(2.0)
    assert found.failed == ("5",)
    assert "VIOLATED" in str(found)
    assert "assumptions that fail: 5" in str(found)
    assert "\n" not in str(found)
    assert "FAILS" in str(smooth)


def test_constants_cannot_be_changed_from_outside() -> None:
    given_constants = {"M": 4.0}
    found = bound(constants=given_constants)
    given_constants["M"] = 5.0
    assert found.constants["M"] == 4.0
    with pytest.raises(TypeError):
        found.constants["M"] = 6.0  # type: ignore[index]
