r"""The part of the tangent kernel due to one parameter, from per-row pieces much smaller than its gradients.

A linear map at positions t has the gradient $\sum_t B_{it} h_t^\top$, so it adds
$\sum_{t,t'} (h_t(x)\cdot h_{t'}(y))\,(B_{it}(x)\cdot B_{jt'}(y))$ to $K_{ij}(x, y)$: products of small matrices
(`Gram`), or the gradients themselves where there are so many positions that they are smaller (`Dense`). Those of a
large weight are formed in slices while they are multiplied (`Outer`).
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from kontrast.kernels.products import add_product, product


@dataclass(frozen=True)
class Piece(ABC):
    """One parameter's share of the tangents of some rows; `c` may be 1 if only a trace is wanted."""

    by_row: ClassVar[tuple[str, ...]]  # the tensors with an entry per row

    @property
    def positions(self) -> int:
        """Entries per row that are paired with those of another row."""
        return 1

    def rows(self, start: int, stop: int) -> Self:
        """The piece of rows start … stop − 1."""
        return replace(self, **{name: getattr(self, name)[start:stop] for name in self.by_row})

    @abstractmethod
    def add_full(self, other: Self, out: Tensor) -> None:
        """Add K_ij(x, y) to `out`, (n, c, m, c), some rows of a contiguous kernel."""

    @abstractmethod
    def add_trace(self, other: Self, out: Tensor) -> None:
        """Add Σ_i K_ii(x, y) to `out`, (n, m)."""

    @abstractmethod
    def add_diagonal(self, out: Tensor) -> None:
        """Add K_ij(x, x) to `out`, (n, c, c)."""


@dataclass(frozen=True)
class Dense(Piece):
    """The gradients themselves, (n, c, p)."""

    gradients: Tensor
    by_row = ("gradients",)

    def add_full(self, other: Self, out: Tensor) -> None:
        """K_ij(x, y)."""
        n, c, m, _ = out.shape
        add_product(self.gradients.flatten(0, 1), other.gradients.flatten(0, 1), out.view(n * c, m * c))

    def add_trace(self, other: Self, out: Tensor) -> None:
        """Σ_i K_ii(x, y)."""
        if self.gradients.is_contiguous() and other.gradients.is_contiguous():
            add_product(self.gradients.flatten(1), other.gradients.flatten(1), out)
        else:
            for mine, its in zip(self.gradients.unbind(1), other.gradients.unbind(1), strict=True):
                add_product(mine, its, out)

    def add_diagonal(self, out: Tensor) -> None:
        """K_ij(x, x)."""
        out += self.gradients @ self.gradients.mT


@dataclass(frozen=True)
class Outer:
    r"""Gradients $\sum_t B_t h_t^\top$ of a large weight, summed over its uses, not formed yet."""

    features: tuple[Callable[[slice], Tensor], ...]  # of each use, for some of the rows: (r, G, T, I)
    signals: tuple[tuple[Tensor, ...], ...]  # of each use, from each backward pass: (directions, n, G, T, O)
    inputs: int  # I
    copied: bool  # whether features are copies that take memory: the patches of a convolution

    @property
    def directions(self) -> int:
        """Of all passes."""
        return sum(map(len, self.signals[0]))

    @property
    def _per_row(self) -> int:
        """Numbers of features."""
        _, _, G, T, _ = self.signals[0][0].shape
        return G * T * self.inputs

    def cut(self, numbers: int, *, together: bool) -> Cut:
        """Slices of about so many gradients, of all directions if they are wanted `together`."""
        _, n, G, _, n_units = self.signals[0][0].shape
        in_cache = IN_CACHE.get(self.signals[0][0].device.type)
        if in_cache is not None and (not self.copied or n * self._per_row <= numbers):
            numbers = min(numbers, in_cache)
        else:  # a GPU wants long products, and patches are copied once for all directions
            together = True
        directions = self.directions if together else 1
        return Cut(max(1, min(n_units, numbers // (n * G * directions * self.inputs))), directions)

    def slices(self, cut: Cut, numbers: int) -> Iterator[Dense]:
        """The gradients slice by slice, each in the memory of the last, from about `numbers` features at a time."""
        first = self.signals[0][0]
        _, n, G, _, n_units = first.shape
        at_once = max(1, numbers // max(1, self._per_row)) if self.copied else n
        parts = [slice(top, min(top + at_once, n)) for top in range(0, n, at_once)]
        held = [features(parts[0]) for features in self.features] if len(parts) == 1 else None
        room = first.new_empty(cut.directions * n * G * cut.units * self.inputs)
        rows_first = first.device.type in ROWS_FIRST and G == 1  # then the sum over directions is one long product
        for start, from_direction in itertools.product(
            range(0, n_units, cut.units), range(0, self.directions, cut.directions)
        ):
            units = slice(start, min(start + cut.units, n_units))
            q = min(cut.directions, self.directions - from_direction)
            shape = (q, n, G, units.stop - start, self.inputs)
            some = room[: math.prod(shape)]
            gradients = some.view(n, q, *shape[2:]).transpose(0, 1) if rows_first else some.view(shape)
            for part, (k, passes) in itertools.product(parts, enumerate(self.signals)):
                H = self.features[k](part) if held is None else held[k]
                out = gradients[:, part]
                if rows_first and len(passes) == 1 and q > 1:
                    _add_outers(passes[0][:, part, 0, :, units], H[:, 0], out[:, :, 0].transpose(0, 1), first=k == 0)
                    continue
                signals = (signal for each in passes for signal in each.unbind(0))
                for signal, here in zip(itertools.islice(signals, from_direction, None), out, strict=False):
                    _add_outer(signal[part, ..., units].mT, H, here, first=k == 0)
            yield Dense(gradients.flatten(2).transpose(0, 1))


class Cut(NamedTuple):
    """How an `Outer` is taken apart."""

    units: int  # of the weight's outputs
    directions: int


def _add_outer(B: Tensor, H: Tensor, out: Tensor, *, first: bool) -> None:
    """B H, (r, G, o, I), into `out` or, if it is not the first, onto it."""
    B, H, out = (tensor.flatten(0, 1) for tensor in (B, H, out))
    if first:
        torch.bmm(B, H, out=out)
    else:
        out.baddbmm_(B, H)


def _add_outers(B: Tensor, H: Tensor, out: Tensor, *, first: bool) -> None:
    """The same for all directions in one product per row: B (q, r, T, o), H (r, T, I), out (r, q, o, I)."""
    r, T, _ = H.shape
    # The copy that brings a row's directions together reads along the axis that lies together.
    if B.stride(-1) == 1:
        signals = B.permute(1, 2, 0, 3).reshape(r, T, -1).mT
    else:
        signals = B.permute(1, 0, 3, 2).reshape(r, -1, T)
    _add_outer(signals[:, None], H[:, None], out.flatten(1, 2)[:, None], first=first)


@dataclass(frozen=True)
class Gram(Piece):
    """Features (n, G, T, I), or token ids (n, T), and signals (n, c, G, T, O).

    `ones` adds the bias of the same maps: one more feature that is 1 everywhere.
    """

    features: Tensor
    signals: Tensor
    ones: bool = False
    by_row = ("features", "signals")

    @property
    def positions(self) -> int:
        """T."""
        return self.signals.shape[3]

    @property
    def _flat(self) -> bool:
        return self.signals.shape[2] * self.signals.shape[3] == 1

    def _similarity(self, other: Self) -> Tensor:
        """h_t(x)·h_t'(y), (G, n, T, m, T')."""
        H, H_ = self.features, other.features
        if H.ndim == 2:
            equal: Tensor = H[None, :, :, None, None] == H_[None, None, None]
            return equal.to(self.signals.dtype)
        G, n, T, m, T_ = H.shape[1], H.shape[0], H.shape[2], H_.shape[0], H_.shape[2]
        left, right = H.transpose(0, 1).flatten(1, 2), H_.transpose(0, 1).flatten(1, 2)
        similarity = (product(left[0], right[0])[None] if G == 1 else left @ right.mT).view(G, n, T, m, T_)
        return similarity.add_(1) if self.ones else similarity

    def add_full(self, other: Self, out: Tensor) -> None:
        """K_ij(x, y)."""
        n, c, m, _ = out.shape
        similarity = self._similarity(other)
        if self._flat and other._flat:
            signals = product(self.signals.reshape(n * c, -1), other.signals.reshape(m * c, -1))
            out.addcmul_(signals.view(n, c, m, c), similarity.view(n, 1, m, 1))
            return
        for g, alike in enumerate(similarity):
            left, right = self.signals[:, :, g], other.signals[:, :, g]  # (n, c, T, O)
            T, T_ = left.shape[2], right.shape[2]
            signals = product(left.flatten(0, 2), right.flatten(0, 2)).view(n, c, T, m, c, T_)
            out += (signals * alike[:, None, :, :, None]).sum((2, 5))

    def add_trace(self, other: Self, out: Tensor) -> None:
        """Σ_i K_ii(x, y)."""
        n, m = out.shape
        similarity = self._similarity(other)
        if self._flat and other._flat:
            signals = product(self.signals.reshape(n, -1), other.signals.reshape(m, -1))
            out.addcmul_(signals, similarity.view(n, m))
            return
        for g, alike in enumerate(similarity):
            left = self.signals[:, :, g].transpose(1, 2).flatten(2).flatten(0, 1)  # (n·T, c·O)
            right = other.signals[:, :, g].transpose(1, 2).flatten(2).flatten(0, 1)
            out += product(left, right).view(alike.shape).mul_(alike).sum((1, 3))

    def add_diagonal(self, out: Tensor) -> None:
        """K_ij(x, x)."""
        n, c, G, T, _ = self.signals.shape
        if self.features.ndim == 2:
            similarity = (self.features[:, None, :, None] == self.features[:, None, None]).to(self.signals.dtype)
        else:
            similarity = self.features @ self.features.mT + (1 if self.ones else 0)  # (n, G, T, T)
        B = self.signals.transpose(1, 2).flatten(2, 3)  # (n, G, c·T, O)
        signals = (B @ B.mT).view(n, G, c, T, c, T)
        out += (signals * similarity[:, :, None, :, None]).sum((1, 3, 5))


@dataclass(frozen=True)
class Output(Piece):
    """The last map f_i = s_i(w_i·h): output i depends on row w_i alone, so its signal is s_i e_i."""

    features: Tensor  # (n, I)
    slopes: Tensor  # (n, c): s_i
    ones: bool = False
    by_row = ("features", "slopes")

    def _similarity(self, other: Self) -> Tensor:
        similarity = product(self.features, other.features)
        return similarity.add_(1) if self.ones else similarity

    def add_full(self, other: Self, out: Tensor) -> None:
        """K_ij(x, y)."""
        slopes = self.slopes[:, None] * other.slopes  # (n, m, c)
        out.diagonal(dim1=1, dim2=3).add_(slopes * self._similarity(other)[:, :, None])

    def add_trace(self, other: Self, out: Tensor) -> None:
        """Σ_i K_ii(x, y)."""
        out.addcmul_(self.slopes @ other.slopes.mT, self._similarity(other))

    def add_diagonal(self, out: Tensor) -> None:
        """K_ij(x, x)."""
        square = (self.features**2).sum(1) + (1 if self.ones else 0)
        out.diagonal(dim1=1, dim2=2).add_(self.slopes**2 * square[:, None])


@dataclass(frozen=True)
class Channels(Piece):
    r"""The map before the last, $f_i = \sum_k W_{ik} z_k$ with $z_k$ a function of channel k alone.

    With the gradients $g_k$ of $z_k$ it adds $\sum_k W_{ik} W_{jk}\,(g_k(x)\cdot g_k(y))$ to $K_{ij}(x, y)$.
    """

    gradients: Tensor  # (n, channels, I)
    weights: Tensor  # (c, channels)
    by_row = ("gradients",)

    def _mixed(self, products: Tensor) -> Tensor:
        """(…, c, c) from products of gradients, (channels, …)."""
        pairs = self.weights[:, None] * self.weights  # (c, c, channels)
        return (products.flatten(1).mT @ pairs.flatten(0, 1).mT).view(*products.shape[1:], *pairs.shape[:2])

    def add_full(self, other: Self, out: Tensor) -> None:
        """K_ij(x, y)."""
        products = self.gradients.transpose(0, 1) @ other.gradients.permute(1, 2, 0)  # (channels, n, m)
        out += self._mixed(products).transpose(1, 2)

    def add_trace(self, other: Self, out: Tensor) -> None:
        """Σ_i K_ii(x, y)."""
        squares = (self.weights**2).sum(0)[:, None]
        add_product((self.gradients * squares).flatten(1), other.gradients.flatten(1), out)

    def add_diagonal(self, out: Tensor) -> None:
        """K_ij(x, x)."""
        out += self._mixed((self.gradients**2).sum(2).mT)


# Entries of one tile of the kernel, times the pairs of positions in it. Larger ones are no faster: products are long
# enough, a CPU's caches hold the tile, and half of a symmetric kernel is saved only if there are several tiles.
TILE = {"cpu": 2**17, "cuda": 2**26}
# Where one product of long rows is faster than one for every direction.
ROWS_FIRST = {"cuda"}
# Numbers of gradients that are multiplied while a CPU's cache holds them, in memory that is used again.
IN_CACHE = {"cpu": 2**22}


def add_block(
    left: Piece | Outer, right: Piece | Outer, out: Tensor, *, full: bool, symmetric: bool, numbers: int
) -> None:
    """Add the kernel between two blocks of rows to `out`, (n, m) or (n, c, m, c), tile by tile.

    Of a symmetric block, the tiles below the diagonal are left out. Of gradients, about `numbers` are formed at a time.
    """
    if isinstance(left, Outer) and isinstance(right, Outer):
        cut = Cut(*map(min, left.cut(numbers, together=full), right.cut(numbers, together=full)))
        mine = left.slices(cut, numbers)
        pairs = ((one, one) for one in mine) if right is left else zip(mine, right.slices(cut, numbers), strict=True)
        for one, other in pairs:
            add_block(one, other, out, full=full, symmetric=symmetric, numbers=numbers)
        return
    assert isinstance(left, Piece)
    assert isinstance(right, Piece)
    n, m = out.shape[0], out.shape[2 if full else 1]
    cells = (out.shape[1] ** 2 if full else 1) * left.positions * right.positions
    tile = max(1, math.isqrt(TILE.get(out.device.type, 2**20) // cells))
    for i, j in itertools.product(range(0, n, tile), range(0, m, tile)):
        if not (symmetric and j < i):
            at_x, at_y = left.rows(i, i + tile), right.rows(j, j + tile)
            part = out[i : i + tile].narrow(2 if full else 1, j, min(tile, m - j))
            (at_x.add_full if full else at_x.add_trace)(at_y, part)
