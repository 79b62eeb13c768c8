"""The report of `kontrast verify`: every claim, number and picture in one HTML page, and again as files for GitHub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from kontrast.claims import RULES, Record
from kontrast.report.claims.figures import joined_svg, panel_svg
from kontrast.report.claims.markdown import markdown
from kontrast.report.claims.words import agreement, commands, counts, heading, plain, words
from kontrast.report.template import PAGE, template

MARKDOWN = "claims.md"


def claims_files(records: Sequence[Record], spec: dict[str, Any], *, figures: str) -> dict[str, bytes]:
    """Every file of the report by its path in the folder, the page last."""
    pictures = {
        record.claim.id: [
            panel_svg(panel, name=f"{record.claim.id}-{k}") for k, panel in enumerate(record.evidence.panels, start=1)
        ]
        for record in records
    }
    files = {
        f"{figures}/{record.claim.id}.svg": joined_svg(
            pictures[record.claim.id], label=f"{record.claim.id}: {record.claim.title}"
        )
        for record in records
        if record.evidence.panels
    }
    files[MARKDOWN] = markdown(records, spec, figures=figures)
    files[PAGE] = render(records, spec, pictures)
    return {name: content.encode() for name, content in files.items()}


def render(records: Sequence[Record], spec: dict[str, Any], pictures: Mapping[str, Sequence[str]]) -> str:
    """The page; `pictures` maps a claim's id to the `<svg>` of each of its panels."""
    return template("kontrast.report.claims").render(
        claims=[words(record) for record in records],
        pictures={
            name: [Markup(panel) for panel in panels]
            for name, panels in pictures.items()  # made by `to_svg` alone
        },
        heading=heading(spec),
        counts=counts(records),
        agreement=agreement(records),
        rules=RULES,
        seconds=f"{sum(record.seconds for record in records):.0f}",
        settings=[(name, plain(value)) for name, value in sorted(spec.items())],
        commands=commands(records),
    )
