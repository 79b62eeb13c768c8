"""Downstream probes: what a linear classifier makes of an embedding, on labelled samples that it was not made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.data import Dataset
from kontrast.estimators import linear_probe

Embedding = Callable[[Tensor], Tensor]

EMBEDDINGS = {
    "pca": "PCA of C̃(0)",
    "trained": "the orthonormal network, trained",
    "iterative": "5 turns of PCA and a gradient step",
    "cosine": "trained with cosine similarity",
    "dot": "trained with dot-product similarity",
    "random": "the network before training",
    "pixels": "the raw input",
    "pixel-pca": "plain PCA of the contrasted samples",
    "chance": "always the most frequent class",
}
CLOSED_FORM = ("pca", "random", "pixels", "pixel-pca", "chance")  # nothing of these descends a gradient
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
    if len(torch.unique(labels)) < 2:
        return "has labels of one class only"
    if 2 * n > len(labels):
        return f"has {len(labels)} samples, {len(labels) // 2} to train and to test on"
    train, _ = probe_split(labels, n, contrasted=labels[:0], generator=torch.Generator().manual_seed(0))
    return "has too few samples of a second class" if len(torch.unique(labels[train])) < 2 else ""


def probe_accuracies(
    embeddings: Mapping[str, Embedding | None],
    dataset: Dataset,
    n: int,
    *,
    contrasted: Tensor,
    generator: torch.Generator,
    device: torch.device,
    dtype: torch.dtype,
) -> xr.Dataset:
    """Probes of every embedding, and of the input itself; NaN for None, an embedding whose training diverged."""
    assert dataset.y is not None
    train, test = probe_split(dataset.y, n, contrasted=contrasted, generator=generator)
    x = {part: dataset.rows[rows].to(device=device, dtype=dtype) for part, rows in (("train", train), ("test", test))}
    y = dataset.y

    def accuracy(embed: Embedding | None) -> float:
        if embed is None:
            return float("nan")
        seen, unseen = (embed(x[part]).detach().cpu() for part in ("train", "test"))
        return linear_probe(seen, y[train], unseen, y[test])

    scores = {name: accuracy(embed) for name, embed in embeddings.items()}
    scores["chance"] = float((y[test] == torch.mode(y[train]).values).double().mean())
    overlap = int(torch.isin(torch.cat([train, test]), contrasted).sum())
    return xr.Dataset(
        {
            "probe_accuracy": ("embedding", list(scores.values()), {"long_name": "test accuracy of a linear probe"}),
            "probe_overlap": ((), np.int32(overlap), {"long_name": "probe samples that were contrasted too"}),
        },
        coords={"embedding": list(scores)},
    )


def input_embeddings(rows: Tensor, n_components: int) -> dict[str, Embedding]:
    """The input itself, and plain PCA of the contrasted `rows`: what every embedding has to beat."""
    centered = rows - rows.mean(0)
    _, _, directions = torch.linalg.svd(centered, full_matrices=False)
    W = directions[:n_components].mT
    return {"pixels": lambda x: x, "pixel-pca": lambda x: x @ W}
