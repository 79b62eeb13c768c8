"""The network of a map: the built-in MLP, or one that the user's own function builds."""

from __future__ import annotations

import hashlib
import inspect

import torch
from torch import Tensor, nn

from kontrast.checks import require_finite
from kontrast.data import Dataset
from kontrast.errors import InputError
from kontrast.nets import (
    IN_PYTHON,
    MLP,
    build_network,
    builder_file_digest,
    builder_from,
    failure_of,
    parameters_of,
    pure_function,
    require_deterministic,
)
from kontrast.runs import generator_for
from kontrast.study.map.split import Samples
from kontrast.study.spec import StudySpec

MIXED = 1e-3  # of the largest output: more than rounding, by which the output of a sample alone may differ


def model_digest(spec: StudySpec, dataset: Dataset) -> str:
    """A hash of the file that defines a model; of a function that was passed in Python, of the network that it makes.

    Two functions may have one name: their networks' code, layers and weights tell their results apart.
    """
    assert spec.model is not None
    if not spec.model.startswith(IN_PYTHON):
        return builder_file_digest(spec.model)
    module = draw_network(spec, dataset, spec.widths[0], spec.seed)
    found = hashlib.sha256(repr(module).encode())
    try:
        found.update(inspect.getsource(type(module)).encode())
    except (OSError, TypeError):  # typed at a prompt
        found.update(type(module).__qualname__.encode())
    for name, p in parameters_of(module).items():
        found.update(name.encode() + p.cpu().numpy().tobytes())
    return found.hexdigest()[:16]


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
            f"the model fails on samples of shape {tuple(x.shape)} at width {width}: {failure_of(error)}; mend it"
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
