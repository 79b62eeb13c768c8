"""`kontrast study`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kontrast.cli.program import VIEWS, AsJson, Debug, app, plain_table, say, whole_numbers
from kontrast.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from kontrast.study import Findings, StudySpec, Thresholds
    from kontrast.study import Table as StudyTable

STUDIES = Path("kontrast-studies")

Tolerance = Annotated[
    float | None,
    typer.Option(help="Relative error under which a kernel counts as predicting the model.", show_default="0.05"),
]
PcaTolerance = Annotated[
    float | None,
    typer.Option(help="Largest sine at which a subspace counts as PCA's.", show_default="0.1"),
]
ProbeMargin = Annotated[
    float | None,
    typer.Option(help="Accuracy by which training must beat every closed form, to count.", show_default="0.02"),
]


@app.command()
def study(
    data: Annotated[
        str | None,
        typer.Option(help="mnist5k, digits, moons, or a .npz, .npy, .csv, idx file or folder.", show_default="mnist5k"),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="train, test or all, where the data has splits.", show_default="train")
    ] = None,
    image_shape: Annotated[str | None, typer.Option(help="Shape of flattened images, as in 28,28 or 3,32,32.")] = None,
    samples: Annotated[int | None, typer.Option(help="How many samples to contrast.", show_default="50")] = None,
    view: Annotated[
        str | None,
        typer.Option(help=f"Augmentation, as in crop:0.5,1+flip+noise:0.1. {VIEWS}", show_default="crop; rows: noise"),
    ] = None,
    positives: Annotated[int | None, typer.Option(help="Positives an anchor.", show_default="1")] = None,
    negatives: Annotated[
        str | None, typer.Option(help="Negatives an anchor, or 'all' for their expectation.", show_default="1")
    ] = None,
    similarity: Annotated[str | None, typer.Option(help="cosine, dot or both.", show_default="both")] = None,
    link: Annotated[str | None, typer.Option(help="linear, softmax or log_softmax.", show_default="linear")] = None,
    temperature: Annotated[float | None, typer.Option(help="Temperature of softmax links.", show_default="1")] = None,
    delta: Annotated[float | None, typer.Option(help="The δ of cosine similarity.", show_default="0.01")] = None,
    activation: Annotated[
        str | None,
        typer.Option(help="relu, tanh, sigmoid, erf, gelu, leaky_relu or linear.", show_default="relu"),
    ] = None,
    depth: Annotated[int | None, typer.Option(help="Hidden layers.", show_default="1")] = None,
    parametrization: Annotated[
        str | None, typer.Option(help="ntk, standard or orthogonal.", show_default="ntk")
    ] = None,
    d_out: Annotated[int | None, typer.Option(help="Dimension of the embedding.", show_default="10")] = None,
    widths: Annotated[
        str | None, typer.Option(help="Widths, as in 64,256,1024.", show_default="64,128,256,512,1024,2048")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs a width, averaged.", show_default="5")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of gradient descent.", show_default="200")] = None,
    learning_rate: Annotated[
        str | None,
        typer.Option(
            help="One for all, or one a similarity: 0.1,0.003.", show_default="cosine 0.1; dot 0.25/mean |x|^2"
        ),
    ] = None,
    pca_learning_rate: Annotated[
        float | None, typer.Option(help="Of the orthonormal run, beside PCA.", show_default="1")
    ] = None,
    probe_samples: Annotated[
        int | None,
        typer.Option(help="Labelled samples to train a probe, and to test it; 0: none.", show_default="up to 500"),
    ] = None,
    labels: Annotated[
        bool, typer.Option("--labels", help="How many labels each embedding needs: predicted and measured curves.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …", show_default="cpu")] = None,
    dtype: Annotated[str | None, typer.Option(help="float64 or float32.", show_default="float64")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Results folder.", show_default="kontrast-studies/NAME-HASH"),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the study in this folder, with its options.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes, one thread each.", show_default="one a core")] = None,
    tolerance: Tolerance = None,
    pca_tolerance: PcaTolerance = None,
    probe_margin: ProbeMargin = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Kernel, PCA or learning? Does a fixed kernel predict training, is its subspace PCA, does it buy accuracy?

    With no option it runs on 5,000 real MNIST digits, for cosine and dot-product similarity, in about a minute.
    """
    from kontrast.report import write_report
    from kontrast.runs import Interrupted, default_workers
    from kontrast.study import find, prepare, run_study

    given: dict[str, Any] = {
        "data": data,
        "split": split,
        "image_shape": whole_numbers("--image-shape", image_shape),
        "n_samples": samples,
        "views": view,
        "n_positives": positives,
        "negatives": _count_or_word(negatives),
        "similarities": _similarities(similarity),
        "link": link,
        "temperature": temperature,
        "delta": delta,
        "activation": activation,
        "depth": depth,
        "parametrization": parametrization,
        "d_out": d_out,
        "widths": whole_numbers("--widths", widths),
        "n_seeds": seeds,
        "n_steps": steps,
        "learning_rates": _learning_rates(learning_rate, similarity),
        "pca_learning_rate": pca_learning_rate,
        "n_probe_samples": probe_samples,
        "label_curves": labels or None,
        "device": device,
        "dtype": dtype,
    }
    thresholds = thresholds_from(tolerance, pca_tolerance, probe_margin)
    spec = prepare(_spec({key: value for key, value in given.items() if value is not None}, output, resume))
    folder = resume or output or STUDIES / spec.name
    if workers is not None and workers < 1:
        raise InputError(f"--workers must be at least 1, got {workers}")
    # A GPU is shared by no second process: its cells run here, one after the other.
    n_workers = 0 if not spec.device.startswith("cpu") else workers or default_workers()
    try:
        with _Progress(spec) as progress:
            result = run_study(spec, folder, workers=n_workers, on_start=progress.start, on_cell=progress.advance)
    except (Interrupted, KeyboardInterrupt):
        say(f"stopped; finished cells are kept. To go on: kontrast study --resume {shlex.quote(str(folder))}")
        sys.exit(130)
    findings = find(result, thresholds)
    show_findings(findings, write_report(folder, result, findings), as_json=as_json)


def _spec(given: dict[str, Any], output: Path | None, resume: Path | None) -> StudySpec:
    """The spec of the options that were given; the library's defaults stand for the rest."""
    from kontrast.runs import Store
    from kontrast.study import StudySpec

    if resume is None:
        return StudySpec(**given)
    if given or output is not None:
        raise InputError("--resume takes every option from its folder; leave out the others, or use --output")
    return StudySpec.from_dict(Store(resume).spec())


def thresholds_from(tolerance: float | None, pca_tolerance: float | None, probe_margin: float | None) -> Thresholds:
    """The thresholds that were given; the library's defaults stand for the rest."""
    from kontrast.study import Thresholds

    given = {"tolerance": tolerance, "pca_tolerance": pca_tolerance, "probe_margin": probe_margin}
    return Thresholds(**{name: value for name, value in given.items() if value is not None})


def _learning_rates(text: str | None, similarity: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--learning-rate takes a number, or one a similarity, as in 0.1,0.003; got {text!r}"
        ) from None
    return rates * len(_similarities(similarity or "both") or ()) if len(rates) == 1 else rates


def _count_or_word(text: str | None) -> int | str | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return text


def _similarities(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return ("cosine", "dot") if text == "both" else tuple(text.split(","))


def show_findings(findings: Findings, page: Path, *, as_json: bool) -> None:
    """What a study found, in words and tables or as JSON."""
    if as_json:
        typer.echo(json.dumps({**findings.as_dict(), "report": str(page)}, indent=2))
        return
    from rich.console import Console

    from kontrast.study import terminal_tables

    console = Console(highlight=False)
    for table in terminal_tables(findings):
        console.print(_laid_out(table))
        if table.note:
            console.print(table.note, markup=False)
            console.print()
    if findings.pca is None:
        console.print(f"no PCA view: {findings.spec.without_pca}\n", markup=False)
    console.print(f"verdict: {findings.verdict}", markup=False)
    console.print(f"report: {page}", markup=False, soft_wrap=True)


def _laid_out(table: StudyTable) -> Table:
    """A table of the study as rich's own; names stand left, numbers right."""
    laid_out = plain_table(table.title)
    for k, heading in enumerate(table.head):
        left = k == 0 and not table.rows[0][0].isdigit()
        words = "\n".join(heading.rsplit(" ", 1))
        laid_out.add_column(words, justify="left" if left else "right", no_wrap=True)
    for row in table.rows:
        laid_out.add_row(*row)
    if table.foot:
        laid_out.add_section()
        laid_out.add_row(*table.foot)
    return laid_out


class _Progress:
    """A bar on standard error, its time left weighted by what cells of each width cost."""

    def __init__(self, spec: StudySpec) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.spec, self.done = spec, 0
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[cells]} cells"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
        )

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar.live.is_started:  # stopping a bar that never started would print an empty line
            self.bar.stop()

    def start(self, missing: list[str]) -> None:
        """Show what is stored already and what is left to do."""
        self.bar.start()
        self.done = len(self.spec.cells) - len(missing)
        cost = sum(self._cost(cell) for cell in missing)
        self.task = self.bar.add_task(
            self.spec.name, total=cost or 1, completed=0 if missing else 1, cells=self._cells()
        )

    def advance(self, cell: str) -> None:
        """One more cell is stored."""
        self.done += 1
        self.bar.update(self.task, advance=self._cost(cell), cells=self._cells())

    def _cells(self) -> str:
        return f"{self.done}/{len(self.spec.cells)}"

    @staticmethod
    def _cost(cell: str) -> int:
        from kontrast.study import parse_cell

        return parse_cell(cell)[0]
