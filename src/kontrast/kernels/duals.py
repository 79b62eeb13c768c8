r"""Dual activations: how one infinitely wide layer maps a kernel to the next.

For $(u, v)$ Gaussian with variances $k_{xx}, k_{yy}$ and covariance $k_{xy}$, a layer needs
$F = \mathbb{E}[\varphi(u)\varphi(v)]$ for the NNGP kernel and $\dot F = \mathbb{E}[\varphi'(u)\varphi'(v)]$ for the
tangent kernel (paper A, Sec. 2.3; paper D, Sec. 2). Three kinds:

* `HomogeneousDual`: ReLU, leaky ReLU, linear. A function of the angle alone, times both norms. The angle has a cusp at
  identical and at opposite points, so the deficit $q = 1 - \cos\theta$ is stored, never the cosine, which keeps all
  digits in float32.
* `Closed`: erf, sine, cosine, Gaussian. Smooth in the three covariances.
* `HermiteSeries`: everything else, $F = \sum_k \hat\varphi_k(\sqrt{k_{xx}})\,\hat\varphi_k(\sqrt{k_{yy}})\,c^k$
  with one-dimensional Gaussian quadrature for each row's Hermite coefficients (Mehler). It is a sum of Schur products
  of positive matrices, so positive semidefinite at any order; its truncation error follows from Parseval's identity.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kontrast.errors import InputError
from kontrast.nets import Activation, activation_from

Covariances = tuple[Tensor, Tensor]  # F and its slope Ḟ


@dataclass(frozen=True)
class HomogeneousDual:
    r"""φ(a) = max(a, s·a): with κ(θ) = (sin θ + (π − θ) cos θ)/π, F = ‖u‖‖v‖ [(1−s)² κ/2 + s cos θ] (Cho and Saul)."""

    slope: float

    @property
    def gain(self) -> float:
        """E[φ(u)²] / E[u²] = E[φ'(u)²]."""
        return (1 + self.slope**2) / 2

    @property
    def bend(self) -> float:
        """The share of the kink in `gain`: 1 for ReLU, 0 for linear."""
        return (1 - self.slope) ** 2 / 2 / self.gain

    def layer(self, q: Tensor, p: Tensor | None = None) -> Covariances:
        """The next deficit, and Ḟ in units of `gain`; q = 1 − cos θ and p = 1 + cos θ (2 − q where it is not given)."""
        theta, lost = _angle(q, (2 - q).clamp_min(0) if p is None else p)
        # 1 − κ = q − (sin θ − θ cos θ)/π: the small difference of order θ³ is taken from the small q, not from 1.
        # Where q is below rounding, the result is rounding alone and may be negative.
        q_next = torch.add(q, lost, alpha=-self.bend / math.pi).clamp_min(0)
        return q_next, theta * (-self.bend / math.pi) + (self.bend + self.slope / self.gain)


def _angle(q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    if torch.is_grad_enabled() and q.requires_grad:
        theta, lost = _Angle.apply(q, p)  # type: ignore[no-untyped-call]
        return theta, lost
    near, far = q.sqrt(), p.sqrt()  # √2 sin(θ/2) and √2 cos(θ/2), so that sin θ is their product
    theta = 2 * torch.atan2(near, far)
    return theta, torch.addcmul(near * far, theta, 1 - q, value=-1)


class _Angle(torch.autograd.Function):
    """θ and sin θ − θ cos θ of q = 1 − cos θ, with dθ/dq = 1/sin θ taken as zero at the cusps θ = 0 and π.

    There the kernel has a symmetric kink as a function of one point, so zero is the mean of its one-sided slopes.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        theta = 2 * torch.atan2(q.sqrt(), p.sqrt())
        sine = (q * p).sqrt()
        ctx.save_for_backward(theta, sine)
        return theta, sine - theta * (1 - q)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        theta, sine = ctx.saved_tensors
        slope = torch.where(sine > 0, 1 / torch.where(sine > 0, sine, 1.0), 0.0)
        return gradients[0] * slope + gradients[1] * theta, None


@dataclass(frozen=True)
class Closed:
    """F and Ḟ from the variances kx, ky, the covariance k and the determinant kx·ky − k², in closed form."""

    moments: Callable[[Tensor, Tensor, Tensor, Tensor], Covariances]

    def diagonal(self, k: Tensor) -> Covariances:
        """E[φ(u)²] and E[φ'(u)²] for variance k."""
        return self.moments(k, k, k, torch.zeros_like(k))

    def rows(self, k: Tensor) -> Tensor:
        """The part of `between` that belongs to each row: its variance."""
        return k[:, None]

    def between(self, x: Tensor, y: Tensor, k: Tensor) -> Covariances:
        """F and Ḟ between rows with covariances k (n, m).

        A covariance within rounding of its largest value, √(kx ky), is set to it: for large collinear rows the result
        would otherwise be rounding alone. Slopes are those of the exact expressions.
        """
        kx, ky = x, y.mT
        with torch.no_grad():
            edge = (kx * ky).sqrt()
            snapped = torch.where(k.abs() > (1 - 1e-14) * edge, torch.copysign(edge, k), k)
            determinant = (edge - snapped) * (edge + snapped)
        return self.moments(kx, ky, _with_value(k, snapped), _with_value(kx * ky - k * k, determinant))


def _with_value(expression: Tensor, value: Tensor) -> Tensor:
    """`value`, which is better rounded, with the slope of the expression."""
    return expression + (value - expression).detach() if expression.requires_grad else value


def _erf(kx: Tensor, ky: Tensor, k: Tensor, determinant: Tensor) -> Covariances:
    # (1 + 2kx)(1 + 2ky) − 4k², as a sum of positive terms.
    rest = (1 + 2 * (kx + ky) + 4 * determinant).sqrt()
    return 2 / math.pi * torch.atan2(2 * k, rest), 4 / math.pi / rest


def _sine(kx: Tensor, ky: Tensor, k: Tensor, determinant: Tensor) -> Covariances:
    # e^{−(kx+ky)/2} times sinh k and cosh k, from exponentials of numbers that are never positive;
    # sinh k = e^k(1 − e^{−2k})/2 keeps its digits for small k.
    near, far = torch.exp(k - (kx + ky) / 2), torch.exp(-k - (kx + ky) / 2)
    above, below = -torch.expm1(-2 * k.clamp_min(0)), torch.expm1(2 * k.clamp_max(0))
    return torch.where(k >= 0, near * above, far * below) / 2, (near + far) / 2


def _cosine(kx: Tensor, ky: Tensor, k: Tensor, determinant: Tensor) -> Covariances:
    odd, even = _sine(kx, ky, k, determinant)
    return even, odd


def _gaussian(kx: Tensor, ky: Tensor, k: Tensor, determinant: Tensor) -> Covariances:
    rest = 1 + 2 * (kx + ky) + 4 * determinant
    return rest**-0.5, 4 * k * rest**-1.5


CLOSED = {"erf": Closed(_erf), "sine": Closed(_sine), "cosine": Closed(_cosine), "gaussian": Closed(_gaussian)}

ORDERS = (32, 64, 128, 256, 512)
ENOUGH = 1e-13  # the share of the variance beyond the series that is lost in float64's rounding
REACH, NODES = 13.0, 4000  # midpoints of cells on [−13, 13]: the normal density is 1e-37 at the ends


@functools.lru_cache(maxsize=8)
def _hermite(order: int) -> tuple[Tensor, Tensor]:
    """Nodes z and the weighted orthonormal Hermite polynomials (nodes, order + 1): E[g h_k] = g(z) @ weights."""
    step = 2 * REACH / NODES
    # Zero, where activations have their kinks, lies between two nodes: a jump there costs O(step²), not O(step).
    z = (torch.arange(NODES, dtype=torch.float64) + 0.5) * step - REACH
    columns = [torch.exp(-z * z / 4) / (2 * math.pi) ** 0.25]
    columns.append(z * columns[0])
    for k in range(1, order):
        columns.append((z * columns[k] - math.sqrt(k) * columns[k - 1]) / math.sqrt(k + 1))
    return z, torch.stack(columns, 1) * (step * columns[0])[:, None]


@dataclass(frozen=True)
class HermiteSeries:
    """Any pointwise φ by its Hermite series up to `order`, exact on the diagonal and at cos θ = ±1.

    Each row's variance beyond `order` goes into two more terms, one even and one odd. This makes duplicates and
    opposites exact and keeps every error below that remaining variance times |cos θ|^order.
    """

    activation: Activation
    order: int

    def diagonal(self, k: Tensor) -> Covariances:
        """E[φ(u)²] and E[φ'(u)²] for variance k."""
        value, slope, weights = self._on_nodes(k)
        squares = (value * value) @ weights[:, 0], (slope * slope) @ weights[:, 0]
        if not all(bool(torch.isfinite(square).all()) for square in squares):
            raise InputError(
                f"activation {self.activation.name} has no finite E[φ²] or E[φ'²] at a standard deviation of "
                f"{float(k.detach().max()) ** 0.5:.3g}; scale x down or use an activation that grows more slowly"
            )
        return squares

    def rows(self, k: Tensor) -> Tensor:
        """Each row's coefficients (n, 2·(order + 4)): √k, E φ', E φ'' and those of φ, then of φ'."""
        a, zero = self._deviation(k)
        value, slope, weights = self._on_nodes(k)
        series = []
        for values in (value, slope):
            coefficients = values @ weights  # (n, order + 1)
            rest = []
            for parity, weight in ((0, weights[:, 0]), (1, weights[:, 0])):
                part = (values + (1 - 2 * parity) * values.flip(1)) / 2
                left = (part * part) @ weight - (coefficients[:, parity::2] ** 2).sum(1)
                kept = left > ENOUGH * (values * values @ weight)  # less is rounding, whose slope means nothing
                rest.append(torch.where(kept, left, 1.0).sqrt() * kept)
            # The first-order term is k·m(x)·m(y) with m = E φ'(√k z) = (coefficient 1)/√k, finite at zero rows.
            mean_slope = torch.where(zero, self._slope_at(values is slope), coefficients[:, 1] / a)
            series.append(torch.cat([coefficients, torch.stack([*rest, mean_slope], 1)], 1))
        return torch.cat([a[:, None], *series], 1)

    def between(self, x: Tensor, y: Tensor, k: Tensor) -> Covariances:
        """F and Ḟ between rows with covariances k (n, m), by Horner's rule in the correlation."""
        c = (k / (x[:, :1] * y[:, :1].mT)).clamp(-1, 1)
        terms = self.order + 4
        return tuple(  # type: ignore[return-value]
            self._sum(x[:, start : start + terms], y[:, start : start + terms], c, k) for start in (1, 1 + terms)
        )

    def _sum(self, x: Tensor, y: Tensor, c: Tensor, k: Tensor) -> Tensor:
        *_, even, odd, slope = range(self.order + 4)
        total = x[:, even, None] * y[:, even]  # the remaining even part as order + 2, the odd as order + 1
        for j in (odd, *range(self.order, 1, -1)):
            total = torch.addcmul(x[:, j, None] * y[:, j], total, c)
        return torch.addcmul(x[:, 0, None] * y[:, 0] + k * (x[:, slope, None] * y[:, slope]), total, c * c)

    def remainder(self, k: Tensor) -> tuple[float, float]:
        """The largest shares of E[φ²] and of E[φ'²] that the series leaves out."""
        value, slope, weights = self._on_nodes(k)
        worst = []
        for values in (value, slope):
            square = (values * values) @ weights[:, 0]
            left = square - ((values @ weights) ** 2).sum(1)
            worst.append(float((left.abs() / square.clamp_min(1e-300)).max()))
        return worst[0], worst[1]

    def integral_error(self, k: Tensor) -> float:
        """The largest quadrature error, as a share of E[φ²] or E[φ'²]: zero unless φ' jumps at a point other than zero.

        A jump may lie anywhere between two nodes, so it costs up to half its height times the weight there. It shows as
        a second difference as large as the first; a jump at zero lies in the middle of its cell and costs nothing.
        """
        value, slope, weights = self._on_nodes(k)
        worst, center = 0.0, NODES // 2 - 1
        for values in (value, slope):
            terms = values * values * weights[:, 0]
            steps = terms.diff(dim=1)
            steps[:, center] = (steps[:, center - 1] + steps[:, center + 1]) / 2
            largest = steps.abs().max(1).values
            jumps = steps.diff(dim=1).abs().max(1).values > 0.5 * largest
            cost = torch.where(steps.abs() > 0.5 * largest[:, None], steps.abs(), 0.0).sum(1) / 2
            share = torch.where(jumps, cost, 0.0) / terms.sum(1).clamp_min(1e-300)
            worst = max(worst, float(share.max()))
        return worst

    def _deviation(self, k: Tensor) -> tuple[Tensor, Tensor]:
        """√k with 1 in place of zeros, to divide by, and where the zeros are."""
        zero = k < 1e-200
        return torch.where(zero, 1.0, k).sqrt(), zero

    def _on_nodes(self, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z, weights = (part.to(k.device) for part in _hermite(self.order))
        a, zero = self._deviation(k)
        points = torch.where(zero, 0.0, a)[:, None] * z
        return self.activation(points), self.activation.first(points), weights

    def _slope_at(self, of_slope: bool) -> Tensor:
        zero = torch.zeros((), dtype=torch.float64)
        return self.activation.second(zero) if of_slope else self.activation.first(zero)


Dual = HomogeneousDual | Closed | HermiteSeries


def dual_of(activation: str | Activation | Callable[[Tensor], Tensor], largest: float) -> Dual:
    """The dual of an activation; a series has the order that the largest variance needs."""
    act = activation_from(activation)
    if act.name in ("relu", "linear"):
        return HomogeneousDual(0.0 if act.name == "relu" else 1.0)
    if act.name.partition(":")[0] == "leaky_relu":
        return HomogeneousDual(float(act.first(torch.tensor(-1.0, dtype=torch.float64))))
    if act.name in CLOSED:
        return CLOSED[act.name]
    return _series(act, math.frexp(largest)[1])


@functools.lru_cache(maxsize=64)
def _series(activation: Activation, exponent: int) -> HermiteSeries:
    """The shortest series that is exact for variances up to 2^exponent; else the longest there is."""
    k = torch.tensor([2.0**exponent], dtype=torch.float64)
    for order in ORDERS[:-1]:
        if max(HermiteSeries(activation, order).remainder(k)) <= ENOUGH:
            return HermiteSeries(activation, order)
    return HermiteSeries(activation, ORDERS[-1])
