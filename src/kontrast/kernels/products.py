"""Products of float32 matrices on the half-precision units of a GPU, to float32 accuracy and several times faster.

A row u of length at most one is split into two half-precision parts, u ≈ (h + l)/1024, which hold 22 bits; then
u·v ≈ (h·h' + h·l' + l·h')/1024². Tensor cores truncate while they accumulate, by up to one unit of the running sum per
step. So the small cross terms are summed first or separately, and long sums are cut into pieces that are added outside
the tensor cores, correctly rounded.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass

import torch
from torch import Tensor

SPLIT = 1024.0  # the size of a unit row in half precision, chosen so that both of its parts are normal numbers
PIECE = 272  # inner length after which the sum of a large product leaves the tensor cores
LONG_PIECE = 512  # the most for products with a long inner axis, where each piece is a small part of the sum
WORTH_IT = 2**34  # multiplications below which splitting costs more than it saves
FEWEST = 128  # rows, likewise
# A GPU's product with a small result and a long inner axis goes in pieces at the same time, or few of its units work.
SMALL, LEAST_PIECE, PIECES = 2**16, 2048, 1024


def has_half_units(x: Tensor) -> bool:
    """Whether x is float32 on an NVIDIA GPU with half-precision tensor cores."""
    if not x.is_cuda or x.dtype != torch.float32 or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(x.device) >= (8, 0)


def has_triton(x: Tensor) -> bool:
    """Whether x is on an NVIDIA GPU and torch came with the compiler of its kernels."""
    return x.is_cuda and torch.version.cuda is not None and _triton_is_installed()


@functools.cache
def _triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@dataclass(frozen=True)
class Split:
    """Rows in half precision: h, and for either side of a product the cross terms followed by a piece of h."""

    high: Tensor
    left: Tensor
    right: Tensor

    def rows(self, start: int, stop: int | None) -> Split:
        """Some of the rows."""
        return Split(self.high[start:stop], self.left[start:stop], self.right[start:stop])


def split_rows(unit: Tensor) -> Split:
    """The parts of rows of length at most one."""
    scaled = torch.nn.functional.pad(unit, (0, -unit.shape[1] % 16)) * SPLIT
    high = scaled.half()
    low, start = (scaled - high).half(), high[:, :PIECE]
    return Split(high, torch.cat([low, high, start], 1), torch.cat([high, low, start], 1))


def split_product(x: Split, y: Split) -> Tensor:
    """SPLIT² · u vᵀ in float32 for rows split by `split_rows`."""
    total = torch.mm(x.left, y.right.mT, out_dtype=torch.float32)
    for start in range(PIECE, x.high.shape[1], PIECE):
        high_x, high_y = x.high[:, start : start + PIECE], y.high[:, start : start + PIECE]
        torch.addmm(total, high_x, high_y.mT, out_dtype=torch.float32, out=total)
    return total


def product(a: Tensor, b: Tensor) -> Tensor:
    """A bᵀ for rows a (n, k) and b (m, k); large float32 products on a GPU use half precision as above."""
    (n, k), m = a.shape, b.shape[0]
    if not _halves_pay(a, b):
        return _plain(a, b)
    same = a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
    high_a, rest_a, size_a = _scaled_parts(a)
    high_b, rest_b, size_b = (high_a, rest_a, size_a) if same else _scaled_parts(b)
    cross = torch.mm(high_a, rest_b.mT, out_dtype=torch.float32)
    cross = cross + (cross.mT if same else torch.mm(rest_a, high_b.mT, out_dtype=torch.float32))
    stacked_a, stacked_b = (h.view(len(h), _pieces(k), -1).transpose(0, 1) for h in (high_a, high_b))
    at_once = max(1, 2**27 // (n * m))
    groups = zip(torch.split(stacked_a, at_once), torch.split(stacked_b, at_once), strict=True)
    sums = (torch.bmm(left, right.mT, out_dtype=torch.float32).sum(0) for left, right in groups)
    total = next(sums).sub_(cross)
    for part in sums:
        total += part
    return total.mul_(size_a[:, None]).mul_(size_b)


def add_product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Add A bᵀ to `out`, computed as in `product`.

    The sum is complete before it is added: on top of a large number, small terms one by one would be rounded away.
    """
    out += product(a, b)


def _halves_pay(a: Tensor, b: Tensor) -> bool:
    (n, k), m = a.shape, b.shape[0]
    return has_half_units(a) and n * m * k >= WORTH_IT and k >= LONG_PIECE and min(n, m) >= FEWEST


def _plain(a: Tensor, b: Tensor) -> Tensor:
    return in_pieces(a, b, min(PIECES, a.shape[1] // LEAST_PIECE)) if _is_long(a, b) else a @ b.mT


def in_pieces(a: Tensor, b: Tensor, n_pieces: int) -> Tensor:
    """A bᵀ as the sum of products of so many pieces of the rows, taken at once."""
    whole = a.shape[1] // n_pieces * n_pieces
    left, right = (torch.unflatten(side[:, :whole], 1, (n_pieces, -1)).transpose(0, 1) for side in (a, b))
    total = torch.bmm(left, right.mT).sum(0)
    return total.addmm_(a[:, whole:], b[:, whole:].mT) if whole < a.shape[1] else total


def _is_long(a: Tensor, b: Tensor) -> bool:
    return a.is_cuda and len(a) * len(b) <= SMALL and a.shape[1] >= 2 * LEAST_PIECE


def _pieces(k: int) -> int:
    return -(-k // LONG_PIECE)


def _scaled_parts(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The parts h and −l of rows of any length, and the rows' lengths divided by SPLIT."""
    norm = torch.linalg.vector_norm(a, dim=1)
    size = torch.where(norm > 0, norm, 1.0) / SPLIT
    inverse = size.reciprocal()[:, None]
    missing = -a.shape[1] % (8 * _pieces(a.shape[1]))  # equal pieces, at the alignment that tensor cores want
    # Written directly in half precision: these passes over memory take longer than the products.
    if has_triton(a):
        from kontrast.kernels import fused_split

        return *fused_split.parts(a if a.stride(1) == 1 else a.contiguous(), inverse, a.shape[1] + missing), size
    if missing:
        a = torch.nn.functional.pad(a, (0, missing))
    high, rest = (torch.empty_like(a, dtype=torch.float16) for _ in range(2))
    torch.mul(a, inverse, out=high)
    return high, torch.addcmul(high, a, inverse, value=-1, out=rest), size
