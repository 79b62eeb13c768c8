"""Ways to break an implementation, and the assertion that a claim which rests on it notices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kontrast.claims import Setting, measure_claim, select

QUICK = Setting(scale="quick")
Break = Callable[[Any], Any]  # the real thing → the broken one


def times(factor: float) -> Break:
    """Off by a factor."""
    return lambda real: lambda *args, **kwargs: factor * real(*args, **kwargs)


def with_keyword(**forced: Any) -> Break:
    """Called with another option than it was."""
    return lambda real: lambda *args, **kwargs: real(*args, **{**kwargs, **forced})


def scaled_rate(factor: float) -> Break:
    """Another learning rate than was asked for."""
    return lambda real: lambda *a, **k: real(*a, **{**k, "learning_rate": factor * k["learning_rate"]})


def each_of(breaks: Sequence[tuple[str, Any, str, Break]]) -> pytest.MarkDecorator:
    """One test for each (claim, where, name, broken), named after what it breaks."""
    names = [f"{claim_id}-{name}-{k}" for k, (claim_id, _, name, _) in enumerate(breaks)]
    return pytest.mark.parametrize(("claim_id", "where", "name", "broken"), breaks, ids=names)


def assert_noticed(
    claim_id: str, where: Any, name: str, broken: Break, monkeypatch: pytest.MonkeyPatch, *, n_seeds: int | None = 2
) -> None:
    """With `where.name` broken, the claim has another verdict than the recorded one."""
    monkeypatch.setattr(where, name, broken(getattr(where, name)))
    (claim,) = select([claim_id])
    found = measure_claim(claim, dataclasses.replace(QUICK, n_seeds=n_seeds))
    assert found.verdict is not claim.recorded, {name: str(x) for name, x in found.evidence.measured.items()}
