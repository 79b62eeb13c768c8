"""The words of a report on measured claims, as plain strings: the page and the markdown file differ in markup alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kontrast.claims import Claim, Estimate, Record, Verdict

ORDER = (Verdict.HOLDS, Verdict.CORRECTED, Verdict.VACUOUS, Verdict.REFUTED, Verdict.UNDECIDED)


@dataclass(frozen=True)
class CriterionWords:
    """One row of the table of criteria; `holds` is None where there is no number.

    The value decides. Where its interval reaches over an edge of the range, the outcome says so.
    """

    statement: str
    role: str
    range: str
    measured: str
    holds: bool | None
    sure: bool

    @property
    def outcome(self) -> str:
        """The last column."""
        return _OUTCOMES[self.holds] + ("" if self.sure or self.holds is None else ", its interval reaches over")


@dataclass(frozen=True)
class ClaimWords:
    """All that the report says of one claim."""

    claim: Claim
    verdict: Verdict
    outcome: str
    criteria: tuple[CriterionWords, ...]
    measured: tuple[tuple[str, str, str], ...]  # name, value, interval
    setting: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    seconds: str

    @property
    def as_recorded(self) -> bool:
        """Whether the verdict is the one in the project's own table."""
        return self.verdict is self.claim.recorded

    @property
    def has_intervals(self) -> bool:
        """Whether any measured number has one."""
        return any(interval for _, _, interval in self.measured)


_OUTCOMES = {True: "holds", False: "fails", None: "no number"}
_INFORMATIVE = {"holds": "yes", "fails": "no"}


def words(record: Record) -> ClaimWords:
    """The words for one record."""
    found = record.evidence
    return ClaimWords(
        record.claim,
        record.verdict,
        outcome(record),
        tuple(
            CriterionWords(
                it.statement,
                it.role,
                it.range,
                " ".join(estimate(found.measured[it.name])).strip(),
                it.holds(found.measured),
                it.is_sure(found.measured),
            )
            for it in found.criteria
        ),
        tuple((name, *estimate(number)) for name, number in found.measured.items()),
        tuple((str(name), plain(value)) for name, value in found.setting.items()),
        found.warnings,
        f"{record.seconds:.1f}",
    )


def outcome(record: Record) -> str:
    """Which statement holds: "as printed: fails; as corrected: holds", and whether a bound is informative."""
    by_role = {
        role: [it.holds(record.evidence.measured) for it in record.evidence.criteria if it.role == role]
        for role in ("printed", "corrected", "informative")
    }
    said = f"as printed: {_together(by_role['printed'])}"
    if record.claim.corrected is not None or by_role["corrected"]:
        said += f"; as corrected: {_together(by_role['corrected'])}"
    if not by_role["informative"]:
        return said
    together = _together(by_role["informative"])
    return f"{said}; says something at this scale: {_INFORMATIVE.get(together, together)}"


def counts(records: Sequence[Record]) -> list[tuple[Verdict, int]]:
    """How many claims have each verdict, without the verdicts that none has."""
    found = [(verdict, sum(record.verdict is verdict for record in records)) for verdict in ORDER]
    return [(verdict, count) for verdict, count in found if count]


def agreement(records: Sequence[Record]) -> str:
    """Whether the verdicts are those of the project's own table; which are not."""
    other = [record.claim.id for record in records if not record.as_recorded]
    if not records:
        return "No claim has been measured yet."
    if other:
        return f"{len(other)} of {len(records)} verdicts differ from the recorded ones: {', '.join(other)}."
    return "Every verdict is as recorded in the project's own table."


def papers(records: Sequence[Record]) -> list[str]:
    """The papers whose claims were measured, each by its letter, authors, title, year and link."""
    found = dict.fromkeys(record.claim.paper for record in records)
    return [f"Paper {paper.letter} is {paper}." for paper in found]


def commands(records: Sequence[Record]) -> list[str]:
    """The command lines that measured the claims, each once; none where they were measured from Python."""
    return list(dict.fromkeys(record.command for record in records if record.command))


def heading(spec: dict[str, Any]) -> str:
    """Scale, data, device and seeds in one line."""
    seeds = "each claim's own number of seeds" if spec["n_seeds"] is None else f"{spec['n_seeds']} seeds"
    return f"scale {plain(spec['scale'])}, data {plain(spec['data'])}, device {plain(spec['device'])}, {seeds}"


def estimate(number: Estimate) -> tuple[str, str]:
    """A measured number in four digits, and its interval, empty where there is none."""
    interval = "" if number.is_plain else f"[{digits(number.low)}, {digits(number.high)}]"
    return digits(number.value), interval


def digits(value: float) -> str:
    """Four digits; a dash for what is no number."""
    if math.isnan(value):
        return "–"
    return f"{value:.4g}".replace("inf", "∞")


def plain(value: Any) -> str:
    """A value of a spec or a setting, which is JSON, without brackets and quotes."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {plain(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(plain(part) for part in value)
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value is None or value == "" else str(value)


def _together(outcomes: Sequence[bool | None]) -> str:
    if not outcomes:
        return "not tested"
    if False in outcomes:
        return "fails"
    return "undecided" if None in outcomes else "holds"
