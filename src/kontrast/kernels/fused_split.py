"""Rows in two half-precision parts by one Triton kernel: every number is read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


def parts(values: Tensor, inverse: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The parts h and h − v, both (n, width) in half precision, of v = values · inverse by rows; zeros on the right."""
    n = len(values)
    high, rest = (torch.empty(n, width, dtype=torch.float16, device=values.device) for _ in range(2))
    blocks = triton.cdiv(width, BLOCK)
    _parts[(n * blocks,)](
        values, inverse, high, rest, values.stride(0), values.shape[1], width, blocks, BLOCK=BLOCK, num_warps=8
    )
    return high, rest


@triton.jit  # type: ignore[untyped-decorator]
def _parts(values, inverse, high, rest, stride, length, width, blocks, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64)
    column = (program % blocks) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + row * stride + column, mask=column < length, other=0.0) * tl.load(inverse + row)
    half = value.to(tl.float16)
    to = row * width + column
    tl.store(high + to, half, mask=column < width)
    tl.store(rest + to, (half.to(tl.float32) - value).to(tl.float16), mask=column < width)
