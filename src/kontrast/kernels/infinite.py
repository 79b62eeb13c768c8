r"""NNGP and tangent kernels of infinitely wide MLPs (paper A, Sec. 2.3; paper D, Sec. 2), exact for hard inputs too.

Layer 0 has $\Sigma_0 = \Theta_0 = \sigma_w^2 s\,x\cdot y + \sigma_b^2$ with $s$ the `input_scale`; every further layer,
the output included, $\Sigma_{l+1} = \sigma_w^2 F(\Sigma_l) + \sigma_b^2$ and
$\Theta_{l+1} = \Sigma_{l+1} + \sigma_w^2 \dot F(\Sigma_l)\,\Theta_l$ with the dual activations $F, \dot F$.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.checks import require_alike, require_finite_not_negative, require_positive, require_whole
from kontrast.errors import InputError
from kontrast.kernels.duals import Closed, Dual, HermiteSeries, HomogeneousDual, dual_of
from kontrast.kernels.products import has_half_units, has_triton, split_product, split_rows
from kontrast.nets import Activation, activation_from

# Below these deficits 1 − |cos θ| a product's rounding δ moves the angle, by δ / sin θ, past about 1e-6 and 1e-12.
NEAR = {torch.float32: 0.05, torch.float64: 1e-6}
FEW = 0.05  # a larger share of near pairs is cheaper as one product in float64 than pair by pair

Pointwise = Callable[[Tensor], Tensor]
_Points = tuple[Tensor, Tensor]  # rows (n, d) and their variances at layer 0, (n,) in float64


@dataclass(frozen=True)
class InfiniteNetwork:
    """An MLP with `depth` hidden layers of infinite width; `weight_std` and `bias_std` act on every layer.

    With the defaults and `depth=1` its `ntk` is paper A's K* and that of `kontrast.nets.MLP` at large width.
    neural-tangents' convention is `input_scale=1/d`. `activation` is a name, an `Activation`, or any pointwise function
    of a tensor; see `quadrature_error` for those without a closed form.
    """

    depth: int = 1
    activation: str | Activation | Pointwise = "relu"
    weight_std: float = 1.0
    bias_std: float = 0.0
    input_scale: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", require_whole("depth", self.depth))
        _ = self._activation  # refuses an unknown one now, not at the first kernel
        require_positive(weight_std=self.weight_std, input_scale=self.input_scale)
        require_finite_not_negative(bias_std=self.bias_std)

    def ntk(self, x: Tensor, y: Tensor | None = None, *, compile: bool = False) -> Tensor:
        """The tangent kernel (n, m); see `infinite_ntk`."""
        return self._kernel(x, y, tangent=True, compile=compile)

    def nngp(self, x: Tensor, y: Tensor | None = None, *, compile: bool = False) -> Tensor:
        """The covariance (n, m) of the outputs at initialisation; see `infinite_nngp`."""
        return self._kernel(x, y, tangent=False, compile=compile)

    def ntk_diagonal(self, x: Tensor) -> Tensor:
        """Θ(x_i, x_i), shape (n,), without the rest of the kernel."""
        x = _check("x", x)
        return self._diagonal(self._variance("x", x), tangent=True).to(x.dtype)

    def nngp_diagonal(self, x: Tensor) -> Tensor:
        """Σ(x_i, x_i), shape (n,), without the rest of the kernel."""
        x = _check("x", x)
        return self._diagonal(self._variance("x", x), tangent=False).to(x.dtype)

    def quadrature_error(self, x: Tensor) -> QuadratureError:
        """The error of one layer's series at these rows, the worst over the layers; zero for closed forms."""
        x = _check("x", x)
        k, worst = self._variance("x", x), QuadratureError(0, 0.0, 0.0, 0.0)
        for _ in range(self.depth):
            dual = dual_of(self._activation, float(k.detach().max()))
            if isinstance(dual, HermiteSeries):
                parts = [(*dual.remainder(part), dual.integral_error(part)) for part in torch.split(k.detach(), 1024)]
                errors = [max(*kind) if len(kind) > 1 else kind[0] for kind in zip(*parts, strict=True)]
                old = (worst.value, worst.slope, worst.integral)
                worst = QuadratureError(max(worst.order, dual.order), *map(max, old, errors))
            k = self._next(k, dual)[0]
        return worst

    # Rows: everything that depends on one point alone, always in float64.

    @functools.cached_property
    def _activation(self) -> Activation:
        return activation_from(self.activation)

    @property
    def _w2(self) -> float:
        return self.weight_std**2

    @property
    def _beta(self) -> float:
        return self.bias_std**2

    def _variance(self, name: str, x: Tensor) -> Tensor:
        squares = torch.cat([part.double().square().sum(1) for part in _chunks(x)])
        if not bool(torch.isfinite(squares).all()):  # finds every NaN and infinity of the rows too
            raise InputError(f"{name} has NaN, infinite or too large entries; drop, fill or scale those rows first")
        return self._w2 * self.input_scale * squares + self._beta

    def _next(self, k: Tensor, dual: Dual) -> tuple[Tensor, Tensor]:
        if isinstance(dual, HomogeneousDual):
            return self._w2 * dual.gain * k + self._beta, k.new_full((), self._w2 * dual.gain)
        parts = [dual.diagonal(part) for part in torch.split(k, 1024)]
        return self._w2 * torch.cat([F for F, _ in parts]) + self._beta, self._w2 * torch.cat([D for _, D in parts])

    def _diagonal(self, k: Tensor, *, tangent: bool) -> Tensor:
        theta = k
        for _ in range(self.depth):
            k, slope = self._next(k, dual_of(self._activation, float(k.detach().max())))
            theta = k + slope * theta
        return theta if tangent else k

    def _kernel(self, x: Tensor, y: Tensor | None, *, tangent: bool, compile: bool) -> Tensor:
        x = _check("x", x)
        y_ = x if y is None else _check("y", y, like=x)
        dual = dual_of(self._activation, 1.0)
        if isinstance(dual, HomogeneousDual):
            route: _Angles | _Covariances = _Angles(self, dual, tangent, compile)
        else:
            route = _Covariances(self, tangent)
        k_x = self._variance("x", x)
        at_x, at_y = (x, k_x), (x, k_x) if y is None else (y_, self._variance("y", y_))
        if torch.is_grad_enabled() and (x.requires_grad or y_.requires_grad):
            return route.differentiable(at_x, at_y).to(x.dtype)
        with torch.no_grad():
            if isinstance(dual, HomogeneousDual):
                self._refuse_overflow(max(float(k.max()) for _, k in (at_x, at_y)), tangent, x.dtype)
            out = x.new_empty(x.shape[0], y_.shape[0])
            route.fill(out, at_x, at_y, symmetric=y is None)
            if y is None:
                out.diagonal().copy_(self._diagonal(k_x, tangent=tangent))
        return out

    def _refuse_overflow(self, largest: float, tangent: bool, dtype: torch.dtype) -> None:
        """No entry is larger than the largest on the diagonal."""
        top = float(self._diagonal(torch.tensor([largest], dtype=torch.float64), tangent=tangent))
        if not top <= torch.finfo(dtype).max:
            raise InputError(
                f"the kernel reaches {top:.1e}, more than {dtype} holds; scale x or weight_std down, or use float64"
            )


@dataclass(frozen=True)
class QuadratureError:
    """The error of a Hermite series for one layer, the worst over the rows, as shares of E[φ²] or E[φ'²].

    An entry of F is off by at most (`value` · |cos θ|^order + `integral`) · √(F(x,x) F(y,y)), one of Ḟ likewise with
    `slope`. `integral` is the quadrature's own error: rounding for smooth φ and for kinks at zero, up to about 1e-3
    if φ' jumps elsewhere. Apart from it the diagonal and cos θ = ±1 are exact.
    """

    order: int
    value: float  # of E[φ²], beyond the series
    slope: float  # of E[φ'²], beyond the series
    integral: float


def infinite_ntk(
    x: Tensor,
    y: Tensor | None = None,
    *,
    depth: int = 1,
    activation: str | Activation | Pointwise = "relu",
    weight_std: float = 1.0,
    bias_std: float = 0.0,
    input_scale: float = 1.0,
    compile: bool = False,
) -> Tensor:
    r"""Tangent kernel $K^*(x, y) = \mathbb{E}_\theta[\nabla f(x)^\top \nabla f(y)]$ of an infinitely wide MLP, (n, m).

    Paper A, Sec. 2.3; `depth` counts hidden layers. Closed forms for relu, leaky_relu, linear, erf, sine, cosine and
    gaussian; a Hermite series for any other activation (`InfiniteNetwork.quadrature_error` states its error). With
    `y=None` only the upper triangle is computed and the diagonal is exact. Duplicate, opposite, collinear and zero rows
    are exact in float32 too. Differentiable in x and y; at a cusp (x = y) the derivative is the mean of the one-sided
    ones, and at a row of zeros without bias it is the one at right angles to the other row. `compile=True` compiles the
    recursion once (10 to 40 s) for repeated calls.

    Cost: one (n, d)·(d, m) product and one pass over the result, in strips: peak memory is the result, a normalised
    copy of the inputs and one strip.
    """
    net = InfiniteNetwork(depth, activation, weight_std, bias_std, input_scale)
    return net.ntk(x, y, compile=compile)


def infinite_nngp(
    x: Tensor,
    y: Tensor | None = None,
    *,
    depth: int = 1,
    activation: str | Activation | Pointwise = "relu",
    weight_std: float = 1.0,
    bias_std: float = 0.0,
    input_scale: float = 1.0,
    compile: bool = False,
) -> Tensor:
    r"""Covariance $\mathbb{E}_\theta[f(x) f(y)]$ of an infinitely wide MLP at initialisation, (n, m).

    The Gaussian process of paper D, Sec. 2 (its (49) should have E[h²], not Var[h]). Arguments as in `infinite_ntk`.
    """
    net = InfiniteNetwork(depth, activation, weight_std, bias_std, input_scale)
    return net.nngp(x, y, compile=compile)


@dataclass(frozen=True)
class Grid:
    """How a matrix is cut: blocks of rows for products, strips of them for the recursion.

    In a symmetric matrix a block's columns start at the diagonal, and the block is mirrored afterwards.
    """

    product_rows: int
    entries: int

    def blocks(self, out: Tensor, *, symmetric: bool) -> Iterator[tuple[slice, slice]]:
        """Blocks of rows from the top with their columns; after each, a symmetric matrix is mirrored."""
        n, m = out.shape
        for top in range(0, n, self.product_rows):
            rows = slice(top, min(top + self.product_rows, n))
            yield rows, slice(top if symmetric else 0, m)
            if symmetric:
                _mirror(out, rows)

    def strips(self, rows: slice, columns: slice) -> Iterator[slice]:
        """Some of a block's rows at a time."""
        step = max(1, self.entries // (columns.stop - columns.start))
        return (slice(i, min(i + step, rows.stop)) for i in range(rows.start, rows.stop, step))


# On a CPU, strips that fit its last-level cache: with smaller ones, waking threads takes most of the time.
CPU_GRID = Grid(product_rows=512, entries=2**19)
GPU_GRID = Grid(product_rows=4096, entries=2**26)


def _mirror(out: Tensor, rows: slice) -> None:
    for start in range(rows.start, rows.stop, 256):  # pieces: long transposed rows would miss the cache
        stop = min(start + 256, rows.stop)
        square = out[start:stop, start:stop]
        square.copy_(square.triu() + square.triu(1).mT)
        for left in range(stop, out.shape[0], 1024):
            out[left : left + 1024, start:stop] = out[start:stop, left : left + 1024].mT


@dataclass(frozen=True)
class _Angles:
    """The route of homogeneous activations: deficits q = 1 − cos θ between unit rows, in the rows' own number type."""

    net: InfiniteNetwork
    dual: HomogeneousDual
    tangent: bool
    compile: bool

    def fill(self, out: Tensor, x: _Points, y: _Points, *, symmetric: bool) -> None:
        # On a CPU, without a bias, and with norms whose squares are safe in float32, products are divided afterwards.
        scale = self.net._w2 * self.net.input_scale
        raw = not (out.is_cuda or self.net.bias_std) and all(_is_tame(k / scale) for _, k in (x, y))
        rows_x = self._rows(x, out.dtype, raw=raw)
        rows_y = rows_x if symmetric else self._rows(y, out.dtype, raw=raw)
        can_fuse = has_half_units(out) and has_triton(out) and not self.net.bias_std
        if can_fuse and self._fill_fused(out, rows_x, rows_y, symmetric=symmetric):
            return
        grid = GPU_GRID if out.is_cuda else CPU_GRID
        plain = out.is_cuda or self.net.bias_std > 0
        evaluate = (
            _compiled(self.net.bias_std > 0) if self.compile else _evaluate_into if plain else _InPlace(out, grid)
        )
        for rows, columns in grid.blocks(out, symmetric=symmetric):
            torch.mm(rows_x.unit[rows], rows_y.unit[columns].mT, out=out[rows, columns])
            if symmetric:
                out.diagonal()[rows].zero_()  # not cosines of 1, which would count as near: the diagonal is known
            y_, near = rows_y.part(columns), []
            for some in grid.strips(rows, columns):
                x_, cosines = rows_x.part(some), out[some, columns]
                if x_.inverse is not None and y_.inverse is not None:
                    cosines.mul_(x_.inverse[:, None]).mul_(y_.inverse)
                pairs = self._strip(cosines, x_, y_, evaluate)
                pairs[:, 0] += some.start - rows.start
                near.append(pairs)
            self._mend(out[rows, columns], torch.cat(near), rows_x.part(rows), y_)

    def _fill_fused(self, out: Tensor, x: _UnitRows, y: _UnitRows, *, symmetric: bool) -> bool:
        """Products and recursion at the GPU's full speed; False if too many pairs are near to do one by one."""
        from kontrast.kernels import fused_recursion as fused

        parts_x = split_rows(x.unit)
        parts_y = parts_x if symmetric else split_rows(y.unit)
        near = fused.Pairs.room_for(min(out.numel(), 2**24), out.device)
        for top in range(0, out.shape[0], GPU_GRID.product_rows):
            bottom, left = min(top + GPU_GRID.product_rows, out.shape[0]), top if symmetric else 0
            fused.write_both_ways(
                split_product(parts_x.rows(top, bottom), parts_y.rows(left, None)),
                out,
                x.scale[top:bottom],
                y.scale[left:],
                near,
                top=top,
                left=left,
                symmetric=symmetric,
                threshold=1 - NEAR[out.dtype],
                depth=self.net.depth,
                slope=self.dual.slope,
                tangent=self.tangent,
            )
        found = int(near.count)
        if found > len(near.places):
            return False
        for some, values in self._exact(near.places[:found].long(), x, y):
            out[some[:, 0], some[:, 1]] = values
            if symmetric:
                out[some[:, 1], some[:, 0]] = values
        return True

    def _strip(self, cosines: Tensor, x: _UnitRows, y: _UnitRows, evaluate: Callable[..., None]) -> Tensor:
        """Turn cosines into the kernel in place, except for the pairs returned, which are too close to a cusp."""
        near = 1 - NEAR[cosines.dtype]
        low, high = torch.aminmax(cosines, dim=1)
        rows = ((high > near) | (low < -near)).nonzero().flatten()  # few: the others have no near pair
        pairs = (cosines[rows].abs() > near).nonzero()
        pairs[:, 0] = rows[pairs[:, 0]]
        if len(pairs) > FEW * cosines.numel() and cosines.dtype == torch.float32:
            x, y = x.double(), y.double()
            exact = x.unit @ y.unit.mT
            self._mend(exact, self._strip(exact, x, y, _evaluate_into), x, y)
            cosines.copy_(exact)
            return pairs[:0]
        settings = (x.shaped(-1, 1), y.shaped(1, -1), self.net.depth, self.dual, self.tangent)
        evaluate(cosines, *settings)
        return pairs

    def _mend(self, kernel: Tensor, pairs: Tensor, x: _UnitRows, y: _UnitRows) -> None:
        """Put exact values at these pairs."""
        for some, values in self._exact(pairs, x, y):
            kernel[some[:, 0], some[:, 1]] = values.to(kernel.dtype)

    def _exact(self, pairs: Tensor, x: _UnitRows, y: _UnitRows) -> Iterator[tuple[Tensor, Tensor]]:
        """Some pairs (i, j) at a time and their kernel values, from differences of unit rows in float64."""
        settings = (self.net.depth, self.dual, self.tangent)
        for some in torch.split(pairs, max(1, (2**28 if pairs.is_cuda else 2**22) // x.points.shape[1])):
            u, v = x.part(some[:, 0]).double(), y.part(some[:, 1]).double()
            q, p = (u.unit - v.unit).square().sum(1) / 2, (u.unit + v.unit).square().sum(1) / 2
            yield some, _evaluate(q, p, u.shaped(-1), v.shaped(-1), *settings).to(x.unit.dtype)

    def differentiable(self, x: _Points, y: _Points) -> Tensor:
        x_, y_ = self._rows(x, torch.float64), self._rows(y, torch.float64)
        q = 1 - x_.unit @ y_.unit.mT
        q = q - torch.where(q.abs() < 1e-14, q, 0.0).detach()  # exactly zero for duplicates, with their slope
        settings = (x_.shaped(-1, 1), y_.shaped(1, -1), self.net.depth, self.dual, self.tangent)
        kernel = _evaluate(q, (2 - q).clamp_min(0), *settings)
        zero = x_.zero[:, None] | y_.zero
        if not bool(zero.any()):
            return kernel
        # A zero row was given norm one, so that its slope through the angle survives. Its value is zero whatever the
        # other point is, so everything but that slope is subtracted again.
        still = q.detach()
        return kernel - torch.where(zero, _evaluate(still, (2 - still).clamp_min(0), *settings), 0.0)

    def _rows(self, points: _Points, dtype: torch.dtype, *, raw: bool = False) -> _UnitRows:
        net, (x, k) = self.net, points
        differentiable = torch.is_grad_enabled() and x.requires_grad
        scale = net._w2 * net.input_scale
        if net.bias_std:  # the bias is one more input, of the size that gives it its variance
            x = torch.cat([x, math.sqrt(net._beta / scale) * torch.ones_like(x[:, :1])], 1)
        zero = k == 0
        norm = torch.where(zero, 1.0, k / scale).sqrt()
        if raw:
            unit = x
        elif differentiable:
            unit = (x.double() / norm[:, None]).to(dtype)
        else:
            unit = torch.empty_like(x, dtype=dtype)
            for part, rows, by in zip(_chunks(unit), _chunks(x), _chunks(norm[:, None].expand_as(x)), strict=True):
                part.copy_(torch.div(rows.double(), by))
        if differentiable:
            k = torch.where(zero, scale, k)
        lifts = []
        for _ in range(net.depth):
            k_next = net._w2 * self.dual.gain * k + net._beta
            if net.bias_std:
                lifts.append(((1 - net._beta / k_next).sqrt().to(dtype), (net._beta / k_next).sqrt().to(dtype)))
            k = k_next
        inverse = (1 / norm).to(dtype) if raw else None
        return _UnitRows(x, norm, unit, inverse, lifts, k.sqrt().to(dtype), zero)


@dataclass(frozen=True)
class _UnitRows:
    """Rows as directions: the recursion's input from each point, and the points for pairs that need exact treatment."""

    points: Tensor  # (n, d), the bias as one more column
    norm: Tensor  # (n,) float64, one for rows of zeros
    unit: Tensor  # (n, d) points / norm, or the points themselves where `inverse` is given
    inverse: Tensor | None  # (n,) 1 / norm, still to be applied to products
    lifts: list[tuple[Tensor, Tensor]]  # the shares of each layer's deviation due to its weights and its bias
    scale: Tensor  # (n,) the deviation of the output
    zero: Tensor

    def part(self, index: slice | Tensor) -> _UnitRows:
        inverse = None if self.inverse is None else self.inverse[index]
        lifts = [(alpha[index], eta[index]) for alpha, eta in self.lifts]
        rows = (self.points[index], self.norm[index], self.unit[index])
        return _UnitRows(*rows, inverse, lifts, self.scale[index], self.zero[index])

    def double(self) -> _UnitRows:
        lifts = [(alpha.double(), eta.double()) for alpha, eta in self.lifts]
        unit = self.points.double() / self.norm[:, None]
        return _UnitRows(self.points, self.norm, unit, None, lifts, self.scale.double(), self.zero)

    def shaped(self, *shape: int) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """The scale and the lifts, in a shape that broadcasts against the pairs."""
        return self.scale.view(shape), [(alpha.view(shape), eta.view(shape)) for alpha, eta in self.lifts]


_Row = tuple[Tensor, list[tuple[Tensor, Tensor]]]


def _evaluate(q: Tensor, p: Tensor, x: _Row, y: _Row, depth: int, dual: HomogeneousDual, tangent: bool) -> Tensor:
    """The kernel from the deficits of layer 0, carried as $1 - q = Σ/(σ_x σ_y)$ and $Θ/(σ_x σ_y)$."""
    (scale_x, lifts_x), (scale_y, lifts_y) = x, y
    theta = 1 - q
    opposite: Tensor | None = p
    for layer in range(depth):
        q, slope = dual.layer(q, opposite)
        opposite = None
        if lifts_x:  # a bias turns a unit vector u into (αu, η): 1 − cos is half a squared distance, before and after
            (alpha_x, eta_x), (alpha_y, eta_y) = lifts_x[layer], lifts_y[layer]
            shrink = alpha_x * alpha_y
            q = shrink * q + ((alpha_x - alpha_y).square() + (eta_x - eta_y).square()) / 2
            slope = shrink * slope
        if tangent:
            theta = torch.addcmul(1 - q, theta, slope)
    return (theta if tangent else 1 - q) * scale_x * scale_y


class _InPlace:
    """`_cosines_into` operation by operation on a CPU, in three strips that are used again.

    Ten times faster than with temporaries: the system hands out fresh memory for each one of a strip's size, and
    touching new pages costs more than arithmetic. Few operations, since threads wait for each other after every one.
    """

    def __init__(self, like: Tensor, grid: Grid) -> None:
        self._room = like.new_empty(3, max(grid.entries, like.shape[1]))
        self._one = like.new_ones(())

    def __call__(self, theta: Tensor, x: _Row, y: _Row, depth: int, dual: HomogeneousDual, tangent: bool) -> None:
        c, angle, s = (room[: theta.numel()].view(theta.shape) for room in self._room)
        bend, straight = dual.bend / math.pi, dual.slope / dual.gain
        c.copy_(theta)
        for layer in range(depth):
            if layer:
                c.clamp_max_(1)
            torch.acos(c, out=angle).sub_(math.pi)
            torch.addcmul(self._one, c, c, value=-1, out=s).sqrt_()
            s.addcmul_(angle, c, value=-1)  # sin θ + (π − θ) cos θ
            c.mul_(straight).add_(s, alpha=bend) if straight else torch.mul(s, bend, out=c)
            if tangent:
                if straight:
                    angle.mul_(-bend).add_(straight)
                    theta.mul_(angle).add_(c)
                else:
                    theta.mul_(angle)
                    torch.add(c, theta, alpha=-bend, out=theta)
        (theta if tangent else theta.copy_(c)).mul_(x[0]).mul_(y[0])


def _is_tame(squares: Tensor) -> bool:
    size = squares[squares > 0]
    return len(size) == 0 or (float(size.min()) > 1e-15 and float(size.max()) < 1e15)


def _evaluate_into(cosines: Tensor, x: _Row, y: _Row, depth: int, dual: HomogeneousDual, tangent: bool) -> None:
    cosines.copy_(_evaluate(1 - cosines, 1 + cosines, x, y, depth, dual, tangent))


def _cosines_into(cosines: Tensor, x: _Row, y: _Row, depth: int, dual: HomogeneousDual, tangent: bool) -> None:
    """The same without bias, on cosines, for pairs that are not near a cusp.

    Below cos θ = 0.95 an angle loses less than 1e-6 in float32, and angles shrink slowly, as 3π / layer. Entries of
    near pairs may become NaN: they are computed separately.
    """
    bend, straight = dual.bend / math.pi, dual.slope / dual.gain
    theta = c = cosines
    for _ in range(depth):
        angle = torch.acos(c) - math.pi
        sine = torch.sqrt(1 - c * c)
        c = (straight * c + bend * (sine - angle * c)).clamp_max(1)
        theta = c + theta * (straight - bend * angle)
    cosines.copy_((theta if tangent else c) * x[0] * y[0])


@functools.cache
def _compiled(biased: bool) -> Callable[..., None]:
    return torch.compile(_evaluate_into if biased else _cosines_into, dynamic=True)


@dataclass(frozen=True)
class _Covariances:
    """The route of smooth activations: covariances in float64, since the rounding of large ones matters."""

    net: InfiniteNetwork
    tangent: bool

    def fill(self, out: Tensor, x: _Points, y: _Points, *, symmetric: bool) -> None:
        duals, rows_x, rows_y = self._rows(x[1], y[1])
        points, grid = y[0].double(), GPU_GRID if out.is_cuda else CPU_GRID
        for rows, columns in grid.blocks(out, symmetric=symmetric):
            at_y = [row[columns] for row in rows_y]
            for some in grid.strips(rows, columns):
                products = x[0][some].double() @ points[columns].mT
                out[some, columns] = self._evaluate(products, duals, [row[some] for row in rows_x], at_y)

    def differentiable(self, x: _Points, y: _Points) -> Tensor:
        return self._evaluate(x[0].double() @ y[0].double().mT, *self._rows(x[1], y[1]))

    def _rows(self, k_x: Tensor, k_y: Tensor) -> tuple[list[Closed | HermiteSeries], list[Tensor], list[Tensor]]:
        """Each layer's dual, and its `rows` for x and for y."""
        net, duals = self.net, []
        sides: list[tuple[Tensor, list[Tensor]]] = [(k_x, [])] if k_y is k_x else [(k_x, []), (k_y, [])]
        for _ in range(net.depth):
            dual = dual_of(net._activation, max(float(k.detach().max()) for k, _ in sides))
            assert not isinstance(dual, HomogeneousDual)
            duals.append(dual)
            for k, rows in sides:
                rows.append(torch.cat([dual.rows(part) for part in torch.split(k, 1024)]))
            sides = [(net._next(k, dual)[0], rows) for k, rows in sides]
        return duals, sides[0][1], sides[-1][1]

    def _evaluate(self, k: Tensor, duals: list[Closed | HermiteSeries], x: list[Tensor], y: list[Tensor]) -> Tensor:
        net = self.net
        k = net._w2 * net.input_scale * k + net._beta
        theta = k
        for dual, row_x, row_y in zip(duals, x, y, strict=True):
            F, slope = dual.between(row_x, row_y, k)
            k = net._w2 * F + net._beta
            if self.tangent:
                theta = k + net._w2 * slope * theta
        return theta if self.tangent else k


def _chunks(x: Tensor) -> tuple[Tensor, ...]:
    """A few rows at a time, so that their float64 copies are small compared to the result."""
    return torch.split(x, max(1, (2**24 if x.is_cuda else 2**16) // x[0].numel()))


def _check(name: str, x: Tensor, *, like: Tensor | None = None) -> Tensor:
    """The rows of an argument as (n, d); refuses what is not float32 or float64 rows."""
    if not isinstance(x, Tensor) or x.dtype not in NEAR:
        given, fix = (x.dtype, f"{name}.float()") if isinstance(x, Tensor) else (type(x).__name__, "torch.tensor(…)")
        raise InputError(f"{name} must be a float32 or float64 tensor, got {given}; convert with {fix}")
    if x.ndim < 2 or 0 in x.shape:
        raise InputError(f"{name} must be (n, d) with at least one row and one column, got shape {tuple(x.shape)}")
    x = x.flatten(1)
    if like is not None and x.shape[1] != like.shape[1]:
        raise InputError(f"{name} has {x.shape[1]} columns but x has {like.shape[1]}")
    if like is not None:
        require_alike(**{"x": like, name: x})
    return x
