"""Gradient descent, momentum and Adam over parameters by name, for one run or for a stack of runs with their own rates.

A stack of R runs has one more dimension in front of every parameter, and one learning rate per run. The numbers of each
run are those of `torch.optim`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.checks import require_between, require_choice, require_positive
from kontrast.errors import InputError

OPTIMIZERS = ("sgd", "momentum", "adam")


@dataclass(frozen=True, eq=False)
class OptimizerState:
    """What an optimiser remembers between steps; `step` changes it in place.

    Attributes:
        n_steps: the steps that Adam has taken, a tensor on the device of the parameters, so that a step waits for no
            value and can be recorded and replayed as a graph.
        first: running sums or means of gradients by the parameters' names; empty without momentum.
        second: running means of squared gradients, of Adam.
    """

    n_steps: Tensor
    first: dict[str, Tensor]
    second: dict[str, Tensor]

    def keep(self, rows: Tensor) -> OptimizerState:
        """A copy for only those runs of the stack: their numbers, or a mask (R,)."""
        first, second = ({name: kept[rows] for name, kept in means.items()} for means in (self.first, self.second))
        return OptimizerState(self.n_steps.clone(), first, second)


class Optimizer(ABC):
    """A rule for steps down the gradient. It holds options alone; what it remembers is in an `OptimizerState`."""

    def start(self, parameters: Mapping[str, Tensor]) -> OptimizerState:
        """The state before the first step from these parameters."""
        if not parameters:
            raise InputError("there are no parameters to optimise; pass at least one")
        device = next(iter(parameters.values())).device
        first, second = (
            {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()} if remembered else {}
            for remembered in self._remembers()
        )
        return OptimizerState(torch.zeros((), dtype=torch.float64, device=device), first, second)

    def step(
        self,
        parameters: dict[str, Tensor],
        gradients: Mapping[str, Tensor],
        state: OptimizerState,
        learning_rate: float | Tensor,
    ) -> None:
        """One step, in place on parameters and state.

        Args:
            parameters: by name; for a stack of runs each with a first dimension of R.
            gradients: of the same names and shapes.
            state: from `start`, or from the step before.
            learning_rate: a number, or rates (R,), one per run of a stack.
        """
        if gradients.keys() != parameters.keys():
            raise InputError(f"gradients must have the parameters' names {list(parameters)}, got {list(gradients)}")
        with torch.no_grad():
            self._move(parameters, gradients, state, learning_rate)

    def first_step(self, gradients: Mapping[str, Tensor]) -> float:
        """The length of the first step at a learning rate of 1: that of the gradient, or of its signs under Adam."""
        moved = {name: torch.zeros_like(g) for name, g in gradients.items()}
        self.step(moved, gradients, self.start(moved), 1.0)
        return float(torch.stack([step.double().norm() for step in moved.values()]).norm())

    @abstractmethod
    def _remembers(self) -> tuple[bool, bool]:
        """Whether the state holds first and second moments."""

    @abstractmethod
    def _move(
        self,
        parameters: dict[str, Tensor],
        gradients: Mapping[str, Tensor],
        state: OptimizerState,
        learning_rate: float | Tensor,
    ) -> None:
        """The step itself."""


def optimizer_from(
    name: str, *, momentum: float = 0.9, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8
) -> Optimizer:
    """The optimiser called `name`, one of `OPTIMIZERS`; of the options it takes those it has.

    Args:
        name: "sgd", θ − ηg; "momentum", θ − ηv with v = momentum · v + g (Polyak 1964); "adam" (Kingma and Ba 2015).
        momentum: of "momentum", from 0 to below 1.
        betas: of "adam", how much of the means of g and g² is kept at each step, from 0 to below 1.
        epsilon: of "adam", what is added to the root of the mean of g².
    """
    require_choice("optimizer", name, OPTIMIZERS)
    require_between("momentum", momentum, 0, 1, high_included=False)
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise InputError(f"betas must be two numbers, got {betas}; pass (0.9, 0.999)")
    for beta in betas:
        require_between("each of betas", beta, 0, 1, high_included=False)
    require_positive(epsilon=epsilon)
    if name == "adam":
        return _Adam(betas[0], betas[1], epsilon)
    return _Momentum(momentum) if name == "momentum" else _SGD()


@dataclass(frozen=True)
class _SGD(Optimizer):
    def _remembers(self) -> tuple[bool, bool]:
        return False, False

    def _move(
        self,
        parameters: dict[str, Tensor],
        gradients: Mapping[str, Tensor],
        state: OptimizerState,
        learning_rate: float | Tensor,
    ) -> None:
        for name, parameter in parameters.items():
            _descend(parameter, gradients[name], learning_rate)


@dataclass(frozen=True)
class _Momentum(Optimizer):
    momentum: float

    def _remembers(self) -> tuple[bool, bool]:
        return True, False

    def _move(
        self,
        parameters: dict[str, Tensor],
        gradients: Mapping[str, Tensor],
        state: OptimizerState,
        learning_rate: float | Tensor,
    ) -> None:
        for name, parameter in parameters.items():
            velocity = state.first[name].mul_(self.momentum).add_(gradients[name])
            _descend(parameter, velocity, learning_rate)


@dataclass(frozen=True)
class _Adam(Optimizer):
    beta1: float
    beta2: float
    epsilon: float

    def _remembers(self) -> tuple[bool, bool]:
        return True, True

    def _move(
        self,
        parameters: dict[str, Tensor],
        gradients: Mapping[str, Tensor],
        state: OptimizerState,
        learning_rate: float | Tensor,
    ) -> None:
        # With c_i = 1 − β_i^t the step η (m/c_1) / (√(v/c_2) + ε) is (η √c_2/c_1) m / (√v + ε √c_2): the corrections
        # for the start touch numbers, one per run, instead of every entry.
        state.n_steps.add_(1)
        c1, root_c2 = 1 - self.beta1**state.n_steps, (1 - self.beta2**state.n_steps).sqrt()
        eta = learning_rate.double() if isinstance(learning_rate, Tensor) else learning_rate
        rate, epsilon = eta * (root_c2 / c1), self.epsilon * root_c2
        for name, parameter in parameters.items():
            g = gradients[name]
            m = state.first[name].lerp_(g, 1 - self.beta1)
            v = state.second[name].mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
            ratio = v.sqrt().add_(epsilon)
            _descend(parameter, torch.div(m, ratio, out=ratio), rate)


def _descend(parameter: Tensor, direction: Tensor, rate: float | Tensor) -> None:
    """θ − η · direction in place, with one rate, or one for each run of a stack."""
    if not isinstance(rate, Tensor):
        parameter.add_(direction, alpha=-rate)
        return
    if rate.ndim > 1 or (rate.ndim == 1 and (parameter.ndim == 0 or len(rate) != len(parameter))):
        raise InputError(
            f"learning_rate must be a number or have shape (R,) for parameters stacked along a first dimension R, got "
            f"{tuple(rate.shape)} for a parameter of shape {tuple(parameter.shape)}"
        )
    rates = rate.to(parameter.dtype).view(-1, *[1] * (parameter.ndim - 1)) if rate.ndim else rate.to(parameter.dtype)
    parameter.addcmul_(direction, rates, value=-1)
