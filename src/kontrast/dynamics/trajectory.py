"""One `Trajectory` for every kind of descent, and the tape that says what to record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

from kontrast.checks import require_whole
from kontrast.nets import Parameters


class Status(Enum):
    """How a run ended; the value is the advice."""

    CONVERGED = "the gradient norm fell below `tolerance`"
    STEP_LIMIT = "ran all `n_steps`; raise `n_steps` to go on"
    DIVERGED = "values overflowed at `stopped_at`; expected for dot-product losses (paper A, Prop. 10)"


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The run at one step, as recorders see it; the tensors are live, so copy what you keep."""

    step: int
    outputs: Tensor  # (m, z) at the problem's inputs
    parameters: Mapping[str, Tensor]  # empty where outputs evolve without parameters


Recorder = Callable[[Snapshot], Tensor | float]


def distance_from(start: Mapping[str, Tensor]) -> Recorder:
    """‖θ(t) − θ(0)‖ over all parameters, for θ(0) = `start`."""

    def distance(now: Snapshot) -> Tensor:
        return torch.stack([(now.parameters[name] - p).pow(2).sum() for name, p in start.items()]).sum().sqrt()

    return distance


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A finished run. Row k of every record, of `outputs` and of `parameters` belongs to `steps[k]`.

    `losses[t]` is the loss before step t + 1, so `losses[0]` is the loss at the start; a diverged run ends with the
    non-finite loss. Losses of mini-batch runs are those of the batches.
    """

    steps: tuple[int, ...]
    losses: Tensor
    status: Status
    stopped_at: int
    final_outputs: Tensor
    final_parameters: Parameters
    records: dict[str, Tensor] = field(default_factory=dict)
    outputs: Tensor | None = None
    parameters: Parameters | None = None


@dataclass(frozen=True, eq=False)
class Tape:
    """The quantities to record, and the steps at which to record them; `at=None` means the first and the last."""

    n_steps: int
    at: Collection[int] | None = None
    recorders: Mapping[str, Recorder] = field(default_factory=dict)
    keep_outputs: bool = False
    keep_parameters: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_steps", require_whole("n_steps", self.n_steps, least=0))
        _ = self.steps  # refuses steps outside the run now, not after it

    @property
    def steps(self) -> set[int]:
        """The steps at which to record."""
        if self.at is None:
            return {0, self.n_steps}
        return {require_whole("every step of record_at", step, least=0, most=self.n_steps) for step in self.at}

    def keep(self, snapshot: Snapshot) -> Snapshot:
        """A copy of the parts that are to be kept, without references to the rest."""
        return Snapshot(
            step=snapshot.step,
            outputs=snapshot.outputs.detach().clone() if self.keep_outputs else torch.empty(0),
            parameters={k: p.detach().clone() for k, p in snapshot.parameters.items()} if self.keep_parameters else {},
        )
