"""Claim C.width is measured otherwise once the code it rests on is broken; the collector's curve is one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers, lists

from kontrast.claims.c import width
from kontrast.claims.c.width import Collection, Samples
from kontrast.data import Dataset
from tests.claims.breaks import Break, times
from tests.claims.sections import Sections, each_of


def not_whitened(real: Any) -> Any:
    """Samples as they are in the place of whitened ones."""

    def of(*args: Any) -> Samples:
        found = real(*args)
        return Samples(found.raw, found.raw)

    return of


def each_alone(real: Any) -> Any:
    """A layer whose filters do not see each other: uniform α."""
    return lambda x, **options: real(x, activation=options.get("activation", "relu"))


def never_linear(real: Any) -> Any:
    """ReLU filters in the place of linear ones."""
    return lambda *args, activation=None, **options: real(*args, **options) if options else real(*args)


@pytest.fixture(scope="module")
def sections() -> Iterator[Sections]:
    """On one kind of samples, which is enough to tell what is broken from what is not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(width, "KINDS", {width.CHOSEN: width.KINDS[width.CHOSEN]})
        names = ["_patterns", "_linear_move", "_lottery", "_joint_network", "_by_temperature"]
        yield Sections("C.width", width, names)


@each_of(
    [
        (Samples, "of", not_whitened, "_patterns", "_linear_move"),
        (Collection, "predicted", times(1.3)),
        (Collection, "growth", lambda real: property(lambda self: 2.0)),
        (width, "GatedCovariance", each_alone, "_joint_network"),
        (width, "_patterns", never_linear, "_patterns"),
    ]
)
def test_a_broken_implementation_changes_the_verdict(
    where: Any, name: str, broken: Break, rest_on_it: list[str], sections: Sections
) -> None:
    sections.assert_noticed(where, name, broken, *rest_on_it)


@dataclass(frozen=True)
class Found:
    """Five patterns, and which of them each start came to."""

    assignment: torch.Tensor

    def __len__(self) -> int:
        return 5


@given(ends=lists(integers(-1, 4), min_size=8, max_size=40), width=integers(1, 4))
def test_the_collectors_curve_counts(ends: list[int], width: int) -> None:
    each = Collection(cast(Any, Found(torch.tensor(ends))))
    first = [end if end >= 0 else 5 + k for k, end in enumerate(ends)][: len(ends) // 2]
    assert each.shares.sum() == pytest.approx(1)
    assert each.predicted(1) == pytest.approx(1)
    assert each.predicted(10**6) == pytest.approx(len(set(first)))
    assert 1 <= each.collected(width, 0) <= width
    expected = np.mean(
        [len({first[k] for k in np.random.default_rng(s).choice(len(first), width)}) for s in range(100)]
    )
    assert each.predicted(width) == pytest.approx(expected, abs=0.5)


def test_samples_have_falling_variance_or_variance_one() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(80, 1, 8, 8, generator=generator, dtype=torch.float64)
    for side in (3, None):
        made = Samples.of(Dataset(images, None, "noise"), side, 60, 5, 0, "cpu")
        variances = made.raw.square().mean(0)
        assert (variances.diff() <= 0).all()
        assert made.raw.mean(0).abs().max() < 1e-12
        torch.testing.assert_close(made.white.mT @ made.white / 60, torch.eye(5, dtype=torch.float64))
