"""From numbers to words: the regime, by the first rule that holds; whether training pays; what to try next."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import xarray as xr

from kontrast.diagnosis.buys import Gain, gains, main_task, rivals
from kontrast.diagnosis.collapse_rules import Collapse, collapse_of
from kontrast.diagnosis.pca_of_start import SINE
from kontrast.diagnosis.quantities import estimate_in
from kontrast.diagnosis.settings import Limits
from kontrast.linalg import Estimate

Pays = Literal["yes", "no", "unsure"]


class Regime(Enum):
    """What training did; the value says it in words."""

    UNDERTRAINED = "it is undertrained"
    PCA = "it is PCA of the features at its start"
    KERNEL = "it is a kernel machine"
    LEARNING = "it learns features"
    UNKNOWN = "what training did cannot be told"

    @property
    def word(self) -> str:
        """Its name in Python and JSON."""
        return self.name.lower()


@dataclass(frozen=True)
class Numbers:
    """What the regime is read from, at the end of training."""

    movement: Estimate
    slope_left: Estimate
    gap: Estimate
    sine: Estimate
    loss_given: bool

    @classmethod
    def of(cls, result: xr.Dataset) -> Numbers:
        """The numbers of a result."""
        end = str(result.point.values[-1]) if "point" in result.dims and result.sizes["point"] else ""
        return cls(
            movement=estimate_in(result, "movement", point=end),
            slope_left=estimate_in(result, "slope_left", point=end),
            gap=estimate_in(result, "linearization_error", point=end),
            sine=estimate_in(result, SINE.name),
            loss_given=bool(result.attrs.get("loss_given", 0)),
        )


@dataclass(frozen=True)
class RegimeRule:
    """One rule: its regime, when it holds in words and as a condition, and when it is sure."""

    regime: Regime
    condition: str
    holds: Callable[[Numbers, Limits], bool]
    sure: Callable[[Numbers, Limits], bool]

    def reason(self, limits: Limits) -> str:
        """The condition, with the limits filled in."""
        return self.condition.format(**dataclasses.asdict(limits))


RULES = (
    RegimeRule(
        Regime.UNKNOWN,
        "there are no two checkpoints to compare",
        lambda it, _: math.isnan(it.movement.value),
        lambda it, _: True,
    ),
    RegimeRule(
        Regime.UNDERTRAINED,
        "the embedding has moved by less than {moved:g} of its own size",
        lambda it, limits: it.movement.value < limits.moved,
        lambda it, limits: it.movement.value < limits.moved / 2,
    ),
    RegimeRule(
        Regime.PCA,
        "the root mean square sine to contrastive PCA of the features at the start is at most {pca:g}",
        lambda it, limits: it.sine.value <= limits.pca,
        lambda it, limits: it.sine.value <= limits.pca / 2,
    ),
    RegimeRule(
        Regime.UNDERTRAINED,
        "the loss still falls: straight on along its path, at more than {slope:g} of its mean rate so far",
        lambda it, limits: it.slope_left.value > limits.slope,
        lambda it, limits: it.loss_given and it.slope_left.value > 1.5 * limits.slope,
    ),
    RegimeRule(
        Regime.KERNEL,
        "the prediction of the model linearised at its start is off by at most {gap:g} of the embedding's change",
        lambda it, limits: it.gap.value <= limits.gap,
        lambda it, limits: it.gap.high <= limits.gap,
    ),
    RegimeRule(
        Regime.LEARNING,
        "the embedding has moved, and neither the model linearised at its start (off by more than {gap:g}) nor PCA of "
        "the features at its start (sine above {pca:g}) predicts it",
        lambda it, _: True,
        lambda it, limits: it.gap.low > limits.gap,
    ),
)


@dataclass(frozen=True)
class Decided:
    """The regime, the rule that decided, and whether its number lies clearly on its side."""

    regime: Regime
    reason: str
    sure: bool


def regime_of(numbers: Numbers, limits: Limits) -> Decided:
    """The regime by the first rule that holds; the last always does."""
    rule = next(rule for rule in RULES if rule.holds(numbers, limits))
    return Decided(rule.regime, rule.reason(limits), rule.sure(numbers, limits))


def collapse_in(result: xr.Dataset, layer: str) -> Collapse:
    """Whether a layer has collapsed at the last checkpoint."""
    names = [name for name in ("spread", "centered_rank", "participation_ratio") if name in result]
    if not names or "checkpoint" not in result.dims:
        return "none"
    start, end = str(result.checkpoint.values[0]), str(result.checkpoint.values[-1])
    now, first = (
        {name: estimate_in(result, name, checkpoint=at, layer=layer).value for name in names} for at in (end, start)
    )
    return collapse_of(now, first, n=int(result.attrs["n_samples"]), d=int(result.layer_dimension.sel(layer=layer)))


def worst_collapse(result: xr.Dataset) -> tuple[Collapse, str]:
    """The worst collapse of the features and of the embedding, and where."""
    layers = [str(layer) for layer in result.layer.values] if "layer" in result.dims else []
    watched = [layer for layer in layers if layer in (result.attrs.get("features"), "embedding")]
    found = [(collapse_in(result, layer), layer) for layer in watched]
    for word in ("complete", "dimensional"):
        for collapse, layer in found:
            if collapse == word:
                return collapse, layer
    return "none", ""


def pays(result: xr.Dataset, limits: Limits) -> tuple[Pays, Gain | None]:
    """Whether training pays, and the comparison that decides: that with the twin that is hardest to beat.

    With labels "yes" where every gain is surely above 0 and above the margin, "no" where one is surely at most the
    margin, "unsure" between: too few labels are no verdict.
    Without labels the tasks only tell whether training has lost to its start: "no" there, else "unsure".
    """
    task = main_task(result)
    found = gains(result, task)
    against = rivals(found)
    if not against:
        return "unsure", None
    if task not in ("linear", "knn"):
        lost = "start" in found and all(
            it.difference.high < 0 for name in result.task.values if (it := gains(result, str(name)).get("start"))
        )
        return ("no" if lost else "unsure"), found.get("start")
    surest, hardest = (min(against, key=key) for key in (lambda it: it.difference.high, lambda it: it.difference.value))
    if surest.difference.high <= limits.margin:
        return "no", surest
    if hardest.difference.value > limits.margin and all(it.difference.low > 0 for it in against):
        return "yes", hardest
    return "unsure", min(against, key=lambda it: it.difference.low)
