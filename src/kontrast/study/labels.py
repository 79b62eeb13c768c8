"""`kontrast study --labels`: what n labels teach a kernel ridge probe of every embedding, predicted and measured."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.data import Dataset
from kontrast.estimators import KernelLearnability
from kontrast.study.probes import EMBEDDINGS, Embedding, probe_split

LABELED = 600  # samples that stand for all there are: 0.2 s for a size of training set and an embedding
LEAST = 12  # samples below which there is no curve
RIDGE = 0.1  # of the mean k(x, x): as good as any for raw pixels, for embeddings of 10 dimensions and for the NTK
DRAWS = 10  # training sets of each size
SIZES = 6  # sizes of training sets at most
PER_CLASS = 4  # samples of a class on average, so that the labels are classes at all

NTK = "ntk"
REPRESENTATIONS = {
    **{name: meaning for name, meaning in EMBEDDINGS.items() if name != "chance"},
    NTK: "the infinitely wide network's tangent kernel of the input",
}
LABEL_MEASURES = {
    "label_error": "test error of kernel ridge regression from n labels, as a share of the labels' variance",
    "label_error_predicted": "its prediction, from a κ for every sample",
    "label_error_spectrum": "its prediction by paper D, from one κ for all samples",
    "label_accuracy": "test accuracy of kernel ridge regression from n labels",
    "label_accuracy_predicted": "its prediction, from a κ for every sample",
}


def label_samples(n_available: int) -> int:
    """How many samples stand for all, of a data set of that many: an even number, half of them for each of a split."""
    return min(LABELED, 2 * (n_available // 2))


def label_counts(n_samples: int) -> tuple[int, ...]:
    """Sizes of training sets: the last `SIZES` of 1, 2, 5, 10, … up to half of the samples, and two thirds of them."""
    round_numbers = [m * 10**k for k in range(len(str(n_samples))) for m in (1, 2, 5) if 2 * m * 10**k <= n_samples]
    return (*round_numbers, 2 * n_samples // 3)[-SIZES:]


def label_problem(labels: Tensor | None) -> str:
    """Why no curve can be drawn over labels like these; empty where one can."""
    if labels is None:
        return "has no labels"
    n_classes, n = len(torch.unique(labels)), label_samples(len(labels))
    if n_classes < 2:
        return "has labels of one class only"
    if n < LEAST:
        return f"has {len(labels)} samples, fewer than {LEAST}"
    if n < PER_CLASS * n_classes:
        return f"has labels of {n_classes} classes, fewer than {PER_CLASS} samples of each among {n}"
    chosen = _chosen(labels, contrasted=labels[:0], generator=torch.Generator().manual_seed(0))
    return "has too few samples of a second class" if len(torch.unique(labels[chosen])) < 2 else ""


def label_curves(
    embeddings: Mapping[str, Embedding | None],
    dataset: Dataset,
    *,
    contrasted: Tensor,
    generator: torch.Generator,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
) -> xr.Dataset:
    """The curves of every embedding and of the NTK; NaN for None, an embedding whose training diverged.

    Every embedding sees the same samples and, from the same seed, the same training sets.
    """
    assert dataset.y is not None
    chosen = _chosen(dataset.y, contrasted=contrasted, generator=generator)
    x, y = dataset.rows[chosen].to(device=device, dtype=dtype), dataset.y[chosen].numpy()
    sizes = label_counts(len(chosen))
    curves = {}
    for name in (*embeddings, NTK):
        embed = (lambda x: x) if name == NTK else embeddings[name]
        z = None if embed is None else embed(x).detach()
        kernel = "ntk" if name == NTK else "linear"
        curves[name] = _curve(kernel, z, y, sizes, seed)
    return _as_dataset(curves, len(chosen))


def no_curves(names: list[str], n_available: int) -> xr.Dataset:
    """The same arrays without a number: networks that are not the widest have no curves."""
    n = label_samples(n_available)
    return _as_dataset(dict.fromkeys((*names, NTK), _nothing(label_counts(n))), n)


def _chosen(labels: Tensor, *, contrasted: Tensor, generator: torch.Generator) -> Tensor:
    """Each class in its share, and of a class those that were not contrasted first."""
    half = label_samples(len(labels)) // 2
    return torch.cat(probe_split(labels, half, contrasted=contrasted, generator=generator))


def _curve(kernel: str, z: Tensor | None, y: np.ndarray, sizes: tuple[int, ...], seed: int) -> np.ndarray:
    """(measure, size), in the order of `LABEL_MEASURES`."""
    if z is None or not bool(torch.isfinite(z).all()) or bool((z == z[:1]).all()):
        return _nothing(sizes)
    model = KernelLearnability(kernel, relative_ridge=RIDGE, random_state=seed).fit(z, y)
    measured, spectrum = model.measure(sizes, n_draws=DRAWS), model.learning_curve(sizes)
    points = model.learning_curve(sizes, by="points")
    assert measured.accuracy is not None
    assert points.accuracy is not None
    return np.stack([measured.test_error, points.test_error, spectrum.test_error, measured.accuracy, points.accuracy])


def _nothing(sizes: tuple[int, ...]) -> np.ndarray:
    return np.full((len(LABEL_MEASURES), len(sizes)), math.nan)


def _as_dataset(curves: Mapping[str, np.ndarray], n_samples: int) -> xr.Dataset:
    values = np.stack(list(curves.values()))  # (representation, measure, size)
    return xr.Dataset(
        {
            name: (("representation", "n_labels"), values[:, i], {"long_name": text})
            for i, (name, text) in enumerate(LABEL_MEASURES.items())
        }
        | {"label_samples": ((), np.int32(n_samples), {"long_name": "samples that the label curves are of"})},
        coords={"representation": list(curves), "n_labels": np.asarray(label_counts(n_samples), dtype=np.int32)},
    )
