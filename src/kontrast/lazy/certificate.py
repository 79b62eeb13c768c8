"""An a-posteriori certificate on how far a tangent kernel moved between two parameter points of a smooth network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import jacrev, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from kontrast.bounds import Assumption, Bound
from kontrast.checks import as_whole, require_finite, require_floating, require_rows, require_whole
from kontrast.errors import InputError
from kontrast.memory import rows_that_fit
from kontrast.nets import MLP, Parameters, PureFunction, at_point, pure_function

# Operations whose first derivative (relu) or second derivative (elu) jumps somewhere. `where` is a branch, which may be
# smooth but cannot be trusted to be.
_KINKED = frozenset(
    {"relu", "relu6", "leaky_relu", "prelu", "_prelu_kernel", "rrelu", "rrelu_with_noise", "threshold", "elu"}
    | {"hardtanh", "hardswish", "hardsigmoid", "softshrink", "hardshrink", "heaviside", "where", "abs", "sign", "sgn"}
    | {f"max_pool{d}d{indices}" for d in (1, 2, 3) for indices in ("", "_with_indices")}
    | {f"{kind}_max_pool{d}d" for d in (2, 3) for kind in ("adaptive", "fractional")}
    | {"max", "min", "amax", "amin", "maximum", "minimum", "fmax", "fmin", "clamp", "clamp_min", "clamp_max"}
    | {"round", "floor", "ceil", "trunc", "frac", "remainder", "fmod", "sort", "topk", "median", "kthvalue"}
    | {"gt", "lt", "ge", "le", "eq", "ne", "argmax", "argmin", "masked_fill", "masked_select", "bucketize", "nonzero"}
)
ADAPTIVE_NODES = (9, 17, 33, 65)  # nested
N_PANELS, N_GAUSS = 16, 8  # of the quadrature
RESOLVED = 0.1  # share of the quadrature error in the bound up to which the chord counts as resolved
_ROUNDING = 64  # units in the last place of ‖∇f_i(x)‖‖∇f_j(y)‖, the size of what cancels in K(1) − K(0)


@dataclass(frozen=True, eq=False)
class Certificate:
    r"""A bound on every entry of $K(\theta) - K(\theta_0)$, for θ anywhere on the chord from `start` to `end`.

    All tensors are (n, n, c, c), indexed like `kernels.empirical_ntk`. The assumptions are smoothness and a resolved
    quadrature; where one fails, `bound` is a number and no theorem.
    """

    bound: Tensor  # with `quadrature_error` and `rounding` added
    change: Tensor  # K(end) − K(start), the truth at the end of the chord
    quadrature_error: Tensor  # how far the interpolants through all nodes and through every other node lie apart
    rounding: Tensor  # what the rounding of the number type may add
    radius: float  # ‖θ_t − θ_0‖₂
    order: int  # 1 or 2, as in `ntk_certificate`
    assumptions: tuple[Assumption, ...]

    @property
    def value(self) -> float:
        """The largest entry of the bound."""
        return float(self.bound.max())

    @property
    def measured(self) -> float:
        """The largest entry of the true change."""
        return float(self.change.abs().max())

    @property
    def ratio(self) -> float:
        """Largest bound over largest change."""
        return self.as_bound().ratio

    @property
    def valid(self) -> bool:
        """Whether the network is smooth and the quadrature resolved; otherwise there is no certificate."""
        return all(assumption.holds for assumption in self.assumptions)

    @property
    def holds(self) -> bool:
        """Whether every entry respects its bound."""
        return bool((self.change.abs() <= self.bound).all())

    def as_bound(self) -> Bound:
        """The largest entry as a `Bound` beside its measurement."""
        return Bound(
            name="max |K(t) − K(0)|",
            source=f"certificate of order {self.order}",
            value=self.value,
            constants={"radius": self.radius, "quadrature error": float(self.quadrature_error.max())}
            | {"rounding": float(self.rounding.max())},
            assumptions=self.assumptions,
            measured=self.measured,
        )

    def __str__(self) -> str:
        return str(self.as_bound())


def ntk_certificate(
    function: nn.Module | PureFunction,
    start: Mapping[str, Tensor],
    end: Mapping[str, Tensor],
    x: Tensor,
    *,
    order: int = 1,
    nodes: int | None = None,
    memory: float | None = None,
) -> Certificate:
    r"""How far the tangent kernel of `function` at the points `x` can have moved on the chord from `start` to `end`.

    With Δ = θ_t − θ_0, θ(s) = θ_0 + sΔ, $g_a = \nabla f_i(x)$ for a = (x, i), and dots for d/ds, so that
    $\dot g_a = H_i(x)\,Δ$ and $\ddot g_a = \partial^3 f_i(x)[Δ, Δ]$, the kernel $K_{ab} = g_a^\top g_b$ has

    $$K' = \dot g_a^\top g_b + g_a^\top \dot g_b, \qquad
      K'' = \ddot g_a^\top g_b + 2\,\dot g_a^\top \dot g_b + g_a^\top \ddot g_b .$$

    * Order 1, the tightest: $|K(s) - K(0)| \le \int_0^1 |K'|$ for every s in [0, 1], the entry's total variation.
    * Order 2: $|K(s) - K(0)| \le |K'(0)| + \int_0^1 (1-u)\,|K''(u)|\,du$ for every s (Taylor's formula; its remainder
      grows with s). Larger than order 1, but it separates what the slope at the start predicts from what is due to
      curvature.

    Lemma 8 of paper A bounds the same change by 2·max‖H‖·max‖g‖·‖Δ‖. Its three maxima and the Cauchy–Schwarz inequality
    lose a factor that grows as √M: its bound falls as M^-½, the change and the terms here as 1/M. Norms in place of the
    products, ‖ġ_a‖‖g_b‖ + ‖g_a‖‖ġ_b‖ for |K'|, would give 3 to 9 times the change in order 1 instead of 1 to 3 times,
    and 11 to 18 times in order 2.

    Only the end points enter, not the path: the chord is the shortest path between them. K' or K'' is interpolated from
    9 Chebyshev points of the chord, then from twice as many, until the error is at most a tenth of the bound. The ends
    are among the points, so the true change costs nothing more. The interpolant's error is estimated by its L¹ distance
    from the interpolant through every other node, reported, and added. This estimate is the one step that is no proof:
    where it stays too large, the assumption "quadrature" fails. The rule's weights are positive, so the bound is never
    below |∫ p|.

    An `MLP` with a smooth activation costs about 3 (order 1) or 6 kernels per node, layer by layer; other modules go
    through the gradients of each point and their forward derivatives, c·p numbers per point.

    Args:
        function: a module in evaluation mode, or a pure function f(parameters, x) → (n, c).
        start: θ_0 by name, a whole state_dict() where the module has running statistics, which must be the same at both
            ends: the chord moves parameters alone. The kernel is that of all parameters named here.
        end: θ_t, by the same names.
        x: the points (n, …).
        order: 1 or 2.
        nodes: a fixed number of points, 3, 5, 9, 17, …; by default as many as needed, up to 65.
        memory: bytes to work in; by default half of what is free. Points go in blocks that fit; small ones repeat work.
    """
    f, start, end = _points(function, start, end)
    _check(start, end, x, order, nodes)
    origin = {name: p.detach() for name, p in start.items()}
    step = {name: end[name].detach().to(p) - p for name, p in origin.items()}
    kinks = _kinks(function, f, origin, x)
    chord = _Chord(f, origin, step, x, order, memory, net=_layerwise(function))
    kernels: list[list[Tensor]] = []
    for size in (nodes,) if nodes is not None else ADAPTIVE_NODES:
        points = clenshaw_curtis_points(size).tolist()
        with torch.no_grad():  # every other node is known from the round before
            kernels = [kernels[i // 2] if kernels and i % 2 == 0 else chord.kernels(s) for i, s in enumerate(points)]
        found = _Estimate.of(kernels, order)
        if found.unresolved <= RESOLVED:
            break
    n, share = len(x), found.unresolved

    def entries(matrix: Tensor) -> Tensor:
        return matrix.reshape(n, -1, n, len(matrix) // n).permute(0, 2, 1, 3)  # (n·c, n·c) → (n, n, c, c)

    return Certificate(
        bound=entries(found.bound),
        change=entries(kernels[-1][0] - kernels[0][0]),
        quadrature_error=entries(found.error),
        rounding=entries(found.rounding),
        radius=math.sqrt(sum(float(d.double().square().sum()) for d in step.values())),
        order=order,
        assumptions=(
            Assumption("5 (smoothness)", not kinks, f"kinks or branches: {', '.join(kinks)}" if kinks else "no kinks"),
            Assumption("quadrature", share <= RESOLVED, f"its error is {share:.1%} of the bound, {len(kernels)} nodes"),
        ),
    )


def _points(
    function: nn.Module | PureFunction, start: Mapping[str, Tensor], end: Mapping[str, Tensor]
) -> tuple[PureFunction, Mapping[str, Tensor], Mapping[str, Tensor]]:
    """The function with the buffers of the two points, and their parameters; refuses points of different buffers."""
    if not isinstance(function, nn.Module):
        return function, start, end
    own = dict(function.named_parameters())
    if not own.keys() <= start.keys():  # some parameters: the others, and the buffers, are the module's own
        return pure_function(function), start, end
    (first, buffers), (last, others) = (at_point(function, s, name) for name, s in (("start", start), ("end", end)))
    for name, b in buffers.items():
        if b.is_floating_point() and not torch.equal(b, others[name].to(b)):
            raise InputError(
                f"start and end hold different {name}, but the chord between them moves parameters alone; take the "
                "statistics of one point at both ends, as in {**start, **{name: end[name] for name, _ in "
                "module.named_parameters()}}"
            )
    return pure_function(function, buffers=buffers), first, last


@dataclass(frozen=True, eq=False)
class _Estimate:
    """The bound on every entry, (n·c, n·c), and how much of it the quadrature and rounding add."""

    bound: Tensor
    error: Tensor
    rounding: Tensor

    @classmethod
    def of(cls, kernels: list[list[Tensor]], order: int) -> _Estimate:
        """From [K, K'] or [K, K', K''] at every node."""
        derivative = torch.stack([found[order] for found in kernels])
        variation, error = _integrals(derivative, weight=(lambda s: 1 - s) if order == 2 else (lambda s: 1.0))
        size = torch.stack([found[0].diagonal().sqrt() for found in kernels]).amax(0)  # ‖g_a‖
        rounding = _ROUNDING * torch.finfo(size.dtype).eps * size[:, None] * size
        bound = variation + error + rounding
        return cls(bound if order == 1 else bound + kernels[0][1].abs(), error, rounding)

    @property
    def unresolved(self) -> float:
        """The largest quadrature error over the largest bound."""
        return float(self.error.max() / self.bound.max())


def clenshaw_curtis_points(nodes: int) -> Tensor:
    """Chebyshev points of [0, 1], from 0 to 1."""
    return (1 - torch.linspace(0, math.pi, nodes, dtype=torch.float64).cos()) / 2


def _integrals(values: Tensor, *, weight: Callable[[float], float]) -> tuple[Tensor, Tensor]:
    """∫ weight·|p| and ∫ weight·|p − q|, entry by entry, from values (nodes, …) at Chebyshev points.

    p interpolates all values and q every other one. |p| has kinks, so a rule on the nodes would be poor; p is cheap to
    evaluate, so 16 panels of 8 Gauss points do it. Their weights are positive and their sum is exact for p, hence
    Σ w|p| ≥ |Σ w p| = |∫p|.
    """
    t, w = np.polynomial.legendre.leggauss(N_GAUSS)
    points = ((np.arange(N_PANELS)[:, None] + (1 + t) / 2) / N_PANELS).ravel()
    weights = np.tile(w / 2, N_PANELS) / N_PANELS
    knots = clenshaw_curtis_points(len(values)).numpy()
    fine, coarse = _interpolation(knots, points), np.zeros((len(points), len(knots)))
    coarse[:, ::2] = _interpolation(knots[::2], points)
    total, gap = torch.zeros_like(values[0]), torch.zeros_like(values[0])
    for s, share, *rows in zip(points.tolist(), weights.tolist(), fine, coarse, strict=True):
        p, q = (torch.tensordot(torch.from_numpy(row).to(values), values, 1) for row in rows)
        total += share * weight(s) * p.abs()
        gap += share * weight(s) * (p - q).abs()
    return total, gap


def _interpolation(knots: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Values at the points of the polynomial through values at the knots, as a matrix."""
    degree = len(knots) - 1
    basis, at_knots = (np.polynomial.chebyshev.chebvander(2 * s - 1, degree) for s in (points, knots))
    return np.linalg.solve(at_knots.T, basis.T).T


@dataclass(frozen=True, eq=False)
class _Chord:
    """θ(s) = origin + s·step, and the kernel there with its derivatives in s."""

    f: PureFunction
    origin: Parameters
    step: Parameters
    x: Tensor
    order: int
    memory: float | None
    net: MLP | None  # a net whose kernel is known layer by layer

    def kernels(self, s: float) -> list[Tensor]:
        """[K, K'] or [K, K', K''] at θ(s), each (n·c, n·c)."""
        at = next(iter(self.origin.values())).new_tensor(s)
        if self.net is not None:
            net = self.net
            return _derivatives(lambda u: _mlp_kernel(net, self._theta(u), self.x), at, self.order)
        c, n = self.f(self.origin, self.x[:1]).shape[1], len(self.x)
        p = sum(value.numel() for value in self.origin.values())
        # Two blocks of jets, and as much again for the intermediate results of automatic differentiation.
        per_point = 4 * (self.order + 1) * c * p * at.element_size()
        size = rows_that_fit(per_point, n, memory=self.memory, device=at.device, what="parameter gradients")
        found = list(at.new_zeros(self.order + 1, n * c, n * c))
        for i in range(0, n, size):
            at_i = self._jets(self.x[i : i + size], at)
            for j in range(i, n, size):
                at_j = at_i if j == i else self._jets(self.x[j : j + size], at)
                rows, columns = slice(i * c, i * c + len(at_i[0])), slice(j * c, j * c + len(at_j[0]))
                for matrix, part in zip(found, _products(at_i, at_j), strict=True):
                    matrix[rows, columns] = part
                    matrix[columns, rows] = part.mT
        return found

    def _theta(self, s: Tensor) -> Parameters:
        return {name: p + s * self.step[name] for name, p in self.origin.items()}

    def _jets(self, x: Tensor, s: Tensor) -> list[Tensor]:
        """[g, ġ] or [g, ġ, g̈], each (b·c, p), one row per point and output."""

        def gradients(u: Tensor) -> Tensor:
            theta = self._theta(u)

            def rows(point: Tensor) -> Tensor:
                slopes = jacrev(lambda p: self.f(p, point.unsqueeze(0))[0])(theta)
                return torch.cat([slope.flatten(1) for slope in slopes.values()], dim=1)  # (c, p)

            return vmap(rows)(x).flatten(0, 1)

        try:
            return _derivatives(gradients, s, self.order)
        except NotImplementedError as error:
            raise InputError(
                f"a layer has no forward-mode derivative: {str(error).splitlines()[0]}; "
                f"write that layer with basic operations"
            ) from error


def _derivatives(h: Callable[[Tensor], Tensor], s: Tensor, order: int) -> list[Tensor]:
    """[h, h', …, h^(order)] at s, by forward mode within forward mode."""
    one = torch.ones_like(s)

    def pair(u: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = jvp(h, (u,), (one,))  # type: ignore[misc]
        return value, slope

    if order == 1:
        return list(pair(s))
    (value, first), (_, second) = jvp(pair, (s,), (one,))  # type: ignore[misc]
    return [value, first, second]


def _products(a: Sequence[Tensor], b: Sequence[Tensor]) -> list[Tensor]:
    """K, K' and, where second derivatives are given, K'' between two blocks of rows."""
    found = [a[0] @ b[0].mT, a[1] @ b[0].mT + a[0] @ b[1].mT]
    if len(a) > 2:
        found.append(a[2] @ b[0].mT + 2 * (a[1] @ b[1].mT) + a[0] @ b[2].mT)
    return found


def _mlp_kernel(net: MLP, parameters: Parameters, x: Tensor) -> Tensor:
    r"""K = Σ over layers of (signals back)·(signals back)ᵀ ∘ (signals in)·(signals in)ᵀ, (n·c, n·c), differentiable.

    `kernels.empirical_ntk` computes the same faster and in place; forward mode needs it as one plain expression.
    """
    V, W = net.layers(parameters)
    *hidden_scales, scale = net.scales
    inputs, slopes = [x.flatten(1)], []
    for factor, V_l in zip(hidden_scales, V, strict=True):
        a = factor * inputs[-1] @ V_l.mT
        inputs.append(net.activation(a))
        slopes.append(net.activation.first(a))
    n, c = len(x), W.shape[1]
    gram = scale**2 * inputs[-1] @ inputs[-1].mT  # (n, n)
    kernel = gram[:, None, :, None] * torch.eye(c, dtype=gram.dtype, device=gram.device)[:, None, :]  # (n, c, n, c)
    back = scale * W.mT  # ∂f/∂h of the last hidden layer, (c, M), the same for all points
    for level in reversed(range(net.depth)):
        back = hidden_scales[level] * slopes[level][:, None, :] * back  # (n, c, M)
        rows = back.flatten(0, 1)
        gram = inputs[level] @ inputs[level].mT
        kernel = kernel + (rows @ rows.mT).reshape(n, c, n, c) * gram[:, None, :, None]
        back = back @ V[level]
    return kernel.reshape(n * c, n * c)


def _layerwise(function: nn.Module | PureFunction) -> MLP | None:
    """The smooth `MLP` that the function is, or whose method `at` it is; not a subclass with its own forward pass."""
    net = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    plain = isinstance(net, MLP) and type(net).forward is MLP.forward and type(net).at is MLP.at
    if not plain or not (function is net or getattr(function, "__func__", None) is MLP.at):
        return None
    assert isinstance(net, MLP)
    return net if net.activation.smooth else None


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which kinked operations a computation uses, functional ones too, which no list of modules shows."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__.rstrip("_")
        if name in _KINKED:
            self.found.add(name)
        return func(*args, **(kwargs or {}))


def _kinks(function: nn.Module | PureFunction, f: PureFunction, origin: Parameters, x: Tensor) -> tuple[str, ...]:
    """The kinked operations of one forward pass, by name."""
    if _layerwise(function) is not None:  # its activation is known to be smooth, as that of leaky_relu:1 is
        return ()
    with torch.no_grad(), _Recorder() as recorder:
        f(origin, x[:1])
    return tuple(sorted(recorder.found))


def _check(start: Mapping[str, Tensor], end: Mapping[str, Tensor], x: Tensor, order: int, nodes: int | None) -> None:
    if not start:
        raise InputError("start holds no parameters, so there is no kernel")
    for name, p in start.items():
        if name not in end or end[name].shape != p.shape:
            given = tuple(end[name].shape) if name in end else "nothing"
            raise InputError(f"end needs {tuple(p.shape)} for the parameter {name!r}, got {given}")
        if not (bool(torch.isfinite(p).all()) and bool(torch.isfinite(end[name]).all())):
            raise InputError(f"the parameter {name!r} holds NaN or infinite values: the run diverged, nothing to bound")
    require_rows("x", x)
    require_floating("x", x)
    require_finite("x", x, "leave those points out")
    if x.ndim < 2:
        raise InputError(f"x must be (n, …), one point per row, got shape {tuple(x.shape)}; use x[:, None] or x[None]")
    require_whole("order", order, most=2)
    size = as_whole(nodes)
    if nodes is not None and (size is None or size < 3 or (size - 1) & (size - 2)):
        raise InputError(f"nodes must be 2^k + 1 and at least 3, so that rules nest, got {nodes!r}; use 5 or 9")
