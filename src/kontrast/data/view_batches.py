"""Mini-batches of fresh views without end: what self-supervised training sees."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kontrast.checks import require_generator, require_same_length, require_whole
from kontrast.data.views import View, fresh_view

STEPS_AT_ONCE = 16  # batches whose views are made together: a view's own cost is small beside that of calling it


def view_batches(
    x: Tensor, view: View, *, batch_size: int, generator: torch.Generator, labels: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Two fresh views of each of `batch_size` samples, one below the other (2n, …), and their labels (n,) or None.

    Samples come in shuffled epochs that run on across batches, so every batch is full. The random numbers are drawn on
    the generator's device and the views made on that of `x`: the same batches wherever the samples are.
    """
    size = require_whole("batch_size", batch_size, most=len(x))
    require_generator(generator)
    if labels is not None:
        require_same_length(x=x, labels=labels)
    return _batches(x, view, size, generator, labels)


def _batches(
    x: Tensor, view: View, size: int, generator: torch.Generator, labels: Tensor | None
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """The batches; a function of its own, so that bad input is refused before the first is asked for."""
    queue = torch.empty(0, dtype=torch.long)
    while True:
        while len(queue) < STEPS_AT_ONCE * size:
            queue = torch.cat([queue, torch.randperm(len(x), generator=generator)])
        rows, queue = queue[: STEPS_AT_ONCE * size].to(x.device), queue[STEPS_AT_ONCE * size :]
        samples = x[rows]
        first, second = (fresh_view(view, samples, generator) for _ in range(2))
        for step in range(STEPS_AT_ONCE):
            at = slice(step * size, (step + 1) * size)
            yield torch.cat([first[at], second[at]]), None if labels is None else labels[rows[at]]
