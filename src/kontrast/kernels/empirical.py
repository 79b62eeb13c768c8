r"""Empirical NTK $K_{ij}(x, y) = \nabla_\theta f_i(x)^\top \nabla_\theta f_j(y)$ (paper A, Sec. 2.3), layer by layer.

For a layer $a = s\,V h$ with backward signal $B_i = \partial f_i / \partial a$, the weight gradient is the outer
product $s\,B_i h^\top$, so the layer adds $s^2\,(h(x)\cdot h(y))\,(B_i(x)\cdot B_j(y))$ to the kernel:
two products of small matrices, and no Jacobian with its n·c·p entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from kontrast._types import Tensor
from kontrast.errors import InputError
from kontrast.nets import MLP


def empirical_ntk(
    module: nn.Module, x: Tensor, y: Tensor | None = None, *, parameters: Mapping[str, Tensor] | None = None
) -> Tensor:
    """The tangent kernel (n, m, c, c) between the rows of `x` and `y` (`y=None`: of `x` with itself).

    Exact, for `kontrast.nets.MLP`. `parameters` evaluates the kernel at another point than the module's own, by the
    module's parameter names, as a trajectory records them. Cost: one (n·c, width)·(width, m·c) product a layer.
    """
    net, x, y_ = _check(module, x, y)
    layers_x = _layers(net, x, parameters)
    layers_y = layers_x if y is None else _layers(net, y_, parameters)
    n, m, c = x.shape[0], y_.shape[0], net.d_out
    kernel = x.new_zeros(n, c, m, c)
    for at_x, at_y in zip(layers_x.hidden(), layers_y.hidden(), strict=True):
        signals = at_x.signal.flatten(0, 1) @ at_y.signal.flatten(0, 1).mT  # (n·c, m·c)
        kernel.addcmul_(signals.view(n, c, m, c), (at_x.features @ at_y.features.mT)[:, None, :, None])
    # The output layer: f_i depends on column i of W alone, through the same features.
    last = layers_x.scale**2 * (layers_x.features[-1] @ layers_y.features[-1].mT)
    kernel.diagonal(dim1=1, dim2=3).add_(last[:, :, None])
    return kernel.permute(0, 2, 1, 3)


def empirical_ntk_trace(
    module: nn.Module, x: Tensor, y: Tensor | None = None, *, parameters: Mapping[str, Tensor] | None = None
) -> Tensor:
    """The sum over outputs, not the mean, of `empirical_ntk`'s diagonal blocks: Σ_i K_ii(x, y), shape (n, m).

    The outputs are summed inside the product, so the (n, m, c, c) kernel is never formed.
    """
    net, x, y_ = _check(module, x, y)
    layers_x = _layers(net, x, parameters)
    layers_y = layers_x if y is None else _layers(net, y_, parameters)
    kernel = net.d_out * layers_x.scale**2 * (layers_x.features[-1] @ layers_y.features[-1].mT)
    for at_x, at_y in zip(layers_x.hidden(traced=True), layers_y.hidden(traced=True), strict=True):
        signals = at_x.signal.flatten(1) @ at_y.signal.flatten(1).mT  # (n, m), summed over outputs and units
        kernel.addcmul_(signals, at_x.features @ at_y.features.mT)
    return kernel


@dataclass(frozen=True)
class _Layer:
    features: Tensor  # (n, fan_in): what the layer multiplies
    signal: Tensor  # (n, c, width): s·∂f_i/∂a; (n, 1 or c, width) when only the trace is wanted


@dataclass(frozen=True)
class _Layers:
    """One forward pass through the net: the features h_0 … h_L and the slopes φ'(a_1) … φ'(a_L)."""

    V: list[Tensor]
    W: Tensor
    scales: list[float]
    features: list[Tensor]
    slopes: list[Tensor]

    @property
    def scale(self) -> float:
        return self.scales[-1]

    def hidden(self, *, traced: bool = False) -> Iterator[_Layer]:
        """The hidden layers from the last to the first, each with its backward signals.

        For the trace, the last layer's Σ_i W_mi² factors out of the sum over outputs: one signal √(Σ_i W_mi²) φ' a
        point instead of c. Deeper layers mix the units, so they keep c signals.
        """
        signal = self.slopes[-1][:, None, :] * (self.scales[-1] * self.W.mT)  # (n, c, M)
        for index in reversed(range(len(self.V))):
            factor = self.scales[index]
            shown = signal
            if traced and index == len(self.V) - 1:
                shown = self.slopes[-1][:, None, :] * (self.scales[-1] * self.W.norm(dim=1))
            yield _Layer(self.features[index], shown if factor == 1.0 else factor * shown)
            if index:
                signal = (factor * (signal @ self.V[index])) * self.slopes[index - 1][:, None, :]


def _layers(net: MLP, x: Tensor, parameters: Mapping[str, Tensor] | None) -> _Layers:
    V, W = net.layers(parameters)
    with torch.no_grad():
        features, slopes = [x], []
        for factor, V_l in zip(net.scales, V, strict=False):
            a = factor * (features[-1] @ V_l.mT)
            slopes.append(net.activation.first(a))
            features.append(net.activation(a))
    return _Layers([V_l.detach() for V_l in V], W.detach(), net.scales, features, slopes)


def _check(module: nn.Module, x: Tensor, y: Tensor | None) -> tuple[MLP, Tensor, Tensor]:
    if not isinstance(module, MLP):
        raise InputError(
            f"the layer-wise tangent kernel is written for kontrast.nets.MLP, got {type(module).__name__}; "
            "build the network as an MLP"
        )
    weight = module.output
    for name, points in (("x", x), ("y", x if y is None else y)):
        if points.ndim < 2:
            raise InputError(f"{name} must be (n, {module.d_in}), got shape {tuple(points.shape)}; use {name}[None]")
        points = points.flatten(1)
        if points.shape[1] != module.d_in:
            raise InputError(f"{name} has {points.shape[1]} features but the net takes {module.d_in}")
        if points.dtype != weight.dtype or points.device != weight.device:
            raise InputError(
                f"{name} is {points.dtype} on {points.device} but the net is {weight.dtype} on {weight.device}; "
                f"convert with {name}.to(net.output)"
            )
    x = x.flatten(1)
    return module, x, x if y is None else y.flatten(1)
