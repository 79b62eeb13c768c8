"""Verdicts by rule: the first rule that holds decides, and says why in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

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


def decide(rules: Sequence[Rule], numbers: Any, thresholds: Thresholds) -> Rule:
    """The first rule that holds; the last one always does."""
    return next(rule for rule in rules if rule.holds(numbers, thresholds))
