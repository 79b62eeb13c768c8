"""One `Trajectory` for every kind of descent, and the loop that all discrete ones share."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor

from kontrast.checks import require_not_negative, require_whole
from kontrast.dynamics.replay import Plain, Repeatable, fastest_way
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


class Stepper(Repeatable, Protocol):
    """A point that descends: the loss there, the gradient's norm, and one step."""

    def gradient_norm(self) -> float:
        """The norm of that loss's gradient."""

    def snapshot(self, step: int) -> Snapshot:
        """The current point, for recorders."""


def descend(stepper: Stepper, tape: Tape, *, tolerance: float = 0.0) -> Trajectory:
    """The loop of every discrete descent: evaluate, stop if the loss overflowed, record, test, step."""
    require_not_negative(tolerance=tolerance)
    losses: list[float] = []
    seen: list[Snapshot] = []
    records: dict[str, list[Tensor]] = {name: [] for name in tape.recorders}
    status, wanted = Status.STEP_LIMIT, tape.steps
    way = Plain(stepper) if tolerance > 0 else fastest_way(stepper, n_steps=tape.n_steps)
    step = 0
    while True:
        losses.append(float(stepper.loss()))
        if not math.isfinite(losses[-1]):
            status = Status.DIVERGED
            break
        if step in wanted:
            snapshot = stepper.snapshot(step)
            for name, recorder in tape.recorders.items():
                records[name].append(_as_record(recorder(snapshot)))
            seen.append(tape.keep(snapshot))
        if tolerance > 0 and stepper.gradient_norm() < tolerance:
            status = Status.CONVERGED
            break
        if step == tape.n_steps:
            break
        passed = way.advance(min((stop for stop in wanted if stop > step), default=tape.n_steps) - step)
        losses += passed
        step += 1 + len(passed)
    last = stepper.snapshot(step)
    return Trajectory(
        steps=tuple(snapshot.step for snapshot in seen),
        losses=torch.tensor(losses, dtype=torch.float64),
        status=status,
        stopped_at=step,
        records={name: torch.stack(rows) for name, rows in records.items() if rows},
        outputs=torch.stack([s.outputs for s in seen]) if seen and tape.keep_outputs else None,
        parameters=_stack([s.parameters for s in seen]) if seen and tape.keep_parameters else None,
        final_outputs=last.outputs.detach().clone(),
        final_parameters={name: p.detach().clone() for name, p in last.parameters.items()},
    )


def _as_record(value: Tensor | float) -> Tensor:
    """A copy on the CPU; plain numbers as float64, not as torch's default float32, whose range ends at 1e38."""
    return value.detach().cpu().clone() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def _stack(rows: Sequence[Mapping[str, Tensor]]) -> Parameters:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
