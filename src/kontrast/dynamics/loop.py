"""The loop that every discrete descent shares: evaluate, stop if the loss overflowed, record, step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from kontrast.checks import require_not_negative
from kontrast.dynamics.replay import Plain, Repeatable, fastest_way
from kontrast.dynamics.trajectory import Snapshot, Status, Tape, Trajectory
from kontrast.nets import Parameters


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
