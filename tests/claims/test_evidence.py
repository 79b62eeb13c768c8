"""A verdict follows from numbers by one rule; evidence survives being stored."""

from __future__ import annotations

import math

import numpy as np
import pytest
import xarray as xr

from kontrast.claims import Criterion, Curve, Estimate, Evidence, Panel, Verdict, judge
from kontrast.claims.evidence import against, corrected, curve, informative, judged, printed, shown
from kontrast.linalg import fit_log_law, fit_power_law
from kontrast.runs.store import from_bytes, to_bytes

TRUE, FALSE, UNKNOWN = 0.0, 2.0, math.nan


def verdict_of(**outcomes: list[float]) -> Verdict:
    """The verdict of criteria `at most 1` by role, with these measured numbers."""
    numbers = {f"{role}{i}": number for role, values in outcomes.items() for i, number in enumerate(values)}
    criteria = [
        Criterion(f"{role}{i}", "", high=1, role=role)  # type: ignore[arg-type]
        for role, values in outcomes.items()
        for i in range(len(values))
    ]
    return judge({name: Estimate.of(number) for name, number in numbers.items()}, criteria)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ({"printed": [TRUE, TRUE]}, Verdict.HOLDS),
        ({"printed": [TRUE, FALSE]}, Verdict.REFUTED),
        ({"printed": [FALSE], "corrected": [TRUE, TRUE]}, Verdict.CORRECTED),
        ({"printed": [FALSE], "corrected": [TRUE, FALSE]}, Verdict.REFUTED),
        ({"printed": [TRUE], "corrected": [TRUE]}, Verdict.HOLDS),
        ({"printed": [TRUE], "corrected": [FALSE]}, Verdict.UNDECIDED),
        ({"printed": [TRUE], "corrected": [TRUE, FALSE], "informative": [FALSE]}, Verdict.UNDECIDED),
        ({"corrected": [TRUE]}, Verdict.CORRECTED),
        ({"printed": [TRUE], "informative": [FALSE]}, Verdict.VACUOUS),
        ({"printed": [FALSE], "corrected": [TRUE], "informative": [FALSE]}, Verdict.VACUOUS),
        ({"printed": [FALSE], "informative": [FALSE]}, Verdict.REFUTED),
        ({"printed": [TRUE], "informative": [TRUE]}, Verdict.HOLDS),
        ({"printed": [TRUE, UNKNOWN]}, Verdict.UNDECIDED),
        ({"printed": [TRUE], "informative": [UNKNOWN]}, Verdict.UNDECIDED),
        ({"printed": [FALSE], "against": [TRUE]}, Verdict.REFUTED),
        ({"printed": [FALSE], "against": [TRUE, FALSE]}, Verdict.UNDECIDED),
        ({"informative": [TRUE]}, Verdict.UNDECIDED),
        ({}, Verdict.UNDECIDED),
    ],
)
def test_the_rule(outcomes: dict[str, list[float]], expected: Verdict) -> None:
    assert verdict_of(**outcomes) is expected


def test_a_failure_within_the_noise_leaves_a_claim_undecided() -> None:
    noisy, clear = {"p": Estimate(1.2, 0.8, 1.6)}, {"p": Estimate(1.2, 1.1, 1.3)}
    criterion = [Criterion("p", "", high=1)]
    assert judge(noisy, criterion) is Verdict.UNDECIDED
    assert judge(clear, criterion) is Verdict.REFUTED
    both = [Criterion("p", "", high=1), Criterion("p", "", low=1.5, role="corrected")]
    assert judge(noisy, both) is Verdict.UNDECIDED
    assert judge(clear, both) is Verdict.REFUTED
    assert judge(noisy, [Criterion("p", "", high=1.5)]) is Verdict.HOLDS  # the value decides, the interval is shown


def test_a_criterion_holds_within_its_range_and_says_so() -> None:
    measured = {"p": Estimate(-0.8, -1.2, -0.4)}
    assert Criterion("p", "", low=-0.9, high=-0.7).holds(measured) is True  # the value decides, the interval is shown
    assert Criterion("p", "", low=-0.7).holds(measured) is False
    assert Criterion("p", "", low=-0.8, high=-0.8).holds(measured) is True
    assert not Criterion("p", "", low=-0.9, high=-0.7).is_sure(measured)
    assert not Criterion("p", "", low=-0.7).is_sure(measured)
    assert Criterion("p", "", low=-2, high=0).is_sure(measured)
    assert Criterion("p", "", low=0).is_sure(measured)  # surely not
    assert Criterion("p", "", low=1).range == "at least 1"
    assert Criterion("p", "", high=0.5).range == "at most 0.5"
    assert Criterion("p", "", low=-1, high=1).range == "-1 to 1"
    assert Criterion("p", "").holds({"p": Estimate.of(math.nan)}) is None


def test_estimates_carry_the_interval_of_a_fit() -> None:
    x = [1.0, 2.0, 4.0, 8.0]
    power = fit_power_law(x, [1.0, 0.6, 0.2, 0.13])
    assert Estimate.of(power) == Estimate(power.exponent, power.low, power.high)
    log = fit_log_law(x, [1.0, 2.1, 2.9, 4.0])
    assert Estimate.of(log) == Estimate(log.slope, log.low, log.high)
    assert Estimate.of(3) == Estimate(3.0, 3.0, 3.0)
    assert Estimate.of(3).is_plain
    assert not Estimate.of(power).is_plain
    assert str(Estimate(1.5, 1.0, 2.0)) == "1.5 [1, 2]"
    assert str(Estimate(1.5, -math.inf, math.inf)) == "1.5"


def test_evidence_survives_the_file_bit_for_bit() -> None:
    found = judged(
        corrected("exponent", Estimate(-0.5, -0.7, -0.3), "falls ≤ −½", high=0),
        printed("huge", math.inf, "large", low=1),
        *shown(nothing=math.nan),
        data=xr.Dataset({"gap": (("width", "seed"), np.array([[0.1, 0.2]]))}, coords={"width": [64], "seed": [0, 1]}),
        panels=[Panel("a, b", "x", "y", (curve("one", [1, 2], [3, math.nan]), Curve("two", (1.0,), (2.0,), "dashed")))],
        setting={"n_samples": 10},
        warnings=["gap is zero", "gap is zero"],
    )
    read = Evidence.from_dataset(from_bytes(to_bytes(found.to_dataset())))
    assert str(read.measured) == str(found.measured)  # as strings, for NaN differs from itself
    assert read.criteria == found.criteria
    assert repr(read.panels) == repr(found.panels)
    assert read.setting == found.setting
    assert read.warnings == ("gap is zero",)
    assert read.data.equals(found.data)
    assert read.verdict is found.verdict


def test_findings_keep_number_range_and_sentence_together() -> None:
    law = fit_power_law([1.0, 2.0, 4.0, 8.0], [1.0, 0.6, 0.2, 0.13])
    data = xr.Dataset({"gap": (("width", "seed"), np.ones((2, 3)))}, coords={"width": [64, 128]})
    found = judged(
        printed("slope", law, "falls as 1/√M", low=-0.6, high=-0.4),
        corrected("slope", law, "falls as 1/M", low=-1.2, high=-0.8),
        informative("size", 3, "is small", high=1),
        against("size", 3, "is large", low=2),
        *shown(other=5.0),
        data=data,
        setting={"n_seeds": 7},
    )
    assert found.measured == {"slope": Estimate.of(law), "size": Estimate.of(3), "other": Estimate.of(5)}
    assert found.criteria == (
        Criterion("slope", "falls as 1/√M", low=-0.6, high=-0.4),
        Criterion("slope", "falls as 1/M", low=-1.2, high=-0.8, role="corrected"),
        Criterion("size", "is small", high=1, role="informative"),
        Criterion("size", "is large", low=2, role="against"),
    )
    assert found.setting == {"widths": [64, 128], "n_seeds": 7}  # the claim's own word goes before that of the data
    assert judged(data=data).setting == {"widths": [64, 128], "n_seeds": 3}


def test_a_number_measured_twice_has_one_value() -> None:
    again = judged(printed("x", math.nan, "small", high=1), corrected("x", math.nan, "large", low=2))
    assert again.verdict is Verdict.UNDECIDED
    with pytest.raises(ValueError, match="x was measured twice, as 1 and as 2"):
        judged(printed("x", 1, "small", high=1), corrected("x", 2, "large", low=2))
