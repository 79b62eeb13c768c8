"""The report of `kontrast verify`: every claim, number and picture in one HTML page, and again as files for GitHub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from kontrast.claims import Record
from kontrast.errors import StoreError
from kontrast.report.claims_figures import joined_svg, panel_svg
from kontrast.report.claims_markdown import markdown
from kontrast.report.claims_words import RULES, agreement, counts, heading, plain, words
from kontrast.report.svg import printable
from kontrast.sweep import write_atomic

PAGE, MARKDOWN = "report.html", "claims.md"


def write_claims_report(
    folder: Path, records: Sequence[Record], spec: dict[str, Any], *, command: str, figures: str = "figures"
) -> Path:
    """Write `report.html`, `claims.md` and one SVG a claim that has panels into `folder`; return the page's path.

    The same records give the same bytes. The page is written last and needs none of the other files; the markdown file
    shows the pictures in `figures`, a folder below its own.
    """
    folder = Path(folder)
    try:
        (folder / figures).mkdir(parents=True, exist_ok=True)
        for name, content in _files(records, spec, command, figures).items():
            write_atomic(folder / name, content.encode())
    except OSError as error:
        raise StoreError(
            f"cannot write the report to {folder}: {error.strerror}; make the folder writable or choose another "
            "--output"
        ) from None
    return folder / PAGE


def render(
    records: Sequence[Record], spec: dict[str, Any], pictures: Mapping[str, Sequence[str]], *, command: str
) -> str:
    """The page; `pictures` maps a claim's id to the `<svg>` of each of its panels."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kontrast.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("claims.html").render(
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
        settings=[(name, plain(value)) for name, value in spec.items()],
        command=command,
    )


def _files(records: Sequence[Record], spec: dict[str, Any], command: str, figures: str) -> dict[str, str]:
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
    files[MARKDOWN] = markdown(records, spec, command=command, figures=figures)
    files[PAGE] = render(records, spec, pictures, command=command)
    return files


def _shown(value: Any) -> Any:
    """What the template prints: words without characters that no page can hold; pictures as they are."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
