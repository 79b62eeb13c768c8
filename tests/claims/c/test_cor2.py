"""Claim C.cor2 is measured otherwise once the code it rests on is broken; its closed form obeys its own laws."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats

from kontrast.claims.c import cor2
from kontrast.claims.c.cor2 import AtPattern
from kontrast.patterns import THRESHOLD_Q, GatedCovariance, GaussianImportance
from tests.claims.breaks import Break, times
from tests.claims.sections import Sections, each_of


def warmer(real: Any) -> Any:
    """α at twice the temperature."""
    return lambda self, squares, own: real(self, squares / 2, own)


def at_rest(real: Any) -> Any:
    """Stability as if α did not move with w."""
    return property(lambda self: self.gap)


def always_uniform(real: Any) -> Any:
    """τ is lost on the way."""
    return lambda *args, temperature, **options: real(*args, temperature=math.inf, **options)


@pytest.fixture(scope="module")
def sections() -> Iterator[Sections]:
    """At one temperature beside ∞, which is enough to tell what is broken from what is not."""
    names = ["_counts", "_identity_error", "_field_error", "_at_patterns", "_in_the_window", "_gap_panel"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cor2, "TEMPERATURES", (0.1,))
        patch.setattr(cor2, "GRID_Q", (0.1, 0.2, 0.3, 0.43))
        yield Sections("C.cor2", cor2, names)


@each_of(
    [
        (cor2, "gaussian_z0", times(1.001), "_identity_error"),
        (GaussianImportance, "_alpha", warmer, "_field_error"),
        (AtPattern, "margin", at_rest, "_at_patterns"),
        (GatedCovariance, "matrix", times(1.001), "_at_patterns"),
        (cor2, "_ends", always_uniform, "_in_the_window"),
    ]
)
def test_a_broken_implementation_changes_the_verdict(
    where: Any, name: str, broken: Break, rest_on_it: list[str], sections: Sections
) -> None:
    sections.assert_noticed(where, name, broken, *rest_on_it)


def test_more_patterns_at_the_least_temperature_would_be_noticed(sections: Sections) -> None:
    """Patterns counted as if the smallest τ had all of them, and uniform α one less."""
    (counts,) = sections.results["_counts"]
    better = counts.copy(deep=True)
    better.patterns.loc[{"temperature": math.inf}] -= 1
    better.patterns.loc[{"temperature": cor2.TEMPERATURES[0]}] = cor2.M
    sections.assert_noticed(cor2, "_counts", lambda real: lambda *_: better)


@given(q=floats(0.05, 0.5), tau=floats(0.05, 50))
def test_gaussian_importance_never_widens_the_gap(q: float, tau: float) -> None:
    assert AtPattern(q, tau).gap <= AtPattern(q).gap
    assert AtPattern(q, tau).margin >= AtPattern(q, tau).gap
    assert AtPattern(q).margin == AtPattern(q).gap
    assert (AtPattern(q).gap > 0) == (q < THRESHOLD_Q) or abs(q - THRESHOLD_Q) < 1e-12


@given(tau=floats(0.1, 5), scale=floats(0.2, 4))
def test_outputs_and_temperature_in_other_units_give_the_same_direction(tau: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    w = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    p = torch.full((12,), 1 / 12, dtype=torch.float64)
    for normalized in (False, True):
        one = cor2.OwnImportance(x, p, tau, normalized).product(w)
        other = cor2.OwnImportance(scale * x, p, scale**2 * tau, normalized).product(w)
        torch.testing.assert_close(other, scale**2 * one)
