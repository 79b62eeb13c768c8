"""`kontrast embed`."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kontrast.cli.program import VIEWS, AsJson, Debug, app, plain_table, whole_numbers
from kontrast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from kontrast.data import Dataset
    from kontrast.estimators import ContrastivePCA, DeepLinearSSL, SpectralContrastive

    Model = ContrastivePCA | DeepLinearSSL | SpectralContrastive

METHODS = ("spectral", "pca", "linear")
OF_METHODS = {  # options that not every method has
    "--features": ("spectral", "pca"),
    "--activation": ("spectral", "pca"),
    "--similarity": ("spectral", "pca"),
    "--ridge": ("spectral",),
    "--time": ("linear",),
    "--flow": ("linear",),
}


@app.command()
def embed(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="A .npz, .npy, .csv, idx file or folder; or mnist5k, digits, moons.")
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="OUT", help="The embedding: .npz (z, and labels y), .npy or .csv."),
    ],
    method: Annotated[str | None, typer.Option(help="spectral, pca or linear.", show_default="spectral")] = None,
    components: Annotated[
        int | None, typer.Option(help="Dimensions of the embedding.", show_default="128, or as many as there are")
    ] = None,
    features: Annotated[str | None, typer.Option(help="random, fourier or patches.", show_default="random")] = None,
    width: Annotated[
        str | None,
        typer.Option(
            help="Number of features, or inf; for linear, of the network's hidden units.",
            show_default="spectral 2048, pca inf, patches 256",
        ),
    ] = None,
    views: Annotated[
        str | None,
        typer.Option(help=f"Augmentation, as in affine+noise:0.1. {VIEWS}", show_default="affine; rows: noise:0.1"),
    ] = None,
    n_views: Annotated[
        int | None,
        typer.Option(help="Views of each sample; for pca and linear, positives.", show_default="8; pca, linear 1"),
    ] = None,
    ridge: Annotated[
        float | None, typer.Option(help="Share of the total variance, for spectral.", show_default="3e-06")
    ] = None,
    depth: Annotated[
        int | None, typer.Option(help="Hidden layers, of random features or of the linear network.", show_default="1")
    ] = None,
    activation: Annotated[str | None, typer.Option(help="Of random features.", show_default="relu")] = None,
    similarity: Annotated[str | None, typer.Option(help="cosine or dot.", show_default="cosine")] = None,
    duration: Annotated[
        float | None,
        typer.Option("--time", help="Of the linear network's training: learning rate × steps.", show_default="inf"),
    ] = None,
    flow: Annotated[
        str | None,
        typer.Option(help="How the linear network is trained: grassmann, polar or oja.", show_default="grassmann"),
    ] = None,
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
        "--time": duration,
        "--flow": flow,
        "--samples": samples,
        "--dtype": dtype,
    }
    given = {option: value for option, value in fitting.items() if value is not None}
    if model is not None and given:
        raise InputError(f"--model uses a model as it was fitted, so {', '.join(given)} cannot be given with it")
    files = _embedding_files(output, fits=model is None, plots=not no_plot)
    _spare_inputs(files, [source, *([labels] if labels else []), *([str(model)] if model else [])])

    from kontrast.checks import resolve_device, resolve_dtype
    from kontrast.data import load_parts, parse_view
    from kontrast.estimators import judge, load_model

    resolve_device(device)
    if views is not None:
        parse_view(views)
    if split not in (None, "train", "test", "all"):
        raise InputError(f"--split must be train, test or all, got {split!r}")
    shape: Any = whole_numbers("--image-shape", image_shape)
    clock = _Clock()
    made: Any = _embedding_model(given, shape, seed, device) if model is None else load_model(model, device=device)
    number_type = resolve_dtype(str(made.dtype if model is None else made.components_.dtype))
    parts = load_parts(source, labels=labels, image_shape=shape or made.image_shape, seed=seed, dtype=number_type)
    if split in ("train", "test") and split not in parts:
        raise InputError(f"--split {split} is for data with train and test, which this is not; leave it out")
    clock.lap("read")
    fitted, notes = (made, []) if model is not None else _fit(made, source, next(iter(parts.values())), given, seed)
    if model is None:
        clock.lap("fit")
    z = {name: fitted.transform(part.x) for name, part in parts.items()}
    clock.lap("embed")
    written = [name for name in parts if split in (None, "all", name)]
    _write_embedding(files, fitted, parts, z, written, seed)  # before the probes, which may take longer than the fit
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
        "samples_written": sum(len(parts[name]) for name in written),
        "samples_fitted": None if model is not None else samples or len(first),
        "values": first.x[0].numel(),
        "dimensions": len(fitted.eigenvalues_),
        "method": _method_of(fitted),
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


def _in_words_of_the_options(text: str) -> str:
    """The estimators' arguments as this command spells them."""
    for argument, option in (
        ("image_shape=(28, 28)", "--image-shape 28,28"),
        ("image_shape", "--image-shape"),
        ("n_components=", "--components "),
        ("n_components", "--components"),
        ("n_views", "--n-views"),
        ("n_positives", "--n-views"),
        ("take the limit instead, or flow='oja' with its exact solution", "pass --time inf, or --flow oja"),
        (", or divide C by the number of anchors", ""),
        ("time=", "--time "),
        ("math.inf", "inf"),
        ("dtype='float64'", "--dtype float64"),
        ("similarity='dot'", "--similarity dot"),
        ("features='random'", "--features random"),
    ):
        text = text.replace(argument, option)
    return text


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


def _method_of(fitted: Any) -> str:
    from kontrast.estimators import ContrastivePCA, DeepLinearSSL

    return (
        "linear" if isinstance(fitted, DeepLinearSSL) else "pca" if isinstance(fitted, ContrastivePCA) else "spectral"
    )


def _check_method(given: dict[str, Any]) -> str:
    """The method, once no option is given that it does not have."""
    method = given.get("--method", "spectral")
    if method not in METHODS:
        raise InputError(f"--method must be {', '.join(METHODS[:-1])} or {METHODS[-1]}, got {method!r}")
    for option, methods in OF_METHODS.items():
        if option in given and method not in methods:
            raise InputError(f"{option} belongs to --method {' or '.join(methods)}; leave it out")
    if "--flow" in given:
        _check_flow(given["--flow"])  # a word that is none is the first thing to say
    idle = [option for option in ("--flow", "--depth", "--width") if option in given]
    if method == "linear" and idle and given.get("--time", math.inf) == math.inf:
        raise InputError(
            f"{idle[0]} says how training goes on up to some --time, and not where it ends; give a finite --time"
        )
    return str(method)


def _check_flow(flow: str) -> None:
    from typing import get_args

    from kontrast.deep_linear import Flow

    if flow not in get_args(Flow):
        raise InputError(f"--flow must be one of {', '.join(get_args(Flow))}, got {flow!r}")


def _embedding_model(given: dict[str, Any], shape: Any, seed: int, device: str) -> Model:
    """The estimator of the options that were given; the library's defaults stand for the rest."""
    from kontrast.estimators import ContrastivePCA, DeepLinearSSL, SpectralContrastive

    method = _check_method(given)
    names = {
        "--features": "features",
        "--views": "views",
        "--n-views": "n_views" if method == "spectral" else "n_positives",
        "--ridge": "ridge",
        "--depth": "depth",
        "--activation": "activation",
        "--similarity": "similarity",
        "--time": "time",
        "--flow": "flow",
        "--dtype": "dtype",
    }
    options = {names[option]: value for option, value in given.items() if option in names}
    if "--width" in given:
        options["width"] = _width(given["--width"])
        if method == "linear" and options["width"] == math.inf:
            raise InputError(
                "--width must be a whole number for --method linear, whose equation is the same for every one"
            )
    elif options.get("features") == "patches":
        options["width"] = 256
    options = {"dtype": "float32", **options, "image_shape": shape, "device": device, "random_state": seed}
    kinds: dict[str, type[Model]] = {"spectral": SpectralContrastive, "pca": ContrastivePCA, "linear": DeepLinearSSL}
    return kinds[method](given.get("--components", 128), **options, progress=True)


def _width(text: str) -> float:
    if text in ("inf", "infinity"):
        return math.inf
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--width must be a whole number of at least 1, or inf, got {text!r}") from None


def _fit(estimator: Model, source: str, train: Dataset, given: dict[str, Any], seed: int) -> tuple[Any, list[str]]:
    """The fitted estimator, and what to tell of it."""
    from kontrast.data import require_contrast
    from kontrast.estimators import fit_most_components

    require_contrast(train, source)
    if "--views" not in given:
        estimator.views = "affine" if train.is_image else "noise:0.1"
    x = train.x[_drawn(train, given["--samples"], seed)] if "--samples" in given else train.x
    asked = estimator.n_components
    try:
        fitted = estimator.fit(x) if "--components" in given else fit_most_components(estimator, x)
    except InputError as error:
        raise InputError(_in_words_of_the_options(str(error))) from error
    if fitted.n_components == asked:
        return fitted, []
    return fitted, [
        f"{fitted.n_components} dimensions instead of {asked}: there are no more; --components asks for fewer"
    ]


def _drawn(data: Dataset, n: int, seed: int) -> torch.Tensor:
    import torch

    return data.draw(n, generator=torch.Generator().manual_seed(seed), stratified=False)


def _write_embedding(
    files: dict[str, Path],
    fitted: Any,
    parts: dict[str, Dataset],
    z: dict[str, torch.Tensor],
    chosen: list[str],
    seed: int,
) -> None:
    import torch

    from kontrast.data import parse_view, write_arrays

    target = files["embedding"]
    if target.suffix == ".npz":
        end = {name: f"_{name}" if len(parts) > 1 else "" for name in chosen}
        arrays = {f"z{end[name]}": z[name].numpy() for name in chosen}
        known = {name: y for name in chosen if (y := parts[name].y) is not None}
        arrays |= {f"y{end[name]}": y.numpy() for name, y in known.items()}
    else:
        arrays = {"z": torch.cat([z[name] for name in chosen]).numpy()}
    write_arrays(target, arrays)
    if "model" in files:
        fitted.save(files["model"])
    if "plot" in files:
        from kontrast.report import write_embedding_figure, write_view_examples

        ys = [y for name in chosen if (y := parts[name].y) is not None]
        y = torch.cat(ys) if len(ys) == len(chosen) else None
        write_embedding_figure(files["plot"], torch.cat([z[name] for name in chosen]), y, seed=seed)
        if "views" in files:
            train = next(iter(parts.values()))
            few = train.x[_drawn(train, min(6, len(train)), seed)]
            write_view_examples(files["views"], few, parse_view(str(fitted.views)), seed=seed)


def _embedding_options(fitted: Any) -> dict[str, Any]:
    """The estimator's options as JSON has them."""
    options = fitted.get_params(deep=False)
    for name in ("n_components", "progress", "n_landmarks", "delta", "negatives", "start", "contrastive"):
        options.pop(name, None)
    for name in ("width", "time"):
        if options.get(name) == math.inf:
            options[name] = "inf"
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
    options, n = found["options"], found["samples_written"]
    count = options.get("n_views", options.get("n_positives"))
    made = f"{options['features']} features of width {options['width']}"
    if found["method"] == "linear":
        made = f"network of {options['depth']} hidden layer(s), {options['flow']} flow to time {options['time']}"
        made = made if options["time"] != "inf" else "network at the end of training"
    made += f", {count} × {options['views']}"
    fitted = "a saved model" if found["samples_fitted"] is None else f"fitted to {found['samples_fitted']:,} samples"
    seconds = found["seconds"].get("fit", 0) + found["seconds"]["embed"]
    console.print(
        f"{n:,} samples of {found['values']:,} values → {found['dimensions']} dimensions in {seconds:.1f} s "
        f"({found['method']}, {made}; {fitted})",
        markup=False,
    )
    values = [f"{value:#.3g}" for value in found["eigenvalues"]]
    shown = ", ".join(values if len(values) <= 4 else [*values[:3], f"… {values[-1]}"])
    closer = "how much closer a dimension brings a sample to its views than to other samples"
    meaning = {
        "spectral": "the share of a dimension's variance that views of a sample have in common",
        "pca": closer,
        "linear": f"of the loss, so that below 0 they say {closer}",
    }
    console.print(f"eigenvalues {shown}: {meaning[found['method']]}", markup=False)
    if found["kernel_error"]:
        console.print(f"the landmarks leave out {found['kernel_error']:.1%} of the kernel", markup=False)
    for note in found["notes"]:
        console.print(f"note: {note}", markup=False)
    if found["probes"]:
        table = plain_table()
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
