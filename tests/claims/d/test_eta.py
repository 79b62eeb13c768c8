"""Claim D.eta is measured otherwise once learning rates or the descent are broken."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import floats

from kontrast.claims import Setting
from kontrast.claims.d import eta, networks
from tests.claims.breaks import Break, scaled_rate
from tests.claims.sections import Sections, each_of


def of_mean_loss(real: Any) -> Any:
    """Rates for a mean over samples where the loss is their sum."""

    def rates(kernel: Any) -> Any:
        found = real(kernel)
        return dataclasses.replace(found, stable=found.stable * networks.N, critical=found.critical * networks.N)

    return rates


def without_smallest(real: Any) -> Any:
    """2/λ_max in place of 2/(λ_min + λ_max)."""

    def rates(kernel: Any) -> Any:
        found = real(kernel)
        return dataclasses.replace(found, critical=found.stable)

    return rates


def without_last_row(real: Any) -> Any:
    """The kernel of one point less."""
    return lambda net, x: real(net, x[:-1])


@pytest.fixture(scope="module")
def sections() -> Iterator[Sections]:
    """One seed, and only the rates of the criteria, are enough to tell what is broken from what is not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eta, "MULTIPLES", (0.9, 1.5, 2.5, 4.0))
        names = ["_limits", "endings", "catapults", "_run_panels"]
        yield Sections("D.eta", eta, names, Setting(scale="quick", n_seeds=1))


@each_of(
    [
        (eta, "learning_rates", of_mean_loss, "_limits"),
        (eta, "learning_rates", without_smallest, "_limits"),
        (eta, "gradient_descent", scaled_rate(0.5), "endings"),
        (eta, "NTKOperator", without_last_row, "_limits"),
    ]
)
def test_a_broken_implementation_changes_the_verdict(
    where: Any, name: str, broken: Break, rest_on_it: list[str], sections: Sections
) -> None:
    sections.assert_noticed(where, name, broken, *rest_on_it)


@given(limit=floats(0.6, 1.9), near=floats(1e-3, 1e3))
def test_bisection_finds_where_something_ends(limit: float, near: float) -> None:
    found = eta._last(lambda rate: rate <= limit * near, near, n_rounds=30)
    assert found == pytest.approx(limit * near, rel=1e-8)
