"""Gradient descent of a pure function, full-batch or in mini-batches, with constraints on layers if asked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from kontrast.checks import require_generator, require_positive, require_whole
from kontrast.dynamics.loop import descend
from kontrast.dynamics.problem import Problem
from kontrast.dynamics.trajectory import Recorder, Snapshot, Tape, Trajectory
from kontrast.errors import InputError
from kontrast.linalg import grassmann_step, orthonormality_error
from kontrast.nets import Linearized, ModuleFunction, Parameters, PureFunction


class Step(Protocol):
    """The step of a parameter under a constraint: `linalg.grassmann_step`, `polar_step`, `cayley_step`, …."""

    def __call__(self, parameter: Tensor, gradient: Tensor, /, *, learning_rate: float) -> Tensor:
        """The parameter after the step."""


def gradient_descent(
    function: PureFunction,
    parameters: Mapping[str, Tensor],
    problem: Problem,
    *,
    learning_rate: float | Mapping[str, float],
    n_steps: int,
    record_at: Collection[int] | None = None,
    recorders: Mapping[str, Recorder] | None = None,
    keep_outputs: bool = False,
    keep_parameters: bool = False,
    tolerance: float = 0.0,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    orthonormal: Collection[str] = (),
    steps: Mapping[str, Step] | None = None,
) -> Trajectory:
    r"""$\theta_{t+1} = \theta_t - \eta \nabla L(\theta_t)$ from `parameters`, which are copied, not changed.

    Args:
        function: f(parameters, x), as `kontrast.nets.pure_function` or `Linearized` make it.
        parameters: the starting point, by name. Of a whole state_dict() the buffers, such as running statistics, are
            held as they are, in place of the function's own; snapshots and the end hold them too.
        problem: inputs and objective.
        learning_rate: one η, or one per parameter name (every parameter must have one; 0 freezes it).
        n_steps: the number of steps.
        record_at: the steps to record (default: the first and the last).
        recorders: functions of the `Snapshot`, by name.
        keep_outputs: keep the outputs at the recorded steps.
        keep_parameters: keep the parameters at the recorded steps.
        tolerance: stop once the gradient norm (under a constraint: a step's length over η) is below it; 0 never stops.
        batch_size: mini-batches of that many samples in shuffled epochs; None is the full batch.
        generator: shuffles the mini-batches; required with `batch_size`.
        orthonormal: parameters that start with orthonormal columns and descend on the Grassmannian (paper A, (7)), or
            by their own step in `steps`.
        steps: for parameters under a constraint, the step that replaces θ − η∇L, by name.
    """
    tape = Tape(n_steps, record_at, recorders or {}, keep_outputs, keep_parameters)
    function, parameters, buffers = _apart(function, parameters)
    rates = _rates(learning_rate, parameters)
    own_steps: dict[str, Step] = {**dict.fromkeys(orthonormal, grassmann_step), **(steps or {})}
    for name in own_steps:
        if name not in parameters:
            raise InputError(f"no parameter is called {name!r}; the parameters are {list(parameters)}")
    _check_frames(orthonormal, parameters)
    batches = _batches(problem, batch_size, generator)
    stepper = _NetworkDescent(
        function, parameters, buffers, problem, rates, own_steps, batches, full_batch=batch_size is None
    )
    try:
        return descend(stepper, tape, tolerance=tolerance)
    except RuntimeError as error:
        if problem.inputs.ndim > 2 and "mat1 and mat2" in str(error):
            raise InputError(
                f"a linear layer does not take samples of shape {tuple(problem.inputs.shape[1:])}: {error}; put "
                "nn.Flatten() in front of a network of rows"
            ) from error
        raise


class _NetworkDescent:
    def __init__(
        self,
        function: PureFunction,
        parameters: Mapping[str, Tensor],
        buffers: Parameters,
        problem: Problem,
        rates: dict[str, float],
        steps: dict[str, Step],
        batches: Iterator[Problem],
        *,
        full_batch: bool,
    ) -> None:
        self.function, self.problem, self.rates, self.steps = function, problem, rates, steps
        self.buffers = buffers  # that a start with them hands on
        self.parameters = {name: p.detach().clone() for name, p in parameters.items()}
        self.batches, self.full_batch = batches, full_batch

    @property
    def state(self) -> list[Tensor] | None:
        return list(self.parameters.values()) if self.full_batch else None

    def loss(self) -> Tensor:
        self.batch = next(self.batches)
        # New leaves at every step: nodes of an older graph may belong to another stream of a GPU.
        self.leaves = {name: p.detach().requires_grad_() for name, p in self.parameters.items()}
        with torch.enable_grad():
            self.outputs = self.function(self.leaves, self.batch.inputs)
            self.value = self.batch.objective(self.outputs)
        self.gradients: dict[str, Tensor] | None = None
        return self.value.detach()

    def gradient_norm(self) -> float:
        squares = [float(self._descent(name, g).pow(2).sum()) for name, g in self._gradients().items()]
        return float(sum(squares) ** 0.5)

    def update(self) -> None:
        with torch.no_grad():
            for name, gradient in self._gradients().items():
                parameter = self.parameters[name]
                if name in self.steps and self.rates[name] > 0:
                    parameter.copy_(self.steps[name](parameter, gradient, learning_rate=self.rates[name]))
                else:
                    parameter.sub_(gradient, alpha=self.rates[name])

    def snapshot(self, step: int) -> Snapshot:
        # The loop takes snapshots right after `loss`, so a full batch's forward pass is already the answer.
        outputs = self.outputs
        if self.batch is not self.problem:
            with torch.no_grad():
                outputs = self.function(self.parameters, self.problem.inputs)
        return Snapshot(
            step, outputs.detach(), {**self.parameters, **self.buffers} if self.buffers else self.parameters
        )

    def _gradients(self) -> dict[str, Tensor]:
        if self.gradients is None:
            # A parameter that the output does not use has the gradient zero.
            rows = torch.autograd.grad(
                self.value, list(self.leaves.values()), allow_unused=True, materialize_grads=True
            )
            self.gradients = dict(zip(self.parameters, rows, strict=True))
        return self.gradients

    def _descent(self, name: str, gradient: Tensor) -> Tensor:
        """The gradient, or the part of it that a constraint leaves: the step taken, over its rate."""
        parameter, rate = self.parameters[name], self.rates[name]
        if name not in self.steps or rate == 0:
            return gradient
        with torch.no_grad():
            return (parameter - self.steps[name](parameter, gradient, learning_rate=rate)) / rate


def _apart(
    function: PureFunction, parameters: Mapping[str, Tensor]
) -> tuple[PureFunction, Mapping[str, Tensor], Parameters]:
    """The function with the buffers of the start, the parameters that train, and those buffers."""
    if not isinstance(function, ModuleFunction | Linearized):
        return function, parameters, {}
    buffers = {name: parameters[name].detach().clone() for name in function.buffers if name in parameters}
    if not buffers:
        return function, parameters, {}
    held = function.holding(buffers)
    return held, {name: p for name, p in parameters.items() if name not in buffers}, buffers


def _rates(learning_rate: float | Mapping[str, float], parameters: Mapping[str, Tensor]) -> dict[str, float]:
    if not isinstance(learning_rate, Mapping):
        require_positive(learning_rate=learning_rate)
        return dict.fromkeys(parameters, float(learning_rate))
    unknown, missing = set(learning_rate) - set(parameters), set(parameters) - set(learning_rate)
    if unknown or missing:
        raise InputError(
            f"learning rates must name every parameter once; unknown: {sorted(unknown)}, missing: {sorted(missing)}; "
            f"the parameters are {list(parameters)}"
        )
    for name, rate in learning_rate.items():
        if rate != 0:
            require_positive(**{f"learning rate of {name}": rate})
    return {name: float(learning_rate[name]) for name in parameters}


def _check_frames(orthonormal: Collection[str], parameters: Mapping[str, Tensor]) -> None:
    for name in orthonormal:
        W = parameters[name].detach()
        if W.ndim != 2 or W.shape[0] < W.shape[1] or orthonormality_error(W) > 1e-4:
            raise InputError(
                f"{name!r} must start with orthonormal columns, got shape {tuple(W.shape)} with an error above 1e-4; "
                f"start from linalg.qr_retraction or an MLP with parametrization='orthogonal'"
            )


def _batches(problem: Problem, batch_size: int | None, generator: torch.Generator | None) -> Iterator[Problem]:
    """The problem itself again and again, or its mini-batches, shuffled in every epoch; a short last batch is kept."""
    if batch_size is None:
        return iter(lambda: problem, None)
    if problem.subset is None:
        raise InputError("this problem has no samples to split into mini-batches; use batch_size=None")
    size = require_whole("batch_size", batch_size, most=problem.size)
    require_generator(generator)
    return _shuffled(problem, size, generator)


def _shuffled(problem: Problem, batch_size: int, generator: torch.Generator | None) -> Iterator[Problem]:
    assert problem.subset is not None
    assert generator is not None
    while True:
        order = torch.randperm(problem.size, generator=generator, device=generator.device)
        for rows in torch.split(order, batch_size):
            yield problem.subset(rows)
