"""The program itself: its options for all commands, its errors in one line, and how it speaks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kontrast import __version__
from kontrast.errors import KontrastError

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(
    help="Is a contrastive model a kernel machine, PCA of random features, or does its training learn something?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

STANDARDIZED = "columns are standardised to mean 0 and deviation 1; --no-standardize leaves them as they are"

_debug = {"on": False}

# Some versions of typer use click, others a copy of it: the class is reached through one that both export.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")


def main() -> None:
    """Run the command line; a mistake in the input is one line and exit code 2, never a traceback."""
    try:
        code = app(standalone_mode=False)
        if code == 130:  # typer's own answer to Ctrl-C
            say("stopped")
        sys.exit(code if isinstance(code, int) else 0)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message())
            sys.exit(0)
        command = error.ctx.command_path if error.ctx else "kontrast"
        say(f"error: {error.format_message().rstrip('.')}; see {command} --help")
        sys.exit(2)
    except typer.Abort:
        say("stopped")
        sys.exit(130)
    except KontrastError as error:
        if _debug["on"]:
            raise
        say(f"error: {error}")
        sys.exit(2)
    except OSError as error:  # a full disk, say: no mistake in the input, but nothing that a traceback would explain
        if _debug["on"]:
            raise
        where = f": {error.filename}" if error.filename else ""
        say(f"error: {error.strerror or error}{where}; finished cells are kept, run the same command to go on")
        sys.exit(1)


def _set_debug(value: bool) -> None:
    _debug["on"] = value


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"kontrast {__version__}")
        raise typer.Exit


Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", callback=_set_debug)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words.")]
Workers = Annotated[
    int | None, typer.Option(help="Processes, one thread each; 1 is this one alone.", show_default="one per core")
]


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_show_version)] = False,
) -> None:
    pass


def say(text: str) -> None:
    """Print a line to standard error."""
    typer.echo(text, err=True)


def print_json(content: Any, *, indent: int | None = None) -> None:
    """Print one JSON object."""
    typer.echo(json.dumps(content, indent=indent, ensure_ascii=False))


def print_lines(*lines: str) -> None:
    """Print sentences, broken at the width of the terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    for line in lines:
        console.print(line, markup=False)


def print_paths(**paths: Path | str | None) -> None:
    """Print where things were written, each in one line, however long."""
    from rich.console import Console

    for name, path in paths.items():
        if path is not None:
            Console(highlight=False).print(f"{name}: {path}", markup=False, soft_wrap=True)


def plain_table(title: str | None = None) -> Table:
    """A table without a frame."""
    from rich import box
    from rich.table import Table

    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
