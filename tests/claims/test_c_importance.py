"""Claim C.cor2 is measured otherwise once the code it rests on is broken; its closed form obeys its own laws."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis.strategies import floats

from kontrast.claims import measure, select
from kontrast.claims.c import importance
from kontrast.claims.c.importance import AtPattern
from kontrast.patterns import THRESHOLD_Q, GatedCovariance, GaussianImportance
from tests.claims.breaks import QUICK, Break, assert_noticed, times


def warmer(real: Any) -> Any:
    """α at twice the temperature."""
    return lambda self, squares, own: real(self, squares / 2, own)


def at_rest(real: Any) -> Any:
    """Stability as if α did not move with w."""
    return property(lambda self: self.gap)


def always_uniform(real: Any) -> Any:
    """τ is lost on the way."""
    return lambda *args, temperature, **options: real(*args, temperature=math.inf, **options)


BROKEN: list[tuple[Any, str, Break]] = [
    (importance, "gaussian_z0", times(1.001)),
    (GaussianImportance, "_alpha", warmer),
    (AtPattern, "margin", at_rest),
    (GatedCovariance, "matrix", times(1.001)),
    (importance, "_ends", always_uniform),
]


@pytest.fixture(scope="module")
def counts() -> xr.Dataset:
    """The counts of the claim, which has its recorded verdict while nothing is broken."""
    (claim,) = select(["C.cor2"])
    found = measure(claim, QUICK)
    assert found.verdict is claim.recorded, {name: str(x) for name, x in found.evidence.measured.items()}
    return found.evidence.data


@pytest.mark.parametrize(
    ("where", "name", "broken"), BROKEN, ids=[f"{name}-{k}" for k, (_, name, _) in enumerate(BROKEN)]
)
def test_a_broken_implementation_changes_the_verdict(
    where: Any, name: str, broken: Break, counts: xr.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importance, "_counts", lambda *_: counts)
    assert_noticed("C.cor2", where, name, broken, monkeypatch)


def test_more_patterns_at_the_least_temperature_would_be_noticed(
    counts: xr.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patterns counted as if the smallest τ had as many as the largest, and uniform α one less."""
    better = counts.copy(deep=True)
    better.patterns.loc[{"temperature": math.inf}] -= 1
    better.patterns.loc[{"temperature": importance.TEMPERATURES[0]}] = importance.M
    assert_noticed("C.cor2", importance, "_counts", lambda real: lambda *_: better, monkeypatch)


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
        one = importance.OwnImportance(x, p, tau, normalized).product(w)
        other = importance.OwnImportance(scale * x, p, scale**2 * tau, normalized).product(w)
        torch.testing.assert_close(other, scale**2 * one)
