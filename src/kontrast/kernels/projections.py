"""Random projections: directions in the space of outputs, and a sketch that counts gradients into buckets."""

from __future__ import annotations

import torch
from torch import Tensor

from kontrast.kernels.products import has_triton

BLOCK = 4096  # numbers that share a shift, a place in the table of signs, and a sign, at least
FEW_BLOCKS = 64  # up to which every number has a bucket and a sign of its own
TABLE = 2**20  # signs
MOST_BUCKETS = TABLE // 2
MOST_SEED = 2**63 - 1


def random_directions(n_outputs: int, n_directions: int, seed: int) -> Tensor:
    r"""Orthogonal directions $v_1 … v_q$ of length √c, (q, c) in float64: $E\,v_k v_k^\top = I$, and Σ = c I at q = c.

    So the mean of $v_k^\top K v_k$ is an unbiased estimate of the trace of K, and the trace itself at q = c.
    """
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(n_outputs, n_directions, generator=generator, dtype=torch.float64)
    directions: Tensor = n_outputs**0.5 * torch.linalg.qr(normal).Q.mT
    return directions


class CountSketch:
    r"""$a \mapsto \big(\sum_{g:\,h(g) = j} s_g a_g\big)_j$, random buckets h(g) and signs $s_g$ (Charikar et al. 2002).

    Inner products are unbiased: $E\,\langle Sa, Sb\rangle = \langle a, b\rangle$. In long vectors, numbers that lie
    together are shifted together, so a slice is folded without an index for each number. They never share a bucket: of
    many blocks that changes nothing, of few the sketch would be better than its groups tell. Buckets and signs depend
    on a number's place g alone, not on how its vector is sliced.
    """

    def __init__(self, n_buckets: int, n_numbers: int, *, seed: int, like: Tensor) -> None:
        """For vectors of `n_numbers` on the device of `like`, in its dtype."""
        self.n_buckets, self.block = n_buckets, n_buckets * -(-BLOCK // n_buckets)
        generator = torch.Generator().manual_seed(seed)
        n_blocks = -(-n_numbers // self.block)

        def draw(below: int, *shape: int) -> Tensor:
            drawn: Tensor = torch.randint(below, shape, generator=generator)
            return drawn.to(like.device)

        self._buckets: Tensor | None = None
        if n_blocks <= FEW_BLOCKS:
            self._buckets, self._signs = draw(n_buckets, n_numbers), (2 * draw(2, n_numbers) - 1).to(like.dtype)
            return
        self._shifts, self._offsets = draw(n_buckets, n_blocks), draw(TABLE - self.block, n_blocks)
        self._flips = (2 * draw(2, n_blocks) - 1).to(like.dtype)
        self._signs = (2 * draw(2, TABLE) - 1).to(like.dtype)

    def add(self, values: Tensor, start: int, out: Tensor, *, numbers: int) -> None:
        """Add the sketch of (n, L) values at the places from `start` to `out`, (n, buckets).

        About `numbers` of them are copied at a time; on an NVIDIA GPU none.
        """
        if self._buckets is not None:
            some = slice(start, start + values.shape[1])
            for top in range(0, len(values), at_once := max(1, numbers // values.shape[1])):
                part = slice(top, top + at_once)
                out[part].index_add_(1, self._buckets[some], values[part] * self._signs[some])
            return
        if has_triton(values) and values.stride(1) == out.stride(1) == 1:
            from kontrast.kernels import fused_sketch

            tables = {"shifts": self._shifts, "offsets": self._offsets, "flips": self._flips, "signs": self._signs}
            fused_sketch.fold(values, start, out, block=self.block, **tables)
            return
        n, length = values.shape
        first = start // self.block
        step = max(1, numbers // (n * self.block))  # blocks at a time, then rows of one block
        rows = max(1, min(n, numbers // (step * self.block)))
        for begin in range(first, -(-(start + length) // self.block), step):
            left = max(0, begin * self.block - start)
            right = min(length, (begin + step) * self.block - start)
            places, weights = self._order(start + left, right - left)
            for top in range(0, n, rows):
                picked = values[top : top + rows, left:right].index_select(1, places).mul_(weights)
                out[top : top + rows] += picked.view(len(picked), -1, self.n_buckets).sum(1)

    def _order(self, start: int, length: int) -> tuple[Tensor, Tensor]:
        """The values in the order of their buckets, runs of all buckets after another, and their signs; 0 for none."""
        first, last = start // self.block, (start + length - 1) // self.block
        device = self._shifts.device
        blocks = torch.arange(first, last + 1, device=device)[:, None, None]
        runs = torch.arange(0, self.block, self.n_buckets, device=device)[:, None]
        buckets = torch.arange(self.n_buckets, device=device)
        inside = runs + (buckets - self._shifts[blocks]) % self.n_buckets
        places = (blocks * self.block + inside - start).flatten()
        signs = (self._signs[self._offsets[blocks] + inside] * self._flips[blocks]).flatten()
        return places.clamp(0, length - 1), signs * ((places >= 0) & (places < length))

    def scatter(self, values: Tensor, places: Tensor, out: Tensor) -> None:
        """Add the sketch of values at any places, both (n, k), to `out`, (n, buckets)."""
        if self._buckets is not None:
            out.scatter_add_(1, self._buckets[places], values * self._signs[places])
            return
        blocks, inside = places // self.block, places % self.block
        signs = self._signs[self._offsets[blocks] + inside] * self._flips[blocks]
        out.scatter_add_(1, (inside + self._shifts[blocks]) % self.n_buckets, values * signs)


def rotated(features: Tensor, seed: int) -> Tensor:
    """The rows of (n, d) after one random rotation: signs, a Hartley transform, another order.

    Every number of the result holds a share of all of them, so parts of the result are alike however uneven the numbers
    were.
    """
    d, generator = features.shape[1], torch.Generator().manual_seed(seed)
    signs = (2 * torch.randint(2, (d,), generator=generator) - 1).to(features)
    order = torch.randperm(d, generator=generator).to(features.device)
    waves: Tensor = torch.fft.fft(features * signs, norm="ortho")
    return (waves.real - waves.imag)[:, order]
