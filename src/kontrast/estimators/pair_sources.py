"""Sources of pairs: views and other samples, drawn as they are asked for, or pairs that the user gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.data import Pairs, View, pair_matrix
from kontrast.estimators.samples import Samples


@dataclass(frozen=True)
class DrawnPairs:
    """Pairs made as they are asked for; `negative` (n, Q) are indices of samples, None stands for their expectation."""

    anchors: Samples
    view: View
    n_positives: int
    negative: Tensor | None
    generator: torch.Generator

    @property
    def n_points(self) -> int:
        """The number of points of all pairs together."""
        return len(self.anchors) * (1 + self.n_positives)

    def batch(self, rows: slice) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Some anchors, and a batch for each of their positives and each of their negatives."""
        x = self.anchors[rows]
        negative = [] if self.negative is None else [self.anchors[one] for one in self.negative[rows].mT]
        return x, [self.view(x, self.generator) for _ in range(self.n_positives)], negative

    def some_points(self, n: int, generator: torch.Generator) -> Tensor:
        """Points of the pool at random: anchors, and fresh views in the share of positives."""
        points = torch.randperm(self.n_points, generator=generator)[:n]
        is_view = (points >= len(self.anchors)).to(self.anchors.device)
        x = self.anchors[points % len(self.anchors)]
        if bool(is_view.any()):
            x[is_view] = self.view(x[is_view], generator)
        return x

    def pool(self) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """All points, and products with their pair matrix."""
        x, positives, _ = self.batch(slice(None))
        return _pool_product(torch.cat([x, *positives]), len(x), self.n_positives, self.negative)


@dataclass(frozen=True)
class GivenPairs:
    """Pairs of the user's own: one set of samples for each positive and each negative of an anchor."""

    anchors: Samples
    positives: list[Samples]
    negatives: list[Samples] | None

    @property
    def n_points(self) -> int:
        """The number of points of all pairs together."""
        return len(self.anchors) * (1 + len(self.positives) + len(self.negatives or []))

    def batch(self, rows: slice) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Some anchors, and a batch for each of their positives and each of their negatives."""
        return self.anchors[rows], [p[rows] for p in self.positives], [q[rows] for q in self.negatives or []]

    def some_points(self, n: int, generator: torch.Generator) -> Tensor:
        """Points of the pool at random: anchors, positives and negatives."""
        points = torch.randperm(self.n_points, generator=generator)[:n]
        sets = [self.anchors, *self.positives, *(self.negatives or [])]
        chosen, rows = points // len(self.anchors), points % len(self.anchors)
        x = self.anchors[rows]
        for i, one in enumerate(sets[1:], start=1):  # in the order drawn: half of them are random points too
            x[(chosen == i).to(x.device)] = one[rows[chosen == i]]
        return x

    def pool(self) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """All points, and products with their pair matrix."""
        x, positives, negatives = self.batch(slice(None))
        n, first = len(x), len(x) * (1 + len(positives))
        places = [torch.arange(first + i * n, first + (i + 1) * n) for i in range(len(negatives))]
        negative = torch.stack(places, dim=1) if places else None
        return _pool_product(torch.cat([x, *positives, *negatives]), n, len(positives), negative)


def _pool_product(
    pool: Tensor, n: int, n_positives: int, negative: Tensor | None
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    r"""The pool, and products with the symmetric pair matrix S of the mean positive minus the mean negative.

    Without negatives their expectation, $\frac{1}{N(N-1)}(\mathbf 1 \mathbf 1^\top - I)$ over the anchors, is a matrix
    of rank one and a multiple of the identity, and is never formed.

    Args:
        pool: n anchors, then the first positive of each, then the second, and so on, then what negatives there are.
        n: the number of anchors.
        n_positives: the number P of positives per anchor.
        negative: (n, Q) places in the pool.
    """
    anchor = torch.arange(n, device=pool.device)
    positive = anchor[:, None] + n * torch.arange(1, n_positives + 1, device=pool.device)
    Q = 0 if negative is None else negative.shape[1]
    places = torch.empty(n, 0, dtype=torch.int64) if negative is None else negative
    weight = pool.new_full((n, Q), n_positives / max(Q, 1))
    S = pair_matrix(Pairs(pool, anchor, positive, places.to(pool.device), weight)) / n_positives

    def product(block: Tensor) -> Tensor:
        out = S @ block.contiguous()
        if negative is None:
            out[:n] += (block[:n] - block[:n].sum(0)) / (n * (n - 1))
        return out

    return pool, product
