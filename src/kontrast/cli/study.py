"""`kontrast study`, and the studies' half of `kontrast report`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kontrast.cli.options import Given, read, with_options
from kontrast.cli.program import AsJson, Debug, Workers, app, plain_table, print_json, print_lines, print_paths
from kontrast.cli.progress import Bar, n_workers, stopped_by_ctrl_c
from kontrast.errors import InputError
from kontrast.options import in_options, options_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import xarray as xr
    from rich.table import Table

    from kontrast.linalg import PowerLaw
    from kontrast.study import (
        Findings,
        LabelFindings,
        PCAFindings,
        ProbeFindings,
        SimilarityFindings,
        StudySpec,
        Thresholds,
    )

STUDIES = Path("kontrast-studies")
TABLE = ("ntk_drift_max", "ntk_drift_fro", "kernel_gap", "parameter_move", "effective_rank")  # what 80 columns hold
PCA_TABLE = ("pca_angle_start", "pca_angle_now", "pca_angle_frozen", "matrix_drift", "frozen_gap")
LABEL_COUNTS = 3  # numbers of labels in the table of label curves
PROBE_WIDTHS = 6  # columns of the probes' table in 80
SPEC, THRESHOLDS = options_of("kontrast.study", "StudySpec"), options_of("kontrast.study", "Thresholds")


@app.command()
@with_options(*SPEC, *THRESHOLDS)
def study(
    given: Given,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Results folder.", show_default="kontrast-studies/NAME-HASH"),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the study in this folder, with its options.")] = None,
    workers: Workers = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Kernel, PCA or learning? Does a fixed kernel predict training, is its subspace PCA, does it buy accuracy?

    With no option it runs on 5,000 real MNIST digits, for cosine and dot-product similarity, in about two minutes.
    """
    from kontrast.study import prepare

    thresholds = thresholds_of(given)
    spec = prepare(_spec(given, output, resume))
    folder = resume or output or STUDIES / spec.name
    # A GPU is shared by no second process: its cells run here, one after the other.
    processes = n_workers(workers, len(spec.cells) if spec.device.startswith("cpu") else 1)
    report_study(folder, _run(spec, folder, processes), thresholds, as_json=as_json)


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


def _spec(given: Given, output: Path | None, resume: Path | None) -> StudySpec:
    """The spec of the options that were typed, or the one that is stored in a folder."""
    from kontrast.runs import Store
    from kontrast.study import StudySpec

    fields = read(given, SPEC)
    if resume is None:
        return StudySpec(**fields)
    if fields or output is not None:
        raise InputError("--resume takes every option from its folder; leave out the others, or use --output")
    return StudySpec.from_dict(Store(resume).spec())


def _run(spec: StudySpec, folder: Path, workers: int) -> xr.Dataset:
    from kontrast.study import parse_cell, run_study

    resume = f"finished cells are kept. To go on: kontrast study --resume {shlex.quote(str(folder))}"
    with stopped_by_ctrl_c(resume), Bar(spec.name, "cells", cost=lambda cell: parse_cell(cell)[0]) as bar:
        return run_study(
            spec,
            folder,
            workers=workers,
            on_start=lambda missing: bar.start(len(spec.cells) - len(missing), missing),
            on_cell=bar.advance,
        )


def show_findings(findings: Findings, page: Path, *, as_json: bool) -> None:
    """Print what a study found, in words and tables or as JSON."""
    if as_json:
        print_json({**findings.as_dict(), "report": str(page)}, indent=2)
        return
    from rich.console import Console

    console = Console(highlight=False)
    for found in findings.similarities:
        console.print(_table(found))
        _print_sentences(found.sentence, "")
    if findings.pca is not None:
        console.print(_pca_table(findings.pca))
        _print_sentences(findings.pca.sentence, "")
    else:
        _print_sentences(f"no PCA view: {findings.spec.without_pca}", "")
    if findings.probes is not None:
        console.print(_probe_table(findings.probes))
    if findings.labels is not None:
        console.print(_label_table(findings.labels))
        _print_sentences(f"labels: {findings.labels.sentence}", "")
    _print_sentences(f"verdict: {findings.headline}")
    print_paths(report=page)


def _print_sentences(*sentences: str) -> None:
    """Print sentences of the library, which name arguments, in the words of the options."""
    print_lines(*(in_options(sentence, (*SPEC, *THRESHOLDS)) for sentence in sentences))


def _table(found: SimilarityFindings) -> Table:
    from kontrast.report import COLUMNS

    when = f"at step {found.step}" if found.step is not None else "before any recorded step"
    title = f"{found.similarity} similarity, learning rate {found.learning_rate:g}, {when}"
    shown = {name: COLUMNS[name] for name in TABLE}
    return _width_table(title, found, shown, {"diverged at": [_divergence(found, i) for i in range(len(found.widths))]})


def _pca_table(found: PCAFindings) -> Table:
    from kontrast.report import PCA_COLUMNS

    when = f"at step {found.step}" if found.step is not None else "at no step"
    title = f"orthonormal output layer, learning rate {found.learning_rate:g}, {when}"
    return _width_table(title, found, {name: PCA_COLUMNS[name] for name in PCA_TABLE}, {})


def _width_table(
    title: str,
    found: SimilarityFindings | PCAFindings,
    shown: dict[str, tuple[str, Callable[[float], str]]],
    further: dict[str, list[str]],
) -> Table:
    """A row a width: the means of the `shown` measures, `further` columns in words, and the exponents below."""
    table = plain_table(title)
    table.add_column("width", justify="right", no_wrap=True)
    for heading in (*(heading for heading, _ in shown.values()), *further):
        table.add_column("\n".join(heading.rsplit(" ", 1)), justify="right", no_wrap=True)
    for i, width in enumerate(found.widths):
        cells = [write(found.means[name][i]) if found.means else "–" for name, (_, write) in shown.items()]
        table.add_row(str(width), *cells, *(words[i] for words in further.values()))
    if found.exponents:
        table.add_section()
        table.add_row("~ M^", *[_exponent(found.exponents.get(name)) for name in shown], *("" for _ in further))
    return table


def _probe_table(found: ProbeFindings) -> Table:
    """A row an embedding; of many widths some, the first and the last among them."""
    from kontrast.report import accuracy

    last = len(found.widths) - 1
    n = min(last, PROBE_WIDTHS - 1)
    columns = sorted({round(k * last / n) for k in range(n + 1)}) if n else [0]
    table = plain_table(f"linear probes, test accuracy in %, {found.n_samples} samples to train and to test")
    table.add_column("width", no_wrap=True)
    for i in columns:
        table.add_column(str(found.widths[i]), justify="right", no_wrap=True)
    for name in found.embeddings:
        table.add_row(name, *[accuracy(found.means[name][i], found.deviations[name][i]) for i in columns])
    return table


def _label_table(found: LabelFindings) -> Table:
    """A row a representation: measured / predicted error and accuracy at some numbers of labels, and labels needed."""
    from kontrast.report import needed, pairs

    last = len(found.n_labels) - 1
    columns = sorted({round(k * last / (LABEL_COUNTS - 1)) for k in range(LABEL_COUNTS)})
    table = plain_table(f"kernel ridge regression from n labels, width {found.width}, measured/predicted")
    table.add_column("\nn", no_wrap=True)
    for what in ("error", "%"):
        for i in columns:
            table.add_column(f"{what}\n{found.n_labels[i]}", justify="right", no_wrap=True)
    table.add_column(f"n for\n{found.level:.0%}" if found.best else "n for\n–", justify="right", no_wrap=True)
    for name in found.representations:
        errors = pairs(found.errors[name], found.predicted_errors[name], "{:.2f}")
        accuracies = pairs(found.accuracies[name], found.predicted_accuracies[name], "{:.0%}")
        cells = [row[i].replace(" ", "") for row in (errors, accuracies) for i in columns]
        table.add_row(name, *cells, f"{needed(found.needed[name])}/{needed(found.predicted_needed[name])}")
    return table


def _divergence(found: SimilarityFindings, i: int) -> str:
    """The mean step of divergence, and in how many seeds it was where it was not all of them."""
    if not found.diverged[i]:
        return "–"
    some = f" ({found.diverged[i]}×)" if found.diverged[i] < found.n_seeds else ""
    return f"{found.diverged_at[i]:.0f}{some}"


def _exponent(law: PowerLaw | None) -> str:
    if law is None:
        return "–"
    return f"{law.exponent:.2f}±{law.high - law.exponent:.2f}" if law.n_points > 2 else f"{law.exponent:.2f}"
