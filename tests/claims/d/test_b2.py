"""Claim D.b2 is measured otherwise once a bound, a kernel or the descent is broken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kontrast.claims.d import b2, descents
from kontrast.learnability import bounds
from tests.claims.breaks import Break, scaled_rate, times
from tests.claims.sections import Sections, each_of


@pytest.fixture(scope="module")
def sections() -> Iterator[Sections]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(b2, "SIZES", (2, 10))
        yield Sections("D.b2", b2, ["_on_plain", "_on_kind", "_widths_by_size"])


@each_of(
    [
        (bounds, "_rate", times(3.5), "_on_kind"),  # the residual's bound decays faster than the residual
        (bounds, "infinite_nngp", times(1.2), "_on_plain"),
        (descents, "gradient_descent", scaled_rate(3.0), "_on_plain"),
        (bounds, "_largest_growth", times(0.1), "_on_kind"),
    ]
)
def test_a_broken_implementation_changes_the_verdict(
    where: Any, name: str, broken: Break, rest_on_it: list[str], sections: Sections
) -> None:
    sections.assert_noticed(where, name, broken, *rest_on_it)
