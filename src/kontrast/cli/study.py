"""`kontrast study`, and the studies' half of `kontrast report`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kontrast.cli.options import Given, read, with_options
from kontrast.cli.program import (
    STANDARDIZED,
    AsJson,
    Debug,
    Workers,
    app,
    plain_table,
    print_json,
    print_lines,
    print_paths,
    say,
)
from kontrast.cli.progress import Bar, n_workers, stopped_by_ctrl_c
from kontrast.errors import InputError
from kontrast.options import in_options, options_of

if TYPE_CHECKING:
    import xarray as xr
    from rich.table import Table

    from kontrast.study import Findings, StudySpec, Thresholds
    from kontrast.study import Table as StudyTable

STUDIES = Path("kontrast-studies")
SPEC, THRESHOLDS = options_of("kontrast.study", "StudySpec"), options_of("kontrast.study", "Thresholds")


@app.command()
@with_options(*SPEC, *THRESHOLDS)
def study(
    given: Given,
    preset: Annotated[
        str | None,
        typer.Option(help="Defaults of another setting: paper-a is the full-batch one of paper A, without a map."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Time that the run may take, as in 90s, 2m or 1h; it says what that leaves out."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Results folder.", show_default="kontrast-studies/NAME-HASH"),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the study in this folder, with its options.")] = None,
    workers: Workers = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Kernel, PCA or learning? A map of widths and learning rates, and what training pays over its closed forms.

    With no option it runs on 5,000 real MNIST digits, with NT-Xent and with the dot product, in about two minutes.
    """
    from kontrast.study import prepare, seconds_from

    thresholds = thresholds_of(given)
    if budget is not None:
        seconds_from(budget)  # refuses what is no time before any work
    spec = prepare(_spec(given, preset, output, resume))
    if spec.pca_outlook:
        say(in_options(spec.pca_outlook, SPEC))
    folder = resume or output or STUDIES / spec.name
    # A GPU is shared by no second process: its cells run here, one after the other.
    processes = n_workers(workers, len(spec.cells) if spec.device.startswith("cpu") else 1)
    report_study(folder, _run(spec, folder, processes, budget), thresholds, as_json=as_json)


def thresholds_of(given: Given) -> Thresholds:
    """The thresholds that were typed; the library's defaults stand for the rest."""
    from kontrast.study import Thresholds

    return Thresholds(**read(given, THRESHOLDS))


def report_study(folder: Path, result: xr.Dataset, thresholds: Thresholds, *, as_json: bool) -> None:
    """Judge a result, write its page, and print what was found."""
    from kontrast.report import write_report
    from kontrast.study import find

    findings = find(result, thresholds)
    show_findings(findings, write_report(folder, result, findings), as_json=as_json)


def _spec(given: Given, preset: str | None, output: Path | None, resume: Path | None) -> StudySpec:
    """The spec of the options that were typed, or the one that is stored in a folder."""
    from kontrast.runs import Store
    from kontrast.study import StudySpec

    fields = read(given, SPEC)
    if resume is None:
        return StudySpec(**fields) if preset is None else StudySpec.preset(preset, **fields)
    if fields or preset is not None or output is not None:
        raise InputError("--resume takes every option from its folder; leave out the others, or use --output")
    return StudySpec.from_dict(Store(resume).spec())


def _run(spec: StudySpec, folder: Path, workers: int, budget: str | None) -> xr.Dataset:
    from kontrast.study import parse_cell, run_study

    resume = f"finished cells are kept. To go on: kontrast study --resume {shlex.quote(str(folder))}"
    with stopped_by_ctrl_c(resume), Bar(spec.name, "cells", cost=lambda cell: parse_cell(cell)[0]) as bar:
        return run_study(
            spec,
            folder,
            workers=workers,
            budget=budget,
            on_plan=say,
            on_start=lambda missing: bar.start(len(spec.cells) - len(missing), missing),
            on_cell=bar.advance,
        )


def show_findings(findings: Findings, page: Path, *, as_json: bool) -> None:
    """Print what a study found, in words and tables or as JSON."""
    if as_json:
        print_json({**findings.as_dict(), "report": str(page)}, indent=2)
        return
    from rich.console import Console

    from kontrast.study import tables

    console = Console(highlight=False)
    # Below a map the sections say one sentence each; their tables are on the page.
    shown = tables.terminal_tables(findings) if findings.map is None else tables.terminal_map(findings.map)
    for table in shown:
        console.print(_laid_out(table))
        if table.note:
            _print_sentences(table.note, "")
    if findings.spec.standardize:
        print_lines(STANDARDIZED)
    if findings.map is not None and findings.sentences:
        _print_sentences(*(f"full batch, {sentence}" for sentence in findings.sentences), "")
    if findings.map is None and findings.pca is None:
        _print_sentences(f"no PCA view: {findings.spec.without_pca}", "")
    _print_sentences(f"verdict: {findings.verdict}")
    print_paths(report=page)


def _print_sentences(*sentences: str) -> None:
    """Print sentences of the library, which name arguments, in the words of the options."""
    print_lines(*(in_options(sentence, (*SPEC, *THRESHOLDS)) for sentence in sentences))


def _laid_out(table: StudyTable) -> Table:
    """A table of the study as rich's own; names stand left, numbers right."""
    laid_out = plain_table(table.title)
    for k, heading in enumerate(table.head):
        left = k == 0 and not table.rows[0][0].replace(".", "").isdigit()
        words = "\n".join(heading.rsplit(" ", 1))
        laid_out.add_column(words, justify="left" if left else "right", no_wrap=True)
    for row in table.rows:
        laid_out.add_row(*row)
    if table.foot:
        laid_out.add_section()
        laid_out.add_row(*table.foot)
    return laid_out
