"""Claim C.lme is measured otherwise once gates, flow, endings or batch normalisation are broken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kontrast.claims import Setting
from kontrast.claims.c import lme
from kontrast.patterns import BatchNormalized, Homogeneous, one_layer
from tests.claims.breaks import Break, times
from tests.claims.sections import Sections, each_of

SECTIONS = [
    "_categorical",
    "_summation",
    "_linear_summation",
    "_sampled_errors",
    "_threshold",
    "_flow_and_iteration",
    "_of_samples",
    "_batch_norm",
    "_no_lme",
    "_gap_panel",
    "_swing_panel",
]


def without_tolerance(real: Any) -> Any:
    """Gates that rounding opens."""
    return lambda self, z, tolerance=0.0: real(self, z)


def with_less_variance(real: Any) -> Any:
    """Batch normalisation that forgets a little of how the standard deviation changes."""
    return lambda self, weights: real(self, weights) + 0.01 * self.covariance.product(weights)


@pytest.fixture(scope="module")
def sections() -> Iterator[Sections]:
    """One seed and two q are enough to tell what is broken from what is not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lme, "RATES", (0.2, 0.35))
        yield Sections("C.lme", lme, SECTIONS, Setting(scale="quick", n_seeds=1))


@each_of(
    [
        (Homogeneous, "gate", without_tolerance, "_categorical"),
        (one_layer, "_tangent", times(-1.0), "_threshold"),
        (one_layer, "PATIENCE", lambda real: 10**9, "_flow_and_iteration"),
        (BatchNormalized, "product", with_less_variance, "_batch_norm"),
    ]
)
def test_a_broken_implementation_changes_the_verdict(
    where: Any, name: str, broken: Break, rest_on_it: list[str], sections: Sections
) -> None:
    sections.assert_noticed(where, name, broken, *rest_on_it)
