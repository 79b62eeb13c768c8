"""Claim D.mono is measured otherwise once the transfer matrix or its derivative are broken."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from kontrast.claims import Setting, measure_claim, select
from kontrast.claims.d import mono
from tests.claims.breaks import Break, assert_noticed, each_of, times, with_keyword


def transposed(real: Any) -> Any:
    """T^T has the same diagonal and trace, but is the projector of another space."""
    return lambda *args, **kwargs: real(*args, **kwargs).mT


def without_its_own(real: Any) -> Any:
    """(40) for i = j too."""

    def derivative(*args: Any, **kwargs: Any) -> Tensor:
        found = real(*args, **kwargs)
        found.diagonal().neg_()
        return found

    return derivative


BROKEN: list[tuple[str, Any, str, Break]] = [
    ("D.mono", mono, "transfer_matrix", transposed),
    ("D.mono", mono, "transfer_matrix", times(1 + 1e-6)),
    ("D.mono", mono, "transfer_derivative", transposed),
    ("D.mono", mono, "transfer_derivative", without_its_own),
    ("D.mono", mono, "transfer_derivative", with_keyword(ridge=0.0)),
]


@each_of(BROKEN)
def test_a_broken_implementation_changes_the_verdict(
    claim_id: str, where: Any, name: str, broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_noticed(claim_id, where, name, broken, monkeypatch, n_seeds=1)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    (claim,) = select(["D.mono"])
    assert measure_claim(claim, Setting(scale="quick", device="cuda")).verdict is claim.recorded
