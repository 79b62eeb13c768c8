"""The ReLU recursion of infinite kernels as one Triton kernel, from products to both halves of a symmetric matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from kontrast.kernels.products import SPLIT

BLOCK = 32  # with four warps: twice as fast as 64 and eight
WARPS = 4


@dataclass(frozen=True)
class Pairs:
    """The places (row, column) found so far; `count` goes on beyond the room for them."""

    places: Tensor  # (room, 2) int32
    count: Tensor  # (1,) int32

    @classmethod
    def room_for(cls, room: int, device: torch.device) -> Pairs:
        """An empty list with room for so many pairs."""
        return cls(
            torch.empty(room, 2, dtype=torch.int32, device=device), torch.zeros(1, dtype=torch.int32, device=device)
        )


def write_both_ways(
    products: Tensor,
    out: Tensor,
    scale_x: Tensor,
    scale_y: Tensor,
    near: Pairs,
    *,
    top: int,
    left: int,
    symmetric: bool,
    threshold: float,
    depth: int,
    slope: float,
    tangent: bool,
) -> None:
    """Write the kernel of a network without bias, from split products, into `out` and its mirror image.

    Off-diagonal pairs with |cos θ| above the threshold are noted in `near`, to be computed more exactly.
    """
    rows, columns = products.shape
    bend, gain = (1 - slope) ** 2 / 2, (1 + slope**2) / 2
    grid = (triton.cdiv(columns, BLOCK), triton.cdiv(rows, BLOCK))
    _recursion[grid](
        products,
        out,
        scale_x,
        scale_y,
        near.places,
        near.count,
        len(near.places),
        rows,
        columns,
        top,
        left,
        products.stride(0),
        out.stride(0),
        1 / SPLIT**2,
        threshold,
        bend / gain / math.pi,
        (bend + slope) / gain,
        DEPTH=depth,
        TANGENT=tangent,
        SYMMETRIC=symmetric,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _recursion(  # type: ignore[no-untyped-def]
    products,
    out,
    scale_x,
    scale_y,
    places,
    count,
    room,
    rows,
    columns,
    top,
    left,
    stride_in,
    stride_out,
    unsplit,
    threshold,
    bend,
    straight,
    DEPTH: tl.constexpr,
    TANGENT: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = (i < rows)[:, None] & (j < columns)[None, :]
    row, column = (top + i).to(tl.int64), (left + j).to(tl.int64)
    if SYMMETRIC:
        here = here & (row[:, None] <= column[None, :])
    c = tl.load(products + i.to(tl.int64)[:, None] * stride_in + j[None, :], mask=here, other=0.0) * unsplit
    near = here & (tl.abs(c) > threshold)
    if SYMMETRIC:
        near = near & (row[:, None] != column[None, :])
    # One atomic operation per near pair: they are rare, and a block-wide count would cost half of the recursion.
    zeros = tl.zeros([BLOCK, BLOCK], dtype=tl.int32)
    place = tl.atomic_add(count + zeros, 1, mask=near)
    fits = near & (place < room)
    tl.store(places + 2 * place, (top + i)[:, None] + zeros, mask=fits)
    tl.store(places + 2 * place + 1, (left + j)[None, :] + zeros, mask=fits)
    q, p = tl.maximum(1 - c, 0.0), tl.maximum(1 + c, 0.0)
    theta = 1 - q
    for _ in range(DEPTH):
        # The same step as HomogeneousDual.layer; the angle by an arcsine of the smaller half, exact at both ends.
        half = 2 * libdevice.asin(tl.sqrt(tl.minimum(q, p) / 2))
        angle = tl.where(q <= p, half, 3.141592653589793 - half)
        q = tl.maximum(q - bend * (tl.sqrt(q * p) - angle * (1 - q)), 0.0)
        p = tl.maximum(2 - q, 0.0)
        if TANGENT:
            theta = (1 - q) + theta * (straight - bend * angle)
    kernel = theta if TANGENT else 1 - q
    kernel = kernel * tl.load(scale_x + i, mask=i < rows, other=0.0)[:, None]
    kernel = kernel * tl.load(scale_y + j, mask=j < columns, other=0.0)[None, :]
    tl.store(out + row[:, None] * stride_out + column[None, :], kernel, mask=here)
    if SYMMETRIC:
        tl.store(out + column[:, None] * stride_out + row[None, :], tl.trans(kernel), mask=tl.trans(here))
