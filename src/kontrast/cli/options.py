"""Commands from declarations: options made from the classes they fill, and errors in the words of the options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import typer

from kontrast.errors import KontrastError
from kontrast.options import Option, in_options, options_of

Given = Mapping[str, str | bool]
"""The options that were typed, by their names, and what was typed after them."""


def with_options(
    *options: Option, also: Iterable[tuple[str, str]] = (), own_first: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with these options before its own, or after them; it takes those that were typed as `given`.

    An error of the library names an argument of Python: here, and nowhere else, it becomes the option.

    Args:
        options: as `options_of` reads them.
        also: further classes, as (package, name), whose arguments errors may name.
        own_first: whether help shows the command's own options first.
    """
    shown = {_variable(option.name): option for option in options}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [parameter for name, parameter in signature.parameters.items() if name != "given"]
        takes_given = len(own) < len(signature.parameters)

        @functools.wraps(command)
        def call(**values: Any) -> None:
            typed = {name: values.pop(name) for name in shown}
            given = {
                shown[name].name: value
                for name, value in typed.items()
                if value is not None and (value is not False or shown[name].is_switch)
            }
            try:
                command(**values, **({"given": given} if takes_given else {}))
            except KontrastError as error:
                known = [*options, *(option for source in also for option in options_of(*source))]
                error.args = (in_options(str(error), known), *error.args[1:])
                raise

        declared = [_parameter(name, option) for name, option in shown.items()]
        kept = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in own]
        parameters = [*kept, *declared] if own_first else [*declared, *kept]
        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return call

    return decorate


def read(given: Given, options: Iterable[Option]) -> dict[str, Any]:
    """The arguments that those options fill, for those that were typed; the library's defaults stand for the rest."""
    values = {option.argument: (option, given[option.name]) for option in options if option.name in given}
    return {name: option.read(text) if isinstance(text, str) else text for name, (option, text) in values.items()}


def _variable(name: str) -> str:
    """The name of an option as typer's parameter; no command has one of its own that begins like this."""
    return "given_" + name.removeprefix("--").replace("-", "_")


def _parameter(name: str, option: Option) -> inspect.Parameter:
    if option.is_flag:
        kind: Any = Annotated[bool, typer.Option(option.name, help=option.help)]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
    shown = option.default_text or False
    if option.is_switch:
        kind = Annotated[bool | None, typer.Option(option.spellings, help=option.help, show_default=shown)]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
    info = typer.Option(option.name, help=option.help, metavar=option.kind, show_default=shown)
    kind = Annotated[str | None, info]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
