"""Anchors with their positives and negatives, as indices into one pool of points."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from kontrast.checks import in_words, require_generator, require_whole, resolve_device, resolve_dtype
from kontrast.data.views import View, fit_view, fresh_view
from kontrast.errors import InputError


@dataclass(frozen=True, eq=False)
class Pairs:
    """A pool of unique points and, for each anchor, which of them are its positives and negatives.

    A network runs once over the pool, however often a point serves; `split` then hands out its outputs.

    Attributes:
        x: the pool, (m, d) or (m, c, h, w).
        anchor: (n,) indices into the pool, int64.
        positive: (n, P) indices.
        negative: (n, Q) indices, or (1, Q) for negatives that all anchors share; Q = 0 is the non-contrastive setting.
        negative_weight: (n, Q), of the pool's number type; None means 1 each, 0 leaves a shared negative out.
    """

    x: Tensor
    anchor: Tensor
    positive: Tensor
    negative: Tensor
    negative_weight: Tensor | None = None

    def __post_init__(self) -> None:
        n = len(self.anchor)
        for name, index, n_dims, lengths in (
            ("anchor", self.anchor, 1, (n,)),
            ("positive", self.positive, 2, (n,)),
            ("negative", self.negative, 2, (n, 1)),
        ):
            if index.dtype != torch.int64 or index.dim() != n_dims or len(index) not in lengths:
                shape = f"({n},)" if n_dims == 1 else f"({n}, any)"
                raise InputError(f"{name} must be int64 of shape {shape}, got {in_words(index)}")
            if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < len(self.x)):
                raise InputError(
                    f"{name} holds indices from {int(index.min())} to {int(index.max())}, but the pool has "
                    f"{len(self.x)} points; use 0 to {len(self.x) - 1}"
                )
        weight, pair_shape = self.negative_weight, (n, self.negative.shape[1])
        if weight is not None and (weight.shape != pair_shape or weight.dtype != self.x.dtype):
            raise InputError(
                f"negative_weight must be {self.x.dtype} of shape {pair_shape}, one weight per pair, got "
                f"{in_words(weight)}"
            )

    @property
    def n_anchors(self) -> int:
        """The number n of anchors."""
        return len(self.anchor)

    @property
    def n_positives(self) -> int:
        """The number P of positives per anchor."""
        return self.positive.shape[1]

    @property
    def n_negatives(self) -> int:
        """The number Q of negatives per anchor."""
        return self.negative.shape[1]

    @property
    def rows(self) -> Tensor:
        """The pool as rows (m, d)."""
        return self.x.flatten(1)

    def split(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values (m, z) over the pool, handed out: anchors (n, z), positives (n, P, z), negatives (n or 1, Q, z)."""
        if len(values) != len(self.x):
            raise InputError(
                f"got {len(values)} values for a pool of {len(self.x)} points; pass the outputs over all of pairs.x"
            )
        # Indexing, not index_select: its backward sums in a fixed order on a GPU too, so a seed gives one run.
        return values[self.anchor], values[self.positive], values[self.negative]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | str | None = None) -> Pairs:
        """The same pairs on another device, or in another number type, or both."""
        where = self.x.device if device is None else resolve_device(device)
        x = self.x.to(device=where, dtype=self.x.dtype if dtype is None else resolve_dtype(dtype))
        weight = None if self.negative_weight is None else self.negative_weight.to(x.device, x.dtype)
        anchor, positive, negative = (index.to(x.device) for index in (self.anchor, self.positive, self.negative))
        return replace(self, x=x, anchor=anchor, positive=positive, negative=negative, negative_weight=weight)

    def subset(self, anchors: Tensor) -> Pairs:
        """The pairs of some anchors, by their positions, over a pool of only the points these need: a mini-batch."""
        anchors = anchors.to(self.anchor.device)
        shared = len(self.negative) == 1 and len(self.anchor) > 1
        parts = (self.anchor[anchors], self.positive[anchors], self.negative if shared else self.negative[anchors])
        used, places = torch.unique(torch.cat([part.reshape(-1) for part in parts]), return_inverse=True)
        anchor, positive, negative = (
            place.view_as(part)
            for place, part in zip(places.split([part.numel() for part in parts]), parts, strict=True)
        )
        weight = None if self.negative_weight is None else self.negative_weight[anchors]
        return Pairs(self.x[used], anchor, positive, negative, weight)


def make_pairs(
    x: Tensor, *, views: View, n_positives: int = 1, negatives: int | Literal["all"] = 1, generator: torch.Generator
) -> Pairs:
    """Every sample of `x` as an anchor, with fresh views of it as positives and other samples as negatives.

    The pool is the n anchors, then the first positive of each, then the second of each, and so on.

    Args:
        x: Samples, (n, d) or (n, c, h, w).
        views: The augmentation that makes positives; one that was not fitted to a data set is fitted to `x`.
        n_positives: The number of views of each anchor.
        negatives: A number Q of distinct other anchors, drawn uniformly (0 for none); or "all", the expectation over
            one random negative: all anchors are shared negatives, weighted 1/(n-1), and 0 for the anchor itself.
        generator: The source of all randomness.
    """
    n = len(x)
    if n == 0:
        raise InputError("there are no samples to pair, got 0; pass at least 1")
    n_positives = require_whole("n_positives", n_positives)
    n_negatives = _count_negatives(negatives, n_others=n - 1)
    require_generator(generator)
    views = fit_view(views, [x])
    drawn = [fresh_view(views, x, generator) for _ in range(n_positives)]
    anchor = torch.arange(n, device=x.device)
    positive = anchor[:, None] + n * torch.arange(1, n_positives + 1, device=x.device)  # (n, P)
    pool = torch.cat([x, *drawn])
    if isinstance(negatives, str):
        weight = (1 - torch.eye(n, dtype=x.dtype, device=x.device)) / (n - 1)
        return Pairs(pool, anchor, positive, anchor[None, :], weight)
    return Pairs(pool, anchor, positive, draw_negatives(n, n_negatives, generator=generator).to(x.device))


def draw_negatives(n: int, n_negatives: int, *, generator: torch.Generator) -> Tensor:
    """For each of n samples `n_negatives` distinct others, drawn uniformly: their numbers, (n, n_negatives)."""
    n = require_whole("n", n)
    n_negatives = _count_negatives(require_whole("n_negatives", n_negatives, least=0), n_others=n - 1)
    require_generator(generator)
    others = _distinct(n, n_negatives, below=n - 1, generator=generator)
    return others + (others >= torch.arange(n, device=others.device)[:, None])  # 0..n-2 skips over the sample itself


def _count_negatives(negatives: int | str, *, n_others: int) -> int:
    every = isinstance(negatives, str) and negatives == "all"
    wanted = max(1, n_others) if every else require_whole("negatives", negatives, least=0, otherwise=", or 'all'")
    if wanted > n_others:
        raise InputError(
            f"asked for {wanted} negatives per anchor but only {n_others} other samples exist; "
            f"ask for at most {n_others} or add samples"
        )
    return wanted


def _distinct(n_rows: int, n_drawn: int, *, below: int, generator: torch.Generator) -> Tensor:
    """(n_rows, n_drawn) integers in 0..below-1, distinct within a row, every ordered choice equally likely."""
    device = generator.device
    if 8 * n_drawn > below:  # sorting keys needs n_rows·below memory, here at most 8 times the result
        keys = torch.rand(n_rows, below, generator=generator, device=device, dtype=torch.float64)
        return keys.argsort(dim=1)[:, :n_drawn]
    # Floyd's algorithm, all rows at once: draw t in 0..top; where t is taken, top itself is free and takes its place.
    # It costs n_rows·n_drawn²/2 comparisons and no memory beyond the result.
    chosen = torch.empty(n_rows, n_drawn, dtype=torch.int64, device=device)
    for k, top in enumerate(range(below - n_drawn, below)):
        drawn = torch.randint(0, top + 1, (n_rows,), generator=generator, device=device)
        taken = (chosen[:, :k] == drawn[:, None]).any(dim=1)
        chosen[:, k] = torch.where(taken, top, drawn)
    # Floyd's sets are uniform but their order is not (large numbers come late), so each row is shuffled.
    order = torch.rand(n_rows, n_drawn, generator=generator, device=device).argsort(dim=1)
    return chosen.gather(1, order)
