"""Steps of a descent on a GPU as one recorded graph, so that small networks do not wait for Python.

A step of a small network is some forty short kernels, and launching them one by one takes ten times as long as they
run. Recorded once as a CUDA graph they are launched together. The numbers are those of the plain loop.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

FEWEST_STEPS = 30  # recording costs about as much as these many steps
WARM_UP = 3  # steps before recording, in which libraries choose and set up their kernels


class Repeatable(Protocol):
    """What is recorded: `loss` then `update`, which change nothing but `state`, in place."""

    @property
    def state(self) -> list[Tensor] | None:
        """The tensors that a step changes in place; None where no two steps are alike (mini-batches)."""

    def loss(self) -> Tensor:
        """The loss at the current point, of this step's batch."""

    def update(self) -> None:
        """Make the step."""


class Replay:
    """A recorded step, and the losses it wrote down."""

    def __init__(self, graph: torch.cuda.CUDAGraph, state: list[Tensor], losses: Tensor, place: Tensor) -> None:
        self.graph, self.state, self.losses, self.place = graph, state, losses, place

    def advance(self, n_steps: int) -> list[float] | None:
        """Make steps; the losses after each but the last. None, with nothing changed, where one is not finite."""
        before = [tensor.clone() for tensor in self.state]
        self.place.zero_()
        for _ in range(n_steps):
            self.graph.replay()
        losses = self.losses[:n_steps]
        if bool(torch.isfinite(losses).all()):
            return [float(loss) for loss in losses[1:].tolist()]
        with torch.no_grad():
            for tensor, old in zip(self.state, before, strict=True):
                tensor.copy_(old)
        return None


def capture(stepper: Repeatable, *, n_steps: int) -> Replay | None:
    """The step as a graph; None on a CPU, for few steps, for mini-batches, and where it cannot be recorded.

    An objective that looks at its values (`if loss > 1`) cannot be: the plain loop runs it then.
    """
    state = stepper.state
    if state is None or n_steps < FEWEST_STEPS or not all(tensor.is_cuda for tensor in state):
        return None
    device = state[0].device
    losses = torch.zeros(n_steps, dtype=torch.float64, device=device)
    place = torch.zeros(1, dtype=torch.int64, device=device)

    def step() -> None:
        losses.scatter_(0, place, stepper.loss().detach().double().reshape(1))
        place.add_(1)
        stepper.update()

    before = [tensor.detach().clone() for tensor in state]
    graph, recorded = torch.cuda.CUDAGraph(), True
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step()
        torch.cuda.current_stream(device).wait_stream(side)
        with torch.cuda.graph(graph):
            step()
    except RuntimeError:  # torch's word for what cannot be recorded; the plain loop raises again what is a real error
        recorded = False
    torch.cuda.synchronize(device)
    with torch.no_grad():
        for tensor, old in zip(state, before, strict=True):
            tensor.copy_(old)
    return Replay(graph, state, losses, place) if recorded else None
