"""Claim C.thm3 is measured otherwise once the guarantee or its check are broken."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from kontrast.claims.c import thm3
from kontrast.patterns import bounds
from tests.claims.breaks import Break
from tests.claims.sections import Sections, each_of


def test_obtuse_patterns_are_obtuse_and_as_far_off_as_they_should_be() -> None:
    U = thm3._patterns("categorical, obtuse", 0.1, torch.Generator().manual_seed(0))
    off = U @ U.mT - torch.eye(len(U), dtype=U.dtype)
    assert float(torch.linalg.matrix_norm(off, 2)) == pytest.approx(0.1)
    assert float(off.abs().diagonal().max()) < 1e-12
    assert float((off - torch.diag(off.diagonal())).sum(1).max()) == pytest.approx(-0.1)


def promising_more(real: Any) -> Any:
    """γ a quarter of what it is."""

    def wrapped(*args: Any, **options: Any) -> Any:
        promise = real(*args, **options)
        return dataclasses.replace(promise, gamma=promise.gamma / 4)

    return wrapped


def slower_iteration(real: Any) -> Any:
    """Power iteration with A + 0.3 I, which is not the one the promise is about."""
    return lambda matrix, promise, **options: real(_lifted(matrix), promise, **options)


def _lifted(matrix: Any) -> Any:
    def lifted(w: Tensor) -> Tensor:
        return torch.as_tensor(matrix(w) + 0.3 * torch.eye(len(w), dtype=w.dtype))

    return lifted


def at_the_center(real: Any) -> Any:
    """L, κ and ω of the start alone, in the place of those of B_γ."""
    return lambda self, w, radius: real(self, w, 1e-3 * radius)


@pytest.fixture(scope="module")
def sections() -> Iterator[Sections]:
    """Fewer cases, which are enough to tell what is broken from what is not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thm3, "SIZES", (0.03, 0.3))
        patch.setattr(thm3, "DISTANCES", (0.003, 0.03))
        yield Sections("C.thm3", thm3, ["_with_a_pattern_before", "_figure_1"])


@each_of(
    [
        (thm3, "guarantee", promising_more),
        (thm3, "check_guarantee", slower_iteration),
        (bounds._Draws, "points", at_the_center),
    ]
)
def test_a_broken_implementation_changes_the_verdict(
    where: Any, name: str, broken: Break, rest_on_it: list[str], sections: Sections
) -> None:
    sections.assert_noticed(where, name, broken, *rest_on_it)
