"""Which labels would it need? Leave-one-out error from the labels there are, and the curve calibrated to it beyond."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import xarray as xr
from torch import Tensor

from kontrast.diagnosis.embeddings import END, START, Sources
from kontrast.diagnosis.quantities import MISSING, Quantity, described, stacked
from kontrast.diagnosis.subject import Subject
from kontrast.errors import KontrastError
from kontrast.estimators import linear_kernel
from kontrast.learnability import CalibratedCurve, calibrated_curve
from kontrast.linalg import Estimate

RELATIVE_RIDGE = 1e-2  # of the mean of k(x, x), as in KernelLearnability
SHARES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # of the labels there are, at which the curve is stored
LEVELS = (0.5, 0.3, 0.2, 0.1)  # errors to which labels are counted
LEVEL = 0.2  # that is told in a sentence
REPRESENTATIONS = ("trained", "start")

ERROR = Quantity(
    "label_error",
    "test error of linear regression of the classes",
    "Mean squared error of ridge regression of the classes' indicators on standardised features, as a share of their "
    "variance: leave-one-out up to the labels there are, and beyond them the learnability curve calibrated to it.",
)
ACCURACY = Quantity(
    "label_accuracy",
    "its accuracy",
    "How often the largest output is that of the label; beyond the labels there are a rougher guess than the error.",
    percent=True,
)


def measure(subject: Subject, sources: Sources) -> tuple[xr.Dataset, dict[str, str]]:
    """The curves of the trained model and of its start; nothing without labels."""
    if subject.labelled is None:
        return xr.Dataset(), {ERROR.name: "there are no labels"}
    n = len(subject.labelled.y)
    sizes = sorted({round(share * n) for share in SHARES})
    errors, accuracies, needed, why = [], [], [], {}
    for name, source in zip(REPRESENTATIONS, (END, START), strict=True):
        try:
            curve = _curve(subject, sources.rows(source, "labelled", subject.labelled.x))
        except KontrastError as error:
            return xr.Dataset(), {ERROR.name: f"{name}: {error}"}
        inside = [curve.least <= size <= curve.reach for size in sizes]
        errors.append([curve.error(m) if there else MISSING for m, there in zip(sizes, inside, strict=True)])
        accuracies.append(
            [(curve.accuracy(m) or MISSING) if there else MISSING for m, there in zip(sizes, inside, strict=True)]
        )
        found = [curve.samples_needed(level) for level in LEVELS]
        needed.append([math.nan if it.n_samples is None else float(it.n_samples) for it in found])
        why[name] = [it.sentence for it in found]
    curves = {
        it.name: (("representation", "n_labels", "bound"), np.array([stacked(row) for row in rows]), described(it))
        for it, rows in ((ERROR, errors), (ACCURACY, accuracies))
    }
    return (
        xr.Dataset(
            {**curves, "labels_needed": (("representation", "error_level"), np.array(needed))},
            coords={"representation": list(REPRESENTATIONS), "n_labels": sizes, "error_level": list(LEVELS)},
            attrs={"n_labelled": n, "labels_needed_in_words": json.dumps(why, ensure_ascii=False)},
        ),
        {},
    )


def _curve(subject: Subject, z: Tensor) -> CalibratedCurve:
    assert subject.labelled is not None
    y = subject.labelled.y
    K, rank = _kernel(z)
    ridge = RELATIVE_RIDGE * float(K.diagonal().mean())
    return calibrated_curve(K, y, ridge=ridge, rank=rank, generator=subject.generator(8))


def _kernel(z: Tensor) -> tuple[Tensor, int]:
    """The linear kernel of standardised features and a constant one, and its rank over all samples there may be."""
    varying = int((z.std(0) > 0).sum())
    return linear_kernel(z), varying + 1


# --- what it says ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LabelsNeeded:
    """Errors by the number of labels, and how many an error takes, for the trained model and for its start."""

    n_labelled: int
    n_labels: tuple[int, ...]
    errors: dict[str, tuple[Estimate, ...]]
    needed: dict[str, dict[float, int | None]]
    why: dict[str, dict[float, str]]

    @property
    def sentences(self) -> Iterator[str]:
        """The error now, and the labels that an error of a fifth of the variance takes."""
        at = self.n_labels.index(self.n_labelled)
        now = ", ".join(f"{name} {self.errors[name][at]}" for name in REPRESENTATIONS)
        takes = ", ".join(f"{name} {self._count(name)}" for name in REPRESENTATIONS)
        yield (
            f"leave-one-out squared error with the {self.n_labelled} labels there are: {now}; an error of {LEVEL:g} "
            f"takes {takes}"
        )

    def _count(self, name: str) -> str:
        found = self.needed[name][LEVEL]
        return "more labels than can be told" if found is None else f"{found} labels"


def labels_in(result: xr.Dataset) -> LabelsNeeded | None:
    """The curves as they were measured; None where there were no labels."""
    if ERROR.name not in result:
        return None
    sizes = tuple(int(n) for n in result.n_labels.values)
    words = json.loads(result.attrs["labels_needed_in_words"])
    counted = {
        name: [float(value) for value in result.labels_needed.sel(representation=name).values]
        for name in REPRESENTATIONS
    }
    return LabelsNeeded(
        int(result.attrs["n_labelled"]),
        sizes,
        {name: tuple(_at(result, name, n) for n in sizes) for name in REPRESENTATIONS},
        {
            name: {level: None if math.isnan(n) else int(n) for level, n in zip(LEVELS, values, strict=True)}
            for name, values in counted.items()
        },
        {name: dict(zip(LEVELS, words[name], strict=True)) for name in REPRESENTATIONS},
    )


def _at(result: xr.Dataset, name: str, n: int) -> Estimate:
    value, low, high = (float(v) for v in result[ERROR.name].sel(representation=name, n_labels=n).values)
    return Estimate(value, low, high)
