r"""The part of the tangent kernel due to one parameter, from per-row pieces much smaller than its gradients.

A linear map at positions t has the gradient $\sum_t B_{it} h_t^\top$, so it adds
$\sum_{t,t'} (h_t(x)\cdot h_{t'}(y))\,(B_{it}(x)\cdot B_{jt'}(y))$ to $K_{ij}(x, y)$: products of small matrices
(`Gram`), or the gradients themselves where there are so many positions that they are smaller (`Dense`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from kontrast.kernels.products import product


@dataclass(frozen=True)
class Piece(ABC):
    """One parameter's share of the tangents of some rows; `c` may be 1 if only a trace is wanted."""

    by_row: ClassVar[tuple[str, ...]]  # the tensors with an entry per row

    def rows(self, start: int, stop: int) -> Self:
        """The piece of rows start … stop − 1."""
        return replace(self, **{name: getattr(self, name)[start:stop] for name in self.by_row})

    @abstractmethod
    def add_full(self, other: Self, out: Tensor) -> None:
        """Add K_ij(x, y) to `out`, (n, c, m, c) and contiguous."""

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
        out.view(n * c, m * c).addmm_(self.gradients.flatten(0, 1), other.gradients.flatten(0, 1).mT)

    def add_trace(self, other: Self, out: Tensor) -> None:
        """Σ_i K_ii(x, y)."""
        out.addmm_(self.gradients.flatten(1), other.gradients.flatten(1).mT)

    def add_diagonal(self, out: Tensor) -> None:
        """K_ij(x, x)."""
        out.baddbmm_(self.gradients, self.gradients.mT)


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
            out += (product(left, right).view(alike.shape) * alike).sum((1, 3))

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
        out.addmm_((self.gradients * squares).flatten(1), other.gradients.flatten(1).mT)

    def add_diagonal(self, out: Tensor) -> None:
        """K_ij(x, x)."""
        out += self._mixed((self.gradients**2).sum(2).mT)


def joined(parts: Sequence[Piece]) -> Piece:
    """The pieces of consecutive rows as one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    return replace(first, **{name: torch.cat([getattr(part, name) for part in parts]) for name in first.by_row})
