"""Proposition 10 of paper A in closed form: the dot product's kernel blows up in finite time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.checks import require_finite, require_number
from kontrast.errors import InputError


@dataclass(frozen=True, eq=False)
class BlowUp:
    r"""The flow of a linear net with D = Z = 1 and a dot-product loss, where K(x, y; t) = P(t)·xy.

    $$P(t) = 2\sqrt{α}\,\frac{1 + β e^{8C\sqrt{α}t}}{1 - β e^{8C\sqrt{α}t}}, \qquad
      \tilde t = \frac{\ln(1/β)}{8C\sqrt{α}}, \qquad α = P_0^2/4 - S_0^2, \quad β = \frac{4S_0^2}{(P_0 + 2\sqrt{α})^2}$$

    with P = mean(v² + w²), S = mean(wv). All fields have the shape of the draws, so thousands are computed at once. The
    printed formulas lose all digits for |S| ≪ P, as in wide nets, and for α ≪ 1. With A = mean(v + w)², B =
    mean(v − w)², r = √(min/max) and S itself they lose none: 2√α = r·max, β = ((1 − r)/(1 + r))² where
    1 − r = 4|S|/(√max(√A + √B)), and P(t) = 2√α·coth(½ln(1/β) − 4C√α t).
    """

    slope: float  # C
    alpha: Tensor
    beta: Tensor
    time: Tensor  # t̃, infinite for S = 0 or C <= 0
    largest: Tensor  # max(A, B)
    root: Tensor  # r
    start: Tensor  # ½ln(1/β)/r, which is 2 where r = 0

    @classmethod
    def of(cls, w: Tensor, v: Tensor, slope: float) -> BlowUp:
        """From weights (..., M) at time 0 and C = mean of x_n(x_n⁺ − x_n⁻)."""
        if w.shape != v.shape or w.ndim == 0 or w.shape[-1] == 0:
            raise InputError(f"w and v must both be (..., M), got {tuple(w.shape)} and {tuple(v.shape)}")
        require_finite("w", w)
        require_finite("v", v)
        require_number(slope=slope)
        w, v = w.double(), v.double()
        A, B, S = (v + w).square().mean(-1), (v - w).square().mean(-1), (v * w).mean(-1)
        low, high = torch.minimum(A, B).sqrt(), torch.maximum(A, B).sqrt()
        if not bool((high > 0).all()):
            raise InputError("w and v are zero in some draw, where nothing ever moves; leave that draw out")
        r = low / high
        shortfall = 4 * S.abs() / (high * (low + high))  # 1 − r without cancellation
        half_log = torch.where(r < 0.5, 2 * r * _atanh_over(r), torch.log1p(r) - shortfall.log())  # = 2·atanh(r)
        start = torch.where(r > 0, half_log / torch.where(r > 0, r, 1), 2.0)
        time = start / (2 * slope * high**2) if slope > 0 else torch.full_like(r, torch.inf)
        return cls(float(slope), (low * high / 2) ** 2, (shortfall / (1 + r)) ** 2, time, high**2, r, start)

    def level(self, t: Tensor | float) -> Tensor:
        """P(t) before the blow-up; infinite from t̃ on. `t` broadcasts against the draws."""
        t = torch.as_tensor(t, dtype=torch.float64, device=self.root.device)
        # 2√α and the phase ½ln(1/β) − 4C√αt both vanish with r: divided by it they stay regular.
        remaining = self.start - 2 * self.slope * self.largest * t
        value = self.largest * _x_coth_x(self.root * remaining) / remaining
        value = torch.where(torch.isinf(remaining), self.root * self.largest, value)  # S = 0: nothing moves
        return torch.where(remaining > 0, value, torch.inf)


def _atanh_over(r: Tensor) -> Tensor:
    """atanh(r)/r for r up to a half, 1 at 0."""
    safe = torch.where(r > 1e-6, r.clamp(max=0.75), 0.5)
    return torch.where(r > 1e-6, safe.atanh() / safe, 1.0)


def _x_coth_x(x: Tensor) -> Tensor:
    safe = torch.where(x.abs() > 1e-6, x, 1.0)
    return torch.where(x.abs() > 1e-6, safe / safe.tanh(), 1.0)
