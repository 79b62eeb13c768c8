"""One cell of a study: a width and a seed, with the samples, the pairs and the network that every section measures."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.checks import resolve_device, resolve_dtype
from kontrast.data import Dataset, Pairs
from kontrast.nets import MLP
from kontrast.study.draws import draw_net, draw_pairs, first_outputs, load_samples
from kontrast.study.probes import EMBEDDINGS, Embedding, input_embeddings
from kontrast.study.spec import StudySpec


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

    def net_with(self, d_out: int) -> MLP:
        """The cell's network with its first `d_out` outputs, or drawn again with so many where it has fewer."""
        if d_out <= self.net.d_out:
            return first_outputs(self.net, d_out)
        return draw_net(self.spec, self.net.d_in, self.width, self.seed, d_out=d_out).to(self.device)


def draw_cell(spec: StudySpec, width: int, seed: int) -> Cell:
    """The cell before anything is trained."""
    device = resolve_device(spec.device)
    dataset = load_samples(spec)
    contrasted, pairs = draw_pairs(spec, dataset, seed)
    pairs = pairs.to(device=device)
    net = draw_net(spec, dataset.rows.shape[1], width, seed, d_out=spec.d_out).to(device)
    embeddings: dict[str, Embedding | None] = {"random": net}
    embeddings |= input_embeddings(pairs.rows[pairs.anchor], spec.d_out)
    return Cell(spec, width, seed, dataset, contrasted, pairs, net, embeddings)
