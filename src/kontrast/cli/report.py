"""`kontrast report`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from kontrast.cli.diagnose import LIMITS, limits_of, report_diagnosis
from kontrast.cli.options import Given, with_options
from kontrast.cli.program import AsJson, Debug, app
from kontrast.cli.study import THRESHOLDS, report_study, thresholds_of
from kontrast.cli.verify import report_claims
from kontrast.errors import InputError
from kontrast.options import Option


@app.command()
@with_options(*THRESHOLDS, *LIMITS)
def report(
    given: Given,
    folder: Annotated[
        Path, typer.Argument(help="A folder that `kontrast study`, `kontrast diagnose` or `kontrast verify` wrote.")
    ],
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Rebuild the figures and the page of a study, a diagnosis or measured claims, from stored results alone.

    The thresholds (tolerance, …, probe-margin) are for studies, the limits (moved, …, margin) for diagnoses, whose exit
    code is that of `kontrast diagnose`. For claims --json prints one object per line, as `kontrast verify` does.
    """
    from kontrast.runs import Store
    from kontrast.study import StudySpec, consolidate

    if (folder / "diagnosis.nc").is_file():
        _refuse(given, THRESHOLDS, f"for studies alone, and {folder} holds a diagnosis")
        report_diagnosis(folder, limits_of(given), as_json=as_json)
    thresholds = thresholds_of(given)
    store = Store(folder, command="study|verify")
    spec = store.spec()
    if spec.get("kind") == "monitor":
        raise InputError(f"{folder} holds the records of a Monitor; make its page by kontrast diagnose {folder}")
    _refuse(given, LIMITS, f"for diagnoses alone, and {folder} holds none")
    if spec.get("kind") != "claims":
        report_study(folder, consolidate(StudySpec.from_dict(spec), store), thresholds, as_json=as_json)
        return
    _refuse(given, THRESHOLDS, f"for studies alone, and {folder} holds claims")
    report_claims(folder, spec, as_json=as_json)


def _refuse(given: Given, options: Iterable[Option], why: str) -> None:
    """Refuse options that are of no effect on what a folder holds."""
    if idle := [option.name for option in options if option.name in given]:
        raise InputError(f"{', '.join(idle)}: {why}; leave it out")
