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

from kontrast.checks import require_callable, require_finite
from kontrast.data import Dataset
from kontrast.errors import InputError
from kontrast.nets import MLP, parameters_of, pure_function, require_deterministic
from kontrast.runs import generator_for
from kontrast.study.map.split import Samples
from kontrast.study.spec import StudySpec

MIXED = 1e-3  # of the largest output: more than rounding, by which the output of a sample alone may differ
Build = Callable[..., nn.Module]
IN_PYTHON = "<function>"  # the spec's `model` for a function that was passed in Python

_builders: dict[str, Build] = {}  # functions that were passed in Python, by the spec's `model`
_from_files: dict[tuple[str, str], Build] = {}  # those of files, by the spec's `model` and the file's hash


def named_builder(build: Build) -> str:
    """A name under which cells of this process find a function that was passed in Python."""
    require_callable("build", build, "pass a function of a width and a torch.Generator")
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
    key = (model, _file_digest(path))  # a file that was edited since is read again
    if key not in _from_files:
        found = getattr(_module_of(path), name, None)
        if not callable(found):
            raise InputError(f"{file} defines no function {name!r}; model must be FILE.py:FUNCTION")
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
        raise InputError(f"{path} cannot be imported: {_told(error)}; mend the file") from error
    return module


def model_digest(spec: StudySpec, dataset: Dataset) -> str:
    """A hash of the file that defines a model; of a function that was passed in Python, of the network that it makes.

    Two functions may have one name: their networks' code, layers and weights tell their results apart.
    """
    assert spec.model is not None
    if not spec.model.startswith(IN_PYTHON):
        return _file_digest(Path(spec.model.rpartition(":")[0]).expanduser())
    module = draw_network(spec, dataset, spec.widths[0], spec.seed)
    found = hashlib.sha256(repr(module).encode())
    try:
        found.update(inspect.getsource(type(module)).encode())
    except (OSError, TypeError):  # typed at a prompt
        found.update(type(module).__qualname__.encode())
    for name, p in parameters_of(module).items():
        found.update(name.encode() + p.cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _told(error: BaseException) -> str:
    """What went wrong in a user's own code, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


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
            raise InputError(f"the model's builder failed at width {width}: {_told(error)}; mend it") from error
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
        shapes.add(_output_dimension(module, samples.inputs(samples.x), width))
    if len(sizes) > 1 and len(set(sizes.values())) < len(sizes):
        raise InputError(
            f"the model's builder ignores its width: {len(sizes)} widths have {sorted(set(sizes.values()))} "
            "parameters; "
            "build layers of that width, or give a builder without one, build(generator)"
        )
    if len(shapes) > 1:
        raise InputError(f"the model must have outputs of one dimension at every width, got {sorted(shapes)}")
    return shapes.pop()


def _output_dimension(module: nn.Module, x: Tensor, width: int) -> int:
    """The dimension of the outputs of two samples; refuses a network that cannot be trained or measured."""
    function = pure_function(module)
    parameters = {name: p.detach().requires_grad_() for name, p in parameters_of(module).items()}
    try:
        with torch.random.fork_rng(devices=[]):
            outputs, again = function(parameters, x), function(parameters, x)
            alone = [function(parameters, x[:1]), function(parameters, x[1:])]
    except (Exception, SystemExit) as error:
        raise InputError(
            f"the model fails on samples of shape {tuple(x.shape)} at width {width}: {_told(error)}; mend it"
        ) from error
    for inputs, made in ((x, outputs), (x[:1], alone[0])):
        n = len(inputs)
        if made.ndim != 2 or len(made) != n or made.shape[1] < 2:
            raise InputError(f"the model must map {n} samples to ({n}, d) outputs with d >= 2, got {tuple(made.shape)}")
    if outputs.dtype != x.dtype:
        raise InputError(
            f"the model must keep samples of {x.dtype}, got outputs of {outputs.dtype}; take out the conversion"
        )
    require_finite("what the model makes of two samples", outputs, "look at the first weights, or scale the data")
    if not torch.equal(outputs, again):
        raise InputError(
            "the model's outputs change from call to call; take out what is random, or call module.eval() first"
        )
    if not outputs.requires_grad:
        raise InputError(
            "the model's outputs do not depend on its parameters, so nothing can be trained; take out detach() or "
            "no_grad()"
        )
    size = float(outputs.detach().abs().max())
    if not torch.allclose(torch.cat(alone), outputs, rtol=MIXED, atol=MIXED * size):
        raise InputError(
            "the model's output for a sample depends on the other samples of its batch; use layers that see one sample "
            "at a time, such as GroupNorm in place of BatchNorm"
        )
    return int(outputs.shape[1])
