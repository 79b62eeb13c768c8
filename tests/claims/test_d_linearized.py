"""Paper D, Theorem 2.1: each claim notices what breaks the code it rests on."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis.strategies import floats, lists

from kontrast.claims import Setting, measure, select
from kontrast.claims.d import linearized
from kontrast.claims.evidence import Estimate
from kontrast.dynamics import regression_problem
from kontrast.kernels import infinite_ntk
from kontrast.learnability import linearized as dynamics
from tests.claims.breaks import Break, assert_noticed, each_of, scaled_rate, with_keyword


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three widths, the widest among them, and only the rates that criteria speak of: some seconds for a verdict."""
    real = linearized.gaps

    def gaps(setting: Any, networks: Any, widths: Any, *rest: Any) -> Any:
        return real(setting, networks, (widths[0], *widths[-2:]), *rest)

    monkeypatch.setattr(linearized, "gaps", gaps)
    monkeypatch.setattr(linearized, "MULTIPLES", (0.9, 1.5, 2.5, 4.0))
    monkeypatch.setattr(linearized, "_run_panels", lambda setting, width: [])


def squares_for_entropy(real: Any) -> Any:
    """MSE on one-hot targets in the place of the cross-entropy."""
    return lambda x, labels: regression_problem(x, torch.nn.functional.one_hot(labels, linearized.Z).to(x))


def movement_twice(real: Any) -> Any:
    """f(θ_t) in the place of f(θ_0), as (22) and (101) print it."""

    class FromNow(real):  # type: ignore[misc]
        def __call__(self, parameters: Any, x: torch.Tensor) -> Any:
            return super().__call__(parameters, x) + self.function(parameters, x) - self.function(self.origin, x)

    return FromNow


def of_mean_loss(real: Any) -> Any:
    """Rates for a mean over samples where the loss is their sum."""

    def rates(kernel: Any) -> Any:
        found = real(kernel)
        return dataclasses.replace(found, stable=found.stable * linearized.N, critical=found.critical * linearized.N)

    return rates


def without_smallest(real: Any) -> Any:
    """2/λ_max in the place of 2/(λ_min + λ_max)."""

    def rates(kernel: Any) -> Any:
        found = real(kernel)
        return dataclasses.replace(found, critical=found.stable)

    return rates


def without_last_row(real: Any) -> Any:
    """The kernel of one point less."""
    return lambda net, x: real(net, x[:-1])


# claim, where the name is looked up, the name, how it is broken
BROKEN: list[tuple[str, Any, str, Break]] = [
    ("D.lee", dynamics, "fixed_kernel_descent", scaled_rate(1.05)),
    ("D.lee", linearized, "Linearized", movement_twice),
    ("D.lee", linearized, "MLP", with_keyword(parametrization="ntk")),
    ("D.lee", linearized, "classification_problem", squares_for_entropy),
    ("D.eta", linearized, "learning_rates", of_mean_loss),
    ("D.eta", linearized, "learning_rates", without_smallest),
    ("D.eta", linearized, "gradient_descent", scaled_rate(0.5)),
    ("D.eta", linearized, "NTKOperator", without_last_row),
]


@each_of(BROKEN)
def test_a_broken_implementation_changes_the_verdict(
    claim_id: str, where: Any, name: str, broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_noticed(claim_id, where, name, broken, monkeypatch, n_seeds=1)


@pytest.mark.parametrize("claim_id", ["D.lee", "D.eta"])
def test_unbroken_the_verdict_is_the_recorded_one(claim_id: str) -> None:
    """In the small setting too, or else the tests above would pass by themselves."""
    (claim,) = select([claim_id])
    assert measure(claim, Setting(scale="quick", n_seeds=1)).verdict is claim.recorded


@given(exponents=lists(floats(-3, 1), min_size=1, max_size=5))
def test_the_slowest_law_is_the_largest_exponent(exponents: list[float]) -> None:
    laws = [Estimate(value, value - 1, value + 1) for value in exponents]
    assert linearized._slowest(laws) == laws[exponents.index(max(exponents))]
    assert math.isnan(linearized._slowest([*laws, Estimate.of(math.nan)]).value)


@given(limit=floats(0.6, 1.9), near=floats(1e-3, 1e3))
def test_bisection_finds_where_something_ends(limit: float, near: float) -> None:
    found = linearized._last(lambda rate: rate <= limit * near, near, n_rounds=30)
    assert found == pytest.approx(limit * near, rel=1e-8)


def test_growth_compares_the_end_with_a_third_of_the_way() -> None:
    values = xr.DataArray(np.array([[0.0, 1, 2, 8], [0, 3, 2, 2]]), dims=("seed", "t"), coords={"t": [0, 10, 20, 60]})
    assert linearized.growth(values) == 2.5
    values[0, 3] = math.nan
    assert math.isnan(linearized.growth(values))


@pytest.mark.parametrize("centered", [True, False])
def test_inputs_lie_on_the_unit_sphere(centered: bool) -> None:
    points = linearized.sample(Setting(scale="quick"), 12, centered=centered)
    assert points.x.shape == (12, linearized.D)
    for x in (points.x, points.new):
        assert torch.allclose(x.norm(dim=1), torch.ones(len(x), dtype=x.dtype))
    assert bool((points.x @ points.x.mT > 0).all()) is not centered  # images of digits share a direction


def test_hard_targets_are_what_the_kernel_learns_last() -> None:
    x = linearized.sample(Setting(scale="quick"), 12).x
    K = infinite_ntk(x, activation="tanh")

    def energy(target: str) -> float:
        Y = linearized.targets_of(linearized.Network("tanh", target=target), x, d_out=2)  # type: ignore[arg-type]
        return float((Y * (K @ Y)).sum() / Y.square().sum())

    assert energy("hard") < 2 * float(torch.linalg.eigvalsh(K)[0]) < energy("easy")
