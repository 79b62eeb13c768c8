"""Are batch, temperature or augmentation to blame? Pairs, the loss and its marks, and each augmentation on its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import xarray as xr
from torch import Tensor

from kontrast.diagnosis.augmentations import Augmentation, augmentations, relative_distance
from kontrast.diagnosis.blame import DEFAULT_TEMPERATURE, loss_marks, pair_statistics, takes_cosines
from kontrast.diagnosis.collapse import Seen
from kontrast.diagnosis.embeddings import Embed, judged
from kontrast.diagnosis.quantities import Quantity, described, estimate_in, stacked, variables
from kontrast.diagnosis.subject import Subject
from kontrast.diagnosis.temperatures import TemperatureReading, read_temperature, temperature_of

KINDS = ("positives", "negatives")
N_AUGMENTED = 128  # samples to which every part of the view is applied alone
START, INPUT = "the start", "the raw input"

OF_PAIRS = (
    Quantity(
        "alignment",
        "alignment",
        "Mean squared distance of two views of a sample, on unit-length rows (Wang & Isola 2020).",
    ),
    Quantity(
        "uniformity",
        "uniformity",
        "Log of the mean of exp(−2 squared distance) over pairs of samples, on unit-length rows (Wang & Isola 2020).",
    ),
    Quantity(
        "neighbor_agreement",
        "agreement of neighbours between views",
        "How often the nearest other row by cosine is a view of the same sample.",
        percent=True,
    ),
    Quantity(
        "effective_negatives",
        "effective number of negatives",
        "exp(entropy) of the softmax weights that NT-Xent gives the 2n − 2 negatives of an anchor, mean over anchors, "
        "at the loss's temperature, or 0.5 where it has none.",
    ),
    Quantity("positive_similarity", "similarity of positives", "Mean cosine of two views of a sample."),
    Quantity("negative_similarity", "similarity of negatives", "Mean cosine of views of two samples."),
    Quantity("loss", "loss", "The loss of all samples as one batch."),
    Quantity("loss_at_chance", "loss at chance", "The same with the second views shuffled, so that no pair stays."),
    Quantity(
        "loss_of_equal_views", "loss of equal views", "The same with the first views in place of the second ones."
    ),
    Quantity(
        "loss_share",
        "loss between chance and equal views",
        "(loss at chance − loss) / (loss at chance − loss of equal views): 0 at chance, 1 where the views could as "
        "well be equal.",
        percent=True,
    ),
)
AT_THE_END = (
    Quantity(
        "view_distance",
        "distance of views in the input",
        "Mean squared distance of two views of a sample over that of two samples: 0 equal, 1 as far as strangers.",
    ),
    Quantity("view_distance_embedding", "distance of views in the embedding", "The same between embeddings."),
    Quantity("temperature", "temperature", "That of the loss, or as given."),
    Quantity("logit_spread", "spread of logits", "Deviation of the negatives' cosines over the temperature."),
    Quantity(
        "pushing_samples",
        "samples that push",
        "Effective number of other samples that push a sample: exp(entropy) of their softmax weights.",
    ),
)
CHANGE = Quantity(
    "change",
    "what a part of the view does to the input",
    "Mean squared distance of a sample and its view over that of two samples, the part applied alone.",
)
INVARIANCE = Quantity(
    "invariance",
    "how far a part of the view moves the embedding",
    "The same between embeddings: 0 where the part is ignored, 1 where a sample moves as far as to another one.",
)
LEAK = Quantity(
    "leak",
    "what the embedding tells of an augmentation",
    "Cross-validated R² of ridge regression from the embedding of the view to the number that was drawn.",
)
QUANTITIES = (*OF_PAIRS, *AT_THE_END)
BY_PART = ((INVARIANCE, "part"), (LEAK, "number"))


def measure(subject: Subject, seen: Sequence[Seen]) -> tuple[xr.Dataset, dict[str, str]]:
    """Pairs and loss at every checkpoint; temperature, distances and augmentations at the end."""
    missing: dict[str, str] = {}
    chosen = subject.settings.temperature
    if chosen is None and subject.loss_given:
        chosen = temperature_of(subject.loss)
    rows, histograms, edges = [], [], np.zeros(0)
    for at in seen:
        a, b = (at.views["embedding"][:, k] for k in (0, 1))
        pairs = pair_statistics(a, b, temperature=chosen or DEFAULT_TEMPERATURE)
        marks = loss_marks(a, b, _in_its_dtype(subject), generator=subject.generator(6))
        rows.append({row.name: row.value for row in (*pairs.rows(), *marks.rows())})
        histograms.append([np.asarray(getattr(pairs, kind).counts, dtype=float) for kind in KINDS])
        edges = np.asarray(pairs.positives.edges, dtype=float)
        if marks.missing:
            missing[f"loss at {at.label}"] = marks.missing
    a, b = (seen[-1].views["embedding"][:, k] for k in (0, 1))
    blamable = (
        chosen if subject.settings.temperature or (chosen and takes_cosines(_in_its_dtype(subject), a, b)) else None
    )
    reading = read_temperature(a, b, blamable)
    if reading.missing:
        missing["temperature"] = reading.missing
    parts = _augmentations(subject, missing)
    ends = {row.name: row.value for row in reading.rows()}
    if subject.views.views.is_floating_point():
        ends["view_distance"] = relative_distance(*subject.pair)
        ends["view_distance_embedding"] = relative_distance(a, b)
    found = xr.Dataset(
        {
            **variables(OF_PAIRS, rows, "checkpoint"),
            **{it.name: ("bound", stacked([ends[it.name]])[0], described(it)) for it in AT_THE_END if it.name in ends},
            "similarity_histogram": (("checkpoint", "kind", "bin"), np.array(histograms)),
        },
        coords={
            "checkpoint": [at.label for at in seen],
            "kind": list(KINDS),
            "bin": (edges[:-1] + edges[1:]) / 2,
        },
        attrs={"temperature_word": reading.word or ""},
    )
    return (found if not parts else found.merge(_stored(parts), combine_attrs="override")), missing


def _in_its_dtype(subject: Subject) -> partial[Tensor]:
    """The loss, on embeddings in the model's own number type, which the loss's own tensors have."""
    return partial(_value, subject)


def _value(subject: Subject, a: Tensor, b: Tensor) -> Tensor:
    like = subject.encoder.like
    return subject.value_of_loss(a.to(like), b.to(like))


def _augmentations(subject: Subject, missing: dict[str, str]) -> tuple[Augmentation, ...]:
    view, x = subject.views.view, subject.x[:N_AUGMENTED]
    if view is None or not x.is_floating_point():
        missing["invariance"] = "the views are not made of parts that kontrast knows, such as crop+flip"
        return ()
    references: dict[str, Embed] = {START: partial(judged, subject, subject.start), INPUT: lambda x: x.flatten(1)}
    return augmentations(
        partial(judged, subject, subject.end), view, x, references=references, generator=subject.generator(7)
    )


def _stored(parts: Sequence[Augmentation]) -> xr.Dataset:
    """Each part and each of its numbers, as the trained model, its start and the raw input see them."""
    seen_by = list(parts[0].invariance)
    numbers = [(it, number) for it in parts for number in it.leaks]
    arrays = {
        CHANGE.name: (("part", "bound"), stacked(it.change for it in parts), described(CHANGE)),
        INVARIANCE.name: (
            ("part", "seen_by", "bound"),
            np.array([stacked(it.invariance[who] for who in seen_by) for it in parts]),
            described(INVARIANCE),
        ),
    }
    coords = {"part": [it.name for it in parts], "seen_by": seen_by}
    if numbers:
        arrays[LEAK.name] = (
            ("number", "seen_by", "bound"),
            np.array([stacked(it.leaks[number][who] for who in seen_by) for it, number in numbers]),
            described(LEAK),
        )
        coords["number"] = [f"{it.name}|{number}" for it, number in numbers]
    return xr.Dataset(arrays, coords=coords)


# --- read back ------------------------------------------------------------------------------------------------------


def augmentations_in(result: xr.Dataset) -> tuple[Augmentation, ...]:
    """The parts of the view as they were measured."""
    if "invariance" not in result:
        return ()
    found = []
    for name in map(str, result.part.values):
        leaks = {}
        for key in map(str, result.number.values) if "number" in result.dims else ():
            part, _, number = key.partition("|")
            if part == name:
                leaks[number] = {who: estimate_in(result, "leak", number=key, seen_by=who) for who in _seen_by(result)}
        invariance = {who: estimate_in(result, "invariance", part=name, seen_by=who) for who in _seen_by(result)}
        found.append(Augmentation(name, estimate_in(result, "change", part=name), invariance, leaks))
    return tuple(found)


def _seen_by(result: xr.Dataset) -> list[str]:
    return [str(who) for who in result.seen_by.values]


def temperature_in(result: xr.Dataset) -> TemperatureReading:
    """What the temperature makes of the negatives, as it was measured."""
    value = estimate_in(result, "temperature").value
    word = str(result.attrs.get("temperature_word", "")) or None
    spread, pushing = (estimate_in(result, name) for name in ("logit_spread", "pushing_samples"))
    return TemperatureReading(value, spread, pushing, word, "" if math.isfinite(value) else "unknown")
