"""What is diagnosed, read and checked: the model at its checkpoints, samples, views, labels and the loss."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kontrast.diagnosis.inputs import Encoder, State, Views
from kontrast.diagnosis.settings import Settings

Loss = Callable[[Tensor, Tensor], Any]


@dataclass(frozen=True, eq=False)
class Labelled:
    """Samples with class labels: some that probes learn from, and, where the user gave them, others that test."""

    x: Tensor
    y: Tensor
    test_x: Tensor | None = None
    test_y: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Subject:
    """The model and the data of a diagnosis; every section reads it and measures its own part.

    Attributes:
        encoder: the model, in eval mode.
        checkpoints: the states by their labels, the start first, with the running statistics that were asked for.
        x: clean samples, as far as they are known; else their first views.
        views: views of these samples.
        start_as_saved: the start with its own running statistics, where those at the checkpoints are others.
        labelled: samples with labels; None without.
        y: the labels of `x`; None without.
        loss: of two views.
        loss_given: whether the user gave it; else NT-Xent stands in.
        loss_words: its name.
        restated: the same choice of running statistics for another state.
        settings: how the diagnosis is made.
    """

    encoder: Encoder
    checkpoints: tuple[tuple[str, State], ...]
    x: Tensor
    views: Views
    start_as_saved: State | None
    labelled: Labelled | None
    y: Tensor | None
    loss: Loss
    loss_given: bool
    loss_words: str
    restated: Callable[[State], State]
    settings: Settings

    @property
    def start(self) -> State:
        """The state before training."""
        return self.checkpoints[0][1]

    @property
    def end(self) -> State:
        """The last state."""
        return self.checkpoints[-1][1]

    @property
    def labels(self) -> tuple[str, ...]:
        """The checkpoints' labels."""
        return tuple(label for label, _ in self.checkpoints)

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """The first two views of all samples."""
        return self.views.views[:, 0], self.views.views[:, 1]

    def generator(self, stream: int) -> torch.Generator:
        """Random numbers of one part of the diagnosis, whatever the others draw."""
        return torch.Generator().manual_seed((self.settings.seed * 1000003 + stream) % 2**63)

    def value_of_loss(self, a: Tensor, b: Tensor) -> Tensor:
        """The loss of two views as a scalar tensor; of several numbers, their mean.

        A module is copied before every call, so that a queue or running mean in it stays as it is.
        """
        loss = copy.deepcopy(self.loss) if isinstance(self.loss, nn.Module) else self.loss
        value = loss(a, b)
        total = getattr(value, "total", value)
        return (total if isinstance(total, Tensor) else torch.as_tensor(total, dtype=a.dtype)).mean()
