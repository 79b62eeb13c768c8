"""What the downstream probes say: does any trained embedding beat the best one that needed no training?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import xarray as xr

from kontrast.study.over_seeds import seed_deviations, seed_means
from kontrast.study.probes import CLOSED_FORM
from kontrast.study.spec import StudySpec


@dataclass(frozen=True)
class Gain:
    """The best trained embedding against the best closed form at the widest network, seed by seed.

    `error` is the standard error of `mean` over the seeds, infinite for one seed; `buys` is the verdict.
    """

    embedding: str
    baseline: str
    mean: float
    error: float
    buys: bool
    sentence: str


@dataclass(frozen=True)
class ProbeFindings:
    """Test accuracies over the seeds, a width; NaN where a run diverged in any seed."""

    embeddings: tuple[str, ...]
    widths: tuple[int, ...]
    n_seeds: int
    n_samples: int  # that train a probe, and as many that test it
    overlap: int  # the most probe samples, over the seeds, that were contrasted too
    means: dict[str, tuple[float, ...]]
    deviations: dict[str, tuple[float, ...]]
    gain: Gain | None  # None where every trained run diverged


def find_probes(result: xr.Dataset, spec: StudySpec, margin: float) -> ProbeFindings:
    """Compare the probes of a consolidated study; `margin` is the accuracy that counts as better."""
    accuracy = result.probe_accuracy
    names = tuple(str(name) for name in accuracy.embedding.values)
    return ProbeFindings(
        embeddings=names,
        widths=tuple(int(width) for width in result.width),
        n_seeds=result.sizes["seed"],
        n_samples=int(spec.n_probe_samples or 0),
        overlap=int(result.probe_overlap.max()),
        means={name: seed_means(accuracy.sel(embedding=name)) for name in names},
        deviations={name: seed_deviations(accuracy.sel(embedding=name)) for name in names},
        gain=_gain(accuracy.isel(width=-1), margin),
    )


def without_probes(result: xr.Dataset) -> str:
    """Why a study has no probes."""
    n_classes = int(result.n_classes.max())
    if n_classes == 0:
        return "the data has no labels"
    if n_classes == 1:
        return "the data's labels are all of one class"
    return "they were switched off, or a second class has too few samples"


def _gain(accuracy: xr.DataArray, margin: float) -> Gain | None:
    scores = {str(name): accuracy.sel(embedding=name).values for name in accuracy.embedding.values}  # each (seed,)
    whole = {name: values for name, values in scores.items() if np.isfinite(values).all()}
    trained = {name: values for name, values in whole.items() if name not in CLOSED_FORM}
    closed = {name: values for name, values in whole.items() if name in CLOSED_FORM}
    if not trained:
        return None
    best, baseline = (max(part, key=lambda name: float(part[name].mean())) for part in (trained, closed))
    difference = trained[best] - closed[baseline]
    n = len(difference)
    mean = float(difference.mean())
    error = float(difference.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    buys = mean > margin and mean > error
    against = (
        f"{best} {float(trained[best].mean()):.1%} against {baseline} {float(closed[baseline].mean()):.1%} "
        f"at width {int(accuracy.width)}"
    )
    if buys:
        sentence = f"training buys {mean:.1%} of test accuracy over the best closed form ({against})"
    elif mean > margin:
        chance = "one seed cannot tell it from chance" if n == 1 else f"its standard error is {error:.1%}"
        sentence = f"whether training buys accuracy is not known: {chance} ({against})"
    else:
        sentence = f"training buys no test accuracy over the best closed form ({against})"
    return Gain(best, baseline, mean, error, buys, sentence)
