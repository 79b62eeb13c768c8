"""The distance of a network from the linear network with the same weights (paper B, Sec. 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.checks import require_shape, require_type
from kontrast.errors import InputError
from kontrast.nets import ACTIVATIONS, MLP, Activation, Pointwise, activation_from, hidden_activations

KINK = 1e-6  # a larger difference between the slopes on the two sides of zero is a kink


@dataclass(frozen=True, eq=False)
class NonlinearGap:
    r"""$\lVert u^\phi(x) - u^I(x) \rVert$ and $\lVert u^I(x) \rVert$, point by point and over all points.

    Under orthogonality $u^I$ itself vanishes as $\sqrt{z/h}$ with the width, so a small absolute difference says
    nothing: a network is almost linear where the relative difference is small.
    """

    differences: Tensor  # (n,) ‖u^φ(x) − u^I(x)‖
    sizes: Tensor  # (n,) ‖u^I(x)‖

    @property
    def absolute(self) -> float:
        """The root of the mean square difference."""
        return float(self.differences.square().mean().sqrt())

    @property
    def relative(self) -> float:
        """The same over the root mean square of ‖u^I(x)‖; NaN where both are zero everywhere."""
        return float((self.differences.square().mean() / self.sizes.square().mean()).sqrt())


def nonlinear_gap(
    net: MLP,
    x: Tensor,
    *,
    activation: str | Activation | Pointwise | None = None,
    parameters: Mapping[str, Tensor] | None = None,
) -> NonlinearGap:
    """Theorem 1's ‖u^φ(x) − u^I(x)‖ of a net against the same weights with φ = identity, at any depth.

    `x` are points (n, d_in), or images of that many pixels. `activation` and `parameters` replace the net's own.
    """
    require_type("net", net, MLP, "compare the outputs of two other networks with output_gap")
    phi = net.activation if activation is None else activation_from(activation)
    net.check_rows(x)
    V, W = net.layers(parameters)
    *scales, scale = net.scales
    with torch.no_grad():
        curved, straight = (
            scale * hidden_activations(x.flatten(1), V, scales, act) @ W for act in (phi, ACTIVATIONS["linear"])
        )
    return output_gap(curved, straight)


def output_gap(nonlinear: Tensor, linear: Tensor) -> NonlinearGap:
    """The gap between the outputs (n, z) of any two networks at the same points, such as two trained ones."""
    require_shape("linear", linear, ("n", "z"))
    require_shape("nonlinear", nonlinear, linear.shape, "pass the outputs of both networks at the same points")
    return NonlinearGap((nonlinear - linear).norm(dim=1), linear.norm(dim=1))


def unit_slope(activation: str | Activation | Pointwise) -> Activation:
    r"""$(\phi(a) - \phi(0))/\phi'(0)$, which meets Theorem 1's $\phi(0) = 0$ and $\phi'(0) = 1$.

    A φ with a kink at zero, such as ReLU, or without a slope there has no such form and is refused.
    """
    phi = activation_from(activation)
    left, zero, right = torch.tensor([-1e-9, 0.0, 1e-9], dtype=torch.float64)
    offset, slope, jump = float(phi(zero)), float(phi.first(zero)), float(phi.first(right) - phi.first(left))
    if abs(jump) > KINK or abs(slope) < KINK:
        what = f"a kink (its slope jumps by {jump:.3g})" if abs(jump) > KINK else f"the slope {slope:.3g}"
        raise InputError(
            f"activation {phi.name} has {what} at 0, so no multiple of it has slope 1 there; take a smooth one that "
            "rises through 0, such as tanh, sigmoid or gelu"
        )
    return Activation(
        f"{phi.name} at unit slope",
        lambda a: (phi(a) - offset) / slope,
        lambda a: phi.first(a) / slope,
        lambda a: phi.second(a) / slope,
        smooth=phi.smooth,
    )
