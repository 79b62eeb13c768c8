"""The scatter of rows that arrive in batches, as a triangular factor: singular values without squaring anything."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kontrast.errors import InputError


class Scatter:
    r"""Number, mean and scatter $\sum_i (x_i - \bar x)(x_i - \bar x)^\top = R^\top R$ of rows; only `R` is kept.

    A covariance matrix loses every singular value below 1e-8 of the largest; `R` keeps them to rounding. Rows of two
    groups are centred each on its own mean, and one more row joins them, the gap of the means times
    $\sqrt{n_a n_b / (n_a + n_b)}$ (Chan, Golub & LeVeque 1983): the order and the size of batches change rounding
    only. Memory: at most 2 d rows and the batch itself.
    """

    def __init__(self) -> None:
        self.n = 0
        self._mean: Tensor | None = None
        self._blocks: list[Tensor] = []  # the triangular factor first, then rows that wait until d of them are there
        self._n_rows = 0

    @property
    def d(self) -> int:
        """How many dimensions rows have; 0 before the first."""
        return 0 if self._mean is None else len(self._mean)

    @property
    def mean(self) -> Tensor:
        """The mean row (d,)."""
        if self._mean is None:
            raise InputError("there are no rows yet; call update with a batch first")
        return self._mean

    def update(self, rows: Tensor) -> None:
        """Add a batch (b, d) of float64 rows."""
        self.require_width(rows.shape[1])
        shifted = rows - rows[0]  # exactly zero where all rows are equal
        center = shifted.mean(0)
        self._join(shifted - center if len(rows) > 1 else shifted[:0], rows[0] + center, len(rows))

    def merge(self, other: Scatter) -> None:
        """Add all rows of another, which stays as it is."""
        if other.n:
            self.require_width(other.d)
            self._join(other.factor(), other.mean, other.n)

    def require_width(self, d: int) -> None:
        """Refuse rows of another width than those before."""
        if self.n and d != self.d:
            raise InputError(f"embeddings had {self.d} dimensions so far, got {d}; start a new accumulator")

    def factor(self) -> Tensor:
        """A matrix R (rows, d) with RᵀR the scatter."""
        if not self._blocks:
            return self.mean.new_zeros(0, self.d)
        if len(self._blocks) > 1:
            self._blocks = [torch.cat(self._blocks)]
        if self._n_rows > self.d:
            self._blocks = [torch.linalg.qr(self._blocks[0], mode="r").R]
            self._n_rows = len(self._blocks[0])
        return self._blocks[0]

    def singular_values(self, *, centered: bool) -> Tensor:
        """The min(n, d) singular values of all rows, largest first, with or without their mean."""
        R = self.factor()
        if not centered:
            R = torch.cat([R, math.sqrt(self.n) * self.mean[None]])
        return sized(torch.linalg.svdvals(R), min(self.n, self.d))

    def _join(self, centered: Tensor, mean: Tensor, n: int) -> None:
        """Add rows that are centred on their own mean."""
        if self._mean is None:
            self._mean = mean.clone()
        else:
            gap = mean.to(self._mean.device) - self._mean
            self._wait(math.sqrt(self.n * n / (self.n + n)) * gap[None])
            self._mean = self._mean + gap * (n / (self.n + n))
        self.n += n
        self._wait(centered.to(self._mean.device))
        if self._n_rows >= 2 * self.d:
            self.factor()

    def _wait(self, rows: Tensor) -> None:
        if len(rows):
            self._blocks.append(rows)
            self._n_rows += len(rows)


def sized(values: Tensor, size: int) -> Tensor:
    """The first `size` values of the last axis, with zeros after the last."""
    kept = values[..., :size]
    return torch.nn.functional.pad(kept, (0, size - kept.shape[-1]))
