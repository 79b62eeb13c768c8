"""Figures and single-file HTML pages, rebuilt from stored results alone. The only home of matplotlib and jinja2.

`study`, `diagnosis` and `claims` hold a page each, with its template beside it; what all pages share is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from kontrast.errors import StoreError
from kontrast.report.diagnosis.files import check_diagnosis_folder, read_diagnosis, write_diagnosis
from kontrast.report.diagnosis.page import diagnosis_figure, diagnosis_page
from kontrast.report.diagnosis.sections import Grid
from kontrast.report.diagnosis.summary import diagnosis_summary, diagnosis_tables
from kontrast.report.embedding_figure import write_embedding_figure
from kontrast.report.pattern_figure import write_pattern_figure
from kontrast.report.study.page import study_files
from kontrast.report.template import PAGE
from kontrast.report.view_examples import write_view_examples
from kontrast.runs import write_atomic
from kontrast.study import Findings

if TYPE_CHECKING:
    from kontrast.claims import Record

__all__ = [
    "Grid",
    "check_diagnosis_folder",
    "diagnosis_figure",
    "diagnosis_page",
    "diagnosis_summary",
    "diagnosis_tables",
    "read_diagnosis",
    "write_claims_report",
    "write_diagnosis",
    "write_embedding_figure",
    "write_pattern_figure",
    "write_report",
    "write_view_examples",
]


def write_report(folder: Path, result: xr.Dataset, findings: Findings) -> Path:
    """Write `report.html`, one SVG per picture and a PNG of the first plate into `folder`; return the page's path.

    The PNG is `figures/map.png`, or `figures/study.png` for a study without a map.

    The same result and findings give the same bytes. The page is written last and needs none of the other files.
    """
    return _write(Path(folder), study_files(result, findings))


def write_claims_report(
    folder: Path, records: Sequence[Record], spec: dict[str, Any], *, figures: str = "figures"
) -> Path:
    """Write `report.html`, `claims.md` and one SVG per claim that has panels into `folder`; return the page's path.

    The same records give the same bytes. The page is written last and needs none of the other files; the markdown file
    shows the pictures in `figures`, a folder below its own.
    """
    from kontrast.report.claims.page import claims_files  # here, since studies must not need that claims can be loaded

    return _write(Path(folder), claims_files(records, spec, figures=figures))


def _write(folder: Path, files: dict[str, bytes]) -> Path:
    try:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / name, content)
    except OSError as error:
        raise StoreError(
            f"cannot write the report to {folder}: {error.strerror}; make the folder writable or choose another folder"
        ) from None
    return folder / PAGE
