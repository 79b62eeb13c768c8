"""The bounds of paper A on the tangent kernel, printed and provable, each a `Bound` that knows its constants.

`form` chooses: "printed" is the paper's own; "corrected" repairs what is false and keeps the rest of the proof;
"sharp", where there is one, follows the same idea and avoids the factors that the proof gives away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from kontrast.bounds import Assumption, Bound, Form, value_of
from kontrast.checks import require_choice, require_not_negative, require_number, require_whole
from kontrast.lazy.constants import Constants, assumptions_of


def lemma7(constants: Constants, radius: float, *, form: Form = "corrected") -> Bound:
    r"""Lemma 7: $\|H^{(z)}(x; θ(t))\|_2$ when $\|W(t) - W(0)\|_F + \|V(t) - V(0)\|_F \le R$.

    Printed: (α₁R + α₂)/√M with α₁ = 4β_φ c_in² L_φ and α₂ = 4L_φ c_in(1 + β_φ c_in s_0 c_s). False: c_in bounds ‖x‖_∞
    where the proof needs ‖x‖₂, up to √D times larger, and β_φ carries a spurious L_φ, which shrinks the bound for
    L_φ < 1 (claims A.lem7). A linear net with D > 16 breaks it.

    Corrected: $[β_φ c^2 (s_0 c_s + R) + L_φ c]/\sqrt M$, c = max ‖x‖₂. H is block diagonal with the blocks
    M^-½[[a, b], [b, 0]], a = w_iz φ''‖x‖², b = φ'‖x‖, of norm at most M^-½(|a| + |b|); and |w_iz(t)| ≤ |w_iz(0)| + R
    with |w_iz(0)| = √M |b_2,i| ≤ s_0 ‖W_z(0)‖₂/√M ≤ s_0 c_s. So c_s and R are needed for one column of W only and not
    for V, and in place of R the largest change of an entry of W is enough: `theorem13` uses that.
    """
    k, root = constants, math.sqrt(constants.width)
    require_choice("form", form, ("printed", "corrected"))
    require_not_negative(radius=radius)
    if form == "printed":
        alpha_1, alpha_2 = _alphas(k)
        value = (_times(alpha_1, radius) + alpha_2) / root
    else:
        value = (_times(k.smoothness, k.c_norm**2 * (k.s_0 * k.c_s + radius)) + k.lipschitz * k.c_norm) / root
    return Bound(
        name="‖H(t)‖₂",
        source=source("Lemma 7", form, "A.lem7"),
        value=value,
        constants={"R": radius, "c": k.c_norm, "c_in": k.c_in, "L": k.lipschitz, "β": k.smoothness, "s_0": k.s_0}
        | {"c_s": k.c_s, "M": k.width},
        assumptions=(*assumed(k, "356" if form == "corrected" else "356b"), _network_2(k)),
    )


def lemma8(epsilon: float, gradient_norm: float, radius: float, *, smooth: bool = True) -> Bound:
    r"""Lemma 8: $|K_{ij}(θ) - K_{ij}(θ_0)| \le 2\,ε\,c_0\,R$ with ε ≥ ‖H‖, c_0 ≥ ‖∇f‖ within R of θ_0.

    Right for smooth activations; its proof needs ε and c_0 on the chord alone. ReLU's gradient jumps, so no ε exists,
    and with the almost-everywhere ε the bound fails (claims A.lem8): pass `smooth=False` there. The trivial bound on
    an entry of the change is 2c_0², as |K_ij| ≤ c_0² at both ends.
    """
    require_not_negative(epsilon=epsilon, gradient_norm=gradient_norm, radius=radius)
    kink = "" if smooth else ": the gradient jumps at kinks, where no Hessian norm bounds its change"
    return Bound(
        name="max |K(t) − K(0)|",
        source="paper A, Lemma 8",
        value=2 * epsilon * gradient_norm * radius,
        constants={"ε": epsilon, "c_0": gradient_norm, "R": radius},
        assumptions=(Assumption("5 (smoothness)", smooth, f"ε = {epsilon:.4g}{kink}"),),
        trivial=2 * gradient_norm**2,
    )


def lemma11(constants: Constants, max_w: float, max_v: float, *, form: Form = "corrected") -> tuple[Bound, Bound]:
    r"""Lemma 11: one step of descent on a cosine loss moves an entry of V and of W by at most this.

    Printed: |ΔV_ij| ≤ β₁/√M·‖W(t)‖_max and |ΔW_ij| ≤ β₂/√M·‖V(t)‖_max, with β₁ = 4c_l c_in Q√Z L_φ/δ and
    β₂ = 4c_l c_in Q D L_φ/δ. Two things are missing. First the learning rate η: for η > 1 the bound is false without
    it (claims A.lem11). Second φ(0): the proof uses |φ_i(Vx)| ≤ L_φ|V_i x|, but the right side needs |φ(0)| added;
    sigmoid, softplus and cosine nets with small V break β₂ even with η.

    Corrected: η·β₁/√M·‖W‖_max, and η·(β₂‖V‖_max + β₃)/√M with β₃ = 4c_l Q|φ(0)|/δ. The factor D in β₂ is right:
    |V_i x| ≤ ‖V_i‖₁‖x‖_∞ ≤ D‖V‖_max c_in.

    Sharp: 2 in place of 4. Cosine maps u to n(u) = u/(‖u‖ + δ), whose derivative has the eigenvalues 1/(‖u‖ + δ)
    across u and δ/(‖u‖ + δ)² along it, so ‖∂s/∂u‖ ≤ ‖n‖/δ ≤ 1/δ; the paper bounds its two terms apart, by 2/δ.
    And √D max‖x‖₂, which is never larger, replaces D c_in.

    `max_w` is ‖W(t)‖_max, `max_v` ‖V(t)‖_max; the bound on |ΔV_ij| comes first, then the one on |ΔW_ij|.
    """
    require_choice("form", form, ("printed", "corrected", "sharp"))
    require_not_negative(max_w=max_w, max_v=max_v)
    k, root = constants, math.sqrt(constants.width)
    beta_1, beta_2, beta_3 = _betas(k, form)
    where, assumptions = source("Lemma 11", form, "A.lem11"), (*assumed(k, "1234"), lipschitz(k), _network_2(k))
    found = {"β₁": beta_1, "β₂": beta_2, "β₃": beta_3, "η": k.learning_rate, "δ": k.delta, "Q": k.n_pairs, "c_l": k.c_l}
    return (
        Bound("max |ΔV|", where, beta_1 * max_w / root, {**found, "‖W‖_max": max_w}, assumptions),
        Bound("max |ΔW|", where, (beta_2 * max_v + beta_3) / root, {**found, "‖V‖_max": max_v}, assumptions),
    )


def lemma12(constants: Constants, step: int, *, form: Form = "corrected") -> Bound:
    r"""Lemma 12: after t steps ‖V(t) − V(0)‖_max and ‖W(t) − W(0)‖_max are at most c(t) − c(0).

    Printed: c(t) = c(0)(1 + β/√M)^t with β = max(β₁, β₂), c(0) = c_θ log M the largest weight. Corrected, with the η
    and φ(0) that Lemma 11 lacks: the recursion is c(t+1) = c(t) + (β c(t) + β₃)/√M, and
    $c(t) - c(0) = (c(0) + β_3/β)\,[(1 + β/\sqrt M)^t - 1]$. Sharp: the same with Lemma 11's sharp β.
    """
    require_choice("form", form, ("printed", "corrected", "sharp"))
    require_not_negative(step=step)
    log_growth, found = _log_growth(constants, step, form)
    return _from_log(
        "max |θ(t) − θ(0)|",
        source("Lemma 12", form, "A.lem12"),
        log_growth,
        {**found, "c(0)": constants.max_weight, "t": step},
        (*assumed(constants, "1234"), lipschitz(constants), _network_2(constants)),
    )


def theorem13(constants: Constants, step: int, *, form: Form = "corrected") -> Bound:
    r"""Theorem 13: $|K_{ij}(θ(t)) - K_{ij}(θ(0))|$ after t = M^α steps on a cosine loss.

    Printed: γ c(0)e^{βM^{α−½}}(α₁R² + α₂R)/√M, γ = 2√2 D L_φ c_in, R = c(0)√M(√D + √Z)(e^{βM^{α−½}} − 1). It is
    Lemma 8 with Lemma 7's ε, R from Lemma 12, and c_0 = √2 D L_φ c_in c(t). It inherits their errors.

    Corrected: η and φ(0) in c(t) (`lemma12`), the corrected Lemma 7, c_0 = √2(D L_φ c_in c(t) + |φ(0)|).

    Sharp: the proof loses √M. By Lemma 12 no entry of W(t) exceeds c(t), so the Hessian's norm is at most
    [β_φ c² c(t) + L_φ c]/√M; Lemma 7 is called with the Frobenius radius R instead, √(MZ) times an entry's change. With
    that, ‖Δ‖₂ ≤ √(M(D + Z))(c(t) − c(0)), and the exact c(t) instead of its exponential, the bound is
    O(M^{α−½} log³M) for t = M^α in place of O(M^{2α−½} log³M): M^-1/3 log³M instead of M^-1/6 log³M after M^1/6
    steps, and a constant kernel for every α < ½ where the paper has α < ¼. For practical δ all forms are vacuous.
    """
    require_choice("form", form, ("printed", "corrected", "sharp"))
    require_not_negative(step=step)
    k = constants
    log_growth, found = _log_growth(k, step, form, exponential=form != "sharp")
    log_c = float(np.logaddexp(_log(k.max_weight), log_growth))  # of c(t)
    log_root = 0.5 * math.log(k.width)
    if form == "sharp":
        log_radius = log_growth + 0.5 * math.log(k.width * (k.d_in + k.d_out))
        log_epsilon = _log_affine(k.smoothness * k.c_norm**2, log_c, k.lipschitz * k.c_norm) - log_root
        reach = min(k.d_in * k.c_in, math.sqrt(k.d_in) * k.c_norm)  # |V_i x| ≤ reach·max|V|
        log_gradient = 0.5 * np.logaddexp(
            2 * (_log(k.lipschitz * k.c_norm) + log_c), 2 * _log_affine(k.lipschitz * reach, log_c, k.value_at_zero)
        )
    else:
        log_radius = log_growth + log_root + math.log(math.sqrt(k.d_in) + math.sqrt(k.d_out))
        alpha_1, alpha_2 = _alphas(k)
        if form == "corrected":
            alpha_1 = k.smoothness * k.c_norm**2
            alpha_2 = k.lipschitz * k.c_norm + _times(alpha_1, k.s_0 * k.c_s)
        log_epsilon = _log_affine(alpha_1, log_radius, alpha_2) - log_root
        at_zero = 0.0 if form == "printed" else k.value_at_zero
        log_gradient = 0.5 * math.log(2) + _log_affine(k.d_in * k.lipschitz * k.c_in, log_c, at_zero)
    return _from_log(
        "max |K(t) − K(0)|",
        source("Theorem 13", form, "A.thm13"),
        math.log(2) + float(log_gradient) + log_epsilon + log_radius,
        {**found, "c(0)": k.max_weight, "t": step, "log R": log_radius, "log c_0": float(log_gradient)},
        (*assumed(k, "123456" + ("b" if form == "printed" else "")), _network_2(k)),
    )


def proposition10(width: int, slope: float) -> Bound:
    r"""Proposition 10: the probability that the kernel's blow-up time is not below log M, at most 25/√M.

    `slope` is C > 0. The proof has t̃ < ln(3M)/(2C) on its event and then picks a data set with C large enough; for the
    data set at hand that is an assumption. Vacuous up to M = 625; the measured probability is far lower (`BlowUp`).
    """
    width = require_whole("width", width)
    require_number(slope=slope)
    enough = math.log(3 * width) / (2 * math.log(width)) if width > 1 else math.inf
    return Bound(
        name="P(t̃ ≥ log M)",
        source="paper A, Proposition 10",
        value=25 / math.sqrt(width),
        constants={"M": width, "C": slope},
        assumptions=(Assumption("C", slope >= enough, f"C = {slope:.4g}, the proof needs {enough:.4g}"),),
        trivial=1.0,
    )


def source(where: str, form: Form, claim: str) -> str:
    """The place in the paper, the form, and the claim that corrects it."""
    return f"paper A, {where}, {form}" + ("" if form == "printed" else f", claims {claim}")


def assumed(k: Constants, which: str) -> tuple[Assumption, ...]:
    """The assumptions with these digits; "b" is the part of 6 about ∂f/∂x."""
    wanted = {"6, b₁" if digit == "b" else digit for digit in which}
    return tuple(assumption for assumption in assumptions_of(k) if assumption.name in wanted)


def _network_2(k: Constants) -> Assumption:
    wanted = 1 / math.sqrt(k.width)
    return Assumption(
        "network (2)", math.isclose(k.scale, wanted), f"W has the factor {k.scale:.4g}, M^-½ = {wanted:.4g}"
    )


def lipschitz(k: Constants) -> Assumption:
    """The part of Assumption 5 that networks with kinks satisfy."""
    return Assumption("5 (Lipschitz)", math.isfinite(k.lipschitz), f"L_φ = {k.lipschitz:.4g}; kinks are allowed")


def _alphas(k: Constants) -> tuple[float, float]:
    """Lemma 7's α₁ and α₂ as printed."""
    return (
        4 * k.smoothness * k.c_in**2 * k.lipschitz,
        4 * k.lipschitz * k.c_in * (1 + _times(k.smoothness, k.c_in * k.s_0 * k.c_s)),
    )


def _betas(k: Constants, form: Form) -> tuple[float, float, float]:
    """β₁, β₂ and β₃, with η where it belongs."""
    if form == "printed":
        common = 4 * k.c_l * k.n_pairs / k.delta
        return common * k.c_in * math.sqrt(k.d_out) * k.lipschitz, common * k.c_in * k.d_in * k.lipschitz, 0.0
    common = (4 if form == "corrected" else 2) * k.learning_rate * k.c_l * k.n_pairs / k.delta
    reach = k.d_in * k.c_in if form == "corrected" else min(k.d_in * k.c_in, math.sqrt(k.d_in) * k.c_norm)
    return (common * k.c_in * math.sqrt(k.d_out) * k.lipschitz, common * reach * k.lipschitz, common * k.value_at_zero)


def _log_growth(k: Constants, step: int, form: Form, *, exponential: bool = False) -> tuple[float, Mapping[str, float]]:
    """log(c(t) − c(0)); `exponential` replaces (1 + β/√M)^t by e^{βt/√M}, as Theorem 13 does."""
    beta_1, beta_2, beta_3 = _betas(k, form)
    beta = max(beta_1, beta_2)
    found = {"β₁": beta_1, "β₂": beta_2, "β₃": beta_3, "M": float(k.width), "η": k.learning_rate, "δ": k.delta}
    rate = beta / math.sqrt(k.width)
    exponent = step * (rate if exponential else math.log1p(rate))
    if exponent == 0:  # no step, or no slope: then only φ(0) moves the weights
        return _log(step * beta_3 / math.sqrt(k.width)), found
    log_expm1 = exponent + math.log(-math.expm1(-exponent))
    return _log(k.max_weight + beta_3 / beta) + log_expm1, found


def _from_log(
    name: str, source: str, log: float, constants: Mapping[str, float], assumptions: tuple[Assumption, ...]
) -> Bound:
    log10 = log / math.log(10)
    return Bound(name, source, value_of(log10), constants, assumptions, log10=log10)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _log_affine(slope: float, log_argument: float, offset: float) -> float:
    """log(slope·e^log_argument + offset), also for a slope of 0."""
    return float(np.logaddexp(_log(slope) + log_argument if slope > 0 else -math.inf, _log(offset)))


def _times(a: float, b: float) -> float:
    """a·b with 0·∞ = 0: a net that does not move meets no kink."""
    return 0.0 if a == 0 or b == 0 else a * b
