"""Networks that a user's own function builds: the FUNCTION that "FILE.py:FUNCTION" names, called with one seed."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from kontrast.checks import require_callable
from kontrast.errors import InputError

Build = Callable[..., nn.Module]
IN_PYTHON = "<function>"  # where FILE.py would stand, for a function that was passed in Python

_builders: dict[str, Build] = {}  # functions that were passed in Python, by the name given to them
_from_files: dict[tuple[str, str], Build] = {}  # those of files, by "FILE.py:FUNCTION" and the file's hash


def named_builder(build: Build) -> str:
    """A name under which cells of this process find a function that was passed in Python."""
    require_callable("build", build, "pass a function of a width and a torch.Generator")
    name = f"{IN_PYTHON}:{getattr(build, '__qualname__', type(build).__name__)}"
    _builders[name] = build
    return name


def builder_from(model: str, *, name: str = "model") -> Build:
    """The function that "FILE.py:NAME" names; `name` is what messages call it."""
    if model in _builders:
        return _builders[model]
    if model.startswith(IN_PYTHON):
        raise InputError(
            f"{model} was a function of another Python process; call kontrast.study.run with that function again"
        )
    file, colon, function = model.rpartition(":")
    path = Path(file).expanduser()
    if not colon or path.suffix != ".py":
        raise InputError(f"{name} must be FILE.py:FUNCTION, got {model!r}; write my_net.py:build")
    if not path.is_file():
        raise InputError(f"there is no file {file!r}; {name} must be FILE.py:FUNCTION, as in my_net.py:build")
    key = (model, _file_digest(path))  # a file that was edited since is read again
    if key not in _from_files:
        found = getattr(_module_of(path), function, None)
        if not callable(found):
            raise InputError(f"{file} defines no function {function!r}; {name} must be FILE.py:FUNCTION")
        _from_files[key] = found
    return _from_files[key]


def _module_of(path: Path) -> Any:
    name = f"_kontrast_model_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses and pickles inside the file look it up
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path} cannot be imported: {failure_of(error)}; mend the file") from error
    return module


def builder_file_digest(model: str) -> str:
    """A hash of the file of "FILE.py:FUNCTION": a file that was edited builds other networks."""
    return _file_digest(Path(model.rpartition(":")[0]).expanduser())


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def takes_width(build: Build) -> bool:
    """Whether a builder is called with a width, `build(width, generator)`, or as `build(generator)`."""
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        return True
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    named = [p.name for p in parameters]
    if len(plain) > 2 or (not plain and "generator" not in named):
        raise InputError(
            f"model must be called as build(width, generator), or as build(generator), got a function of "
            f"({', '.join(named)})"
        )
    return len(plain) == 2 or "width" in named


def _names_of(build: Build) -> set[str]:
    """The names of the arguments that a builder takes by name."""
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        return set()
    return {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def build_network(build: Build, width: int | None, generator: torch.Generator, sample: Tensor) -> nn.Module:
    """Call a user's builder, and let lazy layers see a sample; whatever goes wrong in it is told in one line.

    A builder that takes no width, `build(generator)`, may be given None.
    """
    if width is None and takes_width(build):
        raise InputError("the model's builder takes a width, build(width, generator), and was given none; name one")
    given = {"width": width, "generator": generator} if takes_width(build) else {"generator": generator}
    by_name = given.keys() <= _names_of(build)  # whatever their order, where they have their names
    # Layers draw their weights from torch's global stream, so the builder sees one seeded from its own generator.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
        try:
            module = build(**given) if by_name else build(*given.values())
            if isinstance(module, nn.Module) and any(
                isinstance(p, UninitializedParameter) for p in module.parameters()
            ):
                module.float()(sample)
        except (Exception, SystemExit) as error:
            at = "" if width is None else f" at width {width}"
            raise InputError(f"the model's builder failed{at}: {failure_of(error)}; mend it") from error
    if not isinstance(module, nn.Module):
        raise InputError(f"the model's builder must return an nn.Module, got {type(module).__name__}")
    return module.float()


def failure_of(error: BaseException) -> str:
    """What went wrong in a user's own code, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
