"""How close views of one sample are, and how evenly all are spread: always on rows of unit length."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kontrast.checks import require_positive, require_same_shape
from kontrast.diagnosis.metrics.rows import as_rows, as_two_views, gram_strips, unit_rows
from kontrast.errors import InputError


class Alignment:
    """Mean squared distance of the two views of a sample, rows brought to unit length (Wang & Isola 2020, α = 2).

    0 where views agree, 2 where they are at right angles, at most 4. A row of zeros is at distance 1 of any other.
    Batches are exact in any order and size.
    """

    def __init__(self) -> None:
        self.n = 0
        self._total = 0.0

    def update(self, a: Tensor, b: Tensor) -> None:
        """Add a batch of both views (b, d); row i of each is one sample."""
        first, second = as_two_views(a, b)
        self._total += float((unit_rows(first) - unit_rows(second)).square().sum())
        self.n += len(first)

    def merge(self, other: Alignment) -> None:
        """Add all pairs that another has seen."""
        self._total += other._total
        self.n += other.n

    def compute(self) -> dict[str, float]:
        """`{"alignment": number}`; NaN before the first pair."""
        return {"alignment": self._total / self.n if self.n else math.nan}

    @property
    def missing(self) -> dict[str, str]:
        """Why it is missing, where it is."""
        return {} if self.n else {"alignment": "needs 1 pair of views, got 0"}


class Uniformity:
    r"""$\log \operatorname{mean}_{i<j} e^{-t \|u_i - u_j\|^2}$ over rows of unit length (Wang & Isola 2020, t = 2).

    0 where all rows are equal, about −2t where they are spread evenly on a sphere of many dimensions. Of several
    views it is the mean over views, as in the authors' code. Pairs are formed **within a batch**, as in training:
    batches may come in any order and be merged, but other batches have other pairs.
    """

    def __init__(self, *, t: float = 2.0) -> None:
        require_positive(t=t)
        self.t = t
        self.n_pairs = 0  # of each view
        self._log_totals: list[Tensor] = []  # log Σ e^(−t distance²), one for each view

    def update(self, *views: Tensor) -> None:
        """Add a batch: one tensor (b, d), or one for each view."""
        if not views:
            raise InputError("views must hold at least one tensor (n, d), got none; pass the embeddings")
        rows = [as_rows(f"views[{index}]", view) for index, view in enumerate(views)]
        require_same_shape("pass as many rows of every view", **{f"views[{i}]": view for i, view in enumerate(rows)})
        if self._log_totals and len(rows) != len(self._log_totals):
            raise InputError(f"batches had {len(self._log_totals)} views so far, got {len(rows)}; pass as many")
        self._join([self._log_total(view) for view in rows], math.comb(len(rows[0]), 2))

    def merge(self, other: Uniformity) -> None:
        """Add all pairs that another has seen."""
        if other.t != self.t:
            raise InputError(f"t must be {self.t} in both, got {other.t}; start both with the same t")
        self._join(other._log_totals, other.n_pairs)

    def compute(self) -> dict[str, float]:
        """`{"uniformity": number}`; NaN before the first pair."""
        if self.missing:
            return {"uniformity": math.nan}
        return {"uniformity": float(torch.stack(self._log_totals).mean()) - math.log(self.n_pairs)}

    @property
    def missing(self) -> dict[str, str]:
        """Why it is missing, where it is."""
        return {} if self.n_pairs else {"uniformity": "needs 2 samples in a batch, got no batch with 2"}

    def _log_total(self, rows: Tensor) -> Tensor:
        unit = unit_rows(rows)
        squares = unit.square().sum(1)
        parts = []
        for start, gram in gram_strips(unit):
            distances = (squares[start : start + len(gram), None] + squares - 2 * gram).clamp(min=0)
            later = torch.ones_like(distances, dtype=torch.bool).triu(start + 1)
            parts.append((-self.t * distances).masked_fill(~later, -math.inf).logsumexp((0, 1)))
        return torch.stack(parts).logsumexp(0).cpu()

    def _join(self, log_totals: Sequence[Tensor], n_pairs: int) -> None:
        if not n_pairs:
            return
        if self._log_totals and len(log_totals) != len(self._log_totals):
            raise InputError(f"batches had {len(self._log_totals)} views so far, got {len(log_totals)}; pass as many")
        mine = self._log_totals or [torch.tensor(-math.inf, dtype=torch.float64)] * len(log_totals)
        self._log_totals = [torch.logaddexp(a, b) for a, b in zip(mine, log_totals, strict=True)]
        self.n_pairs += n_pairs


def alignment(a: Tensor, b: Tensor) -> float:
    """Mean squared distance of the views `a` and `b` (n, d), rows brought to unit length (Wang & Isola 2020)."""
    pairs = Alignment()
    pairs.update(a, b)
    return pairs.compute()["alignment"]


def uniformity(z: Tensor | Sequence[Tensor], *, t: float = 2.0) -> float:
    """Uniformity of embeddings (n, d), or its mean over views, rows brought to unit length; see `Uniformity`.

    NaN for one sample, which has no pairs.
    """
    pairs = Uniformity(t=t)
    pairs.update(*([z] if isinstance(z, Tensor) else z))
    return pairs.compute()["uniformity"]
