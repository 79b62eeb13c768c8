"""Claim D.nngp is measured otherwise once a kernel or a draw is broken; its networks have the limit's covariance."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kontrast.claims import Setting
from kontrast.claims.d import nngp
from tests.cases import generator, randn
from tests.claims.breaks import Break, times
from tests.claims.sections import Sections, each_of


@pytest.mark.parametrize("case", nngp.CASES, ids=lambda case: case.name)
def test_many_networks_have_the_limits_covariance(case: nngp.Case) -> None:
    """(52) holds at every width, in the coordinates of the points' span too."""
    x = randn(3, 7)
    draws = nngp.Draws.of(case, x, 5, 40_000, generator())
    wanted = nngp.limit_kernel(case, x)
    assert draws.hidden.shape == (40_000, 5, 3)
    torch.testing.assert_close(draws.outputs.mT @ draws.outputs / 40_000, wanted, rtol=0.05, atol=0.05)
    torch.testing.assert_close(nngp.finite_kernel(draws.hidden).mean(0), wanted, rtol=0.02, atol=0.02)


def evenly_spread(real: Any) -> Any:
    """Numbers of mean 0 and variance 1 that are not normal."""
    return lambda draw, *shape: math.sqrt(12) * (torch.rand(*shape, generator=draw, dtype=torch.float64) - 0.5)


@pytest.fixture(scope="module")
def sections() -> Iterator[Sections]:
    """Twice ten networks are enough to tell what is broken from what is not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nngp, "N_NETWORKS", 10)
        names = ["_kernel_errors", "_shapes", "_variances"]
        yield Sections("D.nngp", nngp, names, Setting(scale="quick", n_seeds=2))


@each_of(
    [
        (nngp, "infinite_nngp", times(1.1), "_variances"),
        (nngp, "finite_kernel", times(1.1), "_kernel_errors"),
        (nngp, "hidden_activations", times(1.1), "_kernel_errors"),
        (nngp, "_normal", evenly_spread, "_shapes"),
    ]
)
def test_a_broken_implementation_changes_the_verdict(
    where: Any, name: str, broken: Break, rest_on_it: list[str], sections: Sections
) -> None:
    sections.assert_noticed(where, name, broken, *rest_on_it)
