"""The claims of paper C on the contrastive covariance are measured otherwise once the code they rest on is broken."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest
from torch import Tensor

from kontrast.claims import measure, select
from kontrast.claims.c import covariance
from kontrast.patterns import (
    GaussianImportance,
    InfoNCEImportance,
    PairLaplacian,
    SpectralImportance,
    TripletImportance,
    contrastive_covariance,
)
from tests.claims.breaks import QUICK, Break, assert_noticed, each_of, times, with_keyword

MODULE = sys.modules[contrastive_covariance.__module__]


def as_if_symmetric(real: Any) -> Any:
    """α itself in the place of its symmetric part."""

    def laplacian(alpha: Tensor, positive: Tensor) -> PairLaplacian:
        return PairLaplacian(alpha.sum(1), positive, lambda b: alpha.sum(1)[:, None] * b - alpha @ b)

    return laplacian


def by_columns(real: Any) -> Any:
    """α normalised along the wrong dimension."""

    def alpha(self: Any, squares: Tensor, own: Tensor) -> Tensor:
        return (squares / -self.temperature).softmax(dim=0)

    return alpha


def warmer(real: Any) -> Any:
    """Gaussian α at twice the temperature."""

    def laplacian(importance: Any, outputs: Tensor) -> PairLaplacian:
        rule = (
            GaussianImportance(2 * importance.temperature) if isinstance(importance, GaussianImportance) else importance
        )
        return real(rule, outputs)

    return laplacian


BROKEN: list[tuple[str, Any, str, Break]] = [
    ("C.cov", MODULE, "_of_matrix", as_if_symmetric),
    ("C.cov", InfoNCEImportance, "symmetric", lambda real: True),
    ("C.cov", MODULE, "_of_sparse", lambda real: lambda alpha: real(2 * alpha)),
    ("C.alpha", InfoNCEImportance, "_alpha", by_columns),
    ("C.alpha", SpectralImportance, "pull", lambda real: lambda self, rows: rows.sum(1)),
    ("C.alpha", TripletImportance, "_loss", times(1.001)),
    ("C.alpha", GaussianImportance, "_loss", lambda real: lambda self, f, view: real(self, f, None)),
    ("C.lem2", covariance, "pair_laplacian", warmer),
    ("C.lem2", covariance, "gaussian_features", with_keyword(order=3)),
]


def test_one_seed_is_enough_to_tell_what_is_broken_from_what_is_not() -> None:
    """The other two have no seeds."""
    (claim,) = select(["C.alpha"])
    assert measure(claim, dataclasses.replace(QUICK, n_seeds=1)).verdict is claim.recorded


@each_of(BROKEN)
def test_a_broken_implementation_changes_the_verdict(
    claim_id: str, where: Any, name: str, broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_noticed(claim_id, where, name, broken, monkeypatch, n_seeds=1)
