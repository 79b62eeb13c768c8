"""The samples on which a monitor watches an encoder, and a look at it that leaves the training as it was."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kontrast.checks import in_words, require_same_length, require_same_shape
from kontrast.diagnosis.inputs.views import read_views
from kontrast.errors import InputError
from kontrast.nets import unwrapped


@dataclass(frozen=True, eq=False)
class ProbeSet:
    """Views of the same samples, (n, v, …) with n ≥ 2 and v ≥ 2, and their labels (n,), if there are any.

    `words` say where the views are from, and `notes` what was done to have them.
    """

    views: Tensor
    labels: Tensor | None
    words: str
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, probe_views: Any, labels: Any, **reading: Any) -> ProbeSet:
        """From two tensors, a tensor (n, v, …), or anything else that a diagnosis takes for its views."""
        notes: tuple[str, ...] = ()
        if isinstance(probe_views, list | tuple) and probe_views and all(isinstance(x, Tensor) for x in probe_views):
            views, words = _stacked(probe_views), "views given as tensors"
        elif isinstance(probe_views, Tensor):
            views, words = probe_views, "views given as a tensor"
        else:
            read = read_views(probe_views, **reading)
            views, words, notes = read.views, read.words, read.notes
            if labels is None:
                labels = read.labels
            elif read.rows is not None and len(labels) > len(views):
                labels = torch.as_tensor(labels)[read.rows]
        if views.ndim < 3 or views.shape[0] < 2 or views.shape[1] < 2 or 0 in views.shape:
            raise InputError(
                f"probe_views must be two views of at least 2 samples, got {tuple(views.shape)}; pass (xa, xb) or a "
                "tensor (n, v, …)"
            )
        if views.is_floating_point() and not bool(torch.isfinite(views).all()):
            raise InputError("probe_views holds NaN or infinite values; check the data behind it")
        return cls(views.detach(), None if labels is None else _labels(labels, len(views)), words, notes)

    @property
    def n(self) -> int:
        """How many samples there are."""
        return len(self.views)

    @property
    def n_views(self) -> int:
        """How many views each has."""
        return self.views.shape[1]

    def __str__(self) -> str:
        shape = "×".join(map(str, self.views.shape[2:]))
        return f"{self.n} samples, {self.n_views} views of {shape} ({_fingerprint(self.views)})"

    def labels_in_words(self) -> str:
        """How many classes there are; the same words for the same labels only."""
        if self.labels is None:
            return "none"
        return f"{len(torch.unique(self.labels))} classes ({_fingerprint(self.labels)})"


def _stacked(views: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    names = ("xa", "xb") if len(views) == 2 else tuple(f"probe_views[{k}]" for k in range(len(views)))
    named = dict(zip(names, views, strict=True))
    if any(view.ndim < 2 for view in views):
        raise InputError(f"probe_views must be tensors (n, …), got {', '.join(map(in_words, views))}; add dimensions")
    require_same_length(**named)
    require_same_shape("row i of every view is one sample", **named)
    return torch.stack([view.detach() for view in views], 1)


def _labels(labels: Any, n: int) -> Tensor:
    try:
        y = torch.as_tensor(labels).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"labels must be one whole number per sample, got {in_words(labels)}") from None
    if y.shape != (n,) or y.is_floating_point() or y.is_complex():
        raise InputError(f"labels must be one whole number for each of {n} samples, got {in_words(y)}")
    return y


def _fingerprint(values: Tensor) -> str:
    content = values.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(content.numpy().tobytes()).hexdigest()[:12]


def require_whole_weights(module: nn.Module) -> None:
    """Refuse a module whose weights are not there yet, or spread over processes: no process could run it alone."""
    if any(nn.parameter.is_lazy(tensor) for tensor in [*module.parameters(), *module.buffers()]):
        raise InputError(
            f"{type(module).__name__} has lazy layers without weights; call it once before it is monitored"
        )
    sharded = any(type(part).__name__ == "FullyShardedDataParallel" for part in module.modules())
    if sharded or any(hasattr(parameter, "device_mesh") for parameter in module.parameters()):
        raise InputError(
            f"the weights of {type(module).__name__} are sharded over processes, so the first cannot run it alone; "
            "diagnose its checkpoints instead"
        )


@contextmanager
def without_own_hooks(module: nn.Module) -> Iterator[None]:
    """Inside, the forward hooks that a user registered are off, so that a copy made now records nothing for them.

    Hooks of torch's own (weight and spectral norms) and methods of modules stay: the module may need them.
    """
    places = ("_forward_hooks", "_forward_pre_hooks")
    before = [(part, place, getattr(part, place)) for part in module.modules() for place in places]
    try:
        for part, place, hooks in before:
            setattr(part, place, OrderedDict((key, hook) for key, hook in hooks.items() if _is_part_of_it(hook)))
        yield
    finally:
        for part, place, hooks in before:
            setattr(part, place, hooks)


def _is_part_of_it(hook: Any) -> bool:
    where = getattr(hook, "__module__", None) or type(hook).__module__
    return where.split(".")[0] == "torch" or isinstance(getattr(hook, "__self__", None), nn.Module)


def encoder_in_words(module: nn.Module) -> str:
    """Its class and size; the same words for the same names and shapes of weights only, whatever the weights are."""
    shapes = [(name, tuple(weights.shape)) for name, weights in _own(module, "_parameters")]
    digest = hashlib.sha256(repr(shapes).encode()).hexdigest()[:12]
    return f"{type(module).__name__} with {sum(p.numel() for p in module.parameters()):,} parameters ({digest})"


def state_now(module: nn.Module) -> Mapping[str, Tensor]:
    """The weights as they are, not copied, and copies of the buffers, which a look might write to."""
    weights = {name: p.detach() for name, p in _own(module, "_parameters")}
    return weights | {name: b.detach().clone() for name, b in _own(module, "_buffers")}


def _own(module: nn.Module, kind: str, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Parameters or buffers by their names without what wrappers of submodules, such as torch.compile, put before."""
    for name, tensor in getattr(module, kind).items():
        if tensor is not None:
            yield prefix + name, tensor
    for name, child in module.named_children():
        yield from _own(unwrapped(child), kind, f"{prefix}{name}.")


def device_of(module: nn.Module) -> torch.device:
    """Where its weights are."""
    return next((tensor.device for tensor in module.parameters()), torch.device("cpu"))


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Inside, no gradients and full precision, whatever autocast says; afterwards, torch's random numbers as before."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad(), torch.autocast("cpu", enabled=False):
        if device.type == "cpu":
            yield
        else:
            with torch.autocast(device.type, enabled=False):
                yield
