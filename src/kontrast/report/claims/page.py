"""The report of `kontrast verify`: every claim, number and picture in one HTML page, and again as files for GitHub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from kontrast.claims import RULES, Record
from kontrast.report.claims.figures import joined_svg, panel_svg
from kontrast.report.claims.markdown import markdown
from kontrast.report.claims.words import agreement, commands, counts, heading, papers, plain, words
from kontrast.report.template import PAGE, template

MARKDOWN = "claims.md"


def claims_files(records: Sequence[Record], spec: dict[str, Any], *, figures: str) -> dict[str, bytes]:
    """Every file of the report by its path in the folder, the page last."""
    pictures, files = {}, {}
    for claim, panels in ((record.claim, record.evidence.panels) for record in records):
        made = [panel_svg(panel, name=f"{claim.id}-{k}") for k, panel in enumerate(panels, start=1)]
        pictures[claim.id] = made
        if made:
            files[f"{figures}/{claim.id}.svg"] = joined_svg(made, label=f"{claim.id}: {claim.title}")
    files[MARKDOWN] = markdown(records, spec, figures=figures)
    files[PAGE] = render(records, spec, pictures)
    return {name: content.encode() for name, content in files.items()}


def render(records: Sequence[Record], spec: dict[str, Any], pictures: Mapping[str, Sequence[str]]) -> str:
    """The page; `pictures` maps a claim's id to the `<svg>` of each of its panels."""
    return template("kontrast.report.claims").render(
        claims=[words(record) for record in records],
        pictures={name: list(map(Markup, panels)) for name, panels in pictures.items()},  # made by `to_svg` alone
        heading=heading(spec),
        counts=counts(records),
        agreement=agreement(records),
        rules=RULES,
        seconds=f"{sum(record.seconds for record in records):.0f}",
        settings=[(name, plain(value)) for name, value in sorted(spec.items())],
        commands=commands(records),
        papers=papers(records),
    )
