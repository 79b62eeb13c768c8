"""One network trained at many learning rates at once on the same mini-batches, each run beside its linearised twin."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor
from torch.func import vmap

from kontrast.checks import require_between, require_finite, require_shape, require_whole
from kontrast.dynamics.optimizers import Optimizer, OptimizerState
from kontrast.dynamics.replay import recorded
from kontrast.nets import Parameters, Stack

RUNAWAY = 100.0  # outputs over this multiple of their first norm, under a loss without a lower bound
SETTLED_SHARE = 0.125  # of the loss's whole fall that the last half of the steps may add to a run that has settled
LARGEST_RECORDED = 10**8  # parameters of all runs whose step is recorded on a GPU; beyond it launches hardly count
LEAST_SHARE = 4  # a run can have settled after this part of the most steps

BatchLoss = Callable[[Tensor, Tensor | None], Tensor]
"""The loss of the outputs (2n, z) of two views of n samples, one below the other, and the labels (n,) or None."""

Batch = tuple[Tensor, Tensor | None]
"""Two views of n samples, one below the other, (S, 2n, …), and labels (S, n) or None."""


class Ending(Enum):
    """How a run of many ended; the value says it in words."""

    SETTLED = (
        f"the loss has nearly stopped falling: the last half of the steps added at most {SETTLED_SHARE:g} of its fall"
    )
    STEP_LIMIT = "hit `max_steps` while the loss still fell"
    DIVERGED = "values overflowed, or ran away under a loss without a lower bound"


@dataclass(frozen=True, eq=False)
class ManyRuns:
    """S × R runs and their twins; a run that has ended keeps what it had then.

    Attributes:
        checkpoints: the steps at which the runs were looked at, (C,).
        losses: at the checkpoints on samples that no batch holds, (C, S, R); NaN after a run has ended.
        twin_losses: those of the twins.
        gaps: distance of the outputs to the twin's as a share of their norm, (C, S, R).
        batch_losses: of every step's batch, (max_steps, S, R).
        endings: how each ended, S lists of R.
        stopped_at: the step at which each ended, (S, R).
        still_falling: share of the whole fall of the loss that the last half of the steps added, (S, R).
        parameters: of the networks where they ended, (S, R, *p).
        twin_steps: how far the twins' parameters went from their start, (S, R, *p).
    """

    checkpoints: tuple[int, ...]
    losses: Tensor
    twin_losses: Tensor
    gaps: Tensor
    batch_losses: Tensor
    endings: list[list[Ending]]
    stopped_at: Tensor
    still_falling: Tensor
    parameters: Parameters
    twin_steps: Parameters


def checkpoints_of(max_steps: int) -> tuple[int, ...]:
    """0, and max_steps over powers of √2 from 2 steps on: half the steps of each are two places before it."""
    divisors = (2 ** (k / 2) for k in itertools.count())  # a running product would drift away from the powers of 2
    steps = {round(max_steps / it) for it in itertools.takewhile(lambda it: max_steps / it >= 2, divisors)}
    return (0, *sorted(steps | {max_steps}))


def train_many(
    stack: Stack,
    loss: BatchLoss,
    batches: Iterator[Batch],
    test: Batch,
    *,
    learning_rates: Tensor,
    optimizer: Optimizer,
    max_steps: int,
    settled_share: float = SETTLED_SHARE,
    rest_share: float = 0.02,
    unit_length: bool = False,
    bounded: bool = True,
    on_step: Callable[[int], None] = lambda step: None,
) -> ManyRuns:
    """Train every start of `stack` at every rate, and a linearised twin of each on the same batches.

    How much the loss still falls is the difference between its means over the batches of the last half of the steps
    and over the quarter before, as a share of the whole fall since the first batch. A run ends early, from a quarter of
    `max_steps` on, once that share is below `rest_share` at two checkpoints one after the other; it counts as settled
    where it ends with less than `settled_share`. Runs that ended at every start leave the stack.

    Args:
        stack: the network at S starts.
        loss: of a batch.
        batches: without end, each for all starts.
        test: two views of samples that are in no batch, for the losses and gaps at the checkpoints.
        learning_rates: (S, R).
        optimizer: of the networks, and of the twins' parameters.
        max_steps: the most steps.
        settled_share: of the fall of the loss, as above.
        rest_share: likewise; 0 trains every run to the end.
        unit_length: compare outputs at unit length, as a loss of cosine similarities sees them.
        bounded: whether the loss has a lower bound; without one, outputs that ran away count as diverged.
        on_step: called after every step.
    """
    max_steps = require_whole("max_steps", max_steps)
    require_between("settled_share", settled_share, 0, 1)
    require_between("rest_share", rest_share, 0, settled_share)
    require_shape("learning_rates", learning_rates, (len(next(iter(stack.origin.values()))), "R"))
    require_finite("learning_rates", learning_rates, "take rates above 0")
    watch = _Watch(stack, loss, test, unit_length, bounded, rest_share, checkpoints_of(max_steps))
    runs = _Stepping(stack, loss, learning_rates, optimizer)
    record = _Record(runs, watch.checkpoints, max_steps)
    for step in range(max_steps + 1):
        if step in watch.checkpoints:
            seen = watch.look(step, runs, record.batch_losses)
            record.keep(seen, seen.diverged | seen.rests | (step == max_steps), settled_share, runs)
            runs.leave(record.finished(runs.columns))
        if step == max_steps or not runs.columns:
            break
        record.batch_losses[step, :, runs.columns] = runs.step(*next(batches))
        on_step(step + 1)
    return record.result()


class _Stepping:
    """The runs that are still under way: flat stacks (S·k, *p) of the networks' parameters and of the twins' steps."""

    def __init__(self, stack: Stack, loss: BatchLoss, learning_rates: Tensor, optimizer: Optimizer) -> None:
        self.stack, self.loss, self.optimizer = stack, loss, optimizer
        origin = stack.origin
        first = next(iter(origin.values()))
        self.n_starts, self.columns = len(first), list(range(learning_rates.shape[1]))
        self.rates = learning_rates.to(first)
        k = len(self.columns)
        self.parameters = {n: p.expand(-1, k, *p.shape[2:]).flatten(0, 1).clone() for n, p in origin.items()}
        self.twin_steps = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.state, self.twin_state = (optimizer.start(p) for p in (self.parameters, self.twin_steps))
        self.current_rates = self.rates.flatten()
        self.way: Callable[[Tensor, Tensor | None], Tensor] | None = None  # chosen at the first step of a set of runs

    def step(self, x: Tensor, labels: Tensor | None) -> Tensor:
        """One step of all runs; the networks' losses before it, (S, k)."""
        if self.way is None:
            self.way = self._fastest_way(x, labels)
        return self.way(x, labels)

    def _fastest_way(self, x: Tensor, labels: Tensor | None) -> Callable[[Tensor, Tensor | None], Tensor]:
        """Plain steps; on a GPU, the step of small networks as one CUDA graph over a batch in a place of its own."""
        if not x.is_cuda or sum(p.numel() for p in self.parameters.values()) > LARGEST_RECORDED:
            return self.plain_step
        own_x, own_labels = x.clone(), None if labels is None else labels.clone()
        losses = self.current_rates.new_zeros(self.n_starts, len(self.columns))
        graph = recorded(lambda: losses.copy_(self.plain_step(own_x, own_labels)), self._tensors)
        if graph is None:
            return self.plain_step

        def replay(x: Tensor, labels: Tensor | None) -> Tensor:
            own_x.copy_(x)
            if own_labels is not None and labels is not None:
                own_labels.copy_(labels)
            graph.replay()
            return losses.clone()

        return replay

    def plain_step(self, x: Tensor, labels: Tensor | None) -> Tensor:
        """The same, kernel by kernel."""
        losses = self._descend(self.stack.outputs, self.parameters, self.state, x, labels)
        self._descend(self.stack.twin_outputs, self.twin_steps, self.twin_state, x, labels)
        return losses

    @property
    def _tensors(self) -> list[Tensor]:
        """What a step changes in place."""
        moments = [part for state in (self.state, self.twin_state) for part in (state.first, state.second)]
        kept = [p for part in (self.parameters, self.twin_steps, *moments) for p in part.values()]
        return [*kept, self.state.n_steps, self.twin_state.n_steps]

    def _descend(
        self,
        function: Callable[[Parameters, Tensor], Tensor],
        parameters: Parameters,
        state: OptimizerState,
        x: Tensor,
        labels: Tensor | None,
    ) -> Tensor:
        leaves = {name: p.detach().requires_grad_() for name, p in self.shaped(parameters).items()}
        with torch.enable_grad():
            losses = losses_of(self.loss, function(leaves, x), labels)
        # The runs are independent, so the gradient of the sum is every run's own.
        rows = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
        gradients = {name: row.flatten(0, 1) for name, row in zip(leaves, rows, strict=True)}
        with torch.no_grad():
            self.optimizer.step(parameters, gradients, state, self.current_rates)
        return losses.detach()

    def shaped(self, parameters: Parameters) -> Parameters:
        """Flat stacks as (S, k, *p)."""
        k = len(self.columns)
        return {name: p.view(self.n_starts, k, *p.shape[1:]) for name, p in parameters.items()}

    def leave(self, columns: list[int]) -> None:
        """Take finished columns out."""
        if not columns:
            return
        k = len(self.columns)
        left = [i for i, column in enumerate(self.columns) if column not in columns]
        rows = torch.tensor([s * k + i for s in range(self.n_starts) for i in left], dtype=torch.long)
        self.parameters, self.twin_steps = (
            {name: p[rows.to(p.device)] for name, p in part.items()} for part in (self.parameters, self.twin_steps)
        )
        self.state, self.twin_state = self.state.keep(rows), self.twin_state.keep(rows)
        self.columns = [self.columns[i] for i in left]
        self.current_rates = self.rates[:, self.columns].flatten()
        self.way = None


@dataclass(frozen=True, eq=False)
class _Seen:
    """What a checkpoint showed, (S, k) each."""

    place: int
    step: int
    losses: Tensor
    twin_losses: Tensor
    gaps: Tensor
    diverged: Tensor
    rests: Tensor
    still_falling: Tensor


class _Watch:
    """Looks at the runs at every checkpoint."""

    def __init__(
        self,
        stack: Stack,
        loss: BatchLoss,
        test: Batch,
        unit_length: bool,
        bounded: bool,
        share: float,
        checkpoints: tuple[int, ...],
    ) -> None:
        self.stack, self.loss, self.test = stack, loss, test
        self.unit_length, self.bounded, self.share, self.checkpoints = unit_length, bounded, share, checkpoints
        self.first_sizes, self.passed = torch.empty(0), torch.empty(0)  # (S, 1), (S, R), from the first checkpoint

    def look(self, step: int, runs: _Stepping, batch_losses: Tensor) -> _Seen:
        x, labels = self.test
        with torch.no_grad():
            outputs = self.stack.outputs(runs.shaped(runs.parameters), x)
            twin = self.stack.twin_outputs(runs.shaped(runs.twin_steps), x)
            losses, twin_losses = (losses_of(self.loss, part, labels) for part in (outputs, twin))
            sizes = outputs.square().sum((2, 3)).sqrt()
        if step == 0:
            # All runs of a start begin at the same outputs.
            self.first_sizes, self.passed = sizes[:, :1], torch.zeros_like(losses, dtype=torch.bool)
        place, columns = self.checkpoints.index(step), runs.columns
        diverged = ~torch.isfinite(losses) | ~torch.isfinite(sizes)
        if not self.bounded:
            diverged |= sizes > RUNAWAY * self.first_sizes
        still_falling = _still_falling(batch_losses[:step, :, columns])
        may_rest = self.share > 0 and LEAST_SHARE * step >= self.checkpoints[-1]
        passes = (still_falling < self.share) & ~diverged & may_rest
        rests = passes & self.passed[:, columns]
        self.passed[:, columns] = passes
        gaps = output_gap(outputs, twin, unit_length=self.unit_length)
        return _Seen(place, step, losses, twin_losses, gaps, diverged, rests, still_falling)


class _Record:
    """What is kept of all runs."""

    def __init__(self, runs: _Stepping, checkpoints: tuple[int, ...], max_steps: int) -> None:
        shape = (runs.n_starts, len(runs.columns))
        first = next(iter(runs.parameters.values()))
        self.checkpoints = checkpoints
        self.over_checkpoints = {
            name: first.new_full((len(checkpoints), *shape), torch.nan) for name in ("losses", "twin_losses", "gaps")
        }
        self.batch_losses = first.new_full((max_steps, *shape), torch.nan)
        self.endings: list[list[Ending | None]] = [[None] * shape[1] for _ in range(shape[0])]
        self.stopped_at = torch.zeros(shape, dtype=torch.long)
        self.still_falling = torch.full(shape, torch.nan, dtype=torch.float64)
        self.parameters, self.twin_steps = (
            {name: p.clone() for name, p in runs.shaped(part).items()} for part in (runs.parameters, runs.twin_steps)
        )

    def keep(self, seen: _Seen, ended: Tensor, settled_share: float, runs: _Stepping) -> None:
        """Store what a checkpoint showed, and the last of every run that ends there."""
        columns = runs.columns
        running = torch.tensor([[row[c] is None for c in columns] for row in self.endings], device=ended.device)
        for name, values in self.over_checkpoints.items():
            shown: Tensor = getattr(seen, name)
            values[seen.place, :, columns] = torch.where(running, shown, torch.nan)
        now = (ended & running).nonzero().tolist()
        parts = [(self.parameters, runs.shaped(runs.parameters)), (self.twin_steps, runs.shaped(runs.twin_steps))]
        for s, i in now:
            settled = bool(seen.still_falling[s, i] < settled_share)
            self.endings[s][columns[i]] = _ending(bool(seen.diverged[s, i]), settled)
            self.stopped_at[s, columns[i]] = seen.step
            self.still_falling[s, columns[i]] = float(seen.still_falling[s, i])
            for kept, current in parts:
                for name, p in current.items():
                    kept[name][s, columns[i]] = p[s, i]

    def finished(self, columns: list[int]) -> list[int]:
        """The columns whose runs have ended at every start."""
        return [column for column in columns if all(row[column] is not None for row in self.endings)]

    def result(self) -> ManyRuns:
        return ManyRuns(
            self.checkpoints,
            **self.over_checkpoints,
            batch_losses=self.batch_losses,
            endings=[[ending for ending in row if ending is not None] for row in self.endings],
            stopped_at=self.stopped_at,
            still_falling=self.still_falling,
            parameters=self.parameters,
            twin_steps=self.twin_steps,
        )


def _ending(diverged: bool, settled: bool) -> Ending:
    return Ending.DIVERGED if diverged else Ending.SETTLED if settled else Ending.STEP_LIMIT


def _still_falling(losses: Tensor) -> Tensor:
    """The fall of the mean loss from the second quarter of the steps to the last half, over the whole fall."""
    step = len(losses)
    if step < 4:
        return losses.new_ones(losses.shape[1:])
    earlier, later = losses[step // 4 : step // 2].mean(0), losses[step // 2 :].mean(0)
    return (earlier - later) / (losses[0] - later).abs().clamp(min=torch.finfo(losses.dtype).tiny)


def losses_of(loss: BatchLoss, outputs: Tensor, labels: Tensor | None) -> Tensor:
    """The loss of every run, (S, R), from stacked outputs (S, R, 2n, z) and labels (S, n)."""
    runs = outputs.flatten(0, 1)  # one level of vmap: each has a price of its own
    if labels is None:
        every: Tensor = vmap(lambda f: loss(f, None))(runs)
    else:
        every = vmap(loss)(runs, labels.repeat_interleave(outputs.shape[1], 0))
    return every.view(outputs.shape[:2])


def output_gap(outputs: Tensor, others: Tensor, *, unit_length: bool) -> Tensor:
    """‖f − g‖_F / ‖f‖_F over the last two dimensions, of rows at unit length where asked; NaN where g overflowed."""
    if unit_length:
        outputs, others = (torch.nn.functional.normalize(part, dim=-1) for part in (outputs, others))
    return (outputs - others).square().sum((-2, -1)).sqrt() / outputs.square().sum((-2, -1)).sqrt()
