"""One cell of a study: a width and a seed, with the samples, the pairs and the network that every section measures."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.checks import resolve_device, resolve_dtype
from kontrast.data import Dataset, Pairs, fit_view, make_pairs, parse_view
from kontrast.nets import MLP
from kontrast.runs import generator_for
from kontrast.study.probes import EMBEDDINGS, Embedding, input_embeddings
from kontrast.study.spec import StudySpec, load_samples


@dataclass(frozen=True, eq=False)
class Cell:
    """The things that all sections share. One that trains a network adds its embedding, for later ones to judge."""

    spec: StudySpec
    width: int
    seed: int
    dataset: Dataset
    contrasted: Tensor  # indices of the samples that were contrasted
    pairs: Pairs
    net: MLP
    embeddings: dict[str, Embedding | None]  # None where training diverged

    @property
    def device(self) -> torch.device:
        """Where the numbers are computed."""
        return resolve_device(self.spec.device)

    @property
    def dtype(self) -> torch.dtype:
        """In which precision."""
        return resolve_dtype(self.spec.dtype)

    @property
    def judged(self) -> dict[str, Embedding | None]:
        """The embeddings that probes judge, in the order of `EMBEDDINGS`."""
        return {name: self.embeddings[name] for name in EMBEDDINGS if name in self.embeddings}


def draw_cell(spec: StudySpec, width: int, seed: int) -> Cell:
    """The cell before anything is trained.

    The samples and pairs depend on the seed alone, so that widths differ by the network only.
    """
    device, dtype = resolve_device(spec.device), resolve_dtype(spec.dtype)
    dataset = load_samples(spec)
    sampler = generator_for(seed, 0)
    contrasted = dataset.draw(spec.n_samples, generator=sampler)
    pairs = make_pairs(
        dataset.x[contrasted],
        views=fit_view(parse_view(str(spec.views)), [dataset.x]),
        n_positives=spec.n_positives,
        negatives=spec.negatives,
        generator=sampler,
    ).to(device=device, dtype=dtype)
    net = MLP(
        dataset.rows.shape[1],
        width,
        spec.d_out,
        depth=spec.depth,
        activation=spec.activation,
        parametrization=spec.parametrization,
        generator=generator_for(seed, width),
        dtype=dtype,
        device=device,
    )
    embeddings: dict[str, Embedding | None] = {"random": net}
    embeddings |= input_embeddings(pairs.rows[pairs.anchor], spec.d_out)
    return Cell(spec, width, seed, dataset, contrasted, pairs, net, embeddings)
