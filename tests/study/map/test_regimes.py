"""Every rule decides the cell that it is about, in the stated order, and says whether it is sure."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import floats, lists
from scipy import stats

from kontrast.dynamics import Ending
from kontrast.study import Thresholds
from kontrast.study.map import RULES, Estimate, Regime
from kontrast.study.map.regimes import decided
from tests.study.map.cells import cell, exact

LIMITS = Thresholds()
SETTLED, LIMIT, DIVERGED = Ending.SETTLED, Ending.STEP_LIMIT, Ending.DIVERGED
NUMBERS = floats(-1e3, 1e3, allow_nan=False)

# One cell for each rule, which is decided by it and by none before it; what else it would be is in its numbers.
FIRES = {
    0: {"endings": (SETTLED, DIVERGED, SETTLED), "gap": 0.01},
    1: {"rank": 1.1, "gap": 0.01},
    2: {"endings": (LIMIT, LIMIT, SETTLED), "gap": 0.01},
    3: {"gains": {"start": 0.0}, "gap": 0.01},
    4: {"gap": 0.1, "pca_first": 0.01},
    5: {"pca_first": 0.05},
    6: {},
    7: {"gains": {"start": -0.1}},
}


@pytest.mark.parametrize("place", FIRES)
def test_every_rule_fires_on_the_cell_that_it_is_about(place):
    made = cell(**FIRES[place])
    found = decided(made, LIMITS)
    rule = RULES[place]
    assert found.regime is rule.regime
    assert found.reason == rule.reason(LIMITS)
    assert [other.holds(made, LIMITS) for other in RULES[: place + 1]] == [False] * place + [True]
    assert "{" not in found.reason
    assert (found.numbers, found.gains, found.endings) == (made.numbers, made.gains, made.endings)


def test_there_is_a_rule_for_every_regime_and_the_last_one_always_holds():
    assert {rule.regime for rule in RULES} == set(Regime)
    assert len(RULES) == len(FIRES)
    assert {regime.word for regime in Regime} == {
        "diverged",
        "collapsed",
        "undertrained",
        "kernel",
        "PCA of its start",
        "learning",
    }


@pytest.mark.parametrize("first, second", list(itertools.combinations(range(6), 2)))
def test_of_two_rules_that_hold_the_first_decides(first, second):
    """What a later rule needs stands beside what an earlier one does: undertrained blocks kernel and PCA, and so on."""
    both = {**FIRES[second], **FIRES[first]}
    if {first, second} == {0, 2}:
        both["endings"] = (DIVERGED, LIMIT, LIMIT)
    made = cell(**both)
    assert RULES[first].holds(made, LIMITS)
    if (first, second) != (4, 5):
        made = cell(**{"pca_first": 0.05, **both})
    assert RULES[second].holds(made, LIMITS)
    assert decided(made, LIMITS).regime is RULES[first].regime


def test_collapse_is_a_fall_below_the_level_and_below_half_of_the_start():
    assert decided(cell(rank=1.4, first_rank=9.0), LIMITS).regime is Regime.COLLAPSED
    assert decided(cell(rank=1.6, first_rank=9.0), LIMITS).regime is Regime.LEARNING
    assert decided(cell(rank=1.4, first_rank=2.0), LIMITS).regime is Regime.LEARNING  # it began as a line
    assert decided(cell(spread=0.04, first_spread=0.5), LIMITS).regime is Regime.COLLAPSED
    assert decided(cell(spread=0.06, first_spread=0.5), LIMITS).regime is Regime.LEARNING
    assert decided(cell(spread=0.04, first_spread=0.05), LIMITS).regime is Regime.LEARNING
    assert decided(cell(spread=0.04), Thresholds(tolerance=0.03)).regime is Regime.LEARNING
    assert decided(cell(rank=math.nan), LIMITS).regime is Regime.COLLAPSED  # outputs all alike have no rank


def test_most_runs_must_have_settled():
    for endings, regime in (
        ((SETTLED, SETTLED, LIMIT), Regime.LEARNING),
        ((SETTLED, LIMIT), Regime.UNDERTRAINED),
        ((LIMIT,), Regime.UNDERTRAINED),
        ((SETTLED,), Regime.LEARNING),
    ):
        assert decided(cell(endings=endings), LIMITS).regime is regime


def test_thresholds_move_the_borders():
    assert decided(cell(gap=0.2), LIMITS).regime is Regime.LEARNING
    assert decided(cell(gap=0.2), Thresholds(gap_tolerance=0.2)).regime is Regime.KERNEL
    assert decided(cell(pca_first=0.3), Thresholds(pca_tolerance=0.3)).regime is Regime.PCA
    assert "0.3" in decided(cell(pca_first=0.3), Thresholds(pca_tolerance=0.3)).reason


def test_without_labels_nothing_is_said_of_the_probe():
    made = cell(labels=False)
    assert made.moved(LIMITS) == 1
    found = decided(made, LIMITS)
    assert found.regime is Regime.LEARNING
    assert not found.sure  # no gain over the kernel twin is known
    assert decided(cell(labels=False, gap=0.1), LIMITS).regime is Regime.KERNEL


def test_a_probe_has_moved_by_more_than_the_margin_or_surely():
    for gain, error, sign in ((0.03, 0.1, 1), (-0.03, 0.1, -1), (0.01, 0.02, 0), (0.01, 0.005, 1), (-0.01, 0.005, -1)):
        assert cell(gains={"start": gain}, error=error).moved(LIMITS) == sign


def test_one_seed_must_clear_the_probe_margin():
    def one(gain):
        made = cell(endings=(SETTLED,))
        made.gains["start"] = Estimate.over([gain])
        return made

    assert decided(one(0.01), LIMITS).regime is Regime.UNDERTRAINED
    assert decided(one(0.03), LIMITS).regime is Regime.LEARNING
    assert decided(one(-0.03), LIMITS).regime is Regime.COLLAPSED
    assert decided(one(0.01), Thresholds(probe_margin=0.0)).regime is Regime.LEARNING


SURE = [  # the cell, and whether what decided it lies wholly on its side
    ({"endings": (DIVERGED,) * 3}, True),
    ({"endings": (DIVERGED, SETTLED, SETTLED)}, False),
    ({"rank": exact(1.1, 0.3)}, True),
    ({"rank": exact(1.1, 0.5)}, False),
    ({"spread": exact(0.01, 0.03)}, True),
    ({"endings": (LIMIT,) * 3}, True),
    ({"endings": (LIMIT, LIMIT, SETTLED)}, False),
    ({"gains": {"start": 0.005}, "error": 0.01}, True),
    ({"gains": {"start": 0.01}, "error": 0.02}, False),  # the probe may have moved by more than the margin
    ({"gains": {"start": 0.05}, "error": 0.06}, False),
    ({"gains": {"start": -0.05}, "error": 0.04}, True),
    ({"gains": {"start": -0.05}, "error": 0.06}, False),
    ({"gap": exact(0.1, 0.04)}, True),
    ({"gap": exact(0.1, 0.06)}, False),
    ({"pca_first": exact(0.05, 0.04)}, True),
    ({"pca_first": exact(0.05, 0.06)}, False),
    ({}, True),
    ({"gains": {"kernel": -0.01}}, False),
    ({"error": 0.06}, False),  # the gain of 0.05 over the kernel twin may be none
]


@pytest.mark.parametrize("fields, sure", SURE)
def test_a_verdict_is_sure_where_the_interval_of_what_decided_lies_on_its_side(fields, sure):
    assert decided(cell(**fields), LIMITS).sure is sure


# Estimates


@given(lists(NUMBERS, min_size=2, max_size=8))
def test_an_estimate_is_students_interval(values):
    found = Estimate.over(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    sem = stats.sem(values)
    if sem > 0:
        low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=sem)
        assert (found.low, found.high) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))
        assert found.error == pytest.approx((high - low) / 2, abs=1e-6)
    assert found.above(found.low - 1)
    assert not found.above(found.low)
    assert found.below(found.high + 1)
    assert not found.below(found.high)


def test_one_seed_has_no_interval_and_a_missing_number_is_never_averaged_away():
    one = Estimate.over([0.25])
    assert (one.mean, one.low, one.high) == (0.25, -math.inf, math.inf)
    assert not one.above(-1e9)
    assert not one.below(1e9)
    assert one.in_points() == "+25.0 points (one seed)"
    assert Estimate.over([0.02, 0.04]).in_points().startswith("+3.0 ± ")
    for values in ([math.nan], [1.0, math.nan, 2.0]):
        lost = Estimate.over(values)
        assert math.isnan(lost.mean)
        assert math.isnan(lost.low)
        assert math.isnan(lost.high)
        assert not lost.above(-1e9)
        assert not lost.below(1e9)
