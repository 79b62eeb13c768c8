"""Claim D.nofree is measured otherwise once learnability or its transfer matrix are broken."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from kontrast.claims import Setting, measure_claim, select
from kontrast.claims.d import nofree
from kontrast.learnability import measure_learning
from tests.claims.breaks import Break, assert_noticed, each_of, times, with_keyword

MEASURED = sys.modules[measure_learning.__module__]


def flipped(real: Any) -> Any:
    """L of prediction and target the wrong way round."""
    return lambda target, predicted: real(predicted, target)


def without_last_draw(real: Any) -> Any:
    return lambda M, n, replacement, generator: real(M, n, replacement, generator)[: max(n - 1, 1)]


BROKEN: list[tuple[str, Any, str, Break]] = [
    ("D.nofree", nofree, "transfer_matrix", times(1 + 1e-9)),
    ("D.nofree", nofree, "measure_learning", with_keyword(ridge=1e-8)),
    ("D.nofree", nofree, "measure_learning", with_keyword(replacement=True)),
    ("D.nofree", MEASURED, "learnability", flipped),
    ("D.nofree", MEASURED, "_draw", without_last_draw),
]


@each_of(BROKEN)
def test_a_broken_implementation_changes_the_verdict(
    claim_id: str, where: Any, name: str, broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_noticed(claim_id, where, name, broken, monkeypatch, n_seeds=1)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    (claim,) = select(["D.nofree"])
    assert measure_claim(claim, Setting(scale="quick", device="cuda")).verdict is claim.recorded
