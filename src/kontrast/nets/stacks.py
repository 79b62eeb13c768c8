"""Many runs of one network at once: parameters stacked over starts and runs, and the linearised twin of each.

S starts (seeds) have R runs each (learning rates). A parameter of shape p is stacked to (S, R, *p), and a batch is
(S, n, …): the runs of a start see the same samples, those of another start others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from kontrast.nets.functional import Linearized, Parameters, parameters_of, pure_function
from kontrast.nets.mlp import MLP


class Stack(Protocol):
    """The network of S starts, evaluated for stacked parameters."""

    @property
    def origin(self) -> Parameters:
        """The parameters at the starts, (S, 1, *p)."""

    def outputs(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """(S, R, n, d_out) of a batch (S, n, …)."""
        ...

    def twin_outputs(self, steps: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """f(x; θ_0) + J(x) Δ for stacked steps Δ away from the origin θ_0, (S, R, n, d_out)."""
        ...


def stack_of(modules: Sequence[nn.Module]) -> Stack:
    """A stack over the starts `modules`, which are one network with different parameters.

    An `MLP` runs as batched matrix products, any other module one run at a time.
    """
    if all(isinstance(module, MLP) for module in modules):
        return StackedMLP([module for module in modules if isinstance(module, MLP)])
    return LoopedModules(modules)


def stacked(starts: Sequence[Parameters]) -> Parameters:
    """The parameters of S starts with one run each, (S, 1, *p)."""
    return {name: torch.stack([start[name] for start in starts]).unsqueeze(1) for name in starts[0]}


def one_run(parameters: Mapping[str, Tensor], start: int, run: int) -> Parameters:
    """The parameters of one run of a stack."""
    return {name: p[start, run] for name, p in parameters.items()}


class StackedMLP:
    """MLPs of one shape, all runs in the same matrix products."""

    def __init__(self, nets: Sequence[MLP]) -> None:
        self.net = nets[0]
        self.origin = stacked([parameters_of(net) for net in nets])

    def outputs(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """As in `Stack`."""
        V, W = self.net.layers(parameters)
        *scales, scale = self.net.scales
        h = x.flatten(2).unsqueeze(1)  # (S, 1, n, d): shared by the runs of a start
        for factor, V_l in zip(scales, V, strict=True):
            a = h @ V_l.mT
            h = self.net.activation(a if factor == 1.0 else factor * a)
        return scale * (h @ W)

    def twin_outputs(self, steps: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """As in `Stack`; what depends on the origin alone is computed once for all runs of a start.

        With the layers a_l = s_l V_l h_(l−1), h_l = φ(a_l), a step dV, dW changes them to first order by
        da_l = s_l (dV_l h_(l−1) + V_l dh_(l−1)), dh_l = φ'(a_l) da_l, and the output by s (h_L dW + dh_L W).
        """
        V, W = self.net.layers(self.origin)
        dV, dW = self.net.layers(steps)
        *scales, scale = self.net.scales
        h, dh = x.flatten(2).unsqueeze(1), None
        for factor, V_l, dV_l in zip(scales, V, dV, strict=True):
            a, da = factor * (h @ V_l.mT), h @ dV_l.mT
            if dh is not None:
                da = da + dh @ V_l.mT
            h, dh = self.net.activation(a), factor * self.net.activation.first(a) * da
        assert dh is not None
        return scale * (h @ (W + dW) + dh @ W)


class LoopedModules:
    """Any modules, one run after the other."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.functions = [pure_function(module) for module in modules]
        self.twins = [Linearized.of(module) for module in modules]
        self.origin = stacked([parameters_of(module) for module in modules])

    def outputs(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """As in `Stack`."""
        rows = [
            torch.stack([function(run, x_s) for run in runs])
            for function, runs, x_s in zip(self.functions, _runs(parameters), x, strict=True)
        ]
        return torch.stack(rows)

    def twin_outputs(self, steps: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """As in `Stack`."""
        rows = [
            torch.stack([twin({name: twin.origin[name] + d for name, d in run.items()}, x_s) for run in runs])
            for twin, runs, x_s in zip(self.twins, _runs(steps), x, strict=True)
        ]
        return torch.stack(rows)


def _runs(parameters: Mapping[str, Tensor]) -> list[list[Parameters]]:
    """Stacked parameters as a list over starts of a list over runs; gradients flow back without zeros in between."""
    parts = {name: [start.unbind(0) for start in p.unbind(0)] for name, p in parameters.items()}
    n_starts, n_runs = next(iter(parameters.values())).shape[:2]
    return [[{name: part[s][r] for name, part in parts.items()} for r in range(n_runs)] for s in range(n_starts)]
