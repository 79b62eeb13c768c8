"""What a cell of the map is: kernel, PCA, learning, undertrained, collapsed or diverged, by rules in order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy import stats

from kontrast.dynamics import SETTLED_SHARE, Ending
from kontrast.study.thresholds import Thresholds

CONFIDENCE = 0.95
LINE = 1.5  # an effective rank below this is one direction


class Regime(Enum):
    """What training did in a cell; the value says it in words."""

    DIVERGED = "it diverges"
    COLLAPSED = "its embedding collapses"
    UNDERTRAINED = "it is not trained to the end"
    KERNEL = "it is a kernel machine"
    PCA = "it is PCA of the features at its start"
    LEARNING = "it learns features"

    @property
    def word(self) -> str:
        """Its name in tables and legends."""
        return "PCA of its start" if self is Regime.PCA else self.name.lower()


@dataclass(frozen=True)
class Estimate:
    """A mean over the seeds with Student's 95 % interval; the interval is infinite for one seed."""

    mean: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float] | np.ndarray) -> Estimate:
        """The estimate from one value per seed; NaN where one of them is."""
        values = np.asarray(values, dtype=float)
        mean, n = float(values.mean()), len(values)
        if n < 2 or not math.isfinite(mean):
            return cls(
                mean, -math.inf if math.isfinite(mean) else math.nan, math.inf if math.isfinite(mean) else math.nan
            )
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * float(values.std(ddof=1)) / math.sqrt(n)
        return cls(mean, mean - half, mean + half)

    @property
    def error(self) -> float:
        """Half the interval."""
        return (self.high - self.low) / 2

    def above(self, value: float) -> bool:
        """Whether it surely lies above a value."""
        return self.low > value

    def below(self, value: float) -> bool:
        """Whether it surely lies below a value."""
        return self.high < value

    def in_points(self) -> str:
        """A difference of accuracies in points, with its sign and error."""
        if not math.isfinite(self.error):
            return f"{100 * self.mean:+.1f} points (one seed)"
        return f"{100 * self.mean:+.1f} ± {100 * self.error:.1f} points"


@dataclass(frozen=True)
class MapCell:
    """One width and rate under one loss, over the seeds.

    Attributes:
        loss: the loss.
        size: its place on the map's other axis: the width, or the steps of a network without one.
        width: the width; None for a network without one.
        rate: the learning rate in units of the critical rate.
        learning_rate: the learning rate, a geometric mean over the seeds, each with a critical rate of its own.
        steps: the most steps that a seed was trained for.
        endings: how the runs ended, one per seed.
        numbers: every measured quantity.
        gains: paired differences of linear probes' test accuracies: over the start, over the kernel twin, over the best
            closed form; empty without labels.
        knn_gains: those of nearest neighbours.
        regime: the verdict.
        reason: the rule that decided, in words.
        sure: whether the interval of the number that decided lies wholly on its side.
    """

    loss: str
    size: int
    width: int | None
    rate: float
    learning_rate: float
    steps: int
    endings: tuple[Ending, ...]
    numbers: dict[str, Estimate]
    gains: dict[str, Estimate]
    knn_gains: dict[str, Estimate]
    regime: Regime = Regime.UNDERTRAINED
    reason: str = ""
    sure: bool = False

    @property
    def size_words(self) -> str:
        """Its width, or its steps, in words."""
        return f"{self.size} steps" if self.width is None else f"width {self.width}"

    @property
    def settled(self) -> bool:
        """Whether most runs have settled."""
        return sum(ending is Ending.SETTLED for ending in self.endings) > len(self.endings) / 2

    def moved(self, thresholds: Thresholds) -> int:
        """Whether the probe is better than its start, 1, worse, −1, or neither, 0; 1 without labels, which cannot tell.

        It has moved by more than the probe margin, or by less but surely.
        """
        gain = self.gains.get("start")
        if gain is None:
            return 1
        if abs(gain.mean) > thresholds.probe_margin:
            return int(np.sign(gain.mean))
        return 1 if gain.above(0) else -1 if gain.below(0) else 0


@dataclass(frozen=True)
class RegimeRule:
    """One rule: its regime, when it holds in words, the condition itself, and when it is sure."""

    regime: Regime
    condition: str
    holds: Callable[[MapCell, Thresholds], bool]
    sure: Callable[[MapCell, Thresholds], bool]

    def reason(self, thresholds: Thresholds) -> str:
        """The condition, with the thresholds filled in."""
        return self.condition.format(**dataclasses.asdict(thresholds))


def _number(cell: MapCell, name: str) -> float:
    return cell.numbers[name].mean


def _has_fallen(cell: MapCell, name: str, level: float) -> bool:
    """Whether a measure of collapse is below its level and half of its start's; outputs all alike have no rank."""
    now, start = _number(cell, f"map_{name}"), _number(cell, f"map_first_{name}")
    return not now >= level and not now >= start / 2


RULES = (
    RegimeRule(
        Regime.DIVERGED,
        "a run overflowed, or ran away under a loss without a lower bound",
        lambda cell, _: Ending.DIVERGED in cell.endings,
        lambda cell, _: all(ending is Ending.DIVERGED for ending in cell.endings),
    ),
    RegimeRule(
        Regime.COLLAPSED,
        f"the effective rank has fallen below {LINE:g}, or the share of the squared norm that is not the mean below a "
        "tolerance of {tolerance}, to less than half of the start's",
        lambda cell, thresholds: _has_fallen(cell, "rank", LINE) or _has_fallen(cell, "spread", thresholds.tolerance),
        lambda cell, thresholds: (
            cell.numbers["map_rank"].below(LINE) or cell.numbers["map_spread"].below(thresholds.tolerance)
        ),
    ),
    RegimeRule(
        Regime.UNDERTRAINED,
        f"the loss still falls: the last half of the steps added more than {SETTLED_SHARE:g} of its whole fall",
        lambda cell, _: not cell.settled,
        lambda cell, _: all(ending is Ending.STEP_LIMIT for ending in cell.endings),
    ),
    RegimeRule(
        Regime.UNDERTRAINED,
        "the linear probe has not moved from its start: the difference is at most a probe margin of {probe_margin}, "
        "and its interval holds 0",
        lambda cell, thresholds: cell.moved(thresholds) == 0,
        lambda cell, thresholds: (
            cell.gains["start"].above(-thresholds.probe_margin) and cell.gains["start"].below(thresholds.probe_margin)
        ),
    ),
    RegimeRule(
        Regime.KERNEL,
        "the kernel gap is at most a gap tolerance of {gap_tolerance}",
        lambda cell, thresholds: _number(cell, "map_gap") <= thresholds.gap_tolerance,
        lambda cell, thresholds: cell.numbers["map_gap"].high <= thresholds.gap_tolerance,
    ),
    RegimeRule(
        Regime.PCA,
        "the sine to PCA of the first features is at most a PCA tolerance of {pca_tolerance}",
        lambda cell, thresholds: _number(cell, "map_pca_first") <= thresholds.pca_tolerance,
        lambda cell, thresholds: cell.numbers["map_pca_first"].high <= thresholds.pca_tolerance,
    ),
    RegimeRule(
        Regime.LEARNING,
        "the loss has settled, the linear probe beats its start, and neither a fixed kernel (gap tolerance "
        "{gap_tolerance}) nor PCA of the first features (PCA tolerance {pca_tolerance}) predicts the run: features "
        "move",
        lambda cell, thresholds: cell.moved(thresholds) > 0,
        lambda cell, _: bool(cell.gains) and cell.gains["start"].above(0) and cell.gains["kernel"].above(0),
    ),
    RegimeRule(
        Regime.COLLAPSED,
        "the loss has settled, and the linear probe has fallen below its start: training has lost what the start had",
        lambda cell, _: True,
        lambda cell, _: cell.gains["start"].below(0),
    ),
)


def decided(cell: MapCell, thresholds: Thresholds) -> MapCell:
    """The same cell with the regime of the first rule that holds; the last always does."""
    rule = next(rule for rule in RULES if rule.holds(cell, thresholds))
    return dataclasses.replace(
        cell, regime=rule.regime, reason=rule.reason(thresholds), sure=rule.sure(cell, thresholds)
    )
