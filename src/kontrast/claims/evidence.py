"""What a claim's measurement is, what it is held against, and the verdict that follows. Nobody chooses a verdict."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, get_args

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from torch import Tensor

from kontrast.linalg import LogLaw, PowerLaw

Role = Literal["printed", "corrected", "informative", "against"]
Style = Literal["line", "plain", "dashed"]


class Verdict(Enum):
    """What the measurement says of the statement; the value says it in words."""

    HOLDS = "holds"
    CORRECTED = "holds, corrected"
    VACUOUS = "vacuous"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Estimate:
    """A measured number with its interval; a plain number is its own interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, number: float | PowerLaw | LogLaw | Estimate) -> Estimate:
        """The exponent of a power law, the slope of a logarithm, each with its interval, or a number as it is."""
        if isinstance(number, Estimate):
            return number
        if isinstance(number, PowerLaw):
            return cls(number.exponent, number.low, number.high)
        if isinstance(number, LogLaw):
            return cls(number.slope, number.low, number.high)
        return cls(float(number), float(number), float(number))

    @property
    def is_plain(self) -> bool:
        """Whether there is no interval to speak of."""
        return self.low == self.value == self.high or math.isnan(self.value)

    def __str__(self) -> str:
        text = f"{self.value:.3g}"
        if self.is_plain or not (math.isfinite(self.low) and math.isfinite(self.high)):
            return text
        return f"{text} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class Criterion:
    """The measured number `name` lies between `low` and `high`; `statement` says what that means.

    `printed` criteria test the statement as the paper prints it, `corrected` ones what is right instead, `informative`
    ones whether a true bound says anything at this scale, and `against` ones what is found instead of a statement that
    is refuted.
    """

    name: str
    statement: str
    low: float = -math.inf
    high: float = math.inf
    role: Role = "printed"

    def holds(self, measured: Mapping[str, Estimate]) -> bool | None:
        """Whether the number lies in the range; None where it is not a number."""
        value = measured[self.name].value
        return None if math.isnan(value) else self.low <= value <= self.high

    def is_sure(self, measured: Mapping[str, Estimate]) -> bool:
        """Whether the whole interval lies on the side of the range that the value lies on."""
        number = measured[self.name]
        inside = self.low <= number.low and number.high <= self.high
        return inside or number.high < self.low or number.low > self.high

    @property
    def range(self) -> str:
        """The range in words: "at most 0.1", "-1.1 to -0.5"."""
        if math.isinf(self.low):
            return f"at most {self.high:g}"
        return f"at least {self.low:g}" if math.isinf(self.high) else f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Curve:
    """One line of a panel; `style` is "line" (with marks), "plain" (without) or "dashed" (a guide or a bound)."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    style: Style = "line"


@dataclass(frozen=True)
class Panel:
    """One picture as numbers: the report draws it, from a stored result as well as from a fresh one."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    x_log: bool = True
    y_log: bool = True


def curve(label: str, x: ArrayLike | Tensor, y: ArrayLike | Tensor, style: Style = "line") -> Curve:
    """A `Curve` of arrays, or of tensors wherever they are."""
    return Curve(label, _numbers(x), _numbers(y), style)


def _numbers(values: ArrayLike | Tensor) -> tuple[float, ...]:
    values = values.detach().cpu() if isinstance(values, Tensor) else values
    return tuple(float(value) for value in np.asarray(values, dtype=float).reshape(-1))


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that one claim measured: numbers, what they are held against, raw arrays, pictures, warnings."""

    measured: Mapping[str, Estimate]
    criteria: tuple[Criterion, ...]
    data: xr.Dataset = field(default_factory=xr.Dataset)
    panels: tuple[Panel, ...] = ()
    setting: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict that the numbers give; see `judge`."""
        return judge(self.measured, self.criteria)

    def to_dataset(self) -> xr.Dataset:
        """The evidence as one dataset: raw arrays as variables, the rest as JSON in the attributes."""
        plain = {
            "measured": {name: dataclasses.astuple(number) for name, number in self.measured.items()},
            "criteria": [dataclasses.asdict(criterion) for criterion in self.criteria],
            "panels": [dataclasses.asdict(panel) for panel in self.panels],
            "setting": dict(self.setting),
            "warnings": list(self.warnings),
        }
        return self.data.assign_attrs(evidence=json.dumps(plain))

    @classmethod
    def from_dataset(cls, stored: xr.Dataset) -> Evidence:
        """The evidence that `to_dataset` made."""
        plain = json.loads(stored.attrs["evidence"])
        panels = tuple(
            Panel(
                **{
                    **panel,
                    "curves": tuple(
                        Curve(c["label"], tuple(c["x"]), tuple(c["y"]), c["style"]) for c in panel["curves"]
                    ),
                }
            )
            for panel in plain["panels"]
        )
        return cls(
            measured={name: Estimate(*numbers) for name, numbers in plain["measured"].items()},
            criteria=tuple(Criterion(**criterion) for criterion in plain["criteria"]),
            data=stored.drop_attrs(),
            panels=panels,
            setting=plain["setting"],
            warnings=tuple(plain["warnings"]),
        )


def evidence(
    measured: Mapping[str, float | PowerLaw | LogLaw | Estimate],
    criteria: Iterable[Criterion],
    *,
    data: xr.Dataset | None = None,
    panels: Iterable[Panel] = (),
    setting: Mapping[str, Any] | None = None,
    warnings: Iterable[str] = (),
) -> Evidence:
    """Evidence from plain numbers and fitted laws; widths and seeds of the setting are those of `data`."""
    data = xr.Dataset() if data is None else data
    swept: dict[str, Any] = {"widths": [int(width) for width in data.width.values]} if "width" in data.coords else {}
    swept |= {"n_seeds": data.sizes["seed"]} if "seed" in data.sizes else {}
    return Evidence(
        {name: Estimate.of(number) for name, number in measured.items()},
        tuple(criteria),
        data,
        tuple(panels),
        {**swept, **(setting or {})},
        tuple(dict.fromkeys(warnings)),
    )


@dataclass(frozen=True)
class Finding:
    """One measured number and, where it is judged, the range that it is held against and the sentence about it."""

    name: str
    number: Estimate
    criterion: Criterion | None = None


Number = float | PowerLaw | LogLaw | Estimate


def printed(name: str, number: Number, statement: str, *, low: float = -math.inf, high: float = math.inf) -> Finding:
    """A number that tests the statement as the paper prints it."""
    return _finding(name, number, statement, low, high, "printed")


def corrected(name: str, number: Number, statement: str, *, low: float = -math.inf, high: float = math.inf) -> Finding:
    """A number that tests what is right instead."""
    return _finding(name, number, statement, low, high, "corrected")


def informative(
    name: str, number: Number, statement: str, *, low: float = -math.inf, high: float = math.inf
) -> Finding:
    """A number that tells whether a true bound says anything at this scale."""
    return _finding(name, number, statement, low, high, "informative")


def against(name: str, number: Number, statement: str, *, low: float = -math.inf, high: float = math.inf) -> Finding:
    """A number that shows what is found instead of a statement that is refuted."""
    return _finding(name, number, statement, low, high, "against")


def shown(**numbers: Number) -> tuple[Finding, ...]:
    """Numbers that are reported and not judged."""
    return tuple(Finding(name, Estimate.of(number)) for name, number in numbers.items())


def _finding(name: str, number: Number, statement: str, low: float, high: float, role: Role) -> Finding:
    return Finding(name, Estimate.of(number), Criterion(name, statement, low, high, role))


def judged(
    *findings: Finding,
    data: xr.Dataset | None = None,
    panels: Iterable[Panel] = (),
    setting: Mapping[str, Any] | None = None,
    warnings: Iterable[str] = (),
) -> Evidence:
    """The evidence of these findings; widths and seeds of the setting are those of `data`.

    A number may be held against two ranges (as printed, and as corrected): it then comes twice, each time the same.
    """
    measured: dict[str, Estimate] = {}
    for finding in findings:
        before = measured.setdefault(finding.name, finding.number)
        if repr(before) != repr(finding.number):  # repr, as NaN is not equal to itself
            raise ValueError(f"{finding.name} was measured twice, as {before} and as {finding.number}")
    criteria = tuple(finding.criterion for finding in findings if finding.criterion is not None)
    return evidence(measured, criteria, data=data, panels=panels, setting=setting, warnings=warnings)


# The rule behind each verdict, in the order in which `judge` asks.
RULES = {
    Verdict.UNDECIDED: "a criterion has no number, or there is no criterion; or a correction fails where the printed "
    "statement holds; or what a refutation should have found instead was not found; or the interval of a failing "
    "number reaches into its range",
    Verdict.REFUTED: "the statement fails a criterion as printed, and as corrected too where there is a correction",
    Verdict.VACUOUS: "it holds, as printed or as corrected, but fails an informative criterion: it says nothing at "
    "this scale",
    Verdict.HOLDS: "every criterion of the printed statement holds",
    Verdict.CORRECTED: "it fails as printed, but every criterion of its correction holds",
}


def judge(measured: Mapping[str, Estimate], criteria: Iterable[Criterion]) -> Verdict:
    """The verdict by one rule for all claims.

    A criterion that has no number leaves the claim undecided, and so does a correction that fails beside a printed
    statement that holds, or a refutation without what was to be found instead: then this project is wrong. So does a
    failure whose interval reaches into the range: more seeds or widths would tell. Else the claim holds as printed, or
    as corrected, or it is refuted; and what holds but fails its informative criteria is vacuous.
    """
    criteria = tuple(criteria)
    outcomes: dict[str, list[bool | None]] = {role: [] for role in get_args(Role)}
    for criterion in criteria:
        outcomes[criterion.role].append(criterion.holds(measured))
    if any(outcome is None for group in outcomes.values() for outcome in group) or not (
        outcomes["printed"] or outcomes["corrected"]
    ):
        return Verdict.UNDECIDED
    as_printed = bool(outcomes["printed"]) and all(outcomes["printed"])
    as_corrected = bool(outcomes["corrected"]) and all(outcomes["corrected"])
    if not (as_printed or as_corrected):
        surely_failed = {c.role for c in criteria if not c.holds(measured) and c.is_sure(measured)}
        tested = {role for role in ("printed", "corrected") if outcomes[role]}
        return Verdict.REFUTED if tested <= surely_failed and all(outcomes["against"]) else Verdict.UNDECIDED
    if outcomes["corrected"] and not as_corrected:
        return Verdict.UNDECIDED
    if not all(outcomes["informative"]):
        return Verdict.VACUOUS
    return Verdict.HOLDS if as_printed else Verdict.CORRECTED
