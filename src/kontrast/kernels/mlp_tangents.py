"""The tangents of `kontrast.nets.MLP` from its own formula, where `tangents` would have to observe a forward pass.

Nothing is recorded, planned or checked against automatic differentiation. That saves two milliseconds per kernel, which
matter when the kernel of a small net is followed over a training run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.errors import InputError
from kontrast.kernels.contraction import Gram, Output
from kontrast.kernels.network import Network
from kontrast.kernels.planning import Kind
from kontrast.kernels.products import product
from kontrast.kernels.tangents import Costs, Pass, Pieces, Plan
from kontrast.nets import MLP


@dataclass(frozen=True, eq=False)
class MLPPlan(Plan):
    """The plan of a forward pass for features and slopes, then the signals, last layer first."""

    net: MLP
    kind: Kind

    @property
    def costs(self) -> Costs:
        """Features and slopes of every layer, and signals of the deeper ones for every direction."""
        size, width, depth = self.network.like.element_size(), self.net.width, self.net.depth
        collected = width * (depth - (self.kind is Kind.TRACE))
        kept = self.net.d_in + width * (2 * depth + (self.kind is Kind.TRACE))
        return Costs(size * kept, size * collected, 0, size * width, 0)

    def start(self, x: Tensor, n_directions: int, *, at_once: bool = False) -> Pass:
        """The forward pass."""
        return MLPPass(self, x)


class MLPPass(Pass):
    """The features h_0 … h_L and slopes φ'(a_1) … φ'(a_L) of some rows."""

    def __init__(self, plan: MLPPlan, x: Tensor) -> None:
        self.plan, net = plan, plan.net
        *self.hidden, self.output = [f"hidden.{index}" for index in range(net.depth)] + ["output"]
        *self.V, self.W = (plan.network.parameters[name].detach() for name in (*self.hidden, self.output))
        *self.scales, self.scale = net.scales
        self.features, self.slopes = [x.flatten(1)], []
        for factor, V_l in zip(self.scales, self.V, strict=True):
            a = product(self.features[-1], V_l)
            a = a if factor == 1.0 else a.mul_(factor)
            self.slopes.append(net.activation.first(a))
            self.features.append(net.activation(a))
        self._directions: list[Tensor] = []

    def once(self) -> Pieces:
        """The output layer and, of the trace, the layer before it.

        There Σ_i W_mi² factors out of the sum over outputs: one signal √(Σ_i W_mi²) φ' per row instead of c.
        """
        n, d_out = len(self.features[0]), self.plan.net.d_out
        pieces: Pieces = {(self.output,): Output(self.features[-1], self.W.new_full((), self.scale).expand(n, d_out))}
        if self.plan.kind is Kind.TRACE:
            signal = self.slopes[-1] * (self.scale * self.scales[-1] * self.W.norm(dim=1))
            pieces[(self.hidden[-1],)] = self._gram(-1, signal[:, None])
        return self._selected(pieces)

    def streamed(self, directions: Tensor) -> Pieces:
        """Nothing: the layers' signals have one position and are collected."""
        self._directions.append(directions)
        return {}

    def collected(self) -> Pieces:
        """The signals s·∂f_i/∂a of the hidden layers from the last to the first, (n, q, M)."""
        pieces: Pieces = {}
        last = len(self.V) - 1
        if self._directions and (last or self.plan.kind is not Kind.TRACE):
            W = self.scale * self.W @ torch.cat(self._directions).mT
            signal = self.slopes[-1][:, None] * (self.scales[-1] * W.mT)
            if self.plan.kind is not Kind.TRACE:
                pieces[(self.hidden[-1],)] = self._gram(last, signal)
            for index in reversed(range(last)):
                signal = (signal @ self.V[index + 1]) * (self.scales[index] * self.slopes[index][:, None])
                pieces[(self.hidden[index],)] = self._gram(index, signal)
        self._directions = []
        return self._selected(pieces)

    def _gram(self, index: int, signal: Tensor) -> Gram:
        h = self.features[index if index >= 0 else len(self.V) + index]
        return Gram(h[:, None, None], signal[:, :, None, None])

    def _selected(self, pieces: Pieces) -> Pieces:
        return {names: piece for names, piece in pieces.items() if names[0] in self.plan.network.selected}


def mlp_plan(net: MLP, network: Network, kind: Kind, **rows: Tensor) -> MLPPlan:
    """The plan for these rows; each is named by the argument that holds it."""
    for name, x in rows.items():
        if x.ndim < 2:
            raise InputError(f"{name} must be (n, {net.d_in}), got shape {tuple(x.shape)}; use {name}[None]")
        if x.flatten(1).shape[1] != net.d_in:
            raise InputError(f"{name} has {x.flatten(1).shape[1]} features but the net takes {net.d_in}")
        if not x.is_floating_point():
            raise InputError(f"{name} holds integers but the net needs floats; pass {name}.to({network.like.dtype})")
    return MLPPlan(network, net.d_out, net, kind)
