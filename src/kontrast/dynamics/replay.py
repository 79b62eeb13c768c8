"""How a descent gets from one recorded step to the next: step by step, or on a GPU as one recorded CUDA graph.

A step of a small network is some forty short kernels, and launching them one by one takes ten times as long as they
run. Recorded once as a CUDA graph they are launched together. The numbers are those of plain steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

FEWEST_STEPS = 30  # recording costs about as much as this many steps
WARM_UP = 3  # steps before recording, in which libraries choose and set up their kernels


class Repeatable(Protocol):
    """A step that can be recorded: `loss` then `update`, which change nothing but `state`, in place."""

    @property
    def state(self) -> list[Tensor] | None:
        """The tensors that a step changes in place; None where no two steps are alike (mini-batches)."""

    def loss(self) -> Tensor:
        """The loss at the current point, of this step's batch."""

    def update(self) -> None:
        """Make the step."""


class Plain:
    """One step at a time."""

    def __init__(self, stepper: Repeatable) -> None:
        self.stepper = stepper

    def advance(self, at_most: int) -> list[float]:
        """Make at least one step and no more than `at_most`; return the losses between them.

        `stepper.loss` was called at the current point; k losses returned mean that k + 1 steps were made.
        """
        self.stepper.update()
        return []


class Replay(Plain):
    """Many steps at a time by replaying a recorded one; plain steps from where the loss overflows."""

    def __init__(self, stepper: Repeatable, graph: torch.cuda.CUDAGraph, losses: Tensor, place: Tensor) -> None:
        super().__init__(stepper)
        self.graph: torch.cuda.CUDAGraph | None = graph
        self.losses, self.place = losses, place  # the graph writes the loss to losses[place], then adds 1 to place

    def advance(self, at_most: int) -> list[float]:
        """Make `at_most` steps, or one where the loss overflows within them."""
        if self.graph is not None and at_most > 1:
            passed = self._replay(self.graph, at_most)
            if passed is not None:
                return passed
            self.graph = None  # one step at a time now, up to the one that overflows
            self.stepper.loss()  # again: its gradient was not taken yet, and replaying has overwritten what it needs
        return super().advance(at_most)

    def _replay(self, graph: torch.cuda.CUDAGraph, n_steps: int) -> list[float] | None:
        """The losses after each step but the last; None, with the state restored, where one is not finite."""
        state = self.stepper.state
        assert state is not None
        before = [tensor.clone() for tensor in state]
        self.place.zero_()
        for _ in range(n_steps):
            graph.replay()
        losses = self.losses[:n_steps]
        if bool(torch.isfinite(losses).all()):
            return [float(loss) for loss in losses[1:].tolist()]
        _restore(state, before)
        return None


def fastest_way(stepper: Repeatable, *, n_steps: int) -> Plain:
    """A `Replay` where the step can be recorded and that pays: on a GPU, in full batches, for many steps.

    An objective that looks at its values (`if loss > 1`) cannot be recorded and gets plain steps.
    """
    state = stepper.state
    if state is None or n_steps < FEWEST_STEPS or not all(tensor.is_cuda for tensor in state):
        return Plain(stepper)
    device = state[0].device
    losses = torch.zeros(n_steps, dtype=torch.float64, device=device)
    place = torch.zeros(1, dtype=torch.int64, device=device)

    def step() -> None:
        losses.scatter_(0, place, stepper.loss().detach().double().reshape(1))
        place.add_(1)
        stepper.update()

    graph = recorded(step, state)
    return Plain(stepper) if graph is None else Replay(stepper, graph, losses, place)


def recorded(step: Callable[[], object], state: Sequence[Tensor]) -> torch.cuda.CUDAGraph | None:
    """A step as a CUDA graph; None where it cannot be recorded. `state`, which steps change in place, is restored."""
    device, before = state[0].device, [tensor.detach().clone() for tensor in state]
    graph, done = torch.cuda.CUDAGraph(), True
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step()
        torch.cuda.current_stream(device).wait_stream(side)
        with torch.cuda.graph(graph):
            step()
    except RuntimeError:  # torch's word for what cannot be recorded; plain steps raise a real error again
        done = False
    torch.cuda.synchronize(device)
    _restore(state, before)
    return graph if done else None


@torch.no_grad()
def _restore(state: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    for tensor, old in zip(state, before, strict=True):
        tensor.copy_(old)
