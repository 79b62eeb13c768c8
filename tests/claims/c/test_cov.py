"""Claim C.cov is measured otherwise once the covariance is broken."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from torch import Tensor

from kontrast.claims.c import cov
from kontrast.patterns import InfoNCEImportance, PairLaplacian, contrastive_covariance
from tests.claims.breaks import Break
from tests.claims.sections import Sections, each_of

MODULE = sys.modules[contrastive_covariance.__module__]


def as_if_symmetric(real: Any) -> Any:
    """α itself in place of its symmetric part."""

    def laplacian(alpha: Tensor, positive: Tensor) -> PairLaplacian:
        return PairLaplacian(alpha.sum(1), positive, lambda b: alpha.sum(1)[:, None] * b - alpha @ b)

    return laplacian


@pytest.fixture(scope="module")
def sections() -> Sections:
    return Sections("C.cov", cov, ["_errors", "_times"])


@each_of(
    [
        (MODULE, "_of_matrix", as_if_symmetric, "_errors"),
        (InfoNCEImportance, "symmetric", lambda real: True, "_errors"),
        (MODULE, "_of_sparse", lambda real: lambda alpha: real(2 * alpha), "_errors"),
    ]
)
def test_a_broken_implementation_changes_the_verdict(
    where: Any, name: str, broken: Break, rest_on_it: list[str], sections: Sections
) -> None:
    sections.assert_noticed(where, name, broken, *rest_on_it)
