"""The measured numbers of a claim, the ranges they are held against, and the verdict that follows from both."""

from __future__ import annotations

import dataclasses
import functools
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

from kontrast.linalg import Estimate, LogLaw, PowerLaw

Role = Literal["printed", "corrected", "informative", "against"]
Style = Literal["line", "plain", "dashed"]


class Verdict(Enum):
    """The outcome of a claim; the value says it in words."""

    HOLDS = "holds"
    CORRECTED = "holds, corrected"
    VACUOUS = "vacuous"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Criterion:
    """The measured number `name` lies between `low` and `high`; `statement` says what that means.

    `role` says what the criterion tests: "printed" the statement as the paper prints it, "corrected" the correction,
    "informative" whether a true bound says anything at this scale, "against" what is found in place of a refuted
    statement.
    """

    name: str
    statement: str
    low: float = -math.inf
    high: float = math.inf
    role: Role = "printed"

    def holds(self, measured: Mapping[str, Estimate]) -> bool | None:
        """Whether the number lies in the range; None if it is NaN."""
        value = measured[self.name].value
        return None if math.isnan(value) else self.low <= value <= self.high

    def is_sure(self, measured: Mapping[str, Estimate]) -> bool:
        """Whether the whole interval lies inside the range, or the whole interval outside."""
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
    """One line of a panel; `style` is "line" (with markers), "plain" (without) or "dashed" (a guide or a bound)."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    style: Style = "line"


@dataclass(frozen=True)
class Panel:
    """One figure as numbers; the report draws it."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    x_log: bool = True
    y_log: bool = True


def curve(label: str, x: ArrayLike | Tensor, y: ArrayLike | Tensor, style: Style = "line") -> Curve:
    """A `Curve` from arrays, or from tensors on any device."""
    return Curve(label, _numbers(x), _numbers(y), style)


def _numbers(values: ArrayLike | Tensor) -> tuple[float, ...]:
    values = values.detach().cpu() if isinstance(values, Tensor) else values
    return tuple(float(value) for value in np.asarray(values, dtype=float).reshape(-1))


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything that one claim measured: numbers and their criteria, raw arrays, figures, warnings."""

    measured: Mapping[str, Estimate]
    criteria: tuple[Criterion, ...]
    data: xr.Dataset = field(default_factory=xr.Dataset)
    panels: tuple[Panel, ...] = ()
    setting: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict that follows from the numbers; see `judge`."""
        return judge(self.measured, self.criteria)

    def to_dataset(self) -> xr.Dataset:
        """The evidence as one dataset: raw arrays as variables, the rest as JSON in an attribute."""
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
        """The inverse of `to_dataset`."""
        plain = json.loads(stored.attrs["evidence"])

        def panel(curves: list[dict[str, Any]], **rest: Any) -> Panel:
            lines = (Curve(line["label"], tuple(line["x"]), tuple(line["y"]), line["style"]) for line in curves)
            return Panel(curves=tuple(lines), **rest)

        return cls(
            measured={name: Estimate(*numbers) for name, numbers in plain["measured"].items()},
            criteria=tuple(Criterion(**criterion) for criterion in plain["criteria"]),
            data=stored.drop_attrs(),
            panels=tuple(panel(**stored) for stored in plain["panels"]),
            setting=plain["setting"],
            warnings=tuple(plain["warnings"]),
        )


@dataclass(frozen=True)
class Finding:
    """One measured number and, if it is judged, its criterion."""

    name: str
    number: Estimate
    criterion: Criterion | None = None


Number = float | PowerLaw | LogLaw | Estimate


def _finding(
    role: Role, name: str, number: Number, statement: str, *, low: float = -math.inf, high: float = math.inf
) -> Finding:
    return Finding(name, Estimate.of(number), Criterion(name, statement, low, high, role))


# The roles of `Criterion`: printed("exponent", law, "the change falls as 1/M", low=-1.1, high=-0.9).
printed = functools.partial(_finding, "printed")
corrected = functools.partial(_finding, "corrected")
informative = functools.partial(_finding, "informative")
against = functools.partial(_finding, "against")


def shown(**numbers: Number) -> tuple[Finding, ...]:
    """Numbers that are reported but not judged."""
    return tuple(Finding(name, Estimate.of(number)) for name, number in numbers.items())


def judged(
    *findings: Finding,
    data: xr.Dataset | None = None,
    panels: Iterable[Panel] = (),
    setting: Mapping[str, Any] | None = None,
    warnings: Iterable[str] = (),
) -> Evidence:
    """The evidence that these findings make; widths and seeds of the setting are read off `data`.

    A number that is held against two ranges, as printed and as corrected, is given twice with the same value.
    """
    measured: dict[str, Estimate] = {}
    for finding in findings:
        before = measured.setdefault(finding.name, finding.number)
        if repr(before) != repr(finding.number):  # repr, because NaN differs from itself
            raise ValueError(f"{finding.name} was measured twice, as {before} and as {finding.number}")
    data = xr.Dataset() if data is None else data
    swept: dict[str, Any] = {"widths": [int(width) for width in data.width.values]} if "width" in data.coords else {}
    swept |= {"n_seeds": data.sizes["seed"]} if "seed" in data.sizes else {}
    return Evidence(
        measured,
        tuple(finding.criterion for finding in findings if finding.criterion is not None),
        data,
        tuple(panels),
        {**swept, **(setting or {})},
        tuple(dict.fromkeys(warnings)),
    )


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
    """The verdict, by one rule for all claims.

    A claim is undecided if
    - one of its numbers is NaN, or it has neither printed nor corrected criteria;
    - its correction fails although the printed statement holds, or it is refuted but what should be found instead is
      not: in both cases this project is wrong;
    - it fails, but by numbers whose intervals reach into the range: more seeds or widths would decide.

    Otherwise the claim holds as printed, or as corrected, or it is refuted. A claim that holds but fails its
    informative criteria is vacuous.
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
