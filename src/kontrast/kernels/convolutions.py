"""Convolutions of a recorded pass whose backward signals are faster on a GPU than cuDNN's in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kontrast.kernels.products import has_half_units, has_triton


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """`torch.conv2d`, differentiable with respect to its input alone if there is a faster way to do that."""
    plain = groups == 1 and _both(stride, 1) and _both(padding, 1) and _both(dilation, 1)
    if plain and input.requires_grad and is_faster(input, weight):
        result: Tensor = _Convolution.apply(  # type: ignore[no-untyped-call]
            input, weight.detach(), None if bias is None else bias.detach()
        )
        return result
    return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)


def is_faster(input: Tensor, weight: Tensor) -> bool:
    """Whether `fused_convolution` takes this kernel, of stride 1 and padding 1."""
    units, channels = weight.shape[:2]
    fits = weight.shape[2:] == (3, 3) and channels % 64 == 0 and units % 32 == 0 and input.ndim == 4
    return fits and weight.dtype == input.dtype and has_half_units(input) and has_triton(input)


def _both(value: Any, wanted: int) -> bool:
    return value == wanted or (isinstance(value, list | tuple) and all(one == wanted for one in value))


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.conv2d(h, weight, bias, padding=1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, signal: Tensor) -> tuple[Tensor, None, None]:
        return signals(signal, ctx.saved_tensors[0]), None, None


@torch.library.custom_op("kontrast::signals_of_convolution", mutates_args=())
def signals(signal: Tensor, weight: Tensor) -> Tensor:
    """∂f/∂h from ∂f/∂a for a = W ∗ h, kernel 3 × 3 with stride 1 and padding 1."""
    if not has_triton(signal):
        return F.conv_transpose2d(signal, weight, padding=1)
    from kontrast.kernels import fused_convolution

    return fused_convolution.signals(signal, weight)


@signals.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], signal: Tensor, weight: Tensor) -> tuple[Tensor, int]:
    at, at_weight = in_dims
    assert at is not None
    assert at_weight is None
    signal = signal.movedim(at, 0)
    return signals(signal.flatten(0, 1), weight).unflatten(0, signal.shape[:2]), 0
