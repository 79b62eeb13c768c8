"""How wide: exact laws are recovered, and nothing is said where a sweep cannot tell."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis.strategies import floats, integers
from torch import nn

from kontrast.diagnosis.widths import needed
from kontrast.errors import InputError
from tests.diagnosis.subjects import drawn, quick, state_of

WIDTHS = (16, 32, 64, 128)


def sweep(table: list[list[float]], widths: tuple[int, ...] = WIDTHS) -> xr.Dataset:
    return xr.Dataset({"width_drift": (("width", "seed"), np.array(table))}, coords={"width": list(widths)})


@given(exponent=floats(-2, -0.3), prefactor=floats(0.1, 10), drift=floats(0.05, 0.5))
def test_an_exact_power_law_is_solved(exponent: float, prefactor: float, drift: float) -> None:
    found = needed(sweep([[prefactor * w**exponent] * 2 for w in WIDTHS]), drift)
    expected = (drift / prefactor) ** (1 / exponent)
    if expected > 100 * 128:
        assert found.width is None
        assert "beyond 100 times the widest" in found.sentence
        return
    assert found.width == pytest.approx(expected, rel=1e-9)
    assert found.law.exponent == pytest.approx(exponent, rel=1e-9)
    assert found.low == pytest.approx(expected, rel=1e-4)
    assert found.high == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("width", [45, 400])  # among those that were swept, and beyond them
def test_the_interval_holds_the_width_in_nineteen_of_twenty(width: int) -> None:
    held, random = [], np.random.default_rng(0)
    for _ in range(200):
        noise = np.exp(0.1 * random.standard_normal((4, 2)))
        found = needed(sweep((np.array(WIDTHS)[:, None] ** -0.5 * noise).tolist()), width**-0.5)
        assert found.low <= found.width <= found.high
        held.append(found.low <= width <= found.high)
    assert 0.9 <= np.mean(held) <= 0.99


@given(seed=integers(0, 99))
def test_a_stricter_drift_takes_a_wider_network(seed: int) -> None:
    noise = np.exp(0.05 * np.random.default_rng(seed).standard_normal((4, 2)))
    result = sweep((np.array(WIDTHS)[:, None] ** -1.0 * noise).tolist())
    assert needed(result, 0.01).width > needed(result, 0.02).width > 0


@pytest.mark.parametrize(
    "table, widths, why",
    [
        ([[0.1] * 2, [0.2] * 2, [0.4] * 2, [0.8] * 2], WIDTHS, "does not surely fall"),
        ([[0.1, 0.5], [0.3, 0.2], [0.6, 0.1], [0.1, 0.4]], WIDTHS, "does not surely fall"),
        ([[0.4] * 2, [0.2] * 2], (16, 32), "a law needs three widths or more, got 2"),
        ([[0.9, 0.41], [0.5, 0.23], [0.28, 0.127], [0.155, 0.07]], WIDTHS, "explains only"),
        ([[0.9] * 2, [0.8] * 2, [0.72] * 2, [0.66] * 2], WIDTHS, "beyond 100 times the widest"),
        ([[math.nan] * 2, [0.2] * 2, [0.1] * 2, [0.05] * 2], WIDTHS, "diverged"),
        ([[0.0] * 2, [0.2] * 2, [0.1] * 2, [0.05] * 2], WIDTHS, "did not move"),
        ([[0.3] * 2] * 4, WIDTHS, "does not surely fall"),
    ],
)
def test_what_a_sweep_cannot_tell(table: list[list[float]], widths: tuple[int, ...], why: str) -> None:
    found = needed(sweep(table, widths), 0.01)
    assert found.width is None
    assert found.sentence.startswith("no width can be named: ")
    assert why in found.sentence
    assert math.isnan(found.low)


def test_bad_input() -> None:
    for drift in (0, -1, math.nan, math.inf):
        with pytest.raises(InputError, match="drift must be a positive number"):
            needed(sweep([[0.3, 0.3]] * 4), drift)
    assert needed(xr.Dataset()) is None


def build(width: int, generator: torch.Generator) -> nn.Module:
    return drawn(nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 2)), width)


@pytest.mark.usefixtures("few_features")
def test_a_sweep_of_a_users_factory_is_stored_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from kontrast.diagnosis import widths

    monkeypatch.setattr(widths, "N_STEPS", 3)
    d = quick(build, None, state_of(build(8, torch.Generator())), width=8, width_sweep=[32, 4, 8, 16, 8])
    assert d.result.width.values.tolist() == [4, 8, 16, 32]
    assert (d.result.width_drift.values > 0).all()
    assert d.width_for(0.1).sentence in d.reasons

    def falls(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        raise KeyError("queue")

    d = quick(build, None, state_of(build(8, torch.Generator())), width=8, width_sweep=[4, 8], loss=falls)
    assert "queue" in d.missing["width_drift"]
    assert d.width_for() is None
