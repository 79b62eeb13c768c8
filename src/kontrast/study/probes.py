"""What does training buy downstream? A linear probe judges every embedding, on samples that were not contrasted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.estimators import linear_probe
from kontrast.losses import SIMILARITIES
from kontrast.runs import generator_for
from kontrast.study.over_seeds import seed_deviations, seed_means
from kontrast.study.quantities import Quantity, scalar
from kontrast.study.thresholds import Thresholds

if TYPE_CHECKING:
    from kontrast.study.cell import Cell
    from kontrast.study.spec import StudySpec

Embedding = Callable[[Tensor], Tensor]

EMBEDDINGS = {
    "pca": "PCA of C̃(0)",
    "trained": "the orthonormal network, trained",
    "iterative": "5 turns of PCA and a gradient step",
    **{name: f"trained with {similarity.words}" for name, similarity in SIMILARITIES.items()},
    "random": "the network before training",
    "pixels": "the raw input",
    "pixel-pca": "plain PCA of the contrasted samples",
    "chance": "always the most frequent class",
}
DIMENSION = "its dimension; 0 where it has none, or its run diverged"
TRAINED = ("trained", *SIMILARITIES)  # by gradient descent; "iterative" takes PCA in turns with five steps
CLOSED_FORM = ("pca", "random", "pixel-pca")  # in an embedding's own dimension; nothing of these descends a gradient
RAW = "pixels"  # in all its dimensions
OF_THE_INPUT = ("pixels", "pixel-pca", "chance")  # the same at every width


def probe_split(labels: Tensor, n: int, *, contrasted: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Indices of `n` samples that train probes and of `n` others that test them, each class in its share of both.

    In every class the samples that were not `contrasted` come first, and the first of all to test. Which class stands
    where depends on the sizes of the classes alone, so every seed has the same labels to learn from.
    """
    order = torch.randperm(len(labels), generator=generator)
    seen = torch.zeros(len(labels), dtype=torch.bool)
    seen[contrasted] = True
    order = order[seen[order].long().argsort(stable=True)]
    # The k-th of a class of s samples stands at (k + 1/2)/s of the way: every stretch holds the classes in proportion.
    order = order[labels[order].argsort(stable=True)]
    _, place, sizes = torch.unique_consecutive(labels[order], return_inverse=True, return_counts=True)
    rank = torch.arange(len(order)) - (sizes.cumsum(0) - sizes)[place]
    order = order[((rank.double() + 0.5) / sizes[place]).argsort(stable=True)]
    return order[n : 2 * n], order[:n]


def probe_problem(labels: Tensor | None, n: int) -> str:
    """Why `n` samples of a data set with these labels can train no probe and test none; empty where they can."""
    if labels is None:
        return "has no labels"
    n_classes = len(torch.unique(labels))
    if n_classes < 2:
        return "has labels of one class only"
    if 2 * n_classes > len(labels):
        return f"has {n_classes} classes in {len(labels)} samples, too many to learn"
    if 2 * n > len(labels):
        return f"has {len(labels)} samples, {len(labels) // 2} to train and to test on"
    train, _ = probe_split(labels, n, contrasted=labels[:0], generator=torch.Generator().manual_seed(0))
    return "has too few samples of a second class" if len(torch.unique(labels[train])) < 2 else ""


def input_embeddings(rows: Tensor, n_components: int) -> dict[str, Embedding]:
    """The input itself, and plain PCA of the contrasted `rows`: what every embedding has to beat."""
    centered = rows - rows.mean(0)
    _, _, directions = torch.linalg.svd(centered, full_matrices=False)
    W = directions[:n_components].mT
    return {"pixels": lambda x: x, "pixel-pca": lambda x: x @ W}


@dataclass(frozen=True, eq=False)
class Probed:
    """One embedding of the samples that train a probe and of those that test it, with their labels."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


QUANTITIES = (
    Quantity(
        "probe_accuracy",
        "test accuracy of a linear probe",
        read=lambda it: linear_probe(it.train, it.train_labels, it.test, it.test_labels),
    ),
)


def dimension(embed: Embedding | None, rows: Tensor) -> int:
    """The dimension of an embedding of these rows; 0 where there is none."""
    return 0 if embed is None else embed(rows).shape[1]


def with_dimension(name: str, size: int) -> str:
    """An embedding's name in a table, with its dimension in brackets where it has one."""
    return f"{name} ({size})" if size else name


def measure(cell: Cell) -> xr.Dataset:
    """Probes of the cell's embeddings, where the spec asks for them; how many classes there are, always."""
    labels = cell.dataset.y
    n_classes = 0 if labels is None else len(torch.unique(labels))
    counted = xr.Dataset({"n_classes": scalar(np.int32(n_classes), "classes of the data's labels; 0 without labels")})
    if labels is None or not cell.spec.n_probe_samples:
        return counted
    return counted.assign(_accuracies(cell, labels, cell.spec.n_probe_samples))


def _accuracies(cell: Cell, labels: Tensor, n: int) -> xr.Dataset:
    """Probes of every embedding, and of guessing; NaN for None, an embedding whose training diverged."""
    train, test = probe_split(labels, n, contrasted=cell.contrasted, generator=generator_for(cell.seed, 0, 1))
    seen, unseen = (cell.dataset.rows[rows].to(device=cell.device, dtype=cell.dtype) for rows in (train, test))
    y, y_test = labels[train], labels[test]

    def scores(embed: Embedding | None) -> list[float]:
        if embed is None:
            return [math.nan] * len(QUANTITIES)
        probed = Probed(embed(seen).detach().cpu(), y, embed(unseen).detach().cpu(), y_test)
        return [quantity.read(probed) for quantity in QUANTITIES if quantity.read is not None]

    chance = float((y_test == torch.mode(y).values).double().mean())
    rows = {name: scores(embed) for name, embed in cell.judged.items()} | {"chance": [chance] * len(QUANTITIES)}
    sizes = [dimension(cell.judged.get(name), seen[:1]) for name in rows]
    overlap = int(torch.isin(torch.cat([train, test]), cell.contrasted).sum())
    return xr.Dataset(
        {
            quantity.name: ("embedding", [row[k] for row in rows.values()], {"long_name": quantity.long_name})
            for k, quantity in enumerate(QUANTITIES)
        }
        | {
            "probe_dimension": ("embedding", np.asarray(sizes, dtype=np.int32), {"long_name": DIMENSION}),
            "probe_overlap": scalar(np.int32(overlap), "probe samples that were contrasted too"),
        },
        coords={"embedding": list(rows)},
    )


# What the numbers say


@dataclass(frozen=True)
class Gain:
    """The best trained embedding against the best closed form of its dimension at the widest network, seed by seed.

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
    """Test accuracies over the seeds, per width; NaN where a run diverged in any seed."""

    embeddings: tuple[str, ...]
    widths: tuple[int, ...]
    n_seeds: int
    n_samples: int  # that train a probe, and as many that test it
    overlap: int  # the most probe samples, over the seeds, that were contrasted too
    means: dict[str, tuple[float, ...]]
    deviations: dict[str, tuple[float, ...]]
    dimensions: dict[str, int]  # 0 where an embedding has none, or diverged in every run
    gain: Gain | None  # None where every trained run diverged
    rule: str  # when training counts as buying something


def judge(result: xr.Dataset, spec: StudySpec, thresholds: Thresholds) -> ProbeFindings | None:
    """Compare the probes of a consolidated study; None where it has none."""
    if not spec.n_probe_samples:
        return None
    accuracy = result.probe_accuracy
    names = tuple(str(name) for name in accuracy.embedding.values)
    dimensions = largest_sizes(result, "probe_dimension", names, "embedding")
    return ProbeFindings(
        embeddings=names,
        widths=tuple(int(width) for width in result.width),
        n_seeds=result.sizes["seed"],
        n_samples=spec.n_probe_samples,
        overlap=int(result.probe_overlap.max()),
        means={name: seed_means(accuracy.sel(embedding=name)) for name in names},
        deviations={name: seed_deviations(accuracy.sel(embedding=name)) for name in names},
        dimensions=dimensions,
        gain=_gain(accuracy.isel(width=-1), dimensions, thresholds.probe_margin),
        rule=_rule(names, thresholds.probe_margin),
    )


def largest_sizes(result: xr.Dataset, variable: str, names: Sequence[str], along: str) -> dict[str, int]:
    """The dimensions that were stored, the largest over the cells; 0 where an older study did not store them."""
    if variable not in result:
        return dict.fromkeys(names, 0)
    return {name: int(result[variable].sel({along: name}).max()) for name in names}


def without_probes(result: xr.Dataset) -> str:
    """Why a study has no probes."""
    n_classes = int(result.n_classes.max())
    if n_classes == 0:
        return "the data has no labels"
    if n_classes == 1:
        return "the data's labels are all of one class"
    return "they were switched off, or classes have too few samples"


def _rule(names: tuple[str, ...], margin: float) -> str:
    trained, closed = (", ".join(name for name in part if name in names) for part in (TRAINED, CLOSED_FORM))
    return (
        "training buys something downstream where, at the widest network, the best embedding trained by gradient "
        f"descent ({trained}) beats the best closed form of at most its dimension ({closed}) by more than a probe "
        f"margin of {margin} of accuracy, and by more than the standard error of that difference over the seeds; the "
        "network before training, random, is one of those to beat, the raw input with all its dimensions is not"
    )


def _gain(accuracy: xr.DataArray, dimensions: dict[str, int], margin: float) -> Gain | None:
    scores = {str(name): accuracy.sel(embedding=name).values for name in accuracy.embedding.values}  # each (seed,)
    whole = {name: values for name, values in scores.items() if np.isfinite(values).all()}
    best = _best(whole, TRAINED)
    if best is None:
        return None
    # The orthonormal run and its PCA may have another dimension than the others, and older studies stored none.
    baseline = _best(whole, [it for it in CLOSED_FORM if dimensions.get(it, 0) <= (dimensions[best] or math.inf)])
    if baseline is None:
        return None
    difference = whole[best] - whole[baseline]
    n = len(difference)
    mean = float(difference.mean())
    error = float(difference.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    buys = mean > margin and mean > error
    against = (
        f"{best} {float(whole[best].mean()):.1%} against {baseline} {float(whole[baseline].mean()):.1%} "
        f"at width {int(accuracy.width)}"
    )
    if RAW in whole:
        among = f", with all its {dimensions[RAW]} dimensions," if dimensions[RAW] else ""
        against += f"; the raw input{among} has {float(whole[RAW].mean()):.1%}"
    if buys:
        sentence = f"training buys {mean:.1%} of test accuracy over the best closed form ({against})"
    elif mean > margin:
        chance = "one seed cannot tell it from chance" if n == 1 else f"its standard error is {error:.1%}"
        sentence = f"whether training buys accuracy is not known: {chance} ({against})"
    else:
        sentence = f"training buys no test accuracy over the best closed form ({against})"
    return Gain(best, baseline, mean, error, buys, sentence)


def _best(scores: dict[str, np.ndarray], names: Sequence[str]) -> str | None:
    """That of `names` with the highest mean; None where there is none of them."""
    there = [name for name in names if name in scores]
    return max(there, key=lambda name: float(scores[name].mean()), default=None)
