"""What the label curves say: which representation needs the fewest labels, and whether theory knew it beforehand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from kontrast.study.labels import LABEL_MEASURES

SHARE = 0.7  # of the best accuracy with the most labels: what a representation must reach, and some others do
Curves = dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class LabelFindings:
    """Curves over n labels at the widest network, means over the seeds; NaN where a run diverged in any seed."""

    representations: tuple[str, ...]
    width: int
    n_seeds: int
    n_samples: int  # that stand for all; those without a label test
    n_labels: tuple[int, ...]
    errors: Curves  # measured, as shares of the labels' variance
    predicted_errors: Curves
    spectrum_errors: Curves  # predicted by paper D's formula, one κ for all samples
    accuracies: Curves
    predicted_accuracies: Curves
    level: float  # the accuracy to reach
    needed: dict[str, float]  # labels to reach it, measured; NaN where these are too few
    predicted_needed: dict[str, float]
    best: str | None  # the representation that needs the fewest
    gap: float  # largest |predicted − measured| / measured error
    spectrum_gap: float  # the same of paper D's formula
    accuracy_gap: float  # largest |predicted − measured| accuracy
    sentence: str


def find_labels(result: xr.Dataset) -> LabelFindings:
    """Compare the label curves of a consolidated study."""
    widest = result[list(LABEL_MEASURES)].isel(width=-1)
    names = tuple(str(name) for name in widest.representation.values)
    curves = {name: _means(widest[name], names) for name in LABEL_MEASURES}
    counts = tuple(int(n) for n in widest.n_labels.values)
    errors, predicted, spectrum, accuracies, predicted_accuracies = curves.values()
    finite = [row[-1] for row in accuracies.values() if math.isfinite(row[-1])]
    level = SHARE * max(finite, default=math.nan)
    needed = {name: _crossing(counts, row, level) for name, row in accuracies.items()}
    reaching = {name: n for name, n in needed.items() if math.isfinite(n)}
    best = min(reaching, key=lambda name: reaching[name]) if reaching else None
    gap, spectrum_gap = (_largest_gap(errors, other, relative=True) for other in (predicted, spectrum))
    return LabelFindings(
        representations=names,
        width=int(widest.width),
        n_seeds=widest.sizes["seed"],
        n_samples=int(result.label_samples.max()),
        n_labels=counts,
        errors=errors,
        predicted_errors=predicted,
        spectrum_errors=spectrum,
        accuracies=accuracies,
        predicted_accuracies=predicted_accuracies,
        level=level,
        needed=needed,
        predicted_needed={name: _crossing(counts, row, level) for name, row in predicted_accuracies.items()},
        best=best,
        gap=gap,
        spectrum_gap=spectrum_gap,
        accuracy_gap=_largest_gap(accuracies, predicted_accuracies, relative=False),
        sentence=_sentence(reaching, best, level, gap, spectrum_gap),
    )


def _means(values: xr.DataArray, names: Sequence[str]) -> Curves:
    means = values.mean("seed", skipna=False).transpose("representation", "n_labels").values
    return {name: tuple(float(value) for value in row) for name, row in zip(names, means, strict=True)}


def _crossing(counts: Sequence[int], accuracies: Sequence[float], level: float) -> float:
    """Where the curve first reaches `level`, between two sizes on a logarithmic axis; NaN where it does not."""
    for i, accuracy in enumerate(accuracies):
        if accuracy >= level:  # NaN compares as False
            if i == 0:
                return float(counts[0])
            below = accuracies[i - 1]
            share = (level - below) / (accuracy - below)
            return float(counts[i - 1] * (counts[i] / counts[i - 1]) ** share)
    return math.nan


def _largest_gap(measured: Curves, predicted: Curves, *, relative: bool) -> float:
    """Over every representation and size; NaN where there is none."""
    one, other = np.array(list(measured.values())), np.array(list(predicted.values()))
    gaps = np.abs(other - one) / (one if relative else 1.0)
    return float(np.nanmax(gaps)) if np.isfinite(gaps).any() else math.nan


def _sentence(needed: dict[str, float], best: str | None, level: float, gap: float, spectrum_gap: float) -> str:
    if best is None:
        return "every embedding diverged, so no labels were counted"
    others = sorted((n, name) for name, n in needed.items() if name != best)
    after = f", {others[0][1]} {_about(others[0][0])}" if others else ", the others more than there are"
    return (
        f"fewest labels are needed by {best}: {_about(needed[best])} for an accuracy of {level:.0%}{after}; predicted "
        f"errors are within {gap:.0%} of the measured ones (paper D's one κ: within {spectrum_gap:.0%})"
    )


def _about(n: float) -> str:
    return f"about {float(f'{n:.2g}'):.0f}"
