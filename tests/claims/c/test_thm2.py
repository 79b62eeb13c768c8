"""Claim C.thm2 is measured otherwise once the bound on the roughness is broken."""

from __future__ import annotations

from typing import Any

import pytest

from kontrast.claims.c import populations, thm2
from kontrast.patterns import bounds
from tests.claims.breaks import Break, times, with_keyword
from tests.claims.sections import Sections, each_of


@pytest.fixture(scope="module")
def sections() -> Sections:
    return Sections("C.thm2", thm2, ["_shares", "_by_differences"])


@each_of(
    [
        (populations, "roughness_bound", with_keyword(form="printed"), "_shares"),
        (thm2, "_by_differences", times(1.1), "_by_differences"),
        (bounds, "_log_volume", lambda real: lambda d: real(d) - 1.0, "_shares"),  # volumes e times too small
    ]
)
def test_a_broken_implementation_changes_the_verdict(
    where: Any, name: str, broken: Break, rest_on_it: list[str], sections: Sections
) -> None:
    sections.assert_noticed(where, name, broken, *rest_on_it)
