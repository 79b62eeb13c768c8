"""Running statistics of BatchNorm: each checkpoint's own, the start's, or counted again on the samples given.

They are a part of the model: the same weights with other statistics are another function.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from kontrast.checks import require_choice
from kontrast.diagnosis.inputs.encoder import Encoder, State
from kontrast.errors import InputError, KontrastError
from kontrast.nets import failure_of

CHOICES = ("own", "start", "data")
KINDS = ("running_mean", "running_var", "num_batches_tracked")
AT_ONCE = 256  # samples of a batch


def has_statistics(module: nn.Module) -> bool:
    """Whether any BatchNorm or InstanceNorm of it has running statistics."""
    return any(True for _ in _parts(module))


def statistics_in_words(module: nn.Module, how: str, n_samples: int) -> str:
    """What `with_statistics` did, for notes and pages; empty for a module without running statistics."""
    require_choice("statistics", how, CHOICES)
    words = {
        "own": "running statistics are each checkpoint's own",
        "start": "running statistics are those of the start, at every checkpoint",
        "data": f"running statistics recalibrated on the {n_samples} samples given",
    }
    return words[how] if has_statistics(module) else ""


def with_statistics(encoder: Encoder, states: Sequence[Mapping[str, Tensor]], how: str, x: Tensor) -> list[State]:
    """The states with the running statistics that `how` names; none of those given is changed.

    Args:
        encoder: the model.
        states: the checkpoints, the start first.
        how: "own" takes each checkpoint's, "start" those of `states[0]` for all, "data" counts them on x at each.
        x: samples (n, …), for "data".
    """
    require_choice("statistics", how, CHOICES)
    names = [name for group in _names(encoder.module) for name in group]
    if how == "own" or not names:
        return [dict(state) for state in states]
    if how == "start":
        first = {name: states[0][name] for name in names if name in states[0]}
        return [{**state, **first} for state in states]
    return [recalibrated(encoder, state, x) for state in states]


def recalibrated(encoder: Encoder, state: Mapping[str, Tensor], x: Tensor) -> State:
    r"""The state with running statistics counted anew: the mean over batches of what they are in each batch.

    As `torch.optim.swa_utils.update_bn` counts them, $\mu_k = \mu_{k-1} + (m_k - \mu_{k-1})/k$ over batches of nearly
    one size (one batch up to 256 samples), but with all other layers, such as dropout, in eval mode. While they are
    counted, a BatchNorm hands on its batch normalised by itself, so deeper layers see what they would see in training.
    """
    if not has_statistics(encoder.module):
        return dict(state)
    if len(x) < 2:
        raise InputError(f"running statistics need at least 2 samples to be recalibrated on, got {len(x)}")
    parameters, buffers = encoder.parameters(state), encoder.buffers(state)
    groups = _names(encoder.module)
    counted = {name: buffers[name].clone() for group in groups for name in group if name in buffers}
    for name, value in counted.items():
        if name.endswith("num_batches_tracked"):
            value.zero_()
    with torch.no_grad(), _counting(encoder.module) as parts:
        for k, batch in enumerate(torch.tensor_split(x, math.ceil(len(x) / AT_ONCE)), start=1):
            for part in parts:
                part.momentum = 1 / k  # not None, torch's cumulative average, which InstanceNorm takes for 0
            others = {name: b.clone() for name, b in buffers.items() if name not in counted}
            try:  # in place: train mode writes to `counted`
                functional_call(encoder.module, {**parameters, **others, **counted}, (encoder.prepared(batch).clone(),))
            except KontrastError:
                raise
            except Exception as error:
                raise InputError(
                    f"the running statistics of {encoder.name} cannot be recalibrated on {len(batch)} samples: "
                    f"{failure_of(error)}; pass statistics='own'"
                ) from error
            _require_finite(encoder, counted)
    told = {name: counted[known] for group in groups for known in group if known in counted for name in group}
    return {**state, **told}


def _require_finite(encoder: Encoder, counted: Mapping[str, Tensor]) -> None:
    for name, value in counted.items():
        if not bool(torch.isfinite(value).all()):
            raise InputError(
                f"the recalibrated {name} of {encoder.name} is not finite; look at the weights before it, or at the "
                "samples"
            )


@contextmanager
def _counting(module: nn.Module) -> Iterator[list[Any]]:
    """The layers with running statistics, in train mode, all others in eval mode; put back at the end."""
    parts: list[Any] = list({id(part): part for _, part in _parts(module)}.values())
    before = [(part.training, part.momentum) for part in parts]
    try:
        for part in parts:
            part.training = True  # not train(), which would take dropout inside it along
        yield parts
    finally:
        for part, (training, momentum) in zip(parts, before, strict=True):
            part.training, part.momentum = training, momentum


def _parts(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every layer with running statistics, under every name that it has."""
    for name, part in module.named_modules(remove_duplicate=False):
        if isinstance(part, _NormBase) and part.running_mean is not None:
            yield name, part


def _names(module: nn.Module) -> list[tuple[str, ...]]:
    """The names of running statistics, those of one tensor together: a layer used twice has two names."""
    groups: dict[int, list[str]] = {}
    for name, part in _parts(module):
        for kind in KINDS:
            if (value := getattr(part, kind)) is not None:
                groups.setdefault(id(value), []).append(f"{name}.{kind}" if name else kind)
    return [tuple(names) for names in groups.values()]
