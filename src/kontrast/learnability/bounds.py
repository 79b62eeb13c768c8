r"""The bounds of paper D's Theorems B.2 and B.3, with constants measured in a network instead of assumed.

The network is `MLP(depth=1, parametrization="standard")` of width n, with $\hatΘ = J J^\top/n$ and descent on ½‖f(X)
− Y‖² at the rate η_0/n. Forms: "printed" has one K for (55) and (56), like the paper. "sharp" is the same proof without
its losses: ‖J‖₂ for ‖J‖_F, the slope of (56) separate from the norm of (55), and $\hatΘ_0$ itself instead of its limit
Θ, so that (79) is not needed. The errors in the printed proof, which can all be repaired:

* (79) must read ‖Θ − Θ̂_0‖ ≤ λ_min/3: with its factor η_0 it is too weak for η_0 > 1. (80) does not follow from it but
  from η_0 ≤ 2/(λ_min + λ_max). (84) to (86) have (1 − η_0)λ_min for 1 − η_0 λ_min; (87) is right.
* (14), (72): a vector function has no mean value θ̃; the mean Jacobian J̄ between θ_t and θ_{t+1} serves instead.
* Lemma B.1 is used on the ball of radius 3KR_0/(λ_min √n), so K may not depend on C. At a fixed width it does; see
  `closed_ball`. K > 1 is not needed.
* (22), (101) have f(θ_t) for f(θ_0). (24), (103) is not an inequality, (25), (104) not an equality; with J̄ (110) holds.
* (22) to (30), (101) to (110) follow f_lin along the network's own θ_t, a Taylor remainder. Theorem B.3 is about
  another f_lin, trained by itself: `theorem_b3` has that for descent.
* (17) has g(s) for g_lin(s) in its last integral, and its h(s − t) has the kernel at a wrong time. (21) has R_0 for
  R_0².
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kontrast import checks
from kontrast.bounds import Assumption, Bound, Form
from kontrast.errors import InputError
from kontrast.kernels import empirical_ntk, infinite_nngp
from kontrast.nets import MLP, slopes_of

_FORMS = ("printed", "sharp")


@dataclass(frozen=True)
class LinearizationConstants:
    r"""The constants of Theorems B.2 and B.3 for one net at its start, its data and one learning rate.

    Θ, the limit of $\hatΘ_0$ at infinite width, is the NNGP kernel: of JJ^T/n the output layer's part is φ(Vx)·φ(Vy)/n,
    and the first layer's Σ_i w_i² φ'φ' x·y/n falls as 1/n.
    """

    activation: str
    lipschitz: float  # max |φ'|
    smoothness: float  # max |φ''|, infinite at a kink
    width: int  # n
    d_out: int  # k
    learning_rate: float  # η_0
    residual: float  # R_0 = ‖f_0(X) − Y‖₂
    smallest: float  # λ_min of Θ
    largest: float  # λ_max of Θ
    smallest_start: float  # λ_0, of Θ̂_0
    largest_start: float  # of Θ̂_0
    kernel_error: float  # ‖Θ − Θ̂_0‖_F
    norm: float  # ‖J(θ_0)‖_F/√n
    output_weight: float  # the largest ‖w_i‖₂ of a hidden unit's output weights
    input_norm: float  # ‖X‖_F
    input_spectral: float  # ‖X‖₂
    input_weighted: float  # ‖diag(‖x‖) X‖₂


@dataclass(frozen=True)
class JacobianBall:
    """Lemma B.1's constants: ‖J‖_F/√n ≤ `norm` (55), ‖J‖₂/√n ≤ `operator_norm`, and (56) with `slope` for K.

    `proved` constants hold on the whole ball around θ_0. Others are the largest at some points of it: the true K, and
    every bound made with it, is at least as large.
    """

    radius: float
    norm: float
    operator_norm: float
    slope: float
    proved: bool

    @property
    def K(self) -> float:
        """The smallest K with (55) and (56)."""
        return max(self.norm, self.slope)


def linearization_constants(net: MLP, x: Tensor, targets: Tensor, *, learning_rate: float) -> LinearizationConstants:
    """The constants at the parameters, taken as θ_0, of `MLP(depth=1, parametrization="standard")`.

    The training inputs x (m, d) are all different, `targets` are Y (m, d_out), and steps have `learning_rate`/n.
    """
    x = _checked_inputs(net, x)
    checks.require_matrix("targets", targets, (len(x), net.d_out), "pass one row per row of x")
    checks.require_positive(learning_rate=learning_rate)
    _, W = net.layers()
    with torch.no_grad():
        residual = float((net(x) - targets.to(x)).double().norm())
    kernel, x = _kernel(net, x), x.double()
    limit = infinite_nngp(x, activation=net.activation, input_scale=1 / net.d_in).to(kernel)
    start, end = torch.linalg.eigvalsh(kernel), torch.linalg.eigvalsh(limit)
    lipschitz, smoothness = slopes_of(net.activation)
    return LinearizationConstants(
        activation=net.activation.name,
        lipschitz=lipschitz,
        smoothness=smoothness,
        width=net.width,
        d_out=net.d_out,
        learning_rate=float(learning_rate),
        residual=residual,
        smallest=float(end[0]),
        largest=float(end[-1]),
        smallest_start=float(start[0]),
        largest_start=float(start[-1]),
        kernel_error=float((kernel - torch.kron(limit, torch.eye(net.d_out).to(limit))).norm()),
        norm=math.sqrt(float(kernel.trace())),
        output_weight=float(W.double().norm(dim=1).max()),
        input_norm=float(x.norm()),
        input_spectral=float(torch.linalg.matrix_norm(x, 2)),
        input_weighted=float(torch.linalg.matrix_norm(x.norm(dim=1, keepdim=True) * x, 2)),
    )


def jacobian_on_ball(constants: LinearizationConstants, radius: float) -> JacobianBall:
    r"""Lemma B.1's constants on the ball of `radius` around θ_0, proved.

    ∂_u J for u = (v_i, w_i) has a block for each hidden unit i: the entries φ'(V_i x)(x·v_i), for each of k outputs,
    and (w_iz φ' + W_iz φ''(x·v_i)) x. So with L = max |φ'|, β = max |φ''| and ω = max ‖W_i‖ + radius, ‖∂_u J‖²_F ≤ k
    L²‖X‖²‖v‖² + (L‖X‖_F‖w‖ + βω‖diag(‖x‖)X‖‖v‖)², and the largest eigenvalue of a 2 × 2 matrix bounds n·`slope`². There
    is no factor n: at depth one the K of (56) falls as 1/√n. The norms are those at θ_0 plus slope·radius.
    """
    checks.require_not_negative(radius=radius)
    k = constants
    bend = _times(k.smoothness, (k.output_weight + radius) * k.input_weighted)
    if not math.isfinite(bend):
        return JacobianBall(radius, math.inf, math.inf, math.inf, proved=True)
    a = k.d_out * (k.lipschitz * k.input_spectral) ** 2 + bend**2
    b, c = k.lipschitz * k.input_norm * bend, (k.lipschitz * k.input_norm) ** 2
    slope = math.sqrt(((a + c) + math.hypot(a - c, 2 * b)) / 2 / k.width)
    return JacobianBall(
        radius, k.norm + slope * radius, math.sqrt(max(k.largest_start, 0.0)) + slope * radius, slope, proved=True
    )


def jacobian_at(net: MLP, x: Tensor, points: Sequence[Mapping[str, Tensor]] = ()) -> JacobianBall:
    """Lemma B.1's constants at the net's own θ_0 and at `points`, exact there, so lower estimates for a ball.

    The slope at a point is the largest ‖∂_u J‖_F over directions, by one eigenproblem per hidden unit.
    """
    x = _checked_inputs(net, x)
    origin = dict(net.named_parameters())
    norm = operator_norm = slope = radius = 0.0
    for point in (origin, *points):
        spectrum = torch.linalg.eigvalsh(_kernel(net, x, point))
        norm = max(norm, math.sqrt(float(spectrum.sum())))
        operator_norm = max(operator_norm, math.sqrt(float(spectrum[-1])))
        slope = max(slope, _slope_at(net, x, point) / math.sqrt(net.width))
        moved = sum(float((point[name].detach() - p.detach()).double().pow(2).sum()) for name, p in origin.items())
        radius = max(radius, math.sqrt(moved))
    return JacobianBall(radius, norm, operator_norm, slope, proved=False)


def closed_ball(constants: LinearizationConstants, *, form: Form = "sharp") -> JacobianBall:
    """The smallest ball that (58), with the constants proved on it, does not leave; infinite if there is none.

    The induction needs it at a fixed width. Paper D takes one K for all radii, which is right only for n → ∞.
    """
    ball = jacobian_on_ball(constants, 0.0)
    for _ in range(500):
        reach = _reach(constants, ball, form)
        if not reach < 1e6 * max(1.0, constants.input_norm):
            break
        if reach <= ball.radius * (1 + 1e-12):
            return ball
        ball = jacobian_on_ball(constants, reach)
    return JacobianBall(math.inf, math.inf, math.inf, math.inf, proved=True)


def required_width(constants: LinearizationConstants, ball: JacobianBall, *, form: Form = "printed") -> float:
    r"""The width that the induction for (57) needs: (91), $(18 K^3 R_0/λ_{\min}^2)^2$.

    Sharp: the same step from Θ̂_0 instead of Θ, $1 - η_0λ_0 + 2η_0\,\|J\|\,K_2\,r \le 1 - η_0λ_0/3$ for the reach
    r = 3‖J‖R_0/(λ_0√n), ‖J‖ in units of √n: √n ≥ 9‖J‖²K_2R_0/λ_0². At depth one √n K_2 does not depend on n, so this
    is n ≥ 9‖J‖²(√n K_2)R_0/λ_0²: about the square root of (91).
    """
    checks.require_choice("form", form, _FORMS)
    k = constants
    if form == "printed":
        return _over(18 * ball.K**3 * k.residual, k.smallest**2) ** 2
    return _over(9 * ball.operator_norm**2 * ball.slope * math.sqrt(k.width) * k.residual, k.smallest_start**2)


class DescentBounds(NamedTuple):
    """The three bounds of Theorem B.2."""

    residual: Bound  # (57)
    path: Bound  # (58)
    drift: Bound  # (59)


def theorem_b2(
    constants: LinearizationConstants, ball: JacobianBall, *, step: float = math.inf, form: Form = "printed"
) -> DescentBounds:
    r"""Theorem B.2 after `step` steps of descent: (57) the residual, (58) the path's length, (59) the kernel's drift.

    With q = 1 − η_0λ_min/3: $q^t R_0$, $(3KR_0/λ_{\min})(1 - q^t)/\sqrt n$ and $6K^3R_0/(λ_{\min}\sqrt n)$. Sharp has
    λ_0 for λ_min, ‖J‖₂/√n for K in (58), and (59) is 2‖J‖₂/√n·K_2 times (58). The trivial bounds: the residual does
    not grow, and (55) alone keeps the drift below 2K².
    """
    k, reach = constants, _reach(constants, ball, form)
    lasting, spent = _decay(1 - _rate(k, form), step)
    drift = 2 * (ball.K**2 if form == "printed" else ball.operator_norm * ball.slope) * reach
    known, assumptions = _known(k, ball, form), _assumptions(k, ball, form)
    return DescentBounds(
        Bound("‖f_t − Y‖", f"paper D, (57), {form}", lasting * k.residual, known, assumptions, trivial=k.residual),
        Bound("Σ ‖θ_j − θ_j−1‖", f"paper D, (58), {form}", _times(reach, spent), known, assumptions),
        Bound("‖Θ̂_t − Θ̂_0‖_F", f"paper D, (59), {form}", drift, known, assumptions, trivial=2 * ball.norm**2),
    )


def taylor_remainder(
    constants: LinearizationConstants, ball: JacobianBall, *, step: float = math.inf, form: Form = "printed"
) -> Bound:
    r"""‖f(θ_t) − f(θ_0) − J(θ_0)(θ_t − θ_0)‖ along descent: (110) summed over the steps.

    $9K^3R_0^2(1 - q^t)/(λ_{\min}^2\sqrt n)$. (110) bounds this, not the distance between two trainings. Sharp: half the
    slope times the square of (58).
    """
    path = theorem_b2(constants, ball, step=step, form=form).path
    if form == "printed":
        value = _times(_over(3 * ball.K**2 * constants.residual, constants.smallest), path.value)
    else:
        value = _times(ball.slope * math.sqrt(constants.width) / 2, path.value**2)
    return Bound("‖f(θ_t) − f_lin(θ_t)‖", f"paper D, (110) summed, {form}", value, path.constants, path.assumptions)


def theorem_b3(constants: LinearizationConstants, ball: JacobianBall, *, form: Form = "printed") -> Bound:
    r"""Theorem B.3 for descent, with its constant: sup over t of ‖f_t − f_t^lin‖ at the training inputs.

    Each is trained by itself. e = g_lin − g obeys $e_{t+1} = (1 - η_0\hatΘ_0)e_t + η_0(\bar J J_t^\top/n -
    \hatΘ_0)g_t$, where the last bracket is at most (59)'s bound σ and ‖g_t‖ ≤ q^t R_0. So ‖e_t‖ ≤ η_0σR_0 Σ_s
    q_0^{t−1−s} q^s. With the printed constants and q_0 ≤ 1 this is $3σR_0/λ_{\min} = 18K^3R_0^2/(λ_{\min}^2\sqrt n)$,
    the R_0²/√n of (60). Sharp: q_0 = ‖1 − η_0Θ̂_0‖ and the sum itself. The trivial bound is 2R_0, as neither residual
    grows.
    """
    k, drift = constants, theorem_b2(constants, ball, form=form).drift
    if form == "printed":
        value = _over(3 * drift.value * k.residual, k.smallest)
    else:
        slow = 1 - _rate(k, form)
        fast = max(abs(1 - k.learning_rate * end) for end in (k.smallest_start, k.largest_start))
        value = _times(k.learning_rate * k.residual * _largest_sum(slow, fast), drift.value)
    return Bound(
        "sup ‖f_t − f_t^lin‖",
        f"paper D, Theorem B.3 for descent, {form}",
        value,
        drift.constants,
        drift.assumptions,
        trivial=2 * k.residual,
    )


def gronwall(
    constants: LinearizationConstants, drift: float, *, time: float | None = None, form: Form = "printed"
) -> Bound:
    r"""The flow's Grönwall step (116) to (121): ‖f_t − f_t^lin‖ where the kernel drifts by at most `drift`, in ‖·‖₂.

    Printed (step 4; its ≲ is a ≤): η_0 t σ e^{−(λ_0 − σ)η_0 t} R_0, over all t at most σR_0/(e(λ_0 − σ)), infinite for
    σ ≥ λ_0. Sharp: (119) integrated instead of Grönwall's lemma, (e^{ση_0t} − 1)e^{−λ_0η_0t}R_0, over all t at most
    R_0ρ(1 − ρ)^{1/ρ − 1} with ρ = σ/λ_0: R_0 at ρ = 1.

    `drift` is σ = sup ‖Θ̂_s − Θ̂_0‖₂, measured or by (59). Without a `time` t the bound is for all times.
    """
    checks.require_choice("form", form, _FORMS)
    checks.require_not_negative(drift=drift, **({} if time is None else {"time": time}))
    k = constants
    decay, rho = k.smallest_start, _over(drift, k.smallest_start)
    if time is None:
        value = k.residual * _largest_growth(rho, form)
    else:
        tau, sigma = k.learning_rate * time, drift
        growth = sigma * tau if form == "printed" else -math.expm1(-sigma * tau)
        value = k.residual * _times(growth, _exp((sigma - decay) * tau))
    return Bound(
        "‖f_t − f_t^lin‖",
        f"paper D, (116) to (121), {form}",
        value,
        {"σ": drift, "λ_0": decay, "R_0": k.residual, "η_0": k.learning_rate},
        (Assumption("σ < λ_0", drift < decay, f"σ = {drift:.4g}, λ_0 = {decay:.4g}"),),
        trivial=2 * k.residual,
    )


def gronwall_at_new_point(
    constants: LinearizationConstants, drift: float, *, cross_norm: float, cross_drift: float
) -> Bound:
    r"""(20), (21) with their constants, for the flow: ‖f_t(x) − f_t^lin(x)‖ at a point x that is not trained on.

    $\dot e(x) = -η_0\hatΘ_0(x, X)e + η_0(\hatΘ_t - \hatΘ_0)(x, X)\,g$ with g = g_lin − e: at most
    $σ_xR_0/λ_0 + (\|\hatΘ_0(x, X)\| + σ_x)\,σR_0/(λ_0(λ_0 - σ))$, the last from η_0∫‖e‖ under the sharp `gronwall`.
    Here σ = `drift` is on the training set, `cross_norm` is ‖Θ̂_0(x, X)‖₂ and
    `cross_drift` is σ_x = sup ‖Θ̂_t(x, X) − Θ̂_0(x, X)‖₂.
    """
    checks.require_not_negative(drift=drift, cross_norm=cross_norm, cross_drift=cross_drift)
    k, decay = constants, constants.smallest_start
    integral = _over(drift, decay * (decay - drift)) if drift < decay else math.inf
    return Bound(
        "‖f_t(x) − f_t^lin(x)‖",
        "paper D, (20) and (21), corrected",
        k.residual * (_over(cross_drift, decay) + _times(cross_norm + cross_drift, integral)),
        {"σ": drift, "σ_x": cross_drift, "‖Θ̂_0(x, X)‖": cross_norm, "λ_0": decay, "R_0": k.residual},
        gronwall(k, drift).assumptions,
    )


def _checked_inputs(net: MLP, x: Tensor) -> Tensor:
    checks.require_type("net", net, MLP, "pass MLP(depth=1, parametrization='standard')")
    if net.depth != 1 or net.parametrization != "standard":
        raise InputError(
            f"net must be MLP(depth=1, parametrization='standard'), got depth={net.depth}, {net.parametrization!r}"
        )
    checks.require_floating("x", x)
    net.check_rows(x)
    checks.require_finite("x", x, "leave those rows out")
    return x.flatten(1)


def _kernel(net: MLP, x: Tensor, point: Mapping[str, Tensor] | None = None) -> Tensor:
    """Θ̂ = JJ^T/n as an (mk, mk) matrix in float64; its rows are all outputs of the first point, then of the second."""
    kernel = empirical_ntk(net, x, parameters=point).double() / net.width
    return kernel.permute(0, 2, 1, 3).reshape(len(x) * net.d_out, -1)


def _slope_at(net: MLP, x: Tensor, point: Mapping[str, Tensor]) -> float:
    """The largest ‖∂_u J‖_F over directions u, by the blocks of the hidden units (see `jacobian_on_ball`).

    Only the part of w_i along W_i meets φ'', so a block is (d + 1, d + 1), in coordinates of X's row space.
    """
    (V,), W = net.layers(point)
    V, W, x = V.detach().double(), W.detach().double(), x.double()
    squares, weights = x.square().sum(1), W.norm(dim=1)
    a = x @ V.mT  # (m, n)
    first, second = net.activation.first(a).mT, net.activation.second(a).mT  # (n, m)
    left, singular, _ = torch.linalg.svd(x, full_matrices=False)
    rows = left * singular  # x in coordinates of its own row space, (m, r)
    across = net.d_out * first**2 + squares * (weights[:, None] * second) ** 2
    r = rows.shape[1]
    block = x.new_empty(len(W), r + 1, r + 1)
    block[:, :r, :r] = torch.einsum("nm,mi,mj->nij", across, rows, rows)
    block[:, :r, r] = block[:, r, :r] = ((squares * first * second) @ rows) * weights[:, None]
    block[:, r, r] = first**2 @ squares
    return math.sqrt(float(torch.linalg.eigvalsh(block)[:, -1].max()))


def _rate(k: LinearizationConstants, form: Form) -> float:
    """η_0λ/3."""
    checks.require_choice("form", form, _FORMS)
    return k.learning_rate * (k.smallest if form == "printed" else k.smallest_start) / 3


def _decay(q: float, step: float) -> tuple[float, float]:
    """q^t and 1 − q^t; infinite unless 0 ≤ q < 1, as without full rank or at a rate far above the critical one."""
    t = step if step == math.inf else checks.require_whole("step", step, least=0, otherwise=", or math.inf")
    return (q**t, 1 - q**t) if 0 <= q < 1 else (math.inf, math.inf)


def _reach(k: LinearizationConstants, ball: JacobianBall, form: Form) -> float:
    """(58) for all times, 3KR_0/(λ√n)."""
    checks.require_choice("form", form, _FORMS)
    steepness, decay = (ball.K, k.smallest) if form == "printed" else (ball.operator_norm, k.smallest_start)
    return _over(3 * steepness * k.residual, decay * math.sqrt(k.width))


def _largest_sum(a: float, b: float) -> float:
    """The largest Σ_s a^s b^{t−1−s} = (a^t − b^t)/(a − b) over all t; infinite unless both are below 1."""
    a, b = max(a, b), min(a, b)
    if a >= 1:
        return math.inf
    if b <= 1e-12:
        return 1.0  # a^{t−1}
    if a - b <= 1e-9 * a:
        return max(1.0, -1 / (math.e * a * math.log(a)))  # t a^{t−1}
    t = max(1.0, math.log(math.log(b) / math.log(a)) / math.log(a / b))
    return float((a**t - b**t) / (a - b))


def _largest_growth(rho: float, form: Form) -> float:
    """The largest factor of R_0 in `gronwall` over all t."""
    if rho == 0:
        return 0.0
    if form == "printed":
        return rho / (math.e * (1 - rho)) if rho < 1 else math.inf
    if rho >= 1:
        return 1.0 if rho == 1 else math.inf
    return rho * math.exp((1 / rho - 1) * math.log1p(-rho))


def _known(k: LinearizationConstants, ball: JacobianBall, form: Form) -> dict[str, float]:
    decay = k.smallest if form == "printed" else k.smallest_start
    shared = {"R_0": k.residual, "λ": decay, "η_0": k.learning_rate, "n": float(k.width), "radius": ball.radius}
    if form == "printed":
        return shared | {"K": ball.K}
    return shared | {"‖J‖/√n": ball.operator_norm, "K_2": ball.slope}


def _assumptions(k: LinearizationConstants, ball: JacobianBall, form: Form) -> tuple[Assumption, ...]:
    needed, reach = required_width(k, ball, form=form), _reach(k, ball, form)
    smooth = math.isfinite(k.lipschitz) and math.isfinite(k.smoothness)
    least, most = (k.smallest, k.largest) if form == "printed" else (k.smallest_start, k.largest_start)
    critical = 2 / (least + most) if least + most > 0 else math.inf
    how = "proved on the ball" if ball.proved else "found at points, a lower estimate"
    limit = Assumption("(79)", k.kernel_error <= k.smallest / 3, f"‖Θ − Θ̂_0‖_F = {k.kernel_error:.4g}")
    return (
        Assumption("2 (full rank)", least > 1e-14 * most, f"λ_min = {least:.4g} of λ_max = {most:.4g}"),
        Assumption("(62)", smooth, f"max |φ'| = {k.lipschitz:.4g}, max |φ''| = {k.smoothness:.4g}"),
        Assumption("learning rate", k.learning_rate <= critical, f"η_0 = {k.learning_rate:.4g} of {critical:.4g}"),
        Assumption("Lemma B.1", ball.proved, f"K = {ball.K:.4g}, {how}"),
        Assumption("ball", reach <= ball.radius * (1 + 1e-9), f"(58) reaches {reach:.4g}, K is of {ball.radius:.4g}"),
        Assumption("width", k.width >= needed, f"n = {k.width}, the proof needs {needed:.4g}"),
        *((limit,) if form == "printed" else ()),
    )


def _exp(value: float) -> float:
    """e^value, infinite beyond the range of floats."""
    return math.inf if value > 709 else math.exp(value)


def _over(a: float, b: float) -> float:
    """a/b, infinite where b is 0 or below, as rounding can leave an eigenvalue."""
    return a / b if b > 0 else math.inf


def _times(a: float, b: float) -> float:
    """a·b with 0·∞ = 0."""
    return 0.0 if a == 0 or b == 0 else a * b
