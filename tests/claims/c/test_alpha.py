"""Claim C.alpha is measured otherwise once a loss or its importance is broken."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from kontrast.claims import Setting
from kontrast.claims.c import alpha
from kontrast.patterns import GaussianImportance, InfoNCEImportance, SpectralImportance, TripletImportance
from tests.claims.breaks import Break, times
from tests.claims.sections import Sections, each_of


def by_columns(real: Any) -> Any:
    """α normalised along the wrong dimension."""

    def columns(self: Any, squares: Tensor, own: Tensor) -> Tensor:
        return (squares / -self.temperature).softmax(dim=0)

    return columns


@pytest.fixture(scope="module")
def sections() -> Sections:
    """One seed is enough to tell what is broken from what is not."""
    return Sections("C.alpha", alpha, ["_compared", "_temperature_panel", "_curl"], Setting(scale="quick", n_seeds=1))


@each_of(
    [
        (InfoNCEImportance, "_alpha", by_columns, "_compared"),
        (SpectralImportance, "pull", lambda real: lambda self, rows: rows.sum(1), "_compared"),
        (TripletImportance, "_loss", times(1.001), "_compared"),
        (GaussianImportance, "_loss", lambda real: lambda self, f, view: real(self, f, None), "_compared"),
    ]
)
def test_a_broken_implementation_changes_the_verdict(
    where: Any, name: str, broken: Break, rest_on_it: list[str], sections: Sections
) -> None:
    sections.assert_noticed(where, name, broken, *rest_on_it)
