"""The network of a map: the built-in MLP, or one that the user's own function builds."""

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

from kontrast.data import Dataset
from kontrast.errors import InputError
from kontrast.nets import MLP, parameters_of, require_deterministic
from kontrast.runs import generator_for
from kontrast.study.map.split import Samples
from kontrast.study.spec import StudySpec

Build = Callable[..., nn.Module]
IN_PYTHON = "<function>"  # the spec's `model` for a function that was passed in Python

_builders: dict[str, Build] = {}  # functions that were passed in Python, by the spec's `model`


def named_builder(build: Build) -> str:
    """A name under which cells of this process find a function that was passed in Python."""
    name = f"{IN_PYTHON}:{getattr(build, '__qualname__', type(build).__name__)}"
    _builders[name] = build
    return name


def builder_from(model: str) -> Build:
    """The function that "FILE.py:NAME" names."""
    if model in _builders:
        return _builders[model]
    if model.startswith(IN_PYTHON):
        raise InputError(
            "this study was made in Python with a function of its own; call kontrast.study.run with that function again"
        )
    file, colon, name = model.rpartition(":")
    path = Path(file).expanduser()
    if not colon or path.suffix != ".py":
        raise InputError(f"model must be FILE.py:FUNCTION, got {model!r}; write my_net.py:build")
    if not path.is_file():
        raise InputError(f"there is no file {file!r}; model must be FILE.py:FUNCTION, as in my_net.py:build")
    found = getattr(_module_of(path), name, None)
    if not callable(found):
        raise InputError(f"{file} defines no function {name!r}; model must be FILE.py:FUNCTION")
    _builders[model] = found
    return found  # type: ignore[no-any-return]


def _module_of(path: Path) -> Any:
    name = f"_kontrast_model_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses and pickles inside the file look it up
    try:
        found.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path} cannot be imported: {type(error).__name__}: {error}; mend the file") from error
    return module


def model_digest(model: str) -> str:
    """A hash of the file that defines a model; empty for a function that was passed in Python."""
    if model.startswith(IN_PYTHON):
        return ""
    return hashlib.sha256(Path(model.rpartition(":")[0]).expanduser().read_bytes()).hexdigest()[:16]


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


def draw_network(spec: StudySpec, dataset: Dataset, width: int, seed: int) -> nn.Module:
    """The network of a width and a seed in float32, at its start."""
    generator = generator_for(seed, width if spec.has_width else 0, 2)
    if spec.model is None:
        return MLP(
            dataset.rows.shape[1],
            width,
            spec.d_out,
            depth=spec.depth,
            activation=spec.activation,
            parametrization=spec.parametrization,
            generator=generator,
            device=spec.device,
        )
    return build_network(builder_from(spec.model), width, generator, dataset.x[:1].float()).to(spec.device)


def build_network(build: Build, width: int, generator: torch.Generator, sample: Tensor) -> nn.Module:
    """Call a user's builder, and let lazy layers see a sample; whatever goes wrong in it is told in one line."""
    arguments = (width, generator) if takes_width(build) else (generator,)
    # Layers draw their weights from torch's global stream, so the builder sees one seeded from its own generator.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
        try:
            module = build(*arguments)
            if isinstance(module, nn.Module) and any(
                isinstance(p, UninitializedParameter) for p in module.parameters()
            ):
                module.float()(sample)
        except Exception as error:
            raise InputError(
                f"the model's builder failed at width {width}: {type(error).__name__}: {error}; mend it"
            ) from error
    if not isinstance(module, nn.Module):
        raise InputError(f"the model's builder must return an nn.Module, got {type(module).__name__}")
    return module.float()


def check_network(spec: StudySpec, dataset: Dataset) -> int:
    """Try a user's network on two samples at each width before any work; the dimension of its outputs."""
    assert spec.model is not None
    samples, sizes, shapes = Samples.of(spec, Dataset(dataset.x[:2], None, dataset.name)), {}, set()
    for width in spec.widths if spec.has_width else spec.widths[:1]:
        module = draw_network(spec, dataset, width, spec.seed)
        require_deterministic(module)
        sizes[width] = sum(p.numel() for p in parameters_of(module).values())
        shapes.add(_output_shape(module, samples.inputs(samples.x), width))
    if len(sizes) > 1 and len(set(sizes.values())) < len(sizes):
        raise InputError(
            f"the model's builder ignores its width: {len(sizes)} widths have {sorted(set(sizes.values()))} "
            "parameters; "
            "build layers of that width, or give a builder without one, build(generator)"
        )
    if len(shapes) > 1:
        raise InputError(f"the model must have outputs of one dimension at every width, got {sorted(shapes)}")
    return shapes.pop()


def _output_shape(module: nn.Module, x: Tensor, width: int) -> int:
    try:
        with torch.no_grad():
            outputs = module(x)
    except Exception as error:
        raise InputError(
            f"the model fails on samples of shape {tuple(x.shape)} at width {width}: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != len(x) or outputs.shape[1] < 2:
        given = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise InputError(f"the model must map {len(x)} samples to ({len(x)}, d) outputs with d >= 2, got {given}")
    return int(outputs.shape[1])
