"""`kontrast report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kontrast.cli.program import AsJson, Debug, app
from kontrast.cli.study import PcaTolerance, ProbeMargin, Tolerance, show_findings, thresholds_from
from kontrast.cli.verify import report_claims
from kontrast.errors import InputError


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder that `kontrast study` or `kontrast verify` wrote.")],
    tolerance: Tolerance = None,
    pca_tolerance: PcaTolerance = None,
    probe_margin: ProbeMargin = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Rebuild the figures and the page of a study, or of measured claims, from stored results alone.

    The three thresholds are for studies. Of claims --json prints one object a line, as `kontrast verify` does.
    """
    from kontrast.report import write_report
    from kontrast.runs import Store
    from kontrast.study import StudySpec, consolidate, find

    thresholds = thresholds_from(tolerance, pca_tolerance, probe_margin)
    store = Store(folder, command="study|verify")
    spec = store.spec()
    if spec.get("kind") == "claims":
        given = {"--tolerance": tolerance, "--pca-tolerance": pca_tolerance, "--probe-margin": probe_margin}
        if refused := [option for option, value in given.items() if value is not None]:
            raise InputError(f"{', '.join(refused)}: for studies alone, and {folder} holds claims; leave it out")
        report_claims(folder, spec, as_json=as_json)
        return
    result = consolidate(StudySpec.from_dict(spec), store)
    findings = find(result, thresholds)
    show_findings(findings, write_report(folder, result, findings), as_json=as_json)
