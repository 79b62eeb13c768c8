"""Are temperature or augmentation to blame? Pairs of views, the loss between its two marks, and how far views move."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kontrast import losses
from kontrast.checks import require_callable, require_finite, require_generator, require_positive, require_whole
from kontrast.data import View
from kontrast.diagnosis.augmentations import (
    OFF,
    Augmentation,
    Embed,
    augmentations,
    embedded,
    relative_distance,
    told_by,
)
from kontrast.diagnosis.intervals import GROUPS_OF_PAIRS, Row, jackknifed
from kontrast.diagnosis.metrics import (
    Similarities,
    SimilarityHistogram,
    alignment,
    effective_negatives,
    neighbor_agreement,
    uniformity,
)
from kontrast.diagnosis.quantities import MISSING
from kontrast.diagnosis.temperatures import TemperatureReading, read_temperature, temperature_of
from kontrast.linalg import Estimate

Loss = Callable[[Tensor, Tensor], Any]

DEFAULT_TEMPERATURE = 0.5  # NT-Xent's own
ALMOST = 0.05  # of the way between the marks; at chance if 0 is in the interval too
# What a loss of a user's may raise on a batch it was not written for: of another size, dtype or device.
OF_THE_LOSS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, eq=False)
class PairStatistics:
    """Two views of a batch: how close views of one sample are, how far those of different ones, on unit-length rows.

    Attributes:
        alignment: mean squared distance of the two views of a sample.
        uniformity: log mean of exp(−2 · squared distance) over pairs of samples.
        neighbor_agreement: how often the nearest other row is the other view of the sample.
        effective_negatives: exp(entropy) of the softmax weights of NT-Xent's 2n − 2 negatives.
        positive_similarity: mean cosine of positives.
        negative_similarity: mean cosine of negatives.
        positives: histogram of the cosines of positives.
        negatives: of negatives.
        temperature: of the effective number of negatives.
    """

    alignment: Estimate
    uniformity: Estimate
    neighbor_agreement: Estimate
    effective_negatives: Estimate
    positive_similarity: Estimate
    negative_similarity: Estimate
    positives: SimilarityHistogram
    negatives: SimilarityHistogram
    temperature: float

    def rows(self) -> list[Row]:
        """Every number, as stored."""
        words = {
            "alignment": "mean squared distance of two views of a sample, unit-length rows",
            "uniformity": "log mean of exp(−2 · squared distance) between samples, unit-length rows",
            "neighbor_agreement": "share of rows whose nearest other row is the other view of the sample",
            "effective_negatives": f"effective number of negatives of NT-Xent at the temperature {self.temperature:g}",
            "positive_similarity": "mean cosine of positives",
            "negative_similarity": "mean cosine of negatives",
        }
        return [Row(name, getattr(self, name), text) for name, text in words.items()]


@dataclass(frozen=True)
class LossMarks:
    """The loss of a batch between what chance gives and what equal views give, for this very batch and temperature.

    Attributes:
        loss: of the two views.
        loss_at_chance: mean with the second view shuffled so that no pair stays.
        loss_of_equal_views: of the first view with itself.
        loss_share: (chance − loss) / (chance − equal views): 0 at chance, 1 where views could as well be equal.
        missing: why a number is missing; empty where none is.
    """

    loss: Estimate = MISSING
    loss_at_chance: Estimate = MISSING
    loss_of_equal_views: Estimate = MISSING
    loss_share: Estimate = MISSING
    missing: str = ""

    @property
    def sentence(self) -> str:
        """What stands out; empty where nothing does."""
        share = self.loss_share
        if math.isnan(share.value):
            return ""
        if share.value < ALMOST and not share.low > 0:
            return (
                f"the loss {self.loss} is at chance, {self.loss_at_chance}: it does not tell pairs from other samples"
            )
        return ""

    def rows(self) -> list[Row]:
        """Every number, as stored."""
        words = (
            "the loss",
            "the loss with shuffled pairs",
            "the loss of equal views",
            "the loss: 0 chance, 1 equal views",
        )
        names = [field.name for field in fields(self)][:4]
        return [Row(name, getattr(self, name), text) for name, text in zip(names, words, strict=True)]


@dataclass(frozen=True)
class ViewDistance:
    """How far the two views of a sample are apart, 0 equal and 1 as two samples, in squared distances.

    Attributes:
        input: of the samples as the model takes them.
        embedding: of their embeddings.
    """

    input: Estimate
    embedding: Estimate

    @property
    def off(self) -> bool:
        """Whether the augmentation does as good as nothing."""
        return self.input.value < OFF

    @property
    def sentence(self) -> str:
        """The verdict with its number; empty where there is nothing to blame."""
        if not self.off:
            return ""
        if self.input.value == 0:
            return "the augmentation is off: both views of a sample are equal"
        return (
            f"the augmentation is nearly off: views differ by {self.input.value:.2g} of the squared distance of samples"
        )

    def rows(self) -> list[Row]:
        """Both numbers, as stored."""
        return [
            Row("view_distance", self.input, "squared distance of two views of a sample over that of two samples"),
            Row("view_distance_embedding", self.embedding, "the same between embeddings"),
        ]


@dataclass(frozen=True, eq=False)
class Blame:
    """All of it, at one checkpoint; `augmentations` is empty without a view that can be taken apart."""

    pairs: PairStatistics
    loss: LossMarks
    temperature: TemperatureReading
    distance: ViewDistance
    augmentations: tuple[Augmentation, ...]

    def rows(self) -> list[Row]:
        """Every number, as stored."""
        rows = [*self.pairs.rows(), *self.loss.rows(), *self.temperature.rows(), *self.distance.rows()]
        return rows + [row for part in self.augmentations for row in part.rows()]

    @property
    def to_blame(self) -> Mapping[str, str]:
        """What is to blame, each with its sentence: "augmentation", "temperature", "loss"; empty where nothing is."""
        found = {
            "augmentation": self.distance.sentence,
            "temperature": self.temperature.sentence,
            "loss": self.loss.sentence,
        }
        if self.distance.off:  # then the loss is that of equal views
            del found["loss"]
        return {what: sentence for what, sentence in found.items() if sentence}

    @property
    def sentences(self) -> list[str]:
        """What is to blame, and what the embedding ignores and leaks."""
        told = [told_by(self.augmentations)] if self.augmentations else []
        return [*self.to_blame.values(), *told]


def blame(
    embed: Embed,
    view_a: Tensor,
    view_b: Tensor,
    *,
    loss: Loss | None = None,
    temperature: float | None = None,
    view: View | None = None,
    samples: Tensor | None = None,
    references: Mapping[str, Embed] | None = None,
    generator: torch.Generator,
) -> Blame:
    """Whether batch, temperature or augmentation are to blame, for one embedding and one batch of pairs.

    Args:
        embed: Samples (n, …) to embeddings (n, d).
        view_a: One view of each sample (n, …), n ≥ 2.
        view_b: The other.
        loss: Of two views. None is NT-Xent at `temperature`.
        temperature: None is that of the loss, where it can be found; 0.5 counts negatives where it cannot.
        view: Taken apart into crop, flip, …; None where views come from elsewhere.
        samples: Clean samples that `view` is applied to; None takes `view_a`.
        references: Other embeddings to compare augmentations with, such as {"the start": …}.
        generator: Of the views, and of the shuffled pairs.
    """
    require_generator(generator)
    distance_of_inputs = relative_distance(view_a, view_b)
    a, b = embedded(embed, view_a, "the embedding"), embedded(embed, view_b, "the embedding")
    judged: float | None
    if loss is None:
        temperature = judged = DEFAULT_TEMPERATURE if temperature is None else temperature
        chosen: Loss = partial(losses.nt_xent, temperature=temperature)
    else:
        temperature = temperature_of(loss) if temperature is None else temperature
        chosen, judged = loss, temperature if takes_cosines(loss, a, b) else None
    return Blame(
        pair_statistics(a, b, temperature=temperature or DEFAULT_TEMPERATURE),
        loss_marks(a, b, chosen, generator=generator),
        read_temperature(a, b, judged),
        ViewDistance(distance_of_inputs, relative_distance(a, b)),
        ()
        if view is None
        else augmentations(
            embed, view, view_a if samples is None else samples, references=references, generator=generator
        ),
    )


def pair_statistics(a: Tensor, b: Tensor, *, temperature: float = DEFAULT_TEMPERATURE) -> PairStatistics:
    """Statistics of embeddings (n, d) of two views, n ≥ 2, with intervals over samples."""
    _require_views(a, b)
    require_positive(temperature=temperature)
    similarities = Similarities()
    similarities.update(a, b)
    kinds = similarities.compute()

    def numbers(rows: Tensor) -> dict[str, float]:
        rows = rows.to(a.device)
        first, second = a[rows], b[rows]
        return {
            "alignment": alignment(first, second),
            "uniformity": uniformity([first, second]),
            "neighbor_agreement": neighbor_agreement([first, second]),
            "effective_negatives": effective_negatives(first, second, temperature),
            **_mean_cosines(first, second),
        }

    return PairStatistics(
        **jackknifed(numbers, len(a), n_groups=GROUPS_OF_PAIRS),
        positives=kinds["positives"],
        negatives=kinds["negatives"],
        temperature=temperature,
    )


def loss_marks(
    a: Tensor, b: Tensor, loss: Loss | None = None, *, n_shuffles: int = 4, generator: torch.Generator
) -> LossMarks:
    """The loss of embeddings (n, d) of two views between its value at chance and that of equal views.

    A loss that is a module is copied before every call, so that a queue or running mean in it stays as it is. Intervals
    are over samples; a loss made for one size of batch has none.

    Args:
        a: One view, n ≥ 2.
        b: The other.
        loss: Returns a tensor (of several numbers, the mean counts), a float or a `LossValue`. None is NT-Xent.
        n_shuffles: How often pairs are shuffled.
        generator: Of the shuffles.
    """
    _require_views(a, b)
    chosen: Loss = losses.nt_xent if loss is None else loss
    require_callable("loss", chosen, "pass a function of two views, such as kontrast.losses.nt_xent")
    require_whole("n_shuffles", n_shuffles)
    require_generator(generator)
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))

    def numbers(rows: Tensor) -> dict[str, float]:
        rows = rows.to(a.device)
        return _marks(chosen, a[rows], b[rows], n_shuffles, torch.Generator().manual_seed(seed))

    try:
        values = numbers(torch.arange(len(a)))
    except OF_THE_LOSS as error:
        return LossMarks(missing=f"the loss cannot be evaluated on {len(a)} samples: {' '.join(str(error).split())}")
    try:
        found = jackknifed(numbers, len(a), n_groups=GROUPS_OF_PAIRS, seed=seed)
    except OF_THE_LOSS:
        found = {name: Estimate(value, math.nan, math.nan) for name, value in values.items()}
    why = ""
    if not all(map(math.isfinite, (values["loss"], values["loss_at_chance"], values["loss_of_equal_views"]))):
        why = "the loss is not finite for these pairs, for shuffled ones or for equal views"
    elif math.isnan(values["loss_share"]):
        why = "the loss of shuffled pairs is not above that of equal views, so it does not see which rows are pairs"
    return LossMarks(**found, missing=why)


def takes_cosines(loss: Loss, a: Tensor, b: Tensor) -> bool:
    """Whether a loss sees directions alone: rows have unit length already, or twice as long ones give the same loss."""
    if all(bool((z.norm(dim=1) - 1).abs().max() < 1e-3) for z in (a, b)):
        return True
    try:
        once, twice = _value(loss, a, b), _value(loss, 2 * a, 2 * b)
    except OF_THE_LOSS:
        return False
    return math.isfinite(once) and abs(once - twice) <= 0.02 * max(abs(once), abs(twice))


def _mean_cosines(a: Tensor, b: Tensor) -> dict[str, float]:
    """Means over positives and over negatives of both views, from sums of vectors instead of pairs."""
    u, v = F.normalize(a.double(), dim=1), F.normalize(b.double(), dim=1)
    samples = u + v
    n = len(samples)
    between = samples.sum(0).square().sum() - samples.square().sum()
    return {"positive_similarity": float((u * v).sum() / n), "negative_similarity": float(between / (4 * n * (n - 1)))}


def _marks(loss: Loss, a: Tensor, b: Tensor, n_shuffles: int, generator: torch.Generator) -> dict[str, float]:
    value, equal = _value(loss, a, b), _value(loss, a, a)
    chance = sum(_value(loss, a, b[_deranged(len(b), generator).to(b.device)]) for _ in range(n_shuffles)) / n_shuffles
    gap = chance - equal
    seen = gap > 100 * torch.finfo(a.dtype).eps * max(abs(chance), abs(equal))
    return {
        "loss": value,
        "loss_at_chance": chance,
        "loss_of_equal_views": equal,
        "loss_share": (chance - value) / gap if seen else math.nan,
    }


def _value(loss: Loss, a: Tensor, b: Tensor) -> float:
    if isinstance(loss, nn.Module):
        loss = copy.deepcopy(loss)
    with torch.no_grad():
        value = loss(a, b)
    value = getattr(value, "total", value)
    if isinstance(value, Tensor):
        return float(value.double().mean())
    return float(value)


def _deranged(n: int, generator: torch.Generator) -> Tensor:
    """Who stands where when all change places: a cycle through everybody in random order, so that nobody stays."""
    order = torch.randperm(n, generator=generator, device=generator.device)
    moved = torch.empty_like(order)
    moved[order] = order.roll(1)
    return moved


def _require_views(a: Tensor, b: Tensor) -> None:
    losses.require_rows(2, view_a=a, view_b=b)
    for name, views in (("view_a", a), ("view_b", b)):
        require_finite(name, views, "look for NaN among the model's weights and the samples")
