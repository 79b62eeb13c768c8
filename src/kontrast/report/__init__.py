"""Figures and the single-file HTML page, rebuilt from a stored result alone. The only home of matplotlib and jinja2."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from kontrast.errors import StoreError
from kontrast.report.axes import INK, PRINT_INK, style
from kontrast.report.drawing import panel_figure, plate_figure
from kontrast.report.embedding_figure import write_embedding_figure
from kontrast.report.figures import plates
from kontrast.report.page import COLUMNS, PCA_COLUMNS, accuracy, needed, pairs, render
from kontrast.report.pattern_figure import write_pattern_figure
from kontrast.report.svg import to_png, to_svg
from kontrast.report.template import PAGE
from kontrast.report.view_examples import write_view_examples
from kontrast.runs import write_atomic
from kontrast.study import Findings

if TYPE_CHECKING:
    from kontrast.claims import Record

__all__ = [
    "COLUMNS",
    "PCA_COLUMNS",
    "accuracy",
    "needed",
    "pairs",
    "write_claims_report",
    "write_embedding_figure",
    "write_pattern_figure",
    "write_report",
    "write_view_examples",
]


def write_report(folder: Path, result: xr.Dataset, findings: Findings) -> Path:
    """Write `report.html`, one SVG a panel and the headline `study.png` into `folder`; return the page's path.

    The same result and findings give the same bytes. The page is written last and needs none of the other files.
    """
    _write(Path(folder), _files(result, findings))
    return Path(folder) / PAGE


def write_claims_report(
    folder: Path, records: Sequence[Record], spec: dict[str, Any], *, figures: str = "figures"
) -> Path:
    """Write `report.html`, `claims.md` and one SVG a claim that has panels into `folder`; return the page's path.

    The same records give the same bytes. The page is written last and needs none of the other files; the markdown file
    shows the pictures in `figures`, a folder below its own.
    """
    from kontrast.report.claims_page import claims_files  # here, since studies must not need that claims can be loaded

    _write(Path(folder), claims_files(records, spec, figures=figures))
    return Path(folder) / PAGE


def _write(folder: Path, files: dict[str, bytes]) -> None:
    try:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / name, content)
    except OSError as error:
        raise StoreError(
            f"cannot write the report to {folder}: {error.strerror}; "
            "make the folder writable or choose another --output"
        ) from None


def _files(result: xr.Dataset, findings: Findings) -> dict[str, bytes]:
    """Every file of the report by its path in the folder, the page last."""
    made = plates(result, findings)
    files: dict[str, bytes] = {}
    pictures: dict[str, str] = {}
    for panel in (panel for plate in made for panel in plate.panels):
        with style(INK, salt=panel.name):
            label = f"{panel.label}. Data: {findings.spec.data}."
            pictures[panel.name] = to_svg(panel_figure(panel), name=panel.name, label=label)
        files[f"figures/{panel.name}.svg"] = pictures[panel.name].encode() + b"\n"
    headline = made[0]
    with style(PRINT_INK, salt=headline.name):
        files[f"figures/{headline.name}.png"] = to_png(plate_figure(headline))
    files[PAGE] = render(result, findings, made, pictures).encode()
    return files
