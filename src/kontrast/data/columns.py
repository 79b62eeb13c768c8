"""Columns of a data set: their mean and deviation, by which they are standardised and noise is measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.errors import InputError

ROUNDING = 1e-12  # a deviation below this share of a column's largest value is what rounding leaves of a constant
AT_ONCE = 4096  # samples whose float64 copies are held


@dataclass(frozen=True, eq=False)
class Columns:
    """The mean and deviation of every value of a sample over a data set, in float64, each of the shape of a sample.

    The deviation of a column that is constant, up to rounding, is 0.
    """

    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, batches: Iterable[Tensor]) -> Columns:
        """The columns of all samples (n, …), in one pass over batches of them."""
        n, zero = 0, torch.zeros((), dtype=torch.float64)
        mean, squares, largest = zero, zero, zero
        for batch in batches:
            x, m = batch.double(), len(batch)
            at, step = x.mean(0), x.mean(0) - mean
            # Chan's update: squares about the mean of all so far, which sums of x² would lose to rounding.
            squares = squares + (x - at).square().sum(0) + step.square() * (n * m / (n + m))
            mean, largest, n = mean + step * (m / (n + m)), largest.maximum(x.abs().amax(0)), n + m
        deviation = (squares / n).sqrt()
        if not bool(torch.isfinite(deviation).all()):
            raise InputError(
                f"the samples have values up to {float(largest.max()):.3g}, too large to square; scale them"
            )
        return cls(mean, torch.where(deviation > ROUNDING * largest, deviation, 0.0))

    @property
    def scale(self) -> Tensor:
        """What standardised columns are divided by: their deviation, and 1 for a constant column."""
        return torch.where(self.deviation > 0, self.deviation, 1.0)

    def standardize(self, x: Tensor) -> Tensor:
        """Samples with columns of mean 0 and deviation 1, in their own number type; a constant column is only centred.

        Computed in float64: beside a large mean, float32 would leave little of a small deviation.
        """
        out = torch.empty_like(x)
        shape = x.shape[1:]  # rows of images count as images
        mean, scale = (part.to(x.device).reshape(shape) for part in (self.mean, self.scale))
        for start in range(0, len(x), AT_ONCE):
            out[start : start + AT_ONCE] = (x[start : start + AT_ONCE].double() - mean) / scale
        return out
