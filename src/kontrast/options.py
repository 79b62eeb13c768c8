"""Arguments of classes as options of the command line, read from the source, because importing it would import torch.

A class documents each argument once, in the `Args` or `Attributes` of its docstring; "a, b: as in `Other`" refers to
another class of the package. The first sentence is the help of the option, the signature has its type and default, and
its name is the argument's without `n_`: `n_samples` is `--samples`. `_option_names` of the class, or of a base, names
the exceptions; None there makes an argument no option.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kontrast.errors import InputError

ROOT = Path(__file__).parents[1]
NONE = "none"  # an empty list of names, as it is typed


@dataclass(frozen=True)
class Option:
    """An argument of a class as an option; `type` is its annotation as written, `without` the meaning of None."""

    argument: str
    name: str
    help: str
    default: Any
    type: str
    without: str = ""

    @property
    def is_flag(self) -> bool:
        """Whether it is given without a value, and off without it."""
        return self.type == "bool" and not self.default

    @property
    def is_switch(self) -> bool:
        """Whether it is given without a value, as --name or as --no-name; neither is the default."""
        return self.type == "bool | None" or (self.type == "bool" and bool(self.default))

    @property
    def kind(self) -> str:
        """The kind of its value in one word, as help shows it."""
        words = self._words
        kinds = {"LIST": {"tuple"}, "NUMBER": {"int", "float"}, "INTEGER": {"int"}, "FLOAT": {"float"}}
        return next((kind for kind, needed in kinds.items() if needed <= words), "TEXT")

    @property
    def default_text(self) -> str:
        """The default in words; empty where there is none, and for a flag."""
        if self.is_switch and self.default is not None:
            return "on" if self.default else "off"
        return self.without if self.default is None or self.is_flag else _text(self.default)

    def read(self, text: str) -> Any:
        """The value that was typed."""
        if "tuple" not in self._words:
            return self._read_one(text, text)
        if text == NONE and "str" in self._words:
            return ()
        return tuple(self._read_one(part, text) for part in text.split(","))

    def write(self, value: Any) -> list[str]:
        """The words that give the option this value; a flag is one word, and so is a switch."""
        if self.is_switch:
            return [self.name if value else _opposite(self.name)]
        return [self.name] if value is True else [self.name, _text(value)]

    @property
    def spellings(self) -> str:
        """The name, and that of the opposite of a switch, as help shows them."""
        return f"{self.name}/{_opposite(self.name)}" if self.is_switch else self.name

    @property
    def _words(self) -> set[str]:
        return set(re.findall(r"\w+", self.type))

    def _read_one(self, part: str, whole: str) -> Any:
        numbers = [kind for kind in (int, float) if kind.__name__ in self._words]
        for kind in numbers:
            try:
                return kind(part)
            except ValueError:
                continue
        if not numbers or {"str", "Literal"} & self._words:
            return part
        noun = "numbers" if float in numbers else "whole numbers"
        if "tuple" in self._words:
            raise InputError(f"{self.name} takes {noun} with commas between, as in 64,128; got {whole!r}")
        raise InputError(f"{self.name} must be a {noun.removesuffix('s')}, got {whole!r}")


@functools.cache
def options_of(package: str, name: str) -> tuple[Option, ...]:
    """The options of a class that a package of kontrast exports, in the order of its signature."""
    found = _find(package, name)
    documented, names = _documented(package, found[0]), _option_names(found)
    return tuple(
        Option(argument, names.get(argument) or _name(argument), help_, _value(default), type_, without)
        for argument, type_, default in _signature(found[0])
        for help_, without in [documented.get(argument, ("", ""))]
        if help_ and names.get(argument, "") is not None
    )


def constant_of(package: str, name: str) -> Any:
    """A constant that a package of kontrast defines, as in `METHODS = {…}`."""
    for node in _parsed(package).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise LookupError(f"{package} defines no {name}")


def in_options(text: str, options: Iterable[Option]) -> str:
    """A message of the library in the words of the command line: `--samples` for `n_samples`, for any of the options.

    An argument that is also an English word is one where it stands before "=" or " must", or in backticks.
    """
    for option in sorted(options, key=lambda option: -len(option.argument)):
        word = rf"(?<![\w/'\"-]){option.argument}"
        text = re.sub(rf"{word}=('[^']*'|\([^)]*\)|-?\w+(?:\.\w+)*)", functools.partial(_as_words, option), text)
        text = re.sub(rf"^{option.argument}(?= must )|`{option.argument}`", option.name, text)
        if "_" in option.argument:
            text = re.sub(rf"{word}(?![\w=]|\.\w)", option.name, text)
    return text.replace("math.inf", "inf")


def _as_words(option: Option, match: re.Match[str]) -> str:
    value = match[1].strip("()'").replace(", ", ",")
    if option.is_switch:
        return _opposite(option.name) if value == "False" else option.name
    return option.name if option.is_flag else f"{option.name} {value}"


def _name(argument: str) -> str:
    return "--" + argument.removeprefix("n_").replace("_", "-")


def _opposite(name: str) -> str:
    return name.replace("--", "--no-", 1)


def _text(value: Any) -> str:
    return (",".join(_text(part) for part in value) or NONE) if isinstance(value, tuple) else str(value)


# Reading classes without importing them.


@functools.cache
def _parsed(module: str) -> ast.Module:
    path = ROOT.joinpath(*module.split("."))
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8"))


@functools.cache
def _find(module: str, name: str) -> tuple[ast.ClassDef, ...]:
    """A class and its bases within kontrast, the nearest first; nothing for one of another library."""
    for node in _parsed(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            return (node, *(found for base in bases for found in _find(module, base)))
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return _find(node.module or "", name) if (node.module or "").startswith("kontrast.") else ()
    return ()


def _signature(node: ast.ClassDef) -> list[tuple[str, str, ast.expr | None]]:
    """Arguments of `__init__`, or fields of a dataclass: name, annotation and default."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            arguments = [*part.args.args[1:], *part.args.kwonlyargs]
            defaults = [*part.args.defaults, *part.args.kw_defaults]
            without = [None] * (len(arguments) - len(defaults))
            pairs = zip(arguments, [*without, *defaults], strict=True)
            return [(one.arg, ast.unparse(one.annotation or ast.Constant("")), default) for one, default in pairs]
    return [
        (part.target.id, ast.unparse(part.annotation), part.value)
        for part in node.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    ]


def _documented(package: str, node: ast.ClassDef) -> dict[str, tuple[str, str]]:
    """The first sentence about each argument, and what follows "None is"; "as in `Other`" is looked up there."""
    section = re.search(r"^(?:Args|Attributes):\n((?: .*\n?|\n)*)", ast.get_docstring(node) or "", re.MULTILINE)
    entries = re.findall(r"^ {4}(\w+(?:, \w+)*): ((?:.|\n {8})*)", section[1] if section else "", re.MULTILINE)
    return {name: _help(package, name, " ".join(text.split())) for names, text in entries for name in names.split(", ")}


def _help(package: str, argument: str, text: str) -> tuple[str, str]:
    if other := re.match(r"as in `(\w+)`", text):
        return _documented(package, _find(package, other[1])[0])[argument]
    text = re.sub(r"\(([\d.]+(?:, [\d.]+)+)\)", lambda match: match[1].replace(", ", ","), text)  # (28, 28) is 28,28
    plain = text.replace('"', "").replace("`", "").replace("math.inf", "inf")
    first, *others = re.split(r"(?<=[.…])\s", plain)
    without = [other.removeprefix("None is ").rstrip(".") for other in others if other.startswith("None is ")]
    return (first if text[0] == '"' else first[0].upper() + first[1:]), "".join(without)


def _option_names(classes: Iterable[ast.ClassDef]) -> dict[str, str | None]:
    names: dict[str, str | None] = {}
    for node in classes:
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and ast.unparse(part.target) == "_option_names" and part.value:
                names = {**ast.literal_eval(part.value), **names}
    return names


def _value(default: ast.expr | None) -> Any:
    if default is None:
        return None
    return math.inf if ast.unparse(default) == "math.inf" else ast.literal_eval(default)
