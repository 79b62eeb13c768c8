"""The temperature of a loss: where it is written, and whether it is far off for an embedding."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kontrast import losses
from kontrast.checks import is_number, require_finite, require_positive
from kontrast.diagnosis.intervals import GROUPS_OF_PAIRS, Row, jackknifed
from kontrast.diagnosis.quantities import MISSING
from kontrast.linalg import Estimate

NAMES = ("temperature", "tau", "temp")
INSIDE = ("loss", "criterion", "loss_fn", "link", "func", "function", "fn")  # attributes that hold a loss's own loss
DEEPEST = 6  # losses within losses
LARGEST_LOG_SCALE = 6.9  # exp of it is a temperature of 0.001; a larger `logit_scale` is the scale itself

# Too high. Cosines reach from -1 to 1, so up to a temperature of 2 the weights of the nearest and of the farthest
# negative can differ e-fold; 1 is in use. Beyond, what counts is how far they do: at a deviation of 0.1 of the logits
# nine of ten negatives weigh within ±16 % of the same, and a mean would do.
HIGHEST_IN_USE = 2.0
FLAT = 0.1
COLLAPSED = 0.02  # deviation of the cosines; random directions have 0.03 in 1,024 dimensions. Below, all are as one
# Too low. Trained embeddings have cosines of deviation 0.09 to 0.4, so logits of 1 to 5 at a temperature of 0.07.
# Beyond 10, one deviation is a factor of 22,000 in weight; no harm while many push all the same, as in two clusters.
# Training at a temperature of 0.005 makes cosines alike until the logits have a deviation of 7 to 12. CLIP's smallest
# temperature is 0.01.
STEEP = 10.0
SMALL_SHARE = 0.1  # of the other samples
LOWEST_IN_USE = 0.0099
STEEP_BELOW = 6.0
LONELY = 1.5  # fewer samples push on average: the softmax is a maximum, whatever the deviation
MANY = 32  # samples; in a smaller batch few can push in any case


@dataclass(frozen=True)
class TemperatureReading:
    """What a temperature makes of the negatives of a batch.

    Attributes:
        temperature: NaN where none is known.
        spread: the deviation of the negatives' logits, cosine over temperature; 0 weighs all negatives alike.
        pushing: how many other samples push a sample on average: the exponential entropy of their softmax weights, both
            views of a sample together, so that it lies between 1 and n − 1.
        word: "too high", "too low" or None.
        missing: why there is no reading; empty where there is one.
    """

    temperature: float
    spread: Estimate
    pushing: Estimate
    word: str | None
    missing: str = ""

    @property
    def sentence(self) -> str:
        """The verdict with its number; empty where there is nothing to blame."""
        said = f"the temperature {self.temperature:g} is {self.word}: "
        if self.word == "too high":
            return said + f"the logits of negatives vary by {self.spread}, so that all push alike"
        if self.word == "too low":
            return (
                said + f"the logits of negatives vary by {self.spread}, and {self.pushing} other samples push a sample"
            )
        return ""

    def rows(self) -> list[Row]:
        """Every number, as stored."""
        plain = Estimate(self.temperature, math.nan, math.nan)
        return [
            Row("temperature", plain, "temperature of the loss"),
            Row("logit_spread", self.spread, "deviation of the negatives' cosines over the temperature"),
            Row("pushing_samples", self.pushing, "effective number of other samples that push a sample"),
        ]


def read_temperature(a: Tensor, b: Tensor, temperature: float | None) -> TemperatureReading:
    """What a temperature makes of embeddings (n, d) of two views; None where the loss has none, or it is not known.

    It is that of cosines. A loss of dot products has the temperature of another scale: pass None.
    """
    losses.require_rows(2, view_a=a, view_b=b)
    if temperature is None:
        return TemperatureReading(math.nan, MISSING, MISSING, None, "the loss has no temperature that can be read")
    require_positive(temperature=temperature)
    for name, views in (("view_a", a), ("view_b", b)):
        require_finite(name, views, "look for NaN among the model's weights and the samples")
    s = _cosines(a, b)

    def numbers(rows: Tensor) -> dict[str, float]:
        return _numbers(s[:, rows][:, :, :, rows], temperature)

    found = jackknifed(numbers, len(a), n_groups=GROUPS_OF_PAIRS)
    word = word_for(temperature, spread=found["spread"].value, pushing=found["pushing"].value, n=len(a))
    return TemperatureReading(temperature, found["spread"], found["pushing"], word)


def temperature_word(a: Tensor, b: Tensor, temperature: float | None) -> str | None:
    """Whether a temperature is "too high" or "too low" for these embeddings of two views; None where it is neither."""
    losses.require_rows(2, view_a=a, view_b=b)
    if temperature is None:
        return None
    found = _numbers(_cosines(a, b), temperature)
    return word_for(temperature, **found, n=len(a))


def word_for(temperature: float, *, spread: float, pushing: float, n: int) -> str | None:
    """The same from the numbers of a `TemperatureReading` of n samples."""
    if not spread * temperature > COLLAPSED:  # blame the collapse
        return None
    if temperature > HIGHEST_IN_USE and spread < FLAT:
        return "too high"
    steep = spread > STEEP_BELOW if temperature < LOWEST_IN_USE else spread > STEEP and pushing < SMALL_SHARE * (n - 1)
    return "too low" if n >= MANY and (pushing < LONELY or steep) else None


def temperature_of(loss: Any) -> float | None:
    """The temperature of a loss of two views, where it is written down in one of these places; else None.

    A keyword of `functools.partial` or an option of `kontrast.losses.LossModule`; an attribute `temperature`, `tau` or
    `temp` of the loss or of one within it (its `loss`, `criterion`, `link`, …); a `logit_scale`, as of CLIP, which is
    the logarithm of 1 over the temperature; the default of its own argument.
    """
    for place in _places(loss, DEEPEST):
        found = _written(place)
        if found is not None:
            return found
    return None


def _cosines(a: Tensor, b: Tensor) -> Tensor:
    """(2, n, 2, n): of every view of every sample with every other."""
    z = F.normalize(torch.stack([a, b]).detach().double(), dim=2).cpu().flatten(0, 1)
    return (z @ z.mT).view(2, len(a), 2, len(a))


def _numbers(s: Tensor, temperature: float) -> dict[str, float]:
    n = s.shape[1]
    itself = torch.eye(n, dtype=torch.bool)[None, :, None]  # of the same sample: no negatives
    count = 4 * n * (n - 1)
    mean = s.masked_fill(itself, 0.0).sum() / count
    deviation = float(((s - mean).masked_fill(itself, 0.0).square().sum() / count).sqrt())
    # (2, n, n): both views of another sample together
    weights = (s / temperature).masked_fill(itself, -math.inf).transpose(2, 3).flatten(2).softmax(2)
    by_sample = weights.view(2, n, n, 2).sum(3)
    entropies = -torch.special.xlogy(by_sample, by_sample).sum(2)
    return {"spread": deviation / temperature, "pushing": float(entropies.exp().mean())}


def _places(loss: Any, depth: int) -> Iterator[Any]:
    """The loss, and the losses, links and options within it, nearest first."""
    yield loss
    if depth == 0:
        return
    within: list[Any] = [loss.__self__] if inspect.ismethod(loss) else []
    if isinstance(loss, partial):
        within += [*loss.keywords.values(), *loss.args, loss.func]
    elif isinstance(loss, losses.ViewLoss):
        # SupCon gets its rows from a function that has no temperature of its own.
        within += [loss.function, getattr(losses, loss.name, None)]
    elif not inspect.isroutine(loss):
        within += [getattr(loss, name) for name in INSIDE if hasattr(loss, name)]
    if isinstance(loss, nn.Module):
        within += list(loss.children())
    for it in within:
        if not isinstance(it, Tensor | str | int | float | type | None):
            yield from _places(it, depth - 1)


def _written(place: Any) -> float | None:
    """The temperature that stands in this place itself."""
    keywords = place.keywords if isinstance(place, partial) else getattr(place, "options", None)
    for name in NAMES:
        found = _positive(keywords.get(name)) if isinstance(keywords, Mapping) else None
        found = _positive(getattr(place, name, None)) if found is None else found
        if found is not None:
            return found
    scale = _number(getattr(place, "logit_scale", None))
    if scale is not None:
        return math.exp(-scale) if scale <= LARGEST_LOG_SCALE else 1 / scale
    return _default(place)


def _default(place: Any) -> float | None:
    """The default of a function's own argument, where it is called without."""
    if not inspect.isfunction(place):
        return None
    parameters = inspect.signature(place).parameters
    found = (_positive(parameters[name].default) for name in NAMES if name in parameters)
    return next((it for it in found if it is not None), None)


def _positive(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and number > 0 else None


def _number(value: Any) -> float | None:
    """A finite number, also one in a tensor or parameter of one element."""
    if isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 and not value.is_complex() else None
    if not is_number(value) or not math.isfinite(value):
        return None
    return float(value)
