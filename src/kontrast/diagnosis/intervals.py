"""Intervals over samples without drawing a sample twice, and the rows in which measured numbers are listed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from kontrast.linalg import Estimate

CONFIDENCE = 0.95
GROUPS_OF_PAIRS = 10  # where each group costs another pass over all pairs of samples
LEAST_SAMPLES = 8  # with fewer, a deviation over what is left out says little


@dataclass(frozen=True)
class Row:
    """One measured number for a table: what it is called where it is stored, and what it means."""

    name: str
    value: Estimate
    words: str


def jackknifed(
    statistic: Callable[[Tensor], Mapping[str, float]], n: int, *, n_groups: int = 20, seed: int = 0
) -> dict[str, Estimate]:
    r"""Numbers of n samples with 95 % intervals: `statistic(rows)` is given the indices of the samples to use.

    Delete-a-group jackknife: the samples fall at random into G groups, each is left out once, and the interval is
    $θ ± t_{G-1} \sqrt{\frac{G-1}{G} \sum_g (θ_{(g)} - \bar θ)^2}$. A bootstrap draws samples twice, and a sample that
    is its own neighbour, or its own negative, biases everything that compares samples. NaN bounds below 8 samples and
    wherever a number is not finite.
    """
    values = statistic(torch.arange(n))
    groups = min(n_groups, n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    kept = [order[torch.arange(n) % groups != group].sort().values for group in range(groups)]
    left_out = [statistic(rows) for rows in kept] if n >= LEAST_SAMPLES else []
    return {name: _with_interval(value, [it[name] for it in left_out]) for name, value in values.items()}


def _with_interval(value: float, left_out: list[float]) -> Estimate:
    groups = len(left_out)
    if groups < 2 or not all(map(math.isfinite, [value, *left_out])):
        return Estimate(value, math.nan, math.nan)
    mean = sum(left_out) / groups
    error = math.sqrt((groups - 1) / groups * sum((it - mean) ** 2 for it in left_out))
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, groups - 1)) * error
    return Estimate(value, value - half, value + half)
