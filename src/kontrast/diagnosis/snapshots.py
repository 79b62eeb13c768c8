"""What a monitor measures at one moment, of the embeddings of its probe set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kontrast.diagnosis.collapse_rules import Collapse, collapse_of
from kontrast.diagnosis.metrics import (
    Similarities,
    Spectrum,
    ViewGroups,
    alignment,
    effective_negatives,
    neighbor_agreement,
    uniformity,
)

EMBEDDING = "embedding"
NEIGHBORS = 20


@dataclass(frozen=True)
class Snapshot:
    """The numbers of one moment.

    Attributes:
        layers: the numbers of every layer, by layer and name.
        dimensions: of every layer.
        singular_values: of the centred embedding of every layer, largest first.
        pairs: numbers of the two first views, of what the encoder returns.
        similarities: how many of their cosine similarities fall into each bin of [−1, 1], by kind.
        collapse: of the layers that are judged.
        missing: why a number is missing, by its name.
    """

    layers: dict[str, dict[str, float]] = field(default_factory=dict)
    dimensions: dict[str, int] = field(default_factory=dict)
    singular_values: dict[str, list[float]] = field(default_factory=dict)
    pairs: dict[str, float] = field(default_factory=dict)
    similarities: dict[str, list[int]] = field(default_factory=dict)
    collapse: dict[str, Collapse] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def numbers(self) -> dict[str, float]:
        """All finite numbers by one name each, as charts have them."""
        named = {f"{layer}/{name}": value for layer, row in self.layers.items() for name, value in row.items()}
        return {name: value for name, value in (named | self.pairs).items() if math.isfinite(value)}


def snapshot_of(
    layers: Mapping[str, Tensor],
    *,
    features: str,
    first: Mapping[str, Tensor],
    highest: Mapping[str, Mapping[str, float]],
    labels: Tensor | None,
    temperature: float | None,
) -> Snapshot:
    """Measure the embeddings (n, v, d) of every layer; spectra are those of the first view, one row per sample.

    Args:
        layers: embeddings on the CPU; what the encoder returns is called "embedding".
        features: the layer that labels judge.
        first: the embeddings (n, d) of the first view at the start.
        highest: the largest numbers of each layer before, which collapse falls from; none at the start.
        labels: of the samples.
        temperature: of the softmax over negatives, for their effective number.
    """
    found = Snapshot()
    for name, z in layers.items():
        _measure_layer(found, name, z, first[name])
        if name in (EMBEDDING, features):
            n, _, d = z.shape
            before = highest.get(name, found.layers[name])
            found.collapse[name] = collapse_of(found.layers[name], before, n=n, d=d)
    _measure_pairs(found, layers[EMBEDDING], temperature)
    if labels is not None:
        found.pairs["knn_accuracy"] = leave_one_out_accuracy(layers[features][:, 0], labels)
    return found


def highest_of(
    before: Mapping[str, Mapping[str, float]], now: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """The larger one of every number of every layer; NaN counts as none."""
    highest = {layer: dict(numbers) for layer, numbers in before.items()}
    for layer, numbers in now.items():
        row = highest.setdefault(layer, {})
        row.update({name: value for name, value in numbers.items() if value > row.get(name, -math.inf)})
    return highest


def _measure_layer(found: Snapshot, name: str, z: Tensor, first: Tensor) -> None:
    spectrum, groups = Spectrum(), ViewGroups()
    spectrum.update(z[:, 0])
    groups.update(z)
    similarity = linear_cka(z[:, 0], first)
    found.layers[name] = {**spectrum.compute(), **groups.compute(), "similarity_to_start": similarity}
    found.dimensions[name] = z.shape[2]
    found.singular_values[name] = spectrum.singular_values(centered=True).tolist()
    found.missing.update({f"{name}/{metric}": why for metric, why in (spectrum.missing | groups.missing).items()})


def _measure_pairs(found: Snapshot, z: Tensor, temperature: float | None) -> None:
    a, b = z[:, 0], z[:, 1]
    similarities = Similarities()
    similarities.update(a, b)
    for kind, histogram in similarities.compute().items():
        found.similarities[kind] = histogram.counts.tolist()
        found.pairs[f"{kind.removesuffix('s')}_similarity"] = histogram.mean
    found.pairs["alignment"] = alignment(a, b)
    found.pairs["uniformity"] = uniformity((a, b))
    found.pairs["neighbor_agreement"] = neighbor_agreement(z)
    if temperature is not None:
        found.pairs["effective_negatives"] = effective_negatives(a, b, temperature)


def linear_cka(z: Tensor, first: Tensor) -> float:
    r"""Linear centred kernel alignment of two embeddings of the same samples (Kornblith et al. 2019, eq. (3)).

    $\|A^\top B\|_F^2 / (\|A^\top A\|_F \|B^\top B\|_F)$ of the centred rows: 1 for an embedding that was only rotated
    and scaled. NaN where all rows are equal.
    """
    a, b = (_centered(rows.double()) for rows in (z, first.to(z.device)))
    if len(a) <= min(a.shape[1], b.shape[1]):  # the smaller matrices: of samples
        K, L = a @ a.mT, b @ b.mT
        across, own, others = (K * L).sum(), K.norm(), L.norm()
    else:
        across, own, others = (a.mT @ b).square().sum(), (a.mT @ a).norm(), (b.mT @ b).norm()
    return float(across / (own * others)) if float(own * others) > 0 else math.nan


def _centered(rows: Tensor) -> Tensor:
    """Rows less their mean, the largest entry 1, so that no square overflows; exactly zero where all are equal."""
    shifted = rows - rows[0]
    centered = shifted - shifted.mean(0)
    return centered / torch.where((size := centered.abs().max()) > 0, size, 1.0)


def leave_one_out_accuracy(z: Tensor, labels: Tensor, k: int = NEIGHBORS) -> float:
    """How often the vote of the `k` nearest other samples by cosine is right; ties go to the nearer ones."""
    directions = torch.nn.functional.normalize(z.double(), dim=1)
    similarity = directions @ directions.mT
    similarity.fill_diagonal_(-math.inf)
    classes, numbers = torch.unique(labels, return_inverse=True)
    k = min(k, len(z) - 1)
    nearest = similarity.topk(k).indices  # (n, k), nearest first
    # A vote of 1 each, and less than one vote in all for being nearer.
    weights = 1 + torch.linspace(1, 0, k, dtype=torch.float64) / (k + 1) ** 2
    votes = torch.zeros(len(z), len(classes), dtype=torch.float64)
    votes.scatter_add_(1, numbers[nearest], weights.expand(len(z), k))
    return float((votes.argmax(1) == numbers).double().mean())
