"""Which samples a map contrasts, which teach its probes, and which choose and test: a split of its own per seed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.data import Dataset, View, fit_view, fresh_view, parse_view
from kontrast.runs import generator_for
from kontrast.study.spec import StudySpec

SHARES = {"test": 5, "validation": 10}  # one sample in so many
MOST = {"test": 1000, "validation": 500, "taught": 2000}


@dataclass(frozen=True, eq=False)
class Split:
    """Indices of samples: contrasted, and held out for the watched loss, the choice of a baseline, and every result.

    Probes learn from the labels of `taught`, some of the contrasted samples.
    """

    contrasted: Tensor
    taught: Tensor
    validation: Tensor
    test: Tensor


def split_for(spec: StudySpec, dataset: Dataset, seed: int) -> Split:
    """The split of a seed; each class keeps its share of what is held out."""
    n = len(dataset)
    counts = {name: max(2, min(MOST[name], n // share)) for name, share in SHARES.items()}
    generator = generator_for(seed, 0, 2)
    held = dataset.draw(sum(counts.values()), generator=generator)
    kept = torch.ones(n, dtype=torch.bool)
    kept[held] = False
    rest = kept.nonzero()[:, 0]
    rest = rest[torch.randperm(len(rest), generator=generator)]
    contrasted = rest if spec.map_samples is None else rest[: spec.map_samples]
    return Split(contrasted, contrasted[: MOST["taught"]], held[: counts["validation"]], held[counts["validation"] :])


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of a seed in float32 where they are computed with, and as the network takes them."""

    x: Tensor  # (n, …), all of them, before views
    labels: Tensor | None
    view: View
    scale: float | None  # what rows of an MLP are multiplied by; None leaves samples as they are

    @classmethod
    def of(cls, spec: StudySpec, dataset: Dataset) -> Samples:
        """The samples; for the built-in network rows, scaled to a mean squared norm of 1."""
        x = dataset.x.to(device=spec.device, dtype=torch.float32)
        labels = None if dataset.y is None else dataset.y.to(spec.device)
        scale = None if spec.model is not None else float(x.double().square().flatten(1).sum(1).mean()) ** -0.5
        return cls(x, labels, fit_view(parse_view(str(spec.views)), [x]), scale)

    def inputs(self, x: Tensor) -> Tensor:
        """A batch as the network takes it."""
        return x if self.scale is None else x.flatten(1) * self.scale

    def views(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Two fresh views of some samples, one below the other, as the network takes them."""
        x = self.x[rows.to(self.x.device)]
        return self.inputs(torch.cat([fresh_view(self.view, x, generator) for _ in range(2)]))
