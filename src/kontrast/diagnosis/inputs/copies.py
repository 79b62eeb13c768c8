"""A copy of a user's module that can be diagnosed: in eval mode, in full precision, without wrappers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import UninitializedBuffer
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.weight_norm import WeightNorm

from kontrast.checks import require_type
from kontrast.errors import InputError
from kontrast.nets import failure_of, unwrapped

HALF = (torch.bfloat16, torch.float16)


class LocalBatchNorm(_BatchNorm):
    """SyncBatchNorm on its own: no other process takes part in a diagnosis."""

    def _check_input_dim(self, x: Tensor) -> None:
        """Any number of axes, as SyncBatchNorm."""


def _normed(v: Tensor, g: Tensor, dim: int) -> Tensor:
    r"""$g\,v/\|v\|$, the norm over all axes but `dim` (-1: all of them); torch's own has no forward derivative."""
    axes = [axis for axis in range(v.ndim) if axis != dim]
    norm: Tensor = torch.linalg.vector_norm(v, dim=axes, keepdim=True)
    return v * (g / norm)


class _PlainWeightNorm(_WeightNorm):
    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return _normed(weight_v, weight_g, self.dim)


class _PlainWeightNormHook(WeightNorm):
    def compute_weight(self, module: nn.Module) -> Any:
        return _normed(getattr(module, f"{self.name}_v"), getattr(module, f"{self.name}_g"), self.dim)


def copied(module: nn.Module) -> tuple[nn.Module, list[str]]:
    """The copy, and in sentences what is otherwise in it than in the user's module, which is never changed."""
    require_type("module", module, nn.Module, "wrap a function in a module")
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError(
            "module is a TorchScript program, which hides its layers; pass the nn.Module that it was made of"
        )
    module = unwrapped(module)
    what, own = type(module).__name__, list(module.named_parameters())
    if not own:
        raise InputError(f"{what} has no parameters, so there is nothing to diagnose")
    if meta := [name for name, p in own if p.is_meta]:
        raise InputError(f"{what} has no values yet ({meta[0]} is on the meta device); load its weights first")
    notes = ["the model was in train mode; it was diagnosed in eval mode"] if _behaves_otherwise(module) else []
    try:
        made = copy.deepcopy(module, _derived(module))
    except Exception as error:
        raise InputError(
            f"{what} cannot be copied: {failure_of(error)}; take out what copy.deepcopy refuses"
        ) from error
    _simplify(made)
    if any(p.dtype in HALF for p in made.parameters()):
        notes.append("the model's half precision was read as float32")
        made.float()
    for name, part in made.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None:
            raise InputError(f"{name} has max_norm, which rewrites its weights at every pass; build it without")
    return made.eval(), notes


def _derived(module: nn.Module) -> dict[int, Any]:
    """Copies of what deepcopy refuses: results that layers keep, such as normed weights, and lazy buffers."""
    made: dict[int, Any] = {
        id(value): value.detach().clone()
        for part in module.modules()
        for value in vars(part).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    lazy: Any = UninitializedBuffer
    return made | {id(b): lazy(device=b.device, dtype=b.dtype) for b in module.buffers() if isinstance(b, lazy)}


def _behaves_otherwise(module: nn.Module) -> bool:
    """Whether a part is in train mode that does something else there: batch statistics, or dropout of any name."""
    return any(
        part.training
        and (
            isinstance(part, _NormBase | nn.MultiheadAttention | nn.RNNBase)
            or "drop" in type(part).__name__.lower()
            or "stochasticdepth" in type(part).__name__.lower()
        )
        for part in module.modules()
    )


def _simplify(module: nn.Module) -> None:
    """Take compiled parts, gradients and hooks on gradients off a copy; layers keep their parameters and buffers."""
    for part in list(module.modules()):
        for name, child in part._modules.items():
            if child is not None:
                part._modules[name] = unwrapped(child)
        part._backward_hooks.clear()
        part._backward_pre_hooks.clear()
        part._compiled_call_impl = None
        for layer in (part, *part._forward_pre_hooks.values()):
            plain: Any = layer
            for kind, instead in _INSTEAD.items():
                if type(layer) is kind:
                    plain.__class__ = instead
    for p in module.parameters():
        p.grad = None


_INSTEAD: dict[type, type] = {
    nn.SyncBatchNorm: LocalBatchNorm,
    _WeightNorm: _PlainWeightNorm,
    WeightNorm: _PlainWeightNormHook,
}
