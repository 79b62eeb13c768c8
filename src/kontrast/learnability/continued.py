r"""Two lines that continue what subsets of the labels show to larger numbers of labels.

From a continuous domain the error with n labels is $E(n) = E_0 B(κ)$, where $B(κ) = \sum_i (κ/(λ_i + κ))^2 v_i^2 + σ^2$
depends on n through κ alone (`kontrast.learnability.eigenlearning`). A set of n labelled samples measures all three: E
by leave-one-out, κ and E_0 by the inverse that this takes (`kontrast.learnability.left_out`). The lines:

- The number of learned modes $D(κ) = \sum_i λ_i/(λ_i + κ) = n - δ/κ$ follows $D/(r - D) \propto κ^{-p}$ with the rank r
  of the kernel. As long as r is far this is a power law, that of eigenvalues that fall like $i^{-1/p}$. It gives κ from
  $D(κ) + δ/κ = n$, and $E_0 = n/(n - D_2)$ from $D_2 = D + dD/d\log κ$.
- $B \propto κ^b$ with 0 ≤ b ≤ 2, as every term of B has such a slope.

So $E(n') = E(n)\,(κ'/κ)^b\,E_0'/E_0$. This is no power law of n: the peak of the error at n = r and the floor beyond it
come from E_0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from kontrast.errors import InputError

LINE = 2  # sizes, the largest, that a line goes through: with three or four, bends are averaged and it errs more
LOWEST = 300.0  # logarithm of the factor by which κ may fall
Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Lines:
    """The lines, from their last measured point at n, and what they say of more labels."""

    n: float
    value: float  # the error at n
    last: float  # log κ at n
    ridge: float  # δ
    rank: float  # r, or infinity
    log_odds: float  # of D among r at n; log D where r is infinite
    p: float
    b: float
    weights: Array  # (s,), b as a combination of the log errors at the sizes

    def log_kappa(self, n: float) -> float:
        """From D(κ) + δ/κ = n, for n not below that of the last point."""
        log_ridge = math.log(self.ridge) if self.ridge > 0 else -math.inf

        def excess(x: float) -> float:
            return self._modes(x) + math.exp(min(log_ridge - x, 700.0)) - n

        low = self.last
        while excess(low) < 0 and self.last - low < LOWEST:
            low -= 1.0
        if excess(low) < 0:
            raise InputError(f"{n:g} labels determine all {self.rank:g} modes of the kernel; pass a ridge above 0")
        return float(brentq(excess, low, self.last + 1.0, xtol=1e-12))

    def error(self, n: float) -> tuple[float, Array]:
        """The error with n labels, and the derivatives of its logarithm by those at the sizes, (s,)."""
        there = self.log_kappa(n)
        fallen = math.exp(self.b * (there - self.last))
        slopes = (there - self.last) * self.weights
        slopes[-1] += 1
        return self.value * fallen * self._overfitting(n, there) / self._overfitting(self.n, self.last), slopes

    def _modes(self, log_kappa: float) -> float:
        """D(κ)."""
        log_odds = self.log_odds - self.p * (log_kappa - self.last)
        return self.rank / (1 + math.exp(-log_odds)) if math.isfinite(self.rank) else math.exp(log_odds)

    def _overfitting(self, n: float, log_kappa: float) -> float:
        """E_0."""
        D = self._modes(log_kappa)
        return n / (n - D * max(0.0, 1 - self.p * (1 - D / self.rank)))


def lines_through(
    sizes: Array, errors: Array, kappas: Array, overfitting: Array, *, ridge: float, rank: float
) -> Lines:
    """The lines through the two largest of s sizes, from the error, κ and E_0 at each, (s,)."""
    x = np.log(kappas)
    modes = np.maximum(sizes - ridge / kappas, 1e-12 * sizes)
    log_odds = np.log(modes) - (np.log(np.maximum(rank - modes, 1e-12)) if math.isfinite(rank) else 0.0)
    weights = np.zeros(len(x))
    line = x[-LINE:] - x[-LINE:].mean()
    weights[-LINE:] = line / (line @ line)
    steepest = 1 / max(1 - float(modes[-1]) / rank, 1e-12)  # beyond, D_2 would be negative
    return Lines(
        n=float(sizes[-1]),
        value=float(errors[-1]),
        last=float(x[-1]),
        ridge=ridge,
        rank=rank,
        log_odds=float(log_odds[-1]),
        p=min(max(-float(weights @ log_odds), 0.0), steepest),
        b=min(max(float(weights @ np.log(errors / overfitting)), 0.0), 2.0),
        weights=weights,
    )
