"""Claim D.lee is measured otherwise once the training of networks or of their linearisation is broken."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis.strategies import floats, lists

from kontrast.claims import Setting
from kontrast.claims.d import lee, networks
from kontrast.dynamics import regression_problem
from kontrast.learnability import linearized
from kontrast.linalg import Estimate
from tests.claims.breaks import Break, scaled_rate, with_keyword
from tests.claims.sections import Sections, each_of


def squares_for_entropy(real: Any) -> Any:
    """MSE on one-hot targets in place of the cross-entropy."""
    return lambda x, labels: regression_problem(x, torch.nn.functional.one_hot(labels, networks.Z).to(x))


def movement_twice(real: Any) -> Any:
    """f(θ_t) in place of f(θ_0), as printed in (22) and (101)."""

    class FromNow(real):  # type: ignore[misc]
        def __call__(self, parameters: Any, x: torch.Tensor) -> Any:
            return super().__call__(parameters, x) + self.function(parameters, x) - self.function(self.origin, x)

    return FromNow


@pytest.fixture(scope="module")
def sections() -> Iterator[Sections]:
    """One seed, three widths and the deep networks that are judged tell what is broken from what is not."""
    real = lee.gaps

    def gaps(setting: Any, networks: Any, widths: Any, *rest: Any) -> Any:
        return real(setting, networks, (widths[0], *widths[-2:]), *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lee, "gaps", gaps)
        judged = tuple(network for network in lee.DEEP if (network.activation, network.target) == ("tanh", "easy"))
        patch.setattr(lee, "DEEP", judged)
        names = ["gaps", "_closed_form", "losses_over_time"]
        yield Sections("D.lee", lee, names, Setting(scale="quick", n_seeds=1))


@each_of(
    [
        (linearized, "fixed_kernel_descent", scaled_rate(1.05), "gaps"),
        (lee, "Linearized", movement_twice, "_closed_form"),
        (networks, "MLP", with_keyword(parametrization="ntk"), "gaps"),
        (lee, "classification_problem", squares_for_entropy, "losses_over_time"),
    ]
)
def test_a_broken_implementation_changes_the_verdict(
    where: Any, name: str, broken: Break, rest_on_it: list[str], sections: Sections
) -> None:
    sections.assert_noticed(where, name, broken, *rest_on_it)


@given(exponents=lists(floats(-3, 1), min_size=1, max_size=5))
def test_the_slowest_law_is_the_largest_exponent(exponents: list[float]) -> None:
    laws = [Estimate(value, value - 1, value + 1) for value in exponents]
    assert lee._slowest(laws) == laws[exponents.index(max(exponents))]
    assert math.isnan(lee._slowest([*laws, Estimate.of(math.nan)]).value)


def test_growth_compares_the_end_with_a_third_of_the_way() -> None:
    values = xr.DataArray(np.array([[0.0, 1, 2, 8], [0, 3, 2, 2]]), dims=("seed", "t"), coords={"t": [0, 10, 20, 60]})
    assert lee.growth(values) == 2.5
    values[0, 3] = math.nan
    assert math.isnan(lee.growth(values))
