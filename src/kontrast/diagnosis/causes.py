"""What is to blame, read from the stored numbers: augmentation, temperature, loss; each with what to try."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import xarray as xr

from kontrast.diagnosis.blame import LossMarks, ViewDistance
from kontrast.diagnosis.quantities import estimate_in
from kontrast.diagnosis.views_and_loss import temperature_in


@dataclass(frozen=True)
class Cause:
    """Something that is to blame."""

    what: str
    sentence: str
    advice: str


ADVICE = {
    "augmentation": "check that the two views are drawn apart, and strengthen the augmentation (crop, color, noise)",
    "too high": "lower the temperature, towards 0.1 to 0.5",
    "too low": "raise the temperature, towards 0.1 to 0.5",
    "loss": "check that the loss is given both views, row by row, in the same order",
}


def causes_in(result: xr.Dataset, *, collapsed: bool) -> tuple[Cause, ...]:
    """Everything that is to blame, the gravest first."""
    return tuple(_causes(result, collapsed=collapsed))


def _causes(result: xr.Dataset, *, collapsed: bool) -> Iterator[Cause]:
    distance = ViewDistance(estimate_in(result, "view_distance"), estimate_in(result, "view_distance_embedding"))
    if distance.sentence:
        yield Cause("augmentation", distance.sentence, ADVICE["augmentation"])
    reading = temperature_in(result)
    if reading.word is not None:
        yield Cause("temperature", reading.sentence, ADVICE[reading.word])
    # A collapsed embedding is at chance by itself, and equal views are without a second one.
    if collapsed or distance.off or not result.attrs.get("loss_given", 0) or "loss" not in result:
        return
    end = str(result.checkpoint.values[-1])
    names = ("loss", "loss_at_chance", "loss_of_equal_views", "loss_share")
    loss, chance, equal, share = (estimate_in(result, name, checkpoint=end) for name in names)
    marks = LossMarks(loss, chance, equal, share)
    if marks.sentence:
        yield Cause("loss", marks.sentence, ADVICE["loss"])
