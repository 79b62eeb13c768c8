"""`kontrast diagnose`, and the diagnoses' half of `kontrast report`."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kontrast.cli.options import Given, read, with_options
from kontrast.cli.program import AsJson, Debug, app, plain_table, print_json, print_lines, print_paths
from kontrast.cli.progress import stopped_by_ctrl_c
from kontrast.errors import InputError, KontrastError
from kontrast.options import Option, in_options, options_of

if TYPE_CHECKING:
    from rich.table import Table

    from kontrast.data import Dataset
    from kontrast.diagnosis import Diagnosis, Limits
    from kontrast.report import Grid

DIAGNOSES = Path("kontrast-diagnoses")
SEED = "seed"  # in place of a file, for a start that is built again
SETTINGS, LIMITS = options_of("kontrast.diagnosis", "Settings"), options_of("kontrast.diagnosis", "Limits")
OF_DATA = [  # how data are read, as in `study`
    dataclasses.replace(option, default=None, without="train, probed on test, where there are both")
    if option.argument == "split"
    else option
    for option in options_of("kontrast.study", "StudySpec")
    if option.argument in ("split", "image_shape", "label_column", "x_key", "y_key")
]
OWN = [  # arguments of `kontrast.diagnose` that are options of this command alone
    Option(argument, name, "", None, "str | None")
    for argument, name in {
        **{same: f"--{same}" for same in ("data", "labels", "test", "views", "loss", "features", "head", "select")},
        **{"start": "--init", "end": "--checkpoint", "width_sweep": "--widths"},
    }.items()
]
NAMES = {option.name for option in LIMITS}
_MODEL = re.compile(r"\.py:\w+$")


@app.command()
@with_options(*OF_DATA, *SETTINGS, *LIMITS, own_first=True)
def diagnose(
    given: Given,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="A function that builds the model, FILE.py:FUNCTION, of a torch.Generator or of a width and one; or "
            "the folder of a Monitor. Further files are checkpoints: a shell makes them of --checkpoint epoch_*.pt.",
        ),
    ],
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            help="Weights: files, a folder or a pattern; again for more. The start comes first.", metavar="PATH"
        ),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(
            help="Weights before training: a file, or `seed`, which builds them again from --seed.",
            metavar="PATH",
            show_default="the first checkpoint",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Samples: mnist5k, digits, moons, or a file or folder, as in `study`.")
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="Labels: a file, or a column of a .csv.", show_default="those of the data, if any"),
    ] = None,
    test: Annotated[
        str | None, typer.Option(help="Other samples with labels, to test probes on.", metavar="PATH")
    ] = None,
    views: Annotated[
        str | None,
        typer.Option(
            help="Views as in `study`, crop+flip say, or FILE.py:FUNCTION, a transform.",
            show_default="crops of images, noise for rows",
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(help="nt_xent, vicreg, …, or FILE.py:FUNCTION of two views.", show_default="NT-Xent stands in"),
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="The submodule whose outputs are judged.", show_default="what enters --head")
    ] = None,
    head: Annotated[str | None, typer.Option(help="The submodule on top of the features, such as projector.")] = None,
    select: Annotated[
        str | None, typer.Option(help="Which output is the embedding: a name or a number.", show_default="the only one")
    ] = None,
    widths: Annotated[
        str | None,
        typer.Option(help="Widths of a sweep, as in 64,128,256: how wide for a kernel that stays?", metavar="LIST"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Results folder.", show_default="kontrast-diagnoses/NAME"),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Lazy, learning or collapsed, and does its training pay? What a model of your own is doing, on one page.

    The exit code is 0 for a healthy model, 3 for a collapsed one, 4 where training buys nothing, and 2 for bad input.

    kontrast diagnose model.py:build --checkpoint runs/epoch_*.pt --data images.npz
    """
    limits = limits_of(given)
    model, more = _model_in(sources)
    only: dict[str, Any] = {
        "--init": init,
        "--data": data,
        "--labels": labels,
        "--test": test,
        "--views": views,
        "--loss": loss,
    }
    only |= {"--checkpoint": checkpoint, "--features": features, "--head": head, "--select": select, "--widths": widths}
    with _words_of_options():
        if model is None:
            typed = [name for name, value in only.items() if value] + [name for name in given if name not in NAMES]
            folder, found = _of_monitor(sources, output, typed, limits)
        else:
            folder = output or DIAGNOSES / _name_of(model, data)
            start, end = _checkpoints(checkpoint or [], more, init, given)
            given_to = {"start": start, "end": end, "features": features, "head": head, "select": _select(select)}
            given_to |= {"loss": _loss(loss, given), "views": _function_or_text(views, "--views") or "auto"}
            given_to |= {"width_sweep": _whole_numbers(widths), **read(given, SETTINGS)}
            found = _of_model(model, folder, (data, labels, test), given, name=model, limits=limits, **given_to)
    show_diagnosis(folder, found, as_json=as_json)


def limits_of(given: Given) -> Limits:
    """The limits that were typed; the library's defaults stand for the rest."""
    from kontrast.diagnosis import Limits

    return Limits(**read(given, LIMITS))


# --- what was typed -------------------------------------------------------------------------------------------------


@contextmanager
def _words_of_options() -> Iterator[None]:
    """Errors name arguments of Python: here they become the options of this command."""
    try:
        yield
    except KontrastError as error:
        error.args = (_in_options(str(error)), *error.args[1:])
        raise


def _in_options(text: str) -> str:
    """A sentence of the library in the words of this command: `--labels` for `labels=`."""
    names = {option.argument: option.name for option in (*SETTINGS, *OWN)}
    text = in_options(text, (*SETTINGS, *LIMITS, *OWN))
    return re.sub(rf"(?<![\w-])({'|'.join(names)})=(?!=)", lambda found: names[found[1]], text)


def _model_in(sources: Sequence[str]) -> tuple[str | None, list[str]]:
    """The model among the words that are no options, and the others, which a shell made of a pattern of checkpoints."""
    models = [source for source in sources if _MODEL.search(source)]
    if len(models) > 1:
        raise InputError(f"one model at a time, got {' and '.join(models)}")
    return (models[0] if models else None), [source for source in sources if source not in models]


def _name_of(model: str, data: str | None) -> str:
    """A name for the results folder."""
    stem = Path(model.rpartition(":")[0]).stem
    return f"{stem}-{Path(data).stem}" if data else stem


def _checkpoints(asked: list[str], more: list[str], init: str | None, given: Given) -> tuple[Any, Any]:
    """The start and the checkpoints after it; a start that is built again from the seed is None."""
    from kontrast.diagnosis import inputs

    paths = [*asked, *more]
    if more:  # a shell's own order has epoch_10 before epoch_2
        paths = sorted(paths, key=lambda path: inputs.natural_order(Path(path)))
    if not paths:
        raise InputError("--checkpoint is missing, the weights after training; pass files, a folder or a pattern")
    found = paths[0] if len(paths) == 1 else paths  # one may be a folder or a pattern
    if init not in (None, SEED):
        return init, found
    labels = [label for label, _ in inputs.find_checkpoints(found, name="--checkpoint")]
    if init == SEED or (len(labels) == 1 and "--seed" in given):
        return None, found
    if len(labels) < 2:
        raise InputError(
            f"{paths[0]} is one checkpoint, and there is no start to compare it with; pass --init FILE, or the --seed "
            "that builds the start again"
        )
    return found, None


def _select(text: str | None) -> str | int | None:
    return int(text) if text is not None and text.isdigit() else text


def _whole_numbers(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise InputError(f"--widths takes whole numbers with commas between, as in 64,128; got {text!r}") from None


def _function_or_text(text: str | None, option: str) -> Any:
    """What FILE.py:FUNCTION names, made where it is a class; any other text as it is."""
    from kontrast.nets import builder_from

    if text is None or ".py:" not in text:
        return text
    found: Any = builder_from(text, name=option)
    return found() if isinstance(found, type) else found


def _loss(text: str | None, given: Given) -> Any:
    """The loss; one of a name has the temperature that was typed."""
    from kontrast.losses import view_loss_from

    found = _function_or_text(text, "--loss")
    if not isinstance(found, str) or "--temperature" not in given:
        return found
    temperature = read(given, SETTINGS)["temperature"]
    loss = view_loss_from(found, temperature=temperature)
    return dataclasses.replace(loss, words=f"{loss.words} at temperature {temperature:g}")


def _samples(data: str | None, labels: str | None, test: str | None, given: Given) -> tuple[Dataset | None, Any]:
    """The samples, and others that test probes: those of --test, or the test part of the data."""
    import torch

    from kontrast.data import Dataset, load_parts

    options = read(given, OF_DATA)
    split = options.pop("split", None)
    if data is None:
        raise InputError("--data is missing, the samples; pass a file, a folder, or mnist5k, digits or moons")
    parts = load_parts(data, labels=labels, **options)
    tests = None if test is None else load_parts(test, **options)
    if split is None:
        split = "train" if "train" in parts else "all"
        if tests is None and "test" in parts and parts["test"].y is not None:
            tests = {"test": parts["test"]}
    if split == "all" and "all" not in parts:
        both = list(parts.values())
        y = None if any(part.y is None for part in both) else torch.cat([part.y for part in both if part.y is not None])
        samples = Dataset(torch.cat([part.x for part in both]), y, both[0].name)
    elif split not in parts:
        raise InputError(f"--split {split} is for data with train and test, which {data} is not; leave it out")
    else:
        samples = parts[split]
    return samples, None if tests is None else tests.get("test", next(iter(tests.values())))


# --- the work -------------------------------------------------------------------------------------------------------


def _of_model(
    model: str, folder: Path, data: tuple[str | None, str | None, str | None], given: Given, **options: Any
) -> Diagnosis:
    from kontrast.diagnosis import diagnose
    from kontrast.nets import builder_from
    from kontrast.report import check_diagnosis_folder

    build = builder_from(model)
    check_diagnosis_folder(folder)
    samples, test = _samples(*data, given)
    with stopped_by_ctrl_c("nothing was written"):
        return diagnose(build, data=samples, test=test, progress=True, **options)


def _of_monitor(
    sources: Sequence[str], output: Path | None, typed: Sequence[str], limits: Limits
) -> tuple[Path, Diagnosis]:
    from kontrast.diagnosis import Diagnosis, monitor
    from kontrast.report import check_diagnosis_folder

    folder = Path(sources[0]).expanduser()
    if len(sources) > 1 or not folder.is_dir():
        raise InputError(f"MODEL must be FILE.py:FUNCTION, or the folder of a Monitor, got {sources[0]!r}")
    if typed:
        raise InputError(f"the folder of a Monitor holds its own numbers; leave out {', '.join(typed)}")
    found = Diagnosis(monitor.read_monitor(folder), limits)
    check_diagnosis_folder(output or folder)
    return output or folder, found


# --- what is printed ------------------------------------------------------------------------------------------------


def report_diagnosis(folder: Path, limits: Limits, *, as_json: bool) -> None:
    """Judge a stored diagnosis by these limits, rebuild its page, and print it."""
    from kontrast.report import read_diagnosis

    show_diagnosis(folder, read_diagnosis(folder, limits), as_json=as_json)


def show_diagnosis(folder: Path, d: Diagnosis, *, as_json: bool) -> None:
    """Write the files, print the words, or JSON, and end with the exit code."""
    from kontrast.report import write_diagnosis

    page = write_diagnosis(folder, d)
    if as_json:
        print_json({**d.as_dict(), "report": str(page)}, indent=2)
    else:
        _print(d)
        print_paths(report=page)
    sys.exit(d.exit_code)


def _print(d: Diagnosis) -> None:
    from rich.console import Console

    from kontrast.report import diagnosis_tables

    lines = [f"verdict: {d.verdict}", "", "because", *(f"- {reason}" for reason in d.reasons), ""]
    lines += ["try next", *(f"- {line}" for line in d.advice), ""] if d.advice else []
    print_lines(*map(_in_options, lines))
    for table in _tables(diagnosis_tables(d)):
        Console(highlight=False).print(table)
    print_lines(*(_in_options(f"note: {note}") for note in d.notes))


def _tables(grids: Sequence[Grid]) -> Iterator[Table]:
    for grid in grids:
        made = plain_table(grid.title)
        for k, heading in enumerate(grid.head):
            made.add_column(heading.words, justify="right" if k else "left", no_wrap=k > 0, overflow="fold")
        for first, cells in grid.rows:
            made.add_row(first.words, *cells)
        yield made
