"""A count sketch as one Triton kernel: every number is read once, and nothing is written but the sketch."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

TILE = 1024  # buckets of one row that a program adds up


def fold(
    values: Tensor,
    start: int,
    out: Tensor,
    *,
    block: int,
    shifts: Tensor,
    offsets: Tensor,
    flips: Tensor,
    signs: Tensor,
) -> None:
    """Add the sketch of (n, L) values at the places from `start` to `out`, (n, buckets): `CountSketch.add`."""
    n, length = values.shape
    n_buckets = out.shape[1]
    tile = min(TILE, triton.next_power_of_2(n_buckets))
    _fold[(n, triton.cdiv(n_buckets, tile))](
        values,
        out,
        shifts,
        offsets,
        flips,
        signs,
        values.stride(0),
        out.stride(0),
        start,
        length,
        start // block,
        (start + length - 1) // block + 1,
        n_buckets,
        block // n_buckets,
        TILE=tile,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _fold(  # type: ignore[no-untyped-def]
    values,
    out,
    shifts,
    offsets,
    flips,
    signs,
    stride_in,
    stride_out,
    start,
    length,
    first,
    end,
    n_buckets,
    runs,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    bucket = tl.program_id(1) * TILE + tl.arange(0, TILE)
    here = bucket < n_buckets
    total = tl.zeros([TILE], dtype=values.dtype.element_ty)
    for index in range(first, end):
        at = bucket - tl.load(shifts + index).to(tl.int32)
        at = tl.where(at < 0, at + n_buckets, at)
        flip, offset = tl.load(flips + index), tl.load(offsets + index)
        before = tl.cast(index, tl.int64) * (runs * n_buckets) - start
        for run in range(runs):
            inside = run * n_buckets + at
            place = before + inside
            known = here & (place >= 0) & (place < length)
            number = tl.load(values + row * stride_in + place, mask=known, other=0.0)
            total += number * tl.load(signs + offset + inside, mask=here, other=0.0) * flip
    to = out + row * stride_out + bucket
    tl.store(to, tl.load(to, mask=here) + total, mask=here)
