"""How many labels does each embedding need? Kernel ridge regression from n labels, predicted by theory and measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.estimators import KernelLearnability, LearningCurve
from kontrast.runs import generator_for
from kontrast.study.probes import DIMENSION, EMBEDDINGS, largest_sizes, probe_split
from kontrast.study.quantities import Quantity, scalar
from kontrast.study.thresholds import Thresholds

if TYPE_CHECKING:
    from kontrast.study.cell import Cell
    from kontrast.study.spec import StudySpec

LABELED = 600  # samples that stand for all there are: 0.2 s per size of training set and embedding
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


@dataclass(frozen=True, eq=False)
class _Learned:
    """One representation's curves over the number of labels."""

    measured: LearningCurve
    points: LearningCurve  # predicted, from a κ for every sample
    spectrum: LearningCurve  # predicted by paper D, from one κ for all samples


QUANTITIES = (
    Quantity(
        "label_error",
        "test error of kernel ridge regression from n labels, as a share of the labels' variance",
        read=lambda it: it.measured.test_error,
    ),
    Quantity(
        "label_error_predicted", "its prediction, from a κ for every sample", read=lambda it: it.points.test_error
    ),
    Quantity(
        "label_error_spectrum",
        "its prediction by paper D, from one κ for all samples",
        read=lambda it: it.spectrum.test_error,
    ),
    Quantity(
        "label_accuracy", "test accuracy of kernel ridge regression from n labels", read=lambda it: it.measured.accuracy
    ),
    Quantity(
        "label_accuracy_predicted", "its prediction, from a κ for every sample", read=lambda it: it.points.accuracy
    ),
)


@dataclass(frozen=True)
class Comparison:
    """A measured quantity and its prediction, which the tables and the plots show side by side."""

    measured: str
    predicted: str
    caption: str
    heading: str  # in the terminal
    page_format: str
    terminal_format: str
    title: str  # of the plot
    symbol: str
    plot: str
    is_share: bool = False  # whether its axis goes from 0 to 100 %, with the accuracy to reach; else it is logarithmic


COMPARISONS = (
    Comparison(
        "label_error",
        "label_error_predicted",
        "test error, as a share of the labels' variance",
        "error",
        "{:.3f}",
        "{:.2f}",
        "Error against labels",
        "error / variance of the labels",
        "labels-error",
    ),
    Comparison(
        "label_accuracy",
        "label_accuracy_predicted",
        "test accuracy in per cent",
        "%",
        "{:.1%}",
        "{:.0%}",
        "Accuracy against labels",
        "test accuracy",
        "labels-accuracy",
        is_share=True,
    ),
)


def label_samples(n_available: int) -> int:
    """How many of a data set's samples stand for all: an even number, half of them for each side of a split."""
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
        return f"has labels of {n_classes} classes, and fewer than {PER_CLASS} samples per class among {n}"
    chosen = _chosen(labels, contrasted=labels[:0], generator=torch.Generator().manual_seed(0))
    return "has too few samples of a second class" if len(torch.unique(labels[chosen])) < 2 else ""


def measure(cell: Cell) -> xr.Dataset:
    """The curves of the cell's embeddings, where the spec asks for them; NaN in all cells but the widest."""
    if not cell.spec.label_curves:
        return xr.Dataset()
    if cell.width < max(cell.spec.widths):
        return no_curves(list(cell.judged), len(cell.dataset))
    return label_curves(cell)


def label_curves(cell: Cell) -> xr.Dataset:
    """The curves of every embedding and of the NTK; NaN for None, an embedding whose training diverged.

    Every embedding sees the same samples and, from the same seed, the same training sets.
    """
    labels = cell.dataset.y
    assert labels is not None
    chosen = _chosen(labels, contrasted=cell.contrasted, generator=generator_for(cell.seed, 0, 2))
    x, y = cell.dataset.rows[chosen].to(device=cell.device, dtype=cell.dtype), labels[chosen].numpy()
    sizes = label_counts(len(chosen))
    embedded = {name: None if embed is None else embed(x).detach() for name, embed in cell.judged.items()}
    curves = {name: _curve("linear", z, y, sizes, cell.seed) for name, z in embedded.items()}
    curves[NTK] = _curve("ntk", x, y, sizes, cell.seed)
    return _as_dataset(curves, len(chosen), {name: z.shape[1] for name, z in embedded.items() if z is not None})


def no_curves(names: list[str], n_available: int) -> xr.Dataset:
    """The same arrays without a number: networks that are not the widest have no curves."""
    n = label_samples(n_available)
    return _as_dataset(dict.fromkeys((*names, NTK), _nothing(label_counts(n))), n, {})


def _chosen(labels: Tensor, *, contrasted: Tensor, generator: torch.Generator) -> Tensor:
    """Each class in its share, and of a class those that were not contrasted first."""
    half = label_samples(len(labels)) // 2
    return torch.cat(probe_split(labels, half, contrasted=contrasted, generator=generator))


def _curve(kernel: str, z: Tensor | None, y: np.ndarray, sizes: tuple[int, ...], seed: int) -> np.ndarray:
    """(quantity, size)."""
    if z is None or not bool(torch.isfinite(z).all()) or bool((z == z[:1]).all()):
        return _nothing(sizes)
    model = KernelLearnability(kernel, relative_ridge=RIDGE, random_state=seed).fit(z, y)
    learned = _Learned(
        model.measure(sizes, n_draws=DRAWS), model.learning_curve(sizes, by="points"), model.learning_curve(sizes)
    )
    return np.stack([quantity.read(learned) for quantity in QUANTITIES if quantity.read is not None])


def _nothing(sizes: tuple[int, ...]) -> np.ndarray:
    return np.full((len(QUANTITIES), len(sizes)), math.nan)


def _as_dataset(curves: Mapping[str, np.ndarray], n_samples: int, dimensions: Mapping[str, int]) -> xr.Dataset:
    values = np.stack(list(curves.values()))  # (representation, quantity, size)
    sizes = np.asarray([dimensions.get(name, 0) for name in curves], dtype=np.int32)
    return xr.Dataset(
        {
            quantity.name: (("representation", "n_labels"), values[:, i], {"long_name": quantity.long_name})
            for i, quantity in enumerate(QUANTITIES)
        }
        | {
            "label_dimension": ("representation", sizes, {"long_name": DIMENSION}),
            "label_samples": scalar(np.int32(n_samples), "samples that the label curves are of"),
        },
        coords={"representation": list(curves), "n_labels": np.asarray(label_counts(n_samples), dtype=np.int32)},
    )


# What the numbers say

SHARE = 0.7  # of the best accuracy with the most labels: what a representation must reach, and some others do
Curves = dict[str, tuple[float, ...]]  # representation → one number per number of labels


@dataclass(frozen=True)
class LabelFindings:
    """Curves over n labels at the widest network, means over the seeds; NaN where a run diverged in any seed."""

    representations: tuple[str, ...]
    width: int
    n_seeds: int
    n_samples: int  # that stand for all; those without a label test
    n_labels: tuple[int, ...]
    dimensions: dict[str, int]  # 0 for a kernel, and for an embedding that diverged
    means: dict[str, Curves]  # quantity → its curves
    level: float  # the accuracy to reach
    needed: dict[str, float]  # labels to reach it, measured; NaN where these are too few
    predicted_needed: dict[str, float]
    best: str | None  # the representation that needs the fewest
    gap: float  # largest |predicted − measured| / measured error
    spectrum_gap: float  # the same of paper D's formula
    accuracy_gap: float  # largest |predicted − measured| accuracy
    sentence: str


def judge(result: xr.Dataset, spec: StudySpec, thresholds: Thresholds) -> LabelFindings | None:
    """Compare the label curves of a consolidated study; None where they were not asked for."""
    return compare_curves(result) if spec.label_curves else None


def compare_curves(result: xr.Dataset) -> LabelFindings:
    """Find the representation that needs the fewest labels, and how well theory knew it beforehand."""
    widest = result[[quantity.name for quantity in QUANTITIES]].isel(width=-1)
    names = tuple(str(name) for name in widest.representation.values)
    means = {quantity.name: _means(widest[quantity.name], names) for quantity in QUANTITIES}
    counts = tuple(int(n) for n in widest.n_labels.values)
    accuracies = means["label_accuracy"]
    finite = [row[-1] for row in accuracies.values() if math.isfinite(row[-1])]
    level = SHARE * max(finite, default=math.nan)
    needed = {name: _crossing(counts, row, level) for name, row in accuracies.items()}
    predicted = means["label_accuracy_predicted"]
    reaching = {name: n for name, n in needed.items() if math.isfinite(n)}
    best = min(reaching, key=lambda name: reaching[name]) if reaching else None
    gap, spectrum_gap = (
        _largest_gap(means["label_error"], means[other], relative=True)
        for other in ("label_error_predicted", "label_error_spectrum")
    )
    return LabelFindings(
        representations=names,
        width=int(widest.width),
        n_seeds=widest.sizes["seed"],
        n_samples=int(result.label_samples.max()),
        n_labels=counts,
        dimensions=largest_sizes(result, "label_dimension", names, "representation"),
        means=means,
        level=level,
        needed=needed,
        predicted_needed={name: _crossing(counts, row, level) for name, row in predicted.items()},
        best=best,
        gap=gap,
        spectrum_gap=spectrum_gap,
        accuracy_gap=_largest_gap(accuracies, predicted, relative=False),
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
    after = f", {others[0][1]} {_about(others[0][0])}" if others else ", the others more than were tried"
    return (
        f"fewest labels are needed by {best}: {_about(needed[best])} for an accuracy of {level:.0%}{after}; predicted "
        f"errors are within {gap:.0%} of the measured ones (paper D's one κ: within {spectrum_gap:.0%})"
    )


def _about(n: float) -> str:
    return f"about {float(f'{n:.2g}'):.0f}"
