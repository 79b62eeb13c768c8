"""Has the embedding collapsed? Every convention of a rank side by side, layer by layer, at every checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from torch import Tensor

from kontrast.diagnosis.inputs import State
from kontrast.diagnosis.metrics import (
    LIDAR_DEFINITION,
    LIDAR_WORDS,
    SPECTRAL_METRICS,
    Spectrum,
    bootstrapped,
    bootstrapped_lidar,
    lidar,
)
from kontrast.diagnosis.quantities import MISSING, Quantity, described, plain, stacked
from kontrast.diagnosis.subject import Subject
from kontrast.errors import InputError
from kontrast.linalg import Estimate

MOST_COMPONENTS = 512  # whose singular values are stored
N_RESAMPLES = 50
EMBEDDING = "embedding"  # the layer that is what the model returns
LOOKED_AT = 2  # views of every sample

LIDAR = Quantity("lidar", LIDAR_WORDS, LIDAR_DEFINITION)
QUANTITIES = (*(Quantity(it.name, it.words, it.definition) for it in SPECTRAL_METRICS.values()), LIDAR)


@dataclass(frozen=True, eq=False)
class Seen:
    """What every layer makes of the clean samples, (n, d), and of their views, (n, v, d), at one checkpoint."""

    label: str
    clean: dict[str, Tensor]
    views: dict[str, Tensor]


def look(subject: Subject, label: str, state: State) -> Seen:
    """The layers' outputs at a checkpoint, of the first two views: more would tell little for their time."""
    views = subject.views.views[:, :LOOKED_AT]
    seen = subject.encoder.outputs(state, views.flatten(0, 1))
    return Seen(
        label,
        subject.encoder.outputs(state, subject.x),
        {name: z.reshape(*views.shape[:2], -1) for name, z in seen.items()},
    )


def measure(subject: Subject, seen: Sequence[Seen]) -> tuple[xr.Dataset, dict[str, str]]:
    """Every metric at every checkpoint and layer, with intervals at the start and at the end; the spectra."""
    layers = subject.encoder.layers
    missing: dict[str, str] = {}
    table = np.full((len(QUANTITIES), len(seen), len(layers), 3), math.nan)
    widths = [seen[0].clean[layer].shape[1] for layer in layers]
    n_components = min(MOST_COMPONENTS, max(widths))
    spectra = np.full((len(seen), len(layers), n_components), math.nan)
    for c, at in enumerate(seen):
        with_intervals = c in (0, len(seen) - 1)
        for k, layer in enumerate(layers):
            found, values, why = _of_layer(subject, at, layer, with_intervals=with_intervals)
            table[:, c, k] = stacked(found.get(it.name, MISSING) for it in QUANTITIES)
            spectra[c, k, : min(len(values), n_components)] = values[:n_components]
            missing |= {f"{name} of {layer} at {at.label}": reason for name, reason in why.items()}
    arrays = {it.name: (("checkpoint", "layer", "bound"), table[q], described(it)) for q, it in enumerate(QUANTITIES)}
    return (
        xr.Dataset(
            {
                **arrays,
                "singular_values": (
                    ("checkpoint", "layer", "component"),
                    spectra,
                    {
                        "long_name": "singular values",
                        "definition": "of the centred layer over the clean samples, divided by √n, descending",
                    },
                ),
                "layer_dimension": ("layer", np.array(widths, dtype=np.int32)),
            },
            coords={"checkpoint": [at.label for at in seen], "layer": list(layers)},
        ),
        missing,
    )


def _of_layer(
    subject: Subject, at: Seen, layer: str, *, with_intervals: bool
) -> tuple[dict[str, Estimate], np.ndarray, dict[str, str]]:
    clean, views = at.clean[layer], at.views[layer]
    spectrum = Spectrum()
    spectrum.update(clean)
    found = {name: plain(value) for name, value in spectrum.compute().items()}
    why = dict(spectrum.missing)
    if with_intervals:
        found |= {
            name: it
            for name, it in bootstrapped(clean, n_resamples=N_RESAMPLES, generator=subject.generator(4)).items()
            if math.isfinite(it.value)
        }
    try:
        found["lidar"] = (
            bootstrapped_lidar(views, generator=subject.generator(5)) if with_intervals else plain(lidar(views))
        )
    except InputError as error:
        why["lidar"] = str(error)
    values = spectrum.singular_values(centered=True) / math.sqrt(len(clean))
    return found, values.cpu().numpy(), why


# --- dimensions that are learned one after the other ----------------------------------------------------------------

RISE = 4.0  # times its first variance, by which a dimension must have grown to have been learned
SMALLEST = 0.01  # of the largest variance, below which a dimension is none


def learned_at(result: xr.Dataset, layer: str) -> list[int | None]:
    """For each leading dimension the checkpoint at which it was learned, None where it was not.

    A dimension k is the k-th largest variance of the layer. It is learned at the first checkpoint at which that
    variance has passed half of the way, on a logarithmic axis, from its first value to its last, if it has grown
    fourfold in all. Simon et al. (2023) see these variances rise one after the other.
    """
    if "singular_values" not in result:
        return []
    variance = result.singular_values.sel(layer=layer).values ** 2  # (checkpoint, component)
    first, last = variance[0], variance[-1]
    there = last > SMALLEST * last.max(initial=0.0, where=np.isfinite(last))  # False where NaN
    return [_passed(variance[:, k], first[k], last[k]) for k in np.flatnonzero(there)]


def _passed(values: np.ndarray, first: float, last: float) -> int | None:
    floor = max(first, 1e-12 * last)
    if not last >= RISE * floor:
        return None
    return int(np.argmax(values >= math.sqrt(floor * last)))


def steps_of(result: xr.Dataset, layer: str) -> Iterator[tuple[str, int]]:
    """The checkpoints at which dimensions were learned, and how many."""
    counts: dict[int, int] = {}
    for at in learned_at(result, layer):
        if at is not None:
            counts[at] = counts.get(at, 0) + 1
    for at, count in sorted(counts.items()):
        yield str(result.checkpoint.values[at]), count
