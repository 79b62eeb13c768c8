"""Claim C.width is measured otherwise once the code it rests on is broken; the collector's curve is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers, lists

from kontrast.claims import measure, select
from kontrast.claims.c import digits
from kontrast.claims.c.digits import Collection, Samples
from kontrast.data import Dataset
from tests.claims.breaks import QUICK, Break, assert_noticed, times

SEEN: dict[Any, Any] = {}


def remembered(real: Callable[..., Any]) -> Callable[..., Any]:
    """The same patterns for the same samples and options, searched for once."""

    def patterns(x: torch.Tensor, *args: Any, **options: Any) -> Any:
        key = (x.shape, float(x.abs().sum()), args, str(options))
        if key not in SEEN:
            SEEN[key] = real(x, *args, **options)
        return SEEN[key]

    return patterns


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


BROKEN: list[tuple[Any, str, Break]] = [
    (Samples, "of", not_whitened),
    (Collection, "foretold", times(1.3)),
    (Collection, "growth", lambda real: property(lambda self: 2.0)),
    (digits, "GatedCovariance", each_alone),
    (digits, "_patterns", never_linear),
]


@pytest.fixture(autouse=True)
def _remember(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "_patterns", remembered(digits._patterns))


def test_unbroken_it_has_its_recorded_verdict() -> None:
    (claim,) = select(["C.width"])
    found = measure(claim, QUICK)
    assert found.verdict is claim.recorded, {name: str(x) for name, x in found.evidence.measured.items()}


@pytest.mark.parametrize(
    ("where", "name", "broken"), BROKEN, ids=[f"{name}-{k}" for k, (_, name, _) in enumerate(BROKEN)]
)
def test_a_broken_implementation_changes_the_verdict(
    where: Any, name: str, broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_noticed("C.width", where, name, broken, monkeypatch, n_seeds=1)


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
    assert each.foretold(1) == pytest.approx(1)
    assert each.foretold(10**6) == pytest.approx(len(set(first)))
    assert 1 <= each.collected(width, 0) <= width
    expected = np.mean(
        [len({first[k] for k in np.random.default_rng(s).choice(len(first), width)}) for s in range(100)]
    )
    assert each.foretold(width) == pytest.approx(expected, abs=0.5)


def test_samples_have_falling_variance_or_variance_one() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(80, 1, 8, 8, generator=generator, dtype=torch.float64)
    for side in (3, None):
        made = Samples.of(Dataset(images, None, "noise"), side, 60, 5, 0, "cpu")
        variances = made.raw.square().mean(0)
        assert (variances.diff() <= 0).all()
        assert made.raw.mean(0).abs().max() < 1e-12
        torch.testing.assert_close(made.white.mT @ made.white / 60, torch.eye(5, dtype=torch.float64))
