"""One network trained at one rate by torch's own optimizer, and its linearised twin by the forward derivative."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

Loss = Callable[[Tensor, Tensor | None], Tensor]
Batch = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class OneRun:
    """The losses of the batches, and at every step, from 0 on, the loss and outputs of held-out views."""

    batch_losses: list[float]
    losses: list[float]
    outputs: list[Tensor]
    parameters: dict[str, Tensor]


def torchs_optimizer(name: str, parameters: Sequence[Tensor], rate: float) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(parameters, lr=rate)
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9 if name == "momentum" else 0.0)


def trained(
    module: nn.Module, loss: Loss, batches: Sequence[Batch], held_out: Batch, *, rate: float, optimizer: str
) -> OneRun:
    """One step per batch of a copy of the module."""
    module = copy.deepcopy(module)
    return _loop(
        module, list(module.parameters()), dict(module.named_parameters()), loss, batches, held_out, rate, optimizer
    )


def trained_twin(
    module: nn.Module, loss: Loss, batches: Sequence[Batch], held_out: Batch, *, rate: float, optimizer: str
) -> OneRun:
    """The same of f(x; θ_0) + J(x) Δ, a function of the step Δ; `parameters` of the run is Δ."""
    origin = {name: p.detach().clone() for name, p in module.named_parameters()}
    steps = {name: torch.zeros_like(p).requires_grad_() for name, p in origin.items()}

    def function(x: Tensor) -> Tensor:
        value, slope = jvp(lambda p: functional_call(module, p, (x,)), (origin,), (steps,))
        return value + slope

    return _loop(function, list(steps.values()), steps, loss, batches, held_out, rate, optimizer)


def _loop(
    function: Callable[[Tensor], Tensor],
    leaves: Sequence[Tensor],
    named: dict[str, Tensor],
    loss: Loss,
    batches: Sequence[Batch],
    held_out: Batch,
    rate: float,
    optimizer: str,
) -> OneRun:
    stepper = torchs_optimizer(optimizer, leaves, rate)
    batch_losses: list[float] = []
    losses: list[float] = []
    outputs: list[Tensor] = []

    def look() -> None:
        outputs.append(function(held_out[0]).detach())
        losses.append(float(loss(outputs[-1], held_out[1])))

    look()
    for x, labels in batches:
        stepper.zero_grad()
        value = loss(function(x), labels)
        value.backward()
        batch_losses.append(float(value.detach()))
        stepper.step()
        look()
    return OneRun(batch_losses, losses, outputs, {name: p.detach().clone() for name, p in named.items()})
