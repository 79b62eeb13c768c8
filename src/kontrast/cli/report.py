"""`kontrast report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kontrast.cli.options import Given, with_options
from kontrast.cli.program import AsJson, Debug, app
from kontrast.cli.study import THRESHOLDS, report_study, thresholds_of
from kontrast.cli.verify import report_claims
from kontrast.errors import InputError


@app.command()
@with_options(*THRESHOLDS)
def report(
    given: Given,
    folder: Annotated[Path, typer.Argument(help="A folder that `kontrast study` or `kontrast verify` wrote.")],
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Rebuild the figures and the page of a study, or of measured claims, from stored results alone.

    The thresholds are for studies. For claims --json prints one object per line, as `kontrast verify` does.
    """
    from kontrast.runs import Store
    from kontrast.study import StudySpec, consolidate

    thresholds = thresholds_of(given)
    store = Store(folder, command="study|verify")
    spec = store.spec()
    if spec.get("kind") != "claims":
        report_study(folder, consolidate(StudySpec.from_dict(spec), store), thresholds, as_json=as_json)
        return
    if given:
        raise InputError(f"{', '.join(given)}: for studies alone, and {folder} holds claims; leave it out")
    report_claims(folder, spec, as_json=as_json)
