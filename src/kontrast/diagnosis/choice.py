"""Which checkpoint? The best by what needs no labels, and, where there are labels, how good that choice was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import xarray as xr
from scipy import stats

# The first is the choice: of the four without training it came closest to what labels chose, in the worked example of
# docs/diagnose.md and in its notebook, where the three ranks took an early checkpoint.
CRITERIA: Mapping[str, str] = {
    "neighbor_agreement": "largest agreement of neighbours between views",
    "lidar": "largest LiDAR",
    "rankme": "largest RankMe",
    "alpha_req": "α-ReQ nearest to 1",
    "last": "the last one",
}


@dataclass(frozen=True)
class Criterion:
    """A checkpoint chosen without labels, and what labels say of the choice."""

    name: str
    words: str
    checkpoint: str
    accuracy: float  # NaN without labels
    regret: float  # how much less than the best checkpoint's accuracy
    correlation: float  # Spearman's, of the criterion with the accuracy over checkpoints


@dataclass(frozen=True)
class Choice:
    """The checkpoint to take."""

    chosen: Criterion
    others: tuple[Criterion, ...]
    best: str | None  # by labels
    best_accuracy: float


def choose(result: xr.Dataset, layer: str) -> Choice | None:
    """The choice among two or more trained checkpoints; None where there are fewer. The start cannot be chosen."""
    result = result.isel(checkpoint=slice(1, None)) if "checkpoint" in result.dims else result
    labels = [str(label) for label in result.checkpoint.values] if "checkpoint" in result.dims else []
    if len(labels) < 2:
        return None
    accuracy = (
        result.checkpoint_accuracy.mean("checkpoint_split").values
        if "checkpoint_accuracy" in result
        else np.full(len(labels), math.nan)
    )
    made = []
    for name, words in CRITERIA.items():
        values = _values(result, name, layer, len(labels))
        if values is None or not np.isfinite(values).any():
            continue
        at = int(np.flatnonzero(values == np.nanmax(values))[-1])  # of equal ones the last
        made.append(Criterion(name, words, labels[at], *_judged(values, accuracy, at)))
    known = np.isfinite(accuracy).any()
    best = labels[int(np.nanargmax(accuracy))] if known else None
    return Choice(made[0], tuple(made[1:]), best, float(np.nanmax(accuracy)) if known else math.nan)


def _values(result: xr.Dataset, name: str, layer: str, n: int) -> np.ndarray | None:
    """What a criterion makes largest, at every checkpoint."""
    if name == "last":
        return np.arange(n, dtype=float)
    if name not in result:
        return None
    found = result[name].sel(bound="value")
    values = np.asarray((found.sel(layer=layer) if "layer" in found.dims else found).values, dtype=float)
    return -np.abs(values - 1) if name == "alpha_req" else values


def _judged(values: np.ndarray, accuracy: np.ndarray, at: int) -> tuple[float, float, float]:
    if not np.isfinite(accuracy).any():
        return math.nan, math.nan, math.nan
    both = np.isfinite(values) & np.isfinite(accuracy)
    varied = both.sum() > 3 and np.ptp(values[both]) > 0 and np.ptp(accuracy[both]) > 0
    rank = float(stats.spearmanr(values[both], accuracy[both]).statistic) if varied else math.nan
    return float(accuracy[at]), float(np.nanmax(accuracy) - accuracy[at]), rank
