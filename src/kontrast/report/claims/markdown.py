"""The claims as markdown for GitHub: a summary that links to one section per claim, with pictures beside the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from kontrast.claims import RULES, Record
from kontrast.report.claims.words import ClaimWords, agreement, commands, counts, heading, papers, words
from kontrast.report.svg import printable

_SPECIAL = re.compile(r"[\\`*_\[\]|~]")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def markdown(records: Sequence[Record], spec: dict[str, Any], *, figures: str = "figures") -> str:
    """The file; `figures` is the folder of the pictures as seen from it."""
    claims = [words(record) for record in records]
    summary = [
        [
            _link(it),
            _text(it.claim.title),
            it.verdict.value,
            it.claim.recorded.value if it.as_recorded else f"**≠ {it.claim.recorded.value}**",
            it.seconds,
        ]
        for it in claims
    ]
    tally = "; ".join(f"{verdict.value}: {count}" for verdict, count in counts(records))
    blocks = [
        "# The papers' claims, measured",
        f"Made by `kontrast verify`: {_text(heading(spec))}.",
        "\n".join(f"- {_text(paper)}" for paper in papers(records)),
        _fence(commands(records)),
        f"{tally[:1].upper()}{tally[1:]}." if tally else "",
        _text(agreement(records)),
        _table(["claim", "title", "verdict", "recorded", "seconds"], summary, right=("seconds",)),
        "Nobody chooses a verdict; the first of these rules that applies gives it:",
        "\n".join(f"{k}. *{verdict.value}*: {rule}." for k, (verdict, rule) in enumerate(RULES.items(), start=1)),
    ]
    for it, record in zip(claims, records, strict=True):
        blocks += _section(it, f"{figures}/{it.claim.id}.svg" if record.evidence.panels else None)
    return "\n\n".join(block for block in blocks if block) + "\n"


def _section(it: ClaimWords, figure: str | None) -> list[str]:
    criteria = [
        [
            _text(row.statement),
            row.role,
            row.range,
            _text(row.measured),
            row.outcome if row.holds else f"**{row.outcome}**",
        ]
        for row in it.criteria
    ]
    measured = [[_code(name), value, _text(interval) or "–"] for name, value, interval in it.measured]
    agrees = "as recorded" if it.as_recorded else f"**not as recorded** ({it.claim.recorded.value})"
    setting = "; ".join(f"{_text(name)}: {_text(value)}" for name, value in it.setting)
    return [
        f"## {_text(it.claim.id)}",
        f"**{_text(it.claim.title)}** ({_text(it.claim.source)}; measured in `{it.claim.file}`)",
        f"Verdict: **{it.verdict.value}**, {agrees}. {it.outcome[:1].upper()}{it.outcome[1:]}.",
        f"> **Printed.** {_text(it.claim.printed)}",
        f"> **Corrected.** {_text(it.claim.corrected)}" if it.claim.corrected else "",
        f"![{_text(it.claim.id)}: {_text(it.claim.title)}]({figure})" if figure else "",
        _table(["criterion", "role", "range", "measured", "outcome"], criteria) if criteria else "",
        _table(["measured", "value", "interval"], measured, right=("value",)) if measured else "",
        f"Setting: {setting or '–'}; {it.seconds} seconds.",
        "\n".join(f"- Warning: {_text(warning)}" for warning in it.warnings),
    ]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> str:
    lines = [columns, ["--:" if column in right else "---" for column in columns], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _link(it: ClaimWords) -> str:
    """To the section, by the anchor that GitHub gives its heading: lower case, without punctuation."""
    anchor = re.sub(r"[^\w\- ]", "", it.claim.id.lower()).replace(" ", "-")
    return f"[{_text(it.claim.id)}](#{anchor})"


def _text(text: str) -> str:
    """One line of words that markdown, a table's cell and HTML leave as they are."""
    line = printable(" ".join(text.split()))
    for character, entity in _ENTITIES.items():
        line = line.replace(character, entity)
    line = _SPECIAL.sub(lambda match: f"\\{match[0]}", line)
    return line.replace("$", "<span>$</span>")  # GitHub reads $…$ as mathematics; this is its own way around it


def _code(name: str) -> str:
    return f"`{name}`" if re.fullmatch(r"[\w .:/=+-]+", name) else _text(name)


def _fence(lines: Sequence[str]) -> str:
    """The lines in a block that no run of backticks inside it can end; nothing without any."""
    if not lines:
        return ""
    text = "\n".join(printable(line) for line in lines)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{text}\n{fence}"
