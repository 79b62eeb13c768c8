"""The tangents of `kontrast.nets.MLP` from its own formula, where `tangents` would have to observe a forward pass.

Nothing is recorded, planned or checked against automatic differentiation. That saves two milliseconds per kernel, which
matter when the kernel of a small net is followed over a training run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from kontrast.errors import InputError
from kontrast.kernels.contraction import Gram, Output, Piece
from kontrast.kernels.products import product
from kontrast.kernels.tangents import Kind, Network, Plan
from kontrast.nets import MLP


@dataclass(frozen=True, eq=False)
class MLPPlan(Plan):
    """A forward pass for the features h_0 … h_L and slopes φ'(a_1) … φ'(a_L), then the signals, last layer first."""

    net: MLP
    kind: Kind

    @property
    def bytes_kept(self) -> int:
        """Features and signals of every layer."""
        numbers = self.net.d_in + self.net.width * self.net.depth * (1 + self.net.d_out)
        return numbers * self.network.like.element_size()

    @property
    def bytes_at_work(self) -> int:
        """Pre-activations, slopes and one more layer's signals."""
        return self.net.width * (2 * self.net.depth + self.net.d_out) * self.network.like.element_size()

    def pieces(self, x: Tensor) -> dict[tuple[str, ...], Piece]:
        """Those of all selected layers."""
        *hidden, output = [f"hidden.{index}" for index in range(self.net.depth)] + ["output"]
        *V, W = (self.network.parameters[name].detach() for name in (*hidden, output))
        *scales, scale = self.net.scales
        features, slopes = [x.flatten(1)], []
        for factor, V_l in zip(scales, V, strict=True):
            a = product(features[-1], V_l)
            a = a if factor == 1.0 else a.mul_(factor)
            slopes.append(self.net.activation.first(a))
            features.append(self.net.activation(a))
        signals = list(self._signals(V, scale * W, scales, slopes))[::-1]
        pieces: dict[tuple[str, ...], Piece] = {
            (name,): Gram(h[:, None, None], B[:, :, None, None])
            for name, h, B in zip(hidden, features, signals, strict=False)
        }
        pieces[(output,)] = Output(features[-1], W.new_full((), scale).expand(len(x), self.net.d_out))
        return {names: piece for names, piece in pieces.items() if names[0] in self.network.selected}

    def _signals(self, V: list[Tensor], W: Tensor, scales: list[float], slopes: list[Tensor]) -> Iterator[Tensor]:
        """s·∂f_i/∂a of the hidden layers from the last to the first, (n, c, M).

        For the trace, the last layer's Σ_i W_mi² factors out of the sum over outputs: one signal √(Σ_i W_mi²) φ' per
        row instead of c. Deeper layers mix the units, so they keep c signals.
        """
        if len(V) > 1 or self.kind is not Kind.TRACE:
            signal = slopes[-1][:, None] * (scales[-1] * W.mT)
        # In place: these slopes are not read again, and those of a wide layer take the most memory here.
        yield slopes[-1].mul_(scales[-1] * W.norm(dim=1))[:, None] if self.kind is Kind.TRACE else signal
        for index in reversed(range(len(V) - 1)):
            signal = (signal @ V[index + 1]) * (scales[index] * slopes[index][:, None])
            yield signal


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
