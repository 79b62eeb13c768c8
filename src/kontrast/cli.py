"""The command line: options in, library calls, words out. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
import math
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kontrast import __version__
from kontrast.errors import InputError, KontrastError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from rich.table import Table

    from kontrast.claims import Claim, Record
    from kontrast.data import Dataset
    from kontrast.estimators import ContrastivePCA, SpectralContrastive
    from kontrast.linalg import PowerLaw
    from kontrast.sweep import Findings, PCAFindings, ProbeFindings, SimilarityFindings, StudySpec, Thresholds

app = typer.Typer(
    help="Is a contrastive model a kernel machine, PCA of random features, or does its training learn something?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

STUDIES = Path("kontrast-studies")
CLAIMS = Path("kontrast-claims")
TABLE = ("ntk_drift_max", "ntk_drift_fro", "kernel_gap", "parameter_move", "effective_rank")  # what 80 columns hold
PCA_TABLE = ("pca_angle_start", "pca_angle_now", "pca_angle_frozen", "matrix_drift", "frozen_gap")
PROBE_WIDTHS = 6  # columns of the probes' table in 80
VIEWS = "Names, joined by +: crop, flip, affine, brightness, contrast, grey for images; noise, mask, mixup for all."
_debug = {"on": False}


# Some versions of typer use click, others a copy of it: the class is reached through one that both export.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")


def main() -> None:
    """Run the command line; a mistake in the input is one line and exit code 2, never a traceback."""
    try:
        code = app(standalone_mode=False)
        if code == 130:  # typer's own answer to Ctrl-C
            _say("stopped")
        sys.exit(code if isinstance(code, int) else 0)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message())
            sys.exit(0)
        command = error.ctx.command_path if error.ctx else "kontrast"
        _say(f"error: {error.format_message().rstrip('.')}; see {command} --help")
        sys.exit(2)
    except typer.Abort:
        _say("stopped")
        sys.exit(130)
    except KontrastError as error:
        if _debug["on"]:
            raise
        _say(f"error: {error}")
        sys.exit(2)
    except OSError as error:  # the disk is full, say: no mistake in the input, but nothing a traceback would explain
        if _debug["on"]:
            raise
        where = f": {error.filename}" if error.filename else ""
        _say(f"error: {error.strerror or error}{where}; finished cells are kept, run the same command to go on")
        sys.exit(1)


def _set_debug(value: bool) -> None:
    _debug["on"] = value


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"kontrast {__version__}")
        raise typer.Exit


Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", callback=_set_debug)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words.")]
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


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_show_version)] = False,
) -> None:
    pass


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
    from kontrast.sweep import Interrupted, default_workers, find, prepare, run_study

    given: dict[str, Any] = {
        "data": data,
        "split": split,
        "image_shape": _whole_numbers("--image-shape", image_shape),
        "n_samples": samples,
        "view": view,
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
        "widths": _whole_numbers("--widths", widths),
        "n_seeds": seeds,
        "n_steps": steps,
        "learning_rates": _learning_rates(learning_rate, similarity),
        "pca_learning_rate": pca_learning_rate,
        "n_probe_samples": probe_samples,
        "device": device,
        "dtype": dtype,
    }
    thresholds = _thresholds(tolerance, pca_tolerance, probe_margin)
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
        _say(f"stopped; finished cells are kept. To go on: kontrast study --resume {shlex.quote(str(folder))}")
        sys.exit(130)
    findings = find(result, thresholds)
    _show(findings, write_report(folder, result, findings), as_json=as_json)


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
    from kontrast.sweep import Store, StudySpec, consolidate, find

    thresholds = _thresholds(tolerance, pca_tolerance, probe_margin)
    store = Store(folder, command="study|verify")
    spec = store.spec()
    if spec.get("kind") == "claims":
        given = {"--tolerance": tolerance, "--pca-tolerance": pca_tolerance, "--probe-margin": probe_margin}
        if refused := [option for option, value in given.items() if value is not None]:
            raise InputError(f"{', '.join(refused)}: for studies alone, and {folder} holds claims; leave it out")
        _report_claims(folder, spec, as_json=as_json)
        return
    result = consolidate(StudySpec.from_dict(spec), store)
    findings = find(result, thresholds)
    _show(findings, write_report(folder, result, findings), as_json=as_json)


@app.command()
def embed(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="A .npz, .npy, .csv, idx file or folder; or mnist5k, digits, moons.")
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="OUT", help="The embedding: .npz (z, and labels y), .npy or .csv."),
    ],
    method: Annotated[str | None, typer.Option(help="spectral or pca.", show_default="spectral")] = None,
    components: Annotated[
        int | None, typer.Option(help="Dimensions of the embedding.", show_default="128, or as many as there are")
    ] = None,
    features: Annotated[str | None, typer.Option(help="random, fourier or patches.", show_default="random")] = None,
    width: Annotated[
        str | None,
        typer.Option(help="Number of features, or inf.", show_default="spectral 2048, pca inf, patches 256"),
    ] = None,
    views: Annotated[
        str | None,
        typer.Option(help=f"Augmentation, as in affine+noise:0.1. {VIEWS}", show_default="affine; rows: noise:0.1"),
    ] = None,
    n_views: Annotated[
        int | None, typer.Option(help="Views of each sample; for pca, positives.", show_default="8; pca 1")
    ] = None,
    ridge: Annotated[
        float | None, typer.Option(help="Share of the total variance, for spectral.", show_default="3e-06")
    ] = None,
    depth: Annotated[int | None, typer.Option(help="Hidden layers of random features.", show_default="1")] = None,
    activation: Annotated[str | None, typer.Option(help="Of random features.", show_default="relu")] = None,
    similarity: Annotated[str | None, typer.Option(help="cosine or dot.", show_default="cosine")] = None,
    samples: Annotated[
        int | None, typer.Option(help="Fit on so many samples, drawn at random.", show_default="all")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="Use this saved model, and fit none.")] = None,
    labels: Annotated[
        str | None, typer.Option(help="Labels to judge by: a column of a .csv, or a file.", show_default="those in IN")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="What to write: train, test or all. Train is fitted.", show_default="all")
    ] = None,
    image_shape: Annotated[str | None, typer.Option(help="Shape of flattened images, as in 28,28 or 3,32,32.")] = None,
    seed: Annotated[int, typer.Option(help="Of all random numbers.", min=0, max=2**63 - 1)] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …")] = "cpu",
    dtype: Annotated[str | None, typer.Option(help="float32 or float64.", show_default="float32")] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Write no pictures.")] = False,
    no_probes: Annotated[
        bool, typer.Option("--no-probes", help="Do not judge by labels: minutes for 60,000 samples.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Embed samples by contrastive learning in closed form: no labels, no training.

    Beside OUT the model (for --model), a picture of the leading dimensions and one of the views are written. Of data
    with train and test the model is fitted to train, and an .npz gets z_train and z_test. Labels, where there are any,
    only judge: a linear probe and 20 nearest neighbours, beside the raw input and its PCA.
    """
    fitting = {
        "--method": method,
        "--components": components,
        "--features": features,
        "--width": width,
        "--views": views,
        "--n-views": n_views,
        "--ridge": ridge,
        "--depth": depth,
        "--activation": activation,
        "--similarity": similarity,
        "--samples": samples,
        "--dtype": dtype,
    }
    given = {option: value for option, value in fitting.items() if value is not None}
    if model is not None and given:
        raise InputError(f"--model uses a model as it was fitted, so {', '.join(given)} cannot be given with it")
    files = _embedding_files(output, fits=model is None, plots=not no_plot)
    _spare_inputs(files, [source, *([labels] if labels else []), *([str(model)] if model else [])])

    from kontrast._types import resolve_device, resolve_dtype
    from kontrast.data import load_parts, parse_view
    from kontrast.estimators import fit_most_components, judge, load_model
    from kontrast.sweep import require_contrast

    resolve_device(device)
    if views is not None:
        parse_view(views)
    if split not in (None, "train", "test", "all"):
        raise InputError(f"--split must be train, test or all, got {split!r}")
    shape: Any = _whole_numbers("--image-shape", image_shape)
    clock = _Clock()
    notes: list[str] = []
    if model is not None:
        fitted: Any = load_model(model, device=device)
        number_type = resolve_dtype(str(fitted.components_.dtype))
        shape = shape or fitted.image_shape
        parts = load_parts(source, labels=labels, image_shape=shape, seed=seed, dtype=number_type)
        _require_split(split, parts)
        clock.lap("read")
        view = None
    else:
        estimator = _embedding_model(given, shape, seed, device)
        number_type = resolve_dtype(str(estimator.dtype))
        parts = load_parts(source, labels=labels, image_shape=shape, seed=seed, dtype=number_type)
        _require_split(split, parts)
        train = next(iter(parts.values()))
        require_contrast(train, source)
        if views is None:
            estimator.views = "affine" if train.is_image else "noise:0.1"
        view = parse_view(str(estimator.views))
        x = train.x if samples is None else train.x[_drawn(train, samples, seed)]
        clock.lap("read")
        asked = estimator.n_components
        fitted = estimator.fit(x) if components is not None else fit_most_components(estimator, x)
        clock.lap("fit")
        if fitted.n_components < asked:
            notes.append(
                f"{fitted.n_components} dimensions instead of {asked}: no further eigenvalue is positive; "
                "--components asks for a number of your own"
            )
    z = {name: fitted.transform(part.x) for name, part in parts.items()}
    clock.lap("embed")
    _write_embedding(
        files, fitted, parts, z, view, split, seed
    )  # before the probes, which may take longer than the fit
    clock.lap("write")
    probes, judged = ((), "not asked for") if no_probes else judge(parts, z, seed=seed, progress=True)
    clock.lap("probe")
    first = next(iter(parts.values()))
    found = {
        "input": source,
        "output": str(files["embedding"]),
        "model": str(model or files["model"]),
        "plot": str(files["plot"]) if "plot" in files else None,
        "views_plot": str(files["views"]) if "views" in files else None,
        "samples": {name: len(part) for name, part in parts.items()},
        "samples_fitted": None if model is not None else samples or len(first),
        "values": first.x[0].numel(),
        "dimensions": len(fitted.eigenvalues_),
        "method": "spectral" if hasattr(fitted, "ridge") else "pca",
        "options": _embedding_options(fitted),
        "eigenvalues": [float(value) for value in fitted.eigenvalues_],
        "kernel_error": fitted.kernel_error_,
        "probes": [_numbers_of(probed) for probed in probes],
        "judged": judged,
        "notes": notes,
        "seconds": clock.laps,
    }
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        _show_embedding(found)


class _Clock:
    """Seconds of one stretch of work after the other."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self.last = round(now - self.last, 3), now


def _embedding_files(output: Path, *, fits: bool, plots: bool) -> dict[str, Path]:
    """What is written, all of it beside the embedding."""
    from kontrast.data import check_writable

    check_writable(output)
    files = {"embedding": output}
    if fits:
        files["model"] = output.with_name(f"{output.stem}.model.npz")
    if plots:
        files["plot"] = output.with_name(f"{output.stem}.png")
    if plots and fits:
        files["views"] = output.with_name(f"{output.stem}-views.png")
    for path in files.values():
        if path.is_dir():
            raise InputError(f"{path} is to be written and is a folder; choose another name for --output")
    return files


def _spare_inputs(files: dict[str, Path], inputs: Sequence[str]) -> None:
    """Refuse to write over what is read, or into a folder that is read."""
    for name in inputs:
        there = Path(name).expanduser()
        for path in files.values() if there.exists() else ():
            same = path.exists() and path.samefile(there)
            if same or path.resolve() == there.resolve() or there.resolve() in path.resolve().parents:
                raise InputError(f"{path} would be written over or into {name}, which is read; choose another --output")


def _embedding_model(given: dict[str, Any], shape: Any, seed: int, device: str) -> ContrastivePCA | SpectralContrastive:
    """The estimator of the options that were given; the library's defaults stand for the rest."""
    from kontrast.estimators import ContrastivePCA, SpectralContrastive

    method = given.get("--method", "spectral")
    if method not in ("spectral", "pca"):
        raise InputError(f"--method must be spectral or pca, got {method!r}")
    names = {
        "--features": "features",
        "--views": "views",
        "--n-views": "n_views" if method == "spectral" else "n_positives",
        "--ridge": "ridge",
        "--depth": "depth",
        "--activation": "activation",
        "--similarity": "similarity",
        "--dtype": "dtype",
    }
    options = {names[option]: value for option, value in given.items() if option in names}
    if "--width" in given:
        options["width"] = _width(given["--width"])
    elif options.get("features") == "patches":
        options["width"] = 256
    options = {"dtype": "float32", **options, "image_shape": shape, "device": device, "random_state": seed}
    n_components = given.get("--components", 128)
    if method == "spectral":
        made: ContrastivePCA | SpectralContrastive = SpectralContrastive(n_components, **options, progress=True)
    elif "ridge" in options:
        raise InputError("--ridge belongs to --method spectral; leave it out")
    else:
        made = ContrastivePCA(n_components, **options, progress=True)
    return made


def _width(text: str) -> float:
    if text in ("inf", "infinity"):
        return math.inf
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--width must be a whole number of at least 1, or inf, got {text!r}") from None


def _require_split(split: str | None, parts: dict[str, Dataset]) -> None:
    if split in ("train", "test") and split not in parts:
        raise InputError(f"--split {split} is for data with train and test, which this is not; leave it out")


def _drawn(data: Dataset, n: int, seed: int) -> torch.Tensor:
    import torch

    return data.draw(n, generator=torch.Generator().manual_seed(seed), stratified=False)


def _write_embedding(
    files: dict[str, Path],
    fitted: Any,
    parts: dict[str, Dataset],
    z: dict[str, torch.Tensor],
    view: Any,
    split: str | None,
    seed: int,
) -> None:
    import torch

    from kontrast.data import write_arrays
    from kontrast.errors import StoreError

    chosen = [name for name in parts if split in (None, "all", name)]
    target = files["embedding"]
    if target.suffix == ".npz":
        end = {name: f"_{name}" if len(parts) > 1 else "" for name in chosen}
        arrays = {f"z{end[name]}": z[name].numpy() for name in chosen}
        known = {name: y for name in chosen if (y := parts[name].y) is not None}
        arrays |= {f"y{end[name]}": y.numpy() for name, y in known.items()}
    else:
        arrays = {"z": torch.cat([z[name] for name in chosen]).numpy()}
    write_arrays(target, arrays)
    try:
        if "model" in files:
            fitted.save(files["model"])
    except OSError as error:
        raise StoreError(f"cannot write {files['model']}: {error.strerror or error}") from None
    if "plot" in files:
        from kontrast.report import write_embedding_figure, write_view_examples

        ys = [y for name in chosen if (y := parts[name].y) is not None]
        y = torch.cat(ys) if len(ys) == len(chosen) else None
        write_embedding_figure(files["plot"], torch.cat([z[name] for name in chosen]), y, seed=seed)
        if "views" in files:
            train = next(iter(parts.values()))
            write_view_examples(files["views"], train.x[_drawn(train, min(6, len(train)), seed)], view, seed=seed)


def _embedding_options(fitted: Any) -> dict[str, Any]:
    """The estimator's options as JSON has them."""
    options = fitted.get_params(deep=False)
    for name in ("n_components", "progress", "n_landmarks", "delta", "whiten", "negatives"):
        options.pop(name, None)
    if options["width"] == math.inf:
        options["width"] = "inf"
    if not isinstance(options["features"], str):
        options["features"] = type(options["features"]).__name__.lower().replace("network", "random")
    options["views"] = str(options["views"])
    return dict(options)


def _numbers_of(probed: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return {key: None if value != value else value for key, value in asdict(probed).items()}


def _show_embedding(found: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    options, n = found["options"], sum(found["samples"].values())
    count = options.get("n_views", options.get("n_positives"))
    made = f"{options['features']} features of width {options['width']}, {count} × {options['views']}"
    fitted = "a saved model" if found["samples_fitted"] is None else f"fitted to {found['samples_fitted']:,} samples"
    seconds = found["seconds"].get("fit", 0) + found["seconds"]["embed"]
    console.print(
        f"{n:,} samples of {found['values']:,} values → {found['dimensions']} dimensions in {seconds:.1f} s "
        f"({found['method']}, {made}; {fitted})",
        markup=False,
    )
    values = [f"{value:#.3g}" for value in found["eigenvalues"]]
    shown = ", ".join(values if len(values) <= 4 else [*values[:3], f"… {values[-1]}"])
    meaning = (
        "the share of a dimension's variance that views of a sample have in common"
        if found["method"] == "spectral"
        else "how much closer a dimension brings a sample to its views than to other samples"
    )
    console.print(f"eigenvalues {shown}: {meaning}", markup=False)
    if found["kernel_error"]:
        console.print(f"the landmarks leave out {found['kernel_error']:.1%} of the kernel", markup=False)
    for note in found["notes"]:
        console.print(f"note: {note}", markup=False)
    if found["probes"]:
        table = _plain_table()
        table.add_column("test accuracy in %", no_wrap=True)
        for heading in ("dimensions", "linear probe", "20-NN"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in found["probes"]:
            accuracies = ("–" if row[name] is None else f"{100 * row[name]:.2f}" for name in ("linear_probe", "knn"))
            table.add_row(row["name"], str(row["dimensions"]), *accuracies)
        console.print(table)
        console.print(found["judged"], markup=False)
    else:
        console.print(f"no probes: {found['judged']}", markup=False)
    for name, key in (("embedding", "output"), ("model", "model"), ("plot", "plot"), ("views", "views_plot")):
        if found[key] is not None:
            console.print(f"{name}: {found[key]}", markup=False, soft_wrap=True)


@app.command()
def verify(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Claims by id or prefix, as in A.prop10 or A; all without.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the claims, and measure none.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small settings: seconds a claim.")] = False,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="As in `study`; several times for claims that compare data.", show_default="digits; mnist5k on cuda"
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs that are averaged.", show_default="each claim's own number")
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, cuda:1 …; on cuda the paper's own scale, unless --quick.")
    ] = "cpu",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Results folder.", show_default="kontrast-claims/SCALE-HASH"),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes, one thread each.", show_default="one a core; at most 8 on cuda")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a claim, one a line.")] = False,
    debug: Debug = False,
) -> None:
    """Measure the papers' claims again: verdicts, numbers, figures, and corrections where a claim is wrong.

    Finished claims are kept: the same command goes on where it was stopped. Exit code 0 when every verdict is the one
    recorded in the project's own table, 1 when one is not.
    """
    from kontrast.claims import Setting, select, stored_records, verification_name, verification_spec
    from kontrast.claims import verify as run_verification
    from kontrast.report import write_claims_report
    from kontrast.sweep import Interrupted, default_workers

    claims = select(ids or [])
    if show_list:
        _list_claims(claims, as_json=as_json)
        return
    if workers is not None and workers < 1:
        raise InputError(f"--workers must be at least 1, got {workers}")
    on_gpu = not device.startswith("cpu")
    setting = Setting(
        scale="quick" if quick else "paper" if on_gpu else "full",
        device=device,
        n_seeds=seeds,
        data=tuple(data or ()),
    )
    spec = verification_spec(setting)
    folder = output or CLAIMS / verification_name(spec)
    # Much of a claim is small work on the CPU, so a few processes share a GPU well; one claim needs no second process.
    n_workers = min(workers or (min(8, default_workers()) if on_gpu else default_workers()), len(claims))
    try:
        with _ClaimProgress() as progress:
            records = run_verification(
                ids or [],
                setting,
                folder,
                workers=0 if n_workers == 1 else n_workers,
                command=shlex.join(["kontrast", *sys.argv[1:]]),
                on_start=progress.start,
                on_done=progress.advance,
            )
    except (Interrupted, KeyboardInterrupt):
        _say(f"stopped; finished claims are kept in {folder}: run the same command to go on")
        sys.exit(130)
    _show_claims(records, write_claims_report(folder, stored_records(folder), spec), as_json=as_json)
    sys.exit(0 if all(record.as_recorded for record in records) else 1)


def _report_claims(folder: Path, spec: dict[str, Any], *, as_json: bool) -> None:
    from kontrast.claims import reservations, stored_records
    from kontrast.report import write_claims_report

    for warning in reservations(folder):
        _say(f"warning: {warning}")
    records = stored_records(folder)
    _show_claims(records, write_claims_report(folder, records, spec), as_json=as_json)


def _list_claims(claims: Sequence[Claim], *, as_json: bool) -> None:
    if as_json:
        for claim in claims:
            shown = {"id": claim.id, "title": claim.title, "source": claim.source, "recorded": claim.recorded.value}
            typer.echo(
                json.dumps({**shown, "printed": claim.printed, "corrected": claim.corrected}, ensure_ascii=False)
            )
        return
    from rich.console import Console
    from rich.markup import escape

    table = _plain_table()
    for heading in ("claim", "statement", "recorded verdict", "source"):
        table.add_column(heading, no_wrap=heading == "claim")
    for claim in claims:
        table.add_row(claim.id, escape(claim.title), claim.recorded.value, escape(claim.source))
    Console(highlight=False).print(table)


def _show_claims(records: Sequence[Record], page: Path, *, as_json: bool) -> None:
    if as_json:
        for record in records:
            typer.echo(json.dumps(record.as_dict(), ensure_ascii=False))
        return
    from rich.console import Console
    from rich.markup import escape

    table = _plain_table()
    for heading in ("claim", "statement", "verdict", "seconds"):
        table.add_column(heading, no_wrap=heading == "claim", justify="right" if heading == "seconds" else "left")
    for record in records:
        verdict = (
            record.verdict.value
            if record.as_recorded
            else f"{record.verdict.value} (recorded: {record.claim.recorded.value})"
        )
        table.add_row(record.claim.id, escape(record.claim.title), verdict, f"{record.seconds:.1f}")
    console = Console(highlight=False)
    console.print(table)
    if corrections := _corrections(records):
        console.print(corrections)
    for record in records:
        for warning in record.evidence.warnings:
            console.print(f"{record.claim.id}: warning: {warning}", markup=False)
    differing = [record.claim.id for record in records if not record.as_recorded]
    if differing:
        console.print(f"not as recorded: {', '.join(differing)}", markup=False)
    console.print(f"report: {page}", markup=False, soft_wrap=True)


def _corrections(records: Sequence[Record]) -> Table | None:
    """Of claims that were decided and do not simply hold, what is right; where nothing is, the statement itself."""
    from rich.markup import escape

    from kontrast.claims import Verdict

    table = _plain_table()
    table.add_column("claim", no_wrap=True)
    table.add_column("what is wrong with it as printed, and what is right")
    for record in records:
        if record.verdict not in (Verdict.HOLDS, Verdict.UNDECIDED):
            said = record.claim.corrected or f"{record.verdict.value}: {record.claim.printed}"
            table.add_row(record.claim.id, escape(said))
    return table if table.row_count else None


def _spec(given: dict[str, Any], output: Path | None, resume: Path | None) -> StudySpec:
    """The spec of the options that were given; the library's defaults stand for the rest."""
    from kontrast.sweep import Store, StudySpec

    if resume is None:
        return StudySpec(**given)
    if given or output is not None:
        raise InputError("--resume takes every option from its folder; leave out the others, or use --output")
    return StudySpec.from_dict(Store(resume).spec())


def _thresholds(tolerance: float | None, pca_tolerance: float | None, probe_margin: float | None) -> Thresholds:
    """The thresholds that were given; the library's defaults stand for the rest."""
    from kontrast.sweep import Thresholds

    given = {"tolerance": tolerance, "pca_tolerance": pca_tolerance, "probe_margin": probe_margin}
    return Thresholds(**{name: value for name, value in given.items() if value is not None})


def _whole_numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{option} takes whole numbers with commas between, as in 64,128; got {text!r}") from None


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


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _show(findings: Findings, page: Path, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({**findings.as_dict(), "report": str(page)}, indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for found in findings.similarities:
        console.print(_table(found))
        console.print(found.sentence, markup=False)
        console.print()
    if findings.pca is not None:
        console.print(_pca_table(findings.pca))
        console.print(findings.pca.sentence, markup=False)
    else:
        console.print(f"no PCA view: {findings.spec.without_pca}", markup=False)
    console.print()
    if findings.probes is not None:
        console.print(_probe_table(findings.probes))
    console.print(f"verdict: {findings.headline}", markup=False)
    console.print(f"report: {page}", markup=False, soft_wrap=True)


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
    table = _plain_table(title)
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


def _plain_table(title: str | None = None) -> Table:
    from rich import box
    from rich.table import Table

    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def _probe_table(found: ProbeFindings) -> Table:
    """A row an embedding; of many widths some, the first and the last among them."""
    from kontrast.report import accuracy

    last = len(found.widths) - 1
    n = min(last, PROBE_WIDTHS - 1)
    columns = sorted({round(k * last / n) for k in range(n + 1)}) if n else [0]
    table = _plain_table(f"linear probes, test accuracy in %, {found.n_samples} samples to train and to test")
    table.add_column("width", no_wrap=True)
    for i in columns:
        table.add_column(str(found.widths[i]), justify="right", no_wrap=True)
    for name in found.embeddings:
        table.add_row(name, *[accuracy(found.means[name][i], found.deviations[name][i]) for i in columns])
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
        from kontrast.sweep import parse_cell

        return parse_cell(cell)[0]


class _ClaimProgress:
    """A bar over claims on standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )

    def __enter__(self) -> _ClaimProgress:
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar.live.is_started:  # stopping a bar that never started would print an empty line
            self.bar.stop()

    def start(self, done: list[str], missing: list[str]) -> None:
        """Show what is stored already and what is left to do."""
        if missing:
            self.bar.start()
            self.task = self.bar.add_task("claims", total=len(done) + len(missing), completed=len(done))

    def advance(self, claim_id: str) -> None:
        """One more claim is stored."""
        self.bar.update(self.task, advance=1, description=claim_id)
