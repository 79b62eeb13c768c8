"""A bound as a value: the number, its assumptions and constants, the measured quantity, and whether it is vacuous."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

Form = Literal["printed", "corrected", "sharp"]
"""A bound as the paper prints it, with its errors corrected, or sharpened where the proof gives away a factor."""

ROUNDING = 1e-9  # relative; measurements in float64 after thousands of steps carry about this much


@dataclass(frozen=True)
class Assumption:
    """One assumption of a theorem, judged on a run; `detail` gives the number found."""

    name: str
    holds: bool
    detail: str

    def __str__(self) -> str:
        return f"Assumption {self.name} {'holds' if self.holds else 'FAILS'}: {self.detail}"


@dataclass(frozen=True)
class Bound:
    """An upper bound and, where it was measured, the quantity that it bounds.

    Some bounds of paper A lie beyond the range of floats. `log10` always carries them; `value` is then infinite.

    Attributes:
        name: what is bounded, in words or symbols.
        source: where the bound stands, and whether it is printed or corrected.
        value: the bound.
        constants: the constants it was computed from, by symbol.
        assumptions: the assumptions it needs, judged.
        measured: the quantity itself.
        trivial: a bound that holds without any theorem.
        log10: the bound's decimal logarithm; computed from `value` if not given.
    """

    name: str
    source: str
    value: float
    constants: Mapping[str, float] = field(default_factory=dict)
    assumptions: tuple[Assumption, ...] = ()
    measured: float | None = None
    trivial: float | None = None
    log10: float = math.nan

    def __post_init__(self) -> None:
        object.__setattr__(self, "constants", MappingProxyType(dict(self.constants)))
        if math.isnan(self.log10):
            object.__setattr__(self, "log10", _log10(self.value))

    @property
    def ratio(self) -> float:
        """How many times the bound exceeds the measured value; NaN without a measurement, infinite where that is 0."""
        if self.measured is None or math.isnan(self.measured) or math.isnan(self.value):
            return math.nan
        if self.measured == 0:
            return math.inf if self.value > 0 else math.nan
        return self.value / self.measured

    @property
    def holds(self) -> bool | None:
        """Whether the measurement respects the bound, up to rounding; None where either is unknown."""
        if self.measured is None or math.isnan(self.measured) or math.isnan(self.value):
            return None
        return self.measured <= self.value * (1 + ROUNDING)

    @property
    def vacuous(self) -> bool | None:
        """Whether the bound says no more than the trivial one; None where no trivial bound is known."""
        if self.value == math.inf:
            return True
        if self.trivial is None or math.isnan(self.value):
            return None
        return self.value >= self.trivial

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the assumptions that fail; if there are any, the bound is a number and no theorem."""
        return tuple(assumption.name for assumption in self.assumptions if not assumption.holds)

    def with_measured(self, measured: float, *, trivial: float | None = None) -> Bound:
        """The same bound with a measurement, and with a trivial bound where the run gives one."""
        return replace(self, measured=float(measured), trivial=self.trivial if trivial is None else float(trivial))

    def __str__(self) -> str:
        parts = [f"{self.name} <= {_number(self.value, self.log10)} ({self.source})"]
        if self.measured is not None:
            parts.append(f"measured {self.measured:.3g}, ratio {_number(self.ratio, self._log10_ratio())}")
        if self.holds is False:
            parts.append("VIOLATED")
        if self.vacuous:
            parts.append("vacuous")
        if self.failed:
            parts.append(f"assumptions that fail: {', '.join(self.failed)}")
        return "; ".join(parts)

    def _log10_ratio(self) -> float:
        return self.log10 - _log10(self.measured) if self.measured else math.nan


def value_of(log10: float) -> float:
    """10^log10, infinite beyond the range of floats."""
    return math.inf if log10 > 308 else 10**log10


def _log10(value: float) -> float:
    if math.isnan(value) or value < 0:
        return math.nan
    return math.log10(value) if value > 0 else -math.inf


def _number(value: float, log10: float) -> str:
    return f"10^{log10:.4g}" if value == math.inf and math.isfinite(log10) else f"{value:.3g}"
