"""Cosine similarities of positives and negatives: their histograms, how many negatives count, who is nearest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.checks import require_positive, require_whole
from kontrast.diagnosis.metrics.rows import as_two_views, as_views, centered_rows, gram_strips, unit_rows
from kontrast.errors import InputError

N_BINS = 80


@dataclass(frozen=True, eq=False)
class SimilarityHistogram:
    """Cosine similarities of one kind of pairs.

    Attributes:
        counts: how many pairs fall into each bin, (n_bins,) whole numbers; a similarity of 1 is in the last bin.
        edges: of the bins, (n_bins + 1,) from −1 to 1.
        n: how many pairs there are.
        mean: their mean similarity; NaN without pairs.
        deviation: their standard deviation (dividing by n); NaN without pairs.
    """

    counts: Tensor
    edges: Tensor
    n: int
    mean: float
    deviation: float

    @property
    def share(self) -> Tensor:
        """The share of the pairs in each bin; NaN without pairs."""
        return self.counts.double() / self.n if self.n else torch.full_like(self.counts, math.nan, dtype=torch.float64)


class _Pairs:
    """Counts, mean and squared deviations of similarities that arrive in parts."""

    def __init__(self, n_bins: int) -> None:
        self.counts = torch.zeros(n_bins, dtype=torch.int64)
        self.n = 0
        self.mean = 0.0
        self.squares = 0.0

    def add(self, similarities: Tensor) -> None:
        if similarities.numel():
            inside = similarities.clamp(-1, 1)
            counts = torch.histc(inside, len(self.counts), -1, 1).long().cpu()
            mean = float(inside.mean())
            self.join(counts, inside.numel(), mean, float((inside - mean).square().sum()))

    def join(self, counts: Tensor, n: int, mean: float, squares: float) -> None:
        if not n:
            return
        total, gap = self.n + n, mean - self.mean
        self.squares += squares + gap**2 * self.n * n / total
        self.mean += gap * n / total
        self.counts, self.n = self.counts + counts, total

    def histogram(self) -> SimilarityHistogram:
        edges = torch.linspace(-1, 1, len(self.counts) + 1, dtype=torch.float64)
        mean, variance = (self.mean, self.squares / self.n) if self.n else (math.nan, math.nan)
        return SimilarityHistogram(self.counts.clone(), edges, self.n, mean, math.sqrt(variance))


class Similarities:
    """Histograms, means and deviations of the cosine similarities of positives and of negatives.

    Positives are the two views of a sample. Negatives are all other pairs of rows of a batch, within either view and
    across, each once: those of NT-Xent, 2n(n − 1) of them. They depend on how rows are batched, as in training.
    """

    def __init__(self, *, n_bins: int = N_BINS) -> None:
        self.n_bins = require_whole("n_bins", n_bins)
        self._positives, self._negatives = _Pairs(self.n_bins), _Pairs(self.n_bins)

    def update(self, a: Tensor, b: Tensor) -> None:
        """Add a batch of both views (b, d); row i of each is one sample."""
        first, second = (unit_rows(rows) for rows in as_two_views(a, b))
        n = len(first)
        self._positives.add((first * second).sum(1))
        for start, gram in gram_strips(torch.cat([first, second])):
            later = torch.ones_like(gram, dtype=torch.bool).triu(start + 1)
            self._negatives.add(gram[later & ~_same_sample(start, gram, n)])

    def merge(self, other: Similarities) -> None:
        """Add all pairs that another has seen."""
        if other.n_bins != self.n_bins:
            raise InputError(f"n_bins must be {self.n_bins} in both, got {other.n_bins}; start both with as many")
        for mine, theirs in ((self._positives, other._positives), (self._negatives, other._negatives)):
            mine.join(theirs.counts, theirs.n, theirs.mean, theirs.squares)

    def compute(self) -> dict[str, SimilarityHistogram]:
        """`{"positives": …, "negatives": …}`."""
        return {"positives": self._positives.histogram(), "negatives": self._negatives.histogram()}


def effective_negatives(a: Tensor, b: Tensor, temperature: float) -> float:
    """How many negatives carry the gradient of NT-Xent: from 1, the hardest alone, to 2n − 2, all alike.

    Mean over the 2n anchors of exp(entropy) of the softmax of cosine / τ over the anchor's 2n − 2 negatives, all
    other samples in both views (n, d). NaN for one sample, which has none.
    """
    require_positive(temperature=temperature)
    first, second = (unit_rows(rows) for rows in as_two_views(a, b))
    n = len(first)
    if n < 2:
        return math.nan
    total = 0.0
    for start, gram in gram_strips(torch.cat([first, second])):
        logits = (gram / temperature).masked_fill(_same_sample(start, gram, n), -math.inf)
        total += float(torch.special.entr(logits.softmax(1)).sum(1).exp().sum())
    return total / (2 * n)


def neighbor_agreement(views: Tensor | Sequence[Tensor]) -> float:
    """How often the nearest other row by cosine is another view of the same sample.

    `views` is (n, v, d), or one tensor (n, d) per view. Where several rows are equally near, as after complete
    collapse, each counts as the nearest in equal parts: rows that are all equal agree at chance, (v − 1)/(nv − 1).
    Rows of zeros are nearest to one another.
    """
    grouped = as_views(views)
    n, v, d = grouped.shape
    unit = centered_rows(unit_rows(grouped.reshape(n * v, d)))  # distances of nearly equal rows keep their digits
    squares = unit.square().sum(1)
    sample = torch.arange(n * v, device=unit.device) // v
    agreed = 0.0
    for start, gram in gram_strips(unit):
        here = slice(start, start + len(gram))
        distances = squares[here, None] + squares - 2 * gram
        itself = torch.arange(len(gram), device=unit.device)
        distances[itself, start + itself] = math.inf
        rounding = 1e-13 * (squares[here] + squares.max())
        nearest = distances <= (distances.amin(1) + rounding)[:, None]
        same = sample[here, None] == sample
        agreed += float(((nearest & same).sum(1) / nearest.sum(1)).double().sum())
    return agreed / (n * v)


def _same_sample(start: int, strip: Tensor, n: int) -> Tensor:
    """Where a strip of the (2n, 2n) matrix of both views has one sample in row and column."""
    rows = torch.arange(start, start + strip.shape[0], device=strip.device) % n
    columns = torch.arange(strip.shape[1], device=strip.device) % n
    return rows[:, None] == columns
