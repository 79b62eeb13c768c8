"""Verdicts by rule: the first rule that holds decides, and says why in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Self, TypeVar

from kontrast.linalg import PowerLaw
from kontrast.study.thresholds import Thresholds


@dataclass(frozen=True)
class Rule:
    """One rule of a section.

    Attributes:
        verdict: what is said where the rule holds.
        condition: when it holds, in words, with the names of thresholds in braces.
        holds: the condition itself, of the section's numbers and the thresholds.
        sentence: what these numbers say.
    """

    verdict: Enum
    condition: str
    holds: Callable[[Any, Thresholds], bool]
    sentence: Callable[[Any, Thresholds], str]

    def reason(self, thresholds: Thresholds) -> str:
        """The condition, with the thresholds filled in."""
        return self.condition.format(**dataclasses.asdict(thresholds))


V = TypeVar("V", bound=Enum)


@dataclass(frozen=True, kw_only=True)
class WidthFindings(Generic[V]):
    """The findings on one kind of run: means and fits over the seeds at `step`, the last with every run whole."""

    learning_rate: float
    verdict: V
    reason: str = ""  # the rule that decided, in words
    sentence: str = ""
    step: int | None
    widths: tuple[int, ...]
    n_seeds: int
    means: dict[str, tuple[float, ...]]  # quantity → one value per width, at `step`
    exponents: dict[str, PowerLaw]  # quantity → law in the width; absent where it cannot be fitted
    diverged: tuple[int, ...]  # how many seeds diverged, per width

    @property
    def n_runs(self) -> int:
        """Runs of all widths and seeds."""
        return self.n_seeds * len(self.widths)

    def widest(self, quantity: str) -> float:
        """A quantity's mean at the widest network."""
        return self.means[quantity][-1]

    def falls(self, quantity: str) -> bool:
        """Whether a quantity surely falls with width."""
        law = self.exponents.get(quantity)
        return law is not None and law.high < 0

    def decided(self, rules: Sequence[Rule], thresholds: Thresholds, name: str, remark: str = "") -> Self:
        """The same findings with the verdict of the first rule that holds; the last rule always does."""
        rule = next(rule for rule in rules if rule.holds(self, thresholds))
        sentence = f"{name}: {rule.sentence(self, thresholds)}{remark}"
        verdict = type(self.verdict)(rule.verdict)
        return dataclasses.replace(self, verdict=verdict, reason=rule.reason(thresholds), sentence=sentence)
