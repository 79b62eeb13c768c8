"""Claim C.lem2 is measured otherwise once the importance or its features are broken."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from kontrast.claims.c import lem2
from kontrast.patterns import GaussianImportance, PairLaplacian
from tests.claims.breaks import Break, with_keyword
from tests.claims.sections import Sections, each_of


def warmer(real: Any) -> Any:
    """Gaussian α at twice the temperature."""

    def laplacian(importance: Any, outputs: Tensor) -> PairLaplacian:
        if isinstance(importance, GaussianImportance):
            importance = GaussianImportance(2 * importance.temperature)
        return real(importance, outputs)

    return laplacian


@pytest.fixture(scope="module")
def sections() -> Sections:
    return Sections("C.lem2", lem2, ["_by_size", "_identity", "_limit_apart"])


@each_of(
    [
        (lem2, "pair_laplacian", warmer, "_by_size"),
        (lem2, "gaussian_features", with_keyword(order=3), "_identity", "_limit_apart"),
    ]
)
def test_a_broken_implementation_changes_the_verdict(
    where: Any, name: str, broken: Break, rest_on_it: list[str], sections: Sections
) -> None:
    sections.assert_noticed(where, name, broken, *rest_on_it)
