"""`kontrast embed`."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kontrast.cli.options import Given, read, with_options
from kontrast.cli.program import STANDARDIZED, AsJson, Debug, app, plain_table, print_json, print_lines, print_paths
from kontrast.errors import InputError
from kontrast.options import Option, constant_of, options_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from kontrast.data import Dataset
    from kontrast.estimators import ClosedFormEmbedding, Probed

CLASSES: Mapping[str, str] = constant_of("kontrast.estimators", "METHODS")
METHODS = {method: options_of("kontrast.estimators", name) for method, name in CLASSES.items()}
DEFAULTS = {"n_components": 128, "device": "cpu", "dtype": "float32"}  # of this command, for every method
PATCHES_WIDTH = 256
SAMPLES_PER_COMPONENT = 4  # of a small table: whitened dimensions, almost as many as samples, are mostly their noise
OF_SAMPLES = ("--image-shape", "--seed", "--device", "--label-column", "--x-key", "--y-key")  # of a saved model too
OF_DATA = [  # how data are read, as in `study`
    option
    for option in options_of("kontrast.study", "StudySpec")
    if option.argument in ("label_column", "x_key", "y_key", "standardize")
]


def merged(methods: Mapping[str, Sequence[Option]]) -> list[Option]:
    """One option for those of the same name in several methods, with the help and the default of each."""
    named: dict[str, dict[str, Option]] = {}
    for method, options in methods.items():
        for option in options:
            default = DEFAULTS.get(option.argument, option.default)
            named.setdefault(option.name, {})[method] = dataclasses.replace(option, default=default)
    return [_one(of_methods, len(methods)) for of_methods in named.values()]


def _one(of_methods: Mapping[str, Option], n_methods: int) -> Option:
    first = next(iter(of_methods.values()))
    helps = _grouped({method: option.help for method, option in of_methods.items()})
    text, *others = helps
    defaults = _grouped({method: option.default_text for method, option in of_methods.items()})
    only = f" For {' and '.join(of_methods)} only." if len(of_methods) < n_methods else ""
    further = [f" For {' and '.join(helps[other])}: {other[0].lower()}{other[1:]}" for other in others]
    told = "; ".join(f"{', '.join(names)} {default}" for default, names in defaults.items())
    default = first.default_text if len(defaults) == 1 else told
    return dataclasses.replace(first, help=text + only + "".join(further), default=None, without=default)


def _grouped(values: Mapping[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for method, value in values.items():
        groups.setdefault(value, []).append(method)
    return groups


@app.command()
@with_options(*merged(METHODS), *OF_DATA, also=[("kontrast.estimators", name) for name in CLASSES.values()])
def embed(
    given: Given,
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="A .npz, .npy, .csv or idx file, a folder of these, or a folder of images, which "
            "--image-shape resizes; or mnist5k, digits, moons.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", help="The embedding: .npz (z, and labels y), .npy or .csv.")
    ],
    method: Annotated[str | None, typer.Option(help=f"{', '.join(METHODS)}.", show_default=next(iter(METHODS)))] = None,
    samples: Annotated[
        int | None, typer.Option(help="Fit to this many samples, drawn at random.", show_default="all")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="Use this saved model, and fit none.")] = None,
    labels: Annotated[
        str | None, typer.Option(help="Labels to judge by: a file, or a column of a .csv.", show_default="those in IN")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Part to write: train, test or all. Train is fitted.", show_default="all")
    ] = None,
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
    job = _Job(source, output, model, given, method, samples, split, plots=not no_plot)
    job.spare_inputs([source, *([labels] if labels else []), *([str(model)] if model else [])])
    estimator = job.estimator()
    parts = job.load(estimator, labels)
    fitted, notes = job.fit(estimator, parts)
    z = job.embed(fitted, parts)
    job.write(fitted, parts, z)  # before the probes, which may take longer than the fit
    found = job.found(fitted, parts, notes, job.probe(fitted, parts, z, asked=not no_probes))
    if as_json:
        print_json(found, indent=2)
    else:
        _show(found, fitted)


class _Job:
    """One call of the command: its options, its files, and the seconds of each of its steps."""

    def __init__(
        self,
        source: str,
        output: Path,
        model: Path | None,
        given: Given,
        method: str | None,
        samples: int | None,
        split: str | None,
        *,
        plots: bool,
    ) -> None:
        typed = [name.replace("--", "--no-", 1) if value is False else name for name, value in given.items()]
        chosen = [*(["--method"] if method else []), *typed, *(["--samples"] if samples is not None else [])]
        fitting = [name for name in chosen if name not in OF_SAMPLES]
        if model is not None and fitting:
            raise InputError(f"--model uses a model as it was fitted, so {', '.join(fitting)} cannot be given with it")
        if split not in (None, "train", "test", "all"):
            raise InputError(f"--split must be train, test or all, got {split!r}")
        self.source, self.model, self.samples, self.split = source, model, samples, split
        self.method = method or next(iter(METHODS))
        if self.method not in METHODS:
            *first, last = METHODS
            raise InputError(f"--method must be {', '.join(first)} or {last}, got {self.method!r}")
        self.given = given
        self.options = {**DEFAULTS, **read(self._of_method(), METHODS[self.method])}
        self.data = read(given, OF_DATA)
        self.standardize: bool | None = self.data.pop("standardize", None)
        self.seed: int = self.options.get("random_state", 0)
        self.files = _files(output, fits=model is None, plots=plots)
        self.seconds: dict[str, float] = {}

    def _of_method(self) -> Given:
        """The options that were typed; refuses those that this method does not have."""
        known = {option.name for option in (*METHODS[self.method], *OF_DATA)}
        for name in self.given:
            if name not in known:
                having = [method for method, options in METHODS.items() if name in {o.name for o in options}]
                raise InputError(f"{name} belongs to --method {' or '.join(having)}; leave it out")
        return self.given

    def spare_inputs(self, inputs: Sequence[str]) -> None:
        """Refuse to write over what is read, or into a folder that is read."""
        for name in inputs:
            there = Path(name).expanduser()
            for path in self.files.values() if there.exists() else ():
                same = path.exists() and path.samefile(there)
                if same or path.resolve() == there.resolve() or there.resolve() in path.resolve().parents:
                    raise InputError(
                        f"{path} would be written over or into {name}, which is read; choose another --output"
                    )

    def estimator(self) -> ClosedFormEmbedding:
        """The model that was saved, or one to fit with the options that were typed, checked."""
        from kontrast import estimators
        from kontrast.checks import require_whole, resolve_device

        require_whole("random_state", self.seed, least=0, most=2**63 - 1)
        resolve_device(self.options["device"])
        if self.model is not None:
            return estimators.load_model(self.model, device=self.options["device"])
        options = dict(self.options)
        if options.get("features") == "patches":
            options.setdefault("width", PATCHES_WIDTH)
        made: ClosedFormEmbedding = getattr(estimators, CLASSES[self.method])(**options, progress=True)
        made.check_options()
        idle = [name for name in ("--flow", "--depth", "--width") if name in self.given]
        if idle and getattr(made, "time", None) == math.inf:
            raise InputError(
                f"{idle[0]} says how training goes on up to some --time, and not where it ends; give a finite --time"
            )
        return made

    def load(self, estimator: ClosedFormEmbedding, labels: str | None) -> dict[str, Dataset]:
        """The samples, in train and test where the data has them."""
        from kontrast.checks import resolve_dtype
        from kontrast.data import load_parts

        dtype = resolve_dtype(self.options["dtype"] if self.model is None else str(estimator.components_.dtype))
        shape = self.options.get("image_shape") or estimator.image_shape
        with self._timed("read"):
            options = {"image_shape": shape, "seed": self.seed, "dtype": dtype}
            parts = load_parts(self.source, labels=labels, **self.data, **options)
        if self.split in ("train", "test") and self.split not in parts:
            raise InputError(f"--split {self.split} is for data with train and test, which this is not; leave it out")
        return parts

    def fit(self, estimator: ClosedFormEmbedding, parts: dict[str, Dataset]) -> tuple[ClosedFormEmbedding, list[str]]:
        """The fitted estimator, and notes on it."""
        from kontrast.data import require_contrast
        from kontrast.estimators import fit_most_components

        if self.model is not None:
            return estimator, []
        train = next(iter(parts.values()))
        require_contrast(train, self.source)
        estimator.standardize = train.is_table if self.standardize is None else self.standardize
        if "--views" not in self.given:
            relative = train.is_table and not estimator.standardize
            estimator.views = "affine" if train.is_image else "relative-noise:0.1" if relative else "noise:0.1"
        if estimator.image_shape is not None and train.x.shape[1] != 1:
            estimator.image_shape = tuple(train.x.shape[1:])  # with channels, for images that are embedded later
        asked = estimator.n_components
        x = train.x if self.samples is None else train.x[_drawn(train, self.samples, self.seed)]
        if train.is_table and "--components" not in self.given:
            estimator.n_components = min(asked, max(2, len(x) // SAMPLES_PER_COMPONENT))
        most = estimator.n_components
        with self._timed("fit"):
            fitted = estimator.fit(x) if "--components" in self.given else fit_most_components(estimator, x)
        k = fitted.n_components
        why = "there are no more; --components asks for fewer"
        if k == most:
            why = f"one for {SAMPLES_PER_COMPONENT} samples; --components asks for more"
        return fitted, [] if k == asked else [f"{k} dimensions instead of {asked}: {why}"]

    def embed(self, fitted: ClosedFormEmbedding, parts: dict[str, Dataset]) -> dict[str, torch.Tensor]:
        """The embedding of every part."""
        with self._timed("embed"):
            return {name: fitted.transform(part.x) for name, part in parts.items()}

    def write(self, fitted: ClosedFormEmbedding, parts: dict[str, Dataset], z: dict[str, torch.Tensor]) -> None:
        """The embedding, the model and the pictures."""
        from kontrast.data import write_arrays

        with self._timed("write"):
            write_arrays(self.files["embedding"], self._arrays(parts, z))
            if "model" in self.files:
                fitted.save(self.files["model"])
            if "plot" in self.files:
                self._draw(fitted, parts, z)

    def probe(
        self, fitted: ClosedFormEmbedding, parts: dict[str, Dataset], z: dict[str, torch.Tensor], *, asked: bool
    ) -> dict[str, Any]:
        """Probe accuracies of the embedding, where there are labels."""
        with self._timed("probe"):
            probes, judged = self._probed(fitted, parts, z) if asked else ((), "not asked for")
        rows = [dataclasses.asdict(probed) for probed in probes]
        numbers = [{key: None if value != value else value for key, value in row.items()} for row in rows]
        for row in numbers:
            if fitted.standardize and row["name"] == "raw input":
                row["name"] = "standardised input"
        return {"probes": numbers, "judged": judged}

    def _probed(
        self, fitted: ClosedFormEmbedding, parts: dict[str, Dataset], z: dict[str, torch.Tensor]
    ) -> tuple[tuple[Probed, ...], str]:
        from kontrast import estimators

        # Beside the input as the features see it: what scaling alone does is no gain of the embedding.
        seen = {name: dataclasses.replace(part, x=fitted.standardized(part.x)) for name, part in parts.items()}
        return estimators.probe_embeddings(seen, z, seed=self.seed, progress=True)

    def found(
        self, fitted: ClosedFormEmbedding, parts: dict[str, Dataset], notes: list[str], probes: dict[str, Any]
    ) -> dict[str, Any]:
        """Everything that was found, as JSON types."""
        first = next(iter(parts.values()))
        return {
            "input": self.source,
            "output": str(self.files["embedding"]),
            "model": str(self.model or self.files["model"]),
            "plot": str(self.files["plot"]) if "plot" in self.files else None,
            "views_plot": str(self.files["views"]) if "views" in self.files else None,
            "samples": {name: len(part) for name, part in parts.items()},
            "samples_written": sum(len(parts[name]) for name in self._written(parts)),
            "samples_fitted": None if self.model is not None else self.samples or len(first),
            "values": first.x[0].numel(),
            "standardized": bool(fitted.standardize),
            "dimensions": len(fitted.eigenvalues_),
            "method": _method_of(fitted),
            "options": _options(fitted),
            "eigenvalues": [float(value) for value in fitted.eigenvalues_],
            "kernel_error": fitted.kernel_error_,
            **probes,
            "notes": notes,
            "seconds": self.seconds,
        }

    def _written(self, parts: dict[str, Dataset]) -> list[str]:
        return [name for name in parts if self.split in (None, "all", name)]

    def _arrays(self, parts: dict[str, Dataset], z: dict[str, torch.Tensor]) -> dict[str, Any]:
        import torch

        written = self._written(parts)
        if self.files["embedding"].suffix != ".npz":
            return {"z": torch.cat([z[name] for name in written]).numpy()}
        end = {name: f"_{name}" if len(parts) > 1 else "" for name in written}
        labels = {f"y{end[name]}": y.numpy() for name in written if (y := parts[name].y) is not None}
        return {f"z{end[name]}": z[name].numpy() for name in written} | labels

    def _draw(self, fitted: ClosedFormEmbedding, parts: dict[str, Dataset], z: dict[str, torch.Tensor]) -> None:
        import torch

        from kontrast.data import fit_view, parse_view
        from kontrast.report import write_embedding_figure, write_view_examples

        written = self._written(parts)
        ys = [y for name in written if (y := parts[name].y) is not None]
        y = torch.cat(ys) if len(ys) == len(written) else None
        write_embedding_figure(self.files["plot"], torch.cat([z[name] for name in written]), y, seed=self.seed)
        if "views" in self.files:
            train = next(iter(parts.values()))
            x = fitted.standardized(train.x)
            few = x[_drawn(train, min(6, len(train)), self.seed)]
            view = fit_view(parse_view(str(fitted.views)), [x])
            write_view_examples(self.files["views"], few, view, seed=self.seed)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 3)


def _files(output: Path, *, fits: bool, plots: bool) -> dict[str, Path]:
    """The files to write, all of them beside the embedding."""
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


def _drawn(data: Dataset, n: int, seed: int) -> torch.Tensor:
    import torch

    return data.draw(n, generator=torch.Generator().manual_seed(seed), stratified=False)


def _method_of(fitted: ClosedFormEmbedding) -> str:
    return next(method for method, name in CLASSES.items() if name == type(fitted).__name__)


def _options(fitted: ClosedFormEmbedding) -> dict[str, Any]:
    """The estimator's arguments that are options here, as JSON types."""
    state = {**fitted.state()[0]["parameters"], "views": str(fitted.views), "device": fitted.device}
    arguments = [option.argument for option in METHODS[_method_of(fitted)] if option.argument != "n_components"]
    return {name: state[name] for name in arguments}


def _show(found: dict[str, Any], fitted: ClosedFormEmbedding) -> None:
    """Print what was found, in words."""
    samples = found["samples_fitted"]
    made = f"{found['method']}, {fitted.summary()}"
    how = f"{made}; {'a saved model' if samples is None else f'fitted to {samples:,} samples'}"
    seconds = found["seconds"].get("fit", 0) + found["seconds"]["embed"]
    values = [f"{value:#.3g}" for value in found["eigenvalues"]]
    own = "columns are standardised as those that the model was fitted to"
    shown = ", ".join(values if len(values) <= 4 else [*values[:3], f"… {values[-1]}"])
    print_lines(
        f"{found['samples_written']:,} samples of {found['values']:,} values → {found['dimensions']} dimensions in "
        f"{seconds:.1f} s ({how})",
        f"eigenvalues {shown}: {fitted.eigenvalue_meaning}",
        *([own if samples is None else STANDARDIZED] if found["standardized"] else []),
        *([f"the landmarks leave out {found['kernel_error']:.1%} of the kernel"] if found["kernel_error"] else []),
        *(f"note: {note}" for note in found["notes"]),
    )
    _show_probes(found["probes"], found["judged"])
    print_paths(embedding=found["output"], model=found["model"], plot=found["plot"], views=found["views_plot"])


def _show_probes(probes: list[dict[str, Any]], judged: str) -> None:
    from rich.console import Console

    if not probes:
        print_lines(f"no probes: {judged}")
        return
    table = plain_table()
    table.add_column("test accuracy in %", no_wrap=True)
    for heading in ("dimensions", "linear probe", "20-NN"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in probes:
        accuracies = ("–" if row[name] is None else f"{100 * row[name]:.2f}" for name in ("linear_probe", "knn"))
        table.add_row(row["name"], str(row["dimensions"]), *accuracies)
    Console(highlight=False).print(table)
    print_lines(judged)
