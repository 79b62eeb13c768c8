"""Ways to break an implementation, and the assertion that a claim which rests on it notices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from kontrast.claims import Setting, Verdict, measure_claim, select

QUICK = Setting(scale="quick")
Break = Callable[[Any], Any]  # the real thing → the broken one
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Small(Setting):
    """The quick setting, made cheaper: `instead` pairs a choice of a claim's quick setting with a smaller one."""

    instead: tuple[tuple[Any, Any], ...] = ()

    def pick(self, *, quick: T, full: T, paper: T | None = None) -> T:
        """The smaller choice where there is one."""
        return next((smaller for choice, smaller in self.instead if choice == quick), quick)


def small(n_seeds: int, *instead: tuple[Any, Any]) -> Small:
    """A `Small` setting of so many seeds."""
    return Small("quick", n_seeds=n_seeds, instead=instead)


# The cheapest known settings in which claims have their recorded verdict, for claims whose quick setting takes seconds.
SMALL: dict[str, Setting] = {
    "A.fig1": small(1, ((64, 128, 256, 512, 1024, 2048), (64, 256, 512, 1024)), (300, 100)),
    "A.prop10": small(1, (2**24, 2**20)),
    "A.fig2": small(1, ((32, 64, 128, 256, 512, 1024), (32, 128, 512))),
    "A.fig3": small(2, ((256, 768, 2304), (256, 4096))),
    "A.lem7": small(1, ((64, 256, 1024), (64, 256))),
    "A.lem8": small(1, ((64, 256, 1024), (64, 256))),
    "A.cert": small(1, ((64, 256, 1024), (64, 256))),
    "A.lem16": small(1, ((32, 128, 256, 512, 1024), (32, 128, 512)), (50, 20)),
    "A.fig4": small(1),
    "A.lem17": small(1, ((32, 128, 256, 512, 1024), (32, 128, 512)), (50, 20)),
    "A.pca": small(1, ((128, 256, 512, 1024, 2048), (128, 512))),
    "A.rem15": small(1, ((32, 128, 512), (32, 128))),
    "A.fig5": small(1, ((32, 64, 128, 256), (32, 128)), ((32, 128, 256), (128,))),
    "A.forever": small(2, (2000, 1500)),
    "A.variants": small(1, ((128, 256, 512, 1024), (128, 512))),
    "A.inf": small(8, ((256, 512, 1024, 2048, 4096), (256, 1024, 4096)), (100, 50)),
    "A.spec": small(1, ((128, 512, 1024), (128, 1024))),
    "C.lme": small(1),
    "C.thm1": small(1),
    "D.lee": small(1),
    "D.eta": small(1),
}


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
    claim_id: str,
    where: Any,
    name: str,
    broken: Break,
    monkeypatch: pytest.MonkeyPatch,
    *,
    n_seeds: int | None = 2,
    setting: Setting | None = None,
) -> None:
    """With `where.name` broken, the claim has another verdict than the recorded one."""
    monkeypatch.setattr(where, name, broken(getattr(where, name)))
    (claim,) = select([claim_id])
    found = measure_claim(claim, setting or dataclasses.replace(QUICK, n_seeds=n_seeds))
    assert found.verdict is not claim.recorded, {name: str(x) for name, x in found.evidence.measured.items()}


def assert_criterion_fails(
    claim_id: str,
    criterion: str,
    where: Any,
    name: str,
    broken: Break,
    monkeypatch: pytest.MonkeyPatch,
    setting: Setting,
) -> None:
    """The criterion behind the recorded verdict holds, and with `where.name` broken it does not.

    For claims whose other criteria need more seeds than a test can afford.
    """
    (claim,) = select([claim_id])
    role = "corrected" if claim.recorded is Verdict.CORRECTED else "printed"

    def holds() -> bool | None:
        found = measure_claim(claim, setting).evidence
        (tested,) = (one for one in found.criteria if (one.role, one.name) == (role, criterion))
        return tested.holds(found.measured)

    assert holds() is True
    monkeypatch.setattr(where, name, broken(getattr(where, name)))
    assert holds() is False
