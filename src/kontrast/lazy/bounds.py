"""The bounds of paper A, as printed and as they can be proved, each a `Bound` that knows its constants.

`form` says which: "printed" is the paper's; "corrected" repairs what is false and keeps the rest of the proof;
"sharp", where there is one, follows the same idea with the losses taken out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from kontrast.bounds import Assumption, Bound, Form, value_of
from kontrast.checks import require_not_negative
from kontrast.errors import InputError
from kontrast.lazy.constants import Constants, assumptions_of


def lemma7(constants: Constants, radius: float, *, form: Form = "corrected") -> Bound:
    r"""Lemma 7: $\|H^{(z)}(x; θ(t))\|_2$ when $\|W(t) - W(0)\|_F + \|V(t) - V(0)\|_F \le R$.

    Printed: (α₁R + α₂)/√M with α₁ = 4β_φ c_in² L_φ and α₂ = 4L_φ c_in(1 + β_φ c_in s_0 c_s). False: c_in bounds ‖x‖_∞
    where the proof needs ‖x‖₂, up to √D times larger, and β_φ carries a spurious L_φ, which shrinks the bound for
    L_φ < 1 (claims A.lem7). A linear net with D > 16 breaks it.

    Corrected: $[β_φ c^2 (s_0 c_s + R) + L_φ c]/\sqrt M$, c = max ‖x‖₂. H is block diagonal with the blocks
    M^-½[[a, b], [b, 0]], a = w_iz φ''‖x‖², b = φ'‖x‖, of norm at most M^-½(|a| + |b|); and |w_iz(t)| ≤ |w_iz(0)| + R
    with |w_iz(0)| = √M |b_2,i| ≤ s_0 ‖W_z(0)‖₂/√M ≤ s_0 c_s. So c_s and R are needed for one column of W only, V not at
    all, and for R the largest change of an entry of W would do: `theorem13` uses that.
    """
    k, root = constants, math.sqrt(constants.width)
    _require_form(form, "printed", "corrected")
    require_not_negative(radius=radius)
    if form == "printed":
        alpha_1, alpha_2 = _alphas(k)
        value = (_times(alpha_1, radius) + alpha_2) / root
    else:
        value = _hessian_norm(k, k.s_0 * k.c_s + radius)
    return Bound(
        name="‖H(t)‖₂",
        source=_source("Lemma 7", form, "A.lem7"),
        value=value,
        constants={"R": radius, "c": k.c_norm, "c_in": k.c_in, "L": k.lipschitz, "β": k.smoothness, "s_0": k.s_0}
        | {"c_s": k.c_s, "M": k.width},
        assumptions=(*_assumed(k, "356" if form == "corrected" else "356b"), _network_2(k)),
    )


def lemma8(epsilon: float, gradient_norm: float, radius: float, *, smooth: bool = True) -> Bound:
    r"""Lemma 8: $|K_{ij}(θ) - K_{ij}(θ_0)| \le 2\,ε\,c_0\,R$ with ε ≥ ‖H‖, c_0 ≥ ‖∇f‖ within R of θ_0.

    Right for smooth activations; its proof needs ε and c_0 on the chord alone. ReLU's gradient jumps, so no ε exists,
    and with the almost-everywhere ε the bound fails (claims A.lem8). Say `smooth=False` there. A trivial bound on an
    entry of the change is 2c_0², as |K_ij| ≤ c_0² at both ends.
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
    β₂ = 4c_l c_in Q D L_φ/δ. Two things are missing. The learning rate η: false without for η > 1 (claims A.lem11).
    And φ(0): the proof takes |φ_i(Vx)| ≤ L_φ|V_i x|, which is |φ(0)| + L_φ|V_i x|; sigmoid, softplus and cosine nets
    with small V break β₂ even with η.

    Corrected: η·β₁/√M·‖W‖_max, and η·(β₂‖V‖_max + β₃)/√M with β₃ = 4c_l Q|φ(0)|/δ. The factor D in β₂ is right:
    |V_i x| ≤ ‖V_i‖₁‖x‖_∞ ≤ D‖V‖_max c_in.

    Sharp: 2 in the place of 4. Cosine maps u to n(u) = u/(‖u‖ + δ), whose derivative has the eigenvalues 1/(‖u‖ + δ)
    across u and δ/(‖u‖ + δ)² along it, so ‖∂s/∂u‖ ≤ ‖n‖/δ ≤ 1/δ; the paper adds the derivative's two terms up to 2/δ.
    And D c_in gives way to √D max‖x‖₂, which is never more.

    Args:
        constants: of the run.
        max_w: ‖W(t)‖_max.
        max_v: ‖V(t)‖_max.
        form: "printed", "corrected" or "sharp".

    Returns:
        The bounds on |ΔV_ij| and on |ΔW_ij|.
    """
    _require_form(form, "printed", "corrected", "sharp")
    require_not_negative(max_w=max_w, max_v=max_v)
    k, root = constants, math.sqrt(constants.width)
    beta_1, beta_2, beta_3 = _betas(k, form)
    source, assumptions = _source("Lemma 11", form, "A.lem11"), (*_assumed(k, "1234"), _lipschitz(k), _network_2(k))
    found = {"β₁": beta_1, "β₂": beta_2, "β₃": beta_3, "η": k.learning_rate, "δ": k.delta, "Q": k.n_pairs, "c_l": k.c_l}
    return (
        Bound("max |ΔV|", source, beta_1 * max_w / root, {**found, "‖W‖_max": max_w}, assumptions),
        Bound("max |ΔW|", source, (beta_2 * max_v + beta_3) / root, {**found, "‖V‖_max": max_v}, assumptions),
    )


def lemma12(constants: Constants, step: int, *, form: Form = "corrected") -> Bound:
    r"""Lemma 12: after t steps ‖V(t) − V(0)‖_max and ‖W(t) − W(0)‖_max are at most c(t) − c(0).

    Printed: c(t) = c(0)(1 + β/√M)^t with β = max(β₁, β₂), c(0) = c_θ log M the largest weight. With the η and φ(0) that
    Lemma 11 lacks, the recursion is c(t+1) = c(t) + (β c(t) + β₃)/√M, and
    $c(t) - c(0) = (c(0) + β_3/β)\,[(1 + β/\sqrt M)^t - 1]$. Sharp takes Lemma 11's sharp β.
    """
    _require_form(form, "printed", "corrected", "sharp")
    require_not_negative(step=step)
    log_growth, found = _log_growth(constants, step, form)
    return _from_log(
        "max |θ(t) − θ(0)|",
        _source("Lemma 12", form, "A.lem12"),
        log_growth,
        {**found, "c(0)": constants.max_weight, "t": step},
        (*_assumed(constants, "1234"), _lipschitz(constants), _network_2(constants)),
    )


def theorem13(constants: Constants, step: int, *, form: Form = "corrected") -> Bound:
    r"""Theorem 13: $|K_{ij}(θ(t)) - K_{ij}(θ(0))|$ after t = M^α steps on a cosine loss.

    Printed: γ c(0)e^{βM^{α−½}}(α₁R² + α₂R)/√M, γ = 2√2 D L_φ c_in, R = c(0)√M(√D + √Z)(e^{βM^{α−½}} − 1). It is
    Lemma 8 with Lemma 7's ε, R from Lemma 12, and c_0 = √2 D L_φ c_in c(t). It takes over their errors.

    Corrected: η and φ(0) in c(t) (`lemma12`), the corrected Lemma 7, c_0 = √2(D L_φ c_in c(t) + |φ(0)|).

    Sharp: the proof loses √M. By Lemma 12 no entry of W(t) exceeds c(t), so the Hessian's norm is at most
    [β_φ c² c(t) + L_φ c]/√M; Lemma 7 is called with the Frobenius radius R instead, √(MZ) times an entry's change. With
    that, ‖Δ‖₂ ≤ √(M(D + Z))(c(t) − c(0)), and the exact c(t) instead of its exponential, the bound is
    O(M^{α−½} log³M) for t = M^α in the place of O(M^{2α−½} log³M): M^-1/3 log³M instead of M^-1/6 log³M after M^1/6
    steps, and a constant kernel for every α < ½ where the paper has α < ¼. For practical δ all forms are vacuous.
    """
    _require_form(form, "printed", "corrected", "sharp")
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
        _source("Theorem 13", form, "A.thm13"),
        math.log(2) + float(log_gradient) + log_epsilon + log_radius,
        {**found, "c(0)": k.max_weight, "t": step, "log R": log_radius, "log c_0": float(log_gradient)},
        (*_assumed(k, "123456" + ("b" if form == "printed" else "")), _network_2(k)),
    )


def lemma16(constants: Constants, step: int, *, form: Form = "sharp") -> Bound:
    r"""Lemma 16: $\|C_V(t) - C_V(0)\|_F$ after t Grassmannian steps on the loss (10).

    Printed: κt/√M with κ = 16δ⁻²ηQ²L_φ²c_in²√D. Corrected: D for √D, as (35) lost a √D between max norm and
    Frobenius norm, ‖A‖_F ≤ √(MD)‖A‖_max. (The printed value need not be violated for that: the sharp one is smaller
    for M ≥ D/16.)

    Sharp: 4ηQ²L_φ²c²t/(δ²M) with c = max‖x‖₂ ≤ √D c_in. Let n(φ) = φ/(‖φ‖ + √M δ). Its derivative is symmetric with
    the eigenvalues 1/(‖φ‖ + √Mδ) across φ and √Mδ/(‖φ‖ + √Mδ)² along it: at most 1/(√Mδ). A pair's term is n_xᵀWWᵀn_y
    with ‖WWᵀn_y‖ < 1, so its gradient in V, two outer products (φ' ∘ n'(φ_x)WWᵀn_y)xᵀ, has ‖·‖_F ≤ 2L_φc/(√Mδ), and
    t steps give ‖V(t) − V(0)‖_F ≤ 2ηQL_φct/(√Mδ). Then ‖n_x(t) − n_x(0)‖ ≤ L_φc‖V(t) − V(0)‖/(√Mδ), twice for n_y n_xᵀ,
    and Q of these in C_V. It needs WᵀW = 1 and a Lipschitz φ, which may have kinks, and nothing about V(0).

    The trivial bound is 2Q, as a pair adds less than 1 to ‖C_V‖_F.
    """
    _require_form(form, "printed", "corrected", "sharp")
    require_not_negative(step=step)
    k = constants
    if form == "sharp":
        value = _squared_rate(k) * k.c_norm**2 * 4 * step / k.width
    else:
        value = _kappa(k, form) * step / math.sqrt(k.width)
    assumptions = _assumed(k, "12345") if form == "printed" else (*_assumed(k, "13"), _lipschitz(k))
    return Bound(
        name="‖C_V(t) − C_V(0)‖_F",
        source=_source("Lemma 16", form, "A.lem16"),
        value=value,
        constants={"η": k.learning_rate, "Q": k.n_pairs, "L": k.lipschitz, "c": k.c_norm, "c_in": k.c_in}
        | {"D": k.d_in, "δ": k.delta, "M": k.width, "t": step},
        assumptions=(*assumptions, _orthonormal(k)),
        trivial=2 * k.n_pairs,
    )


def lemma17(constants: Constants, step: int, gap: float, *, form: Form = "sharp") -> Bound:
    r"""Lemma 17: $\|O^\top u(x; \tilde W^*, \tilde C_V(t)) - u(x; W^*, \tilde C_V(0))\|$ for the best rotation O.

    `gap` is λ_Z − λ_{Z+1} of $\tilde C_V(0)$. Printed: ζt/√M(1 + ξ log M/gap) with ζ = 4δ⁻¹ηQ√D L_φ²c_in² and
    ξ = 2^{7/2}δ⁻¹QDc_in(L_φc_θ + |φ(0)|). It inherits the √D that (35) lost, twice, and its proof bounds ‖φ(Vx)‖ by
    ‖φ(V)‖_F‖x‖, which is wrong for a φ that is not linear: cosine at x = 0 gives √M and 0.

    Corrected: ‖φ(V(t)x) − φ(V(0)x)‖ ≤ L_φ‖V(t) − V(0)‖_F‖x‖, and |φ_i(V(0)x)| ≤ |φ(0)| + L_φ D c_in c(0) with c(0) the
    largest weight; D for √D in ζ and in κ. Sharp: Lemma 16's sharp drifts and the features' measured norm.

    The trivial bound lets the frames be as far apart as they can, ‖W̃*O − W*‖₂ ≤ √2.
    """
    _require_form(form, "printed", "corrected", "sharp")
    require_not_negative(step=step)
    k, root = constants, math.sqrt(constants.width)
    rate = k.learning_rate * k.n_pairs * k.lipschitz**2 / k.delta
    if form == "sharp":
        moved, features = 2 * rate * k.c_norm**2 * step / k.width, k.feature_norm
    elif form == "corrected":
        moved, features = (
            4 * rate * k.d_in * k.c_in**2 * step / root,
            k.value_at_zero + k.lipschitz * (k.d_in * k.c_in * k.max_weight),
        )
    else:
        moved = 4 * rate * math.sqrt(k.d_in) * k.c_in**2 * step / root
        at_zero = k.value_at_zero * math.log(k.width) if k.width > 1 else 0.0
        features = k.d_in * k.c_in * (k.lipschitz * k.max_weight + at_zero)  # c_2 log M
    frames = davis_kahan(lemma16(k, step, form=form).value, gap, n_components=k.d_out)
    return Bound(
        name="‖Oᵀu(t) − u(0)‖",
        source=_source("Lemma 17", form, "A.lem17"),
        value=moved + features * frames.value,
        constants={"moved": moved, "features": features, "frames": frames.value, "gap": gap, "t": step},
        assumptions=(*lemma16(k, step, form=form).assumptions, *frames.assumptions),
        trivial=moved + math.sqrt(2) * k.feature_norm,
    )


def davis_kahan(drift_norm: float, gap: float, *, n_components: int, of: str = "frames") -> Bound:
    r"""Davis–Kahan after Yu, Wang and Samworth (2015, Theorem 2), for the top eigenvectors of two symmetric matrices.

    With ‖ΔC‖_F = `drift_norm` and the gap λ_Z − λ_{Z+1} of one of them, "frames" bounds $\min_O\|\tilde W O - W\|_F$ by
    $2^{3/2}\|ΔC\|_F/\mathrm{gap}$, and "angles" bounds $\|\sin Θ\|_F$ by $2\|ΔC\|_F/\mathrm{gap}$. Trivially they
    are at most √(2Z) and √Z.
    """
    if of not in ("frames", "angles"):
        raise InputError(f"of must be 'frames' or 'angles', got {of!r}")
    if not drift_norm >= 0 or math.isnan(gap) or n_components < 1:
        raise InputError(
            f"needs drift_norm >= 0, a gap and n_components >= 1, got {drift_norm}, {gap} and {n_components}"
        )
    factor, most = (2 * math.sqrt(2), math.sqrt(2 * n_components)) if of == "frames" else (2.0, math.sqrt(n_components))
    return Bound(
        name="min ‖W̃O − W‖_F" if of == "frames" else "‖sin Θ‖_F",
        source="Davis–Kahan (Yu et al. 2015)",
        value=factor * drift_norm / gap if gap > 0 else math.inf,
        constants={"‖ΔC‖_F": drift_norm, "gap": gap},
        assumptions=(Assumption("eigengap", gap > 0, f"λ_Z − λ_Z+1 = {gap:.4g}"),),
        trivial=most,
    )


def proposition10(width: int, slope: float) -> Bound:
    r"""Proposition 10: the probability that the kernel's blow-up time is not below log M, at most 25/√M.

    `slope` is C > 0. The proof has t̃ < ln(3M)/(2C) on its event and then picks a data set with C large enough; for the
    data set at hand that is an assumption. Vacuous up to M = 625; the measured probability is far below (`BlowUp`).
    """
    if width < 1 or math.isnan(slope):
        raise InputError(f"needs width >= 1 and a slope, got {width} and {slope}")
    enough = math.log(3 * width) / (2 * math.log(width)) if width > 1 else math.inf
    return Bound(
        name="P(t̃ ≥ log M)",
        source="paper A, Proposition 10",
        value=25 / math.sqrt(width),
        constants={"M": width, "C": slope},
        assumptions=(Assumption("C", slope >= enough, f"C = {slope:.4g}, the proof needs {enough:.4g}"),),
        trivial=1.0,
    )


def _require_form(form: str, *known: str) -> None:
    if form not in known:
        raise InputError(f"form must be one of {', '.join(known)}, got {form!r}")


def _source(where: str, form: Form, claim: str) -> str:
    return f"paper A, {where}, {form}" + ("" if form == "printed" else f", claims {claim}")


def _assumed(k: Constants, which: str) -> tuple[Assumption, ...]:
    """The assumptions with these digits; b stands for the part of 6 about ∂f/∂x."""
    wanted = {"6, b₁" if digit == "b" else digit for digit in which}
    return tuple(assumption for assumption in assumptions_of(k) if assumption.name in wanted)


def _network_2(k: Constants) -> Assumption:
    wanted = 1 / math.sqrt(k.width)
    return Assumption(
        "network (2)", math.isclose(k.scale, wanted), f"W has the factor {k.scale:.4g}, M^-½ = {wanted:.4g}"
    )


def _orthonormal(k: Constants) -> Assumption:
    return Assumption("WᵀW = 1", k.frame_error < 1e-4, f"max |WᵀW − 1| = {k.frame_error:.2g}")


def _lipschitz(k: Constants) -> Assumption:
    return Assumption("5 (Lipschitz)", math.isfinite(k.lipschitz), f"L_φ = {k.lipschitz:.4g}; kinks are allowed")


def _alphas(k: Constants) -> tuple[float, float]:
    """Lemma 7's α₁ and α₂ as printed."""
    return (
        4 * k.smoothness * k.c_in**2 * k.lipschitz,
        4 * k.lipschitz * k.c_in * (1 + _times(k.smoothness, k.c_in * k.s_0 * k.c_s)),
    )


def _hessian_norm(k: Constants, largest_w: float) -> float:
    """[β_φ c² max|w| + L_φ c]/√M."""
    return (_times(k.smoothness, k.c_norm**2 * largest_w) + k.lipschitz * k.c_norm) / math.sqrt(k.width)


def _betas(k: Constants, form: Form) -> tuple[float, float, float]:
    """β₁, β₂ and β₃, with η where it belongs."""
    if form == "printed":
        common = 4 * k.c_l * k.n_pairs / k.delta
        return common * k.c_in * math.sqrt(k.d_out) * k.lipschitz, common * k.c_in * k.d_in * k.lipschitz, 0.0
    common = (4 if form == "corrected" else 2) * k.learning_rate * k.c_l * k.n_pairs / k.delta
    reach = k.d_in * k.c_in if form == "corrected" else min(k.d_in * k.c_in, math.sqrt(k.d_in) * k.c_norm)
    return (
        common * k.c_in * math.sqrt(k.d_out) * k.lipschitz,
        common * reach * k.lipschitz,
        common * k.value_at_zero,
    )


def _log_growth(k: Constants, step: int, form: Form, *, exponential: bool = False) -> tuple[float, Mapping[str, float]]:
    """log(c(t) − c(0)), with e^{βt/√M} for (1 + β/√M)^t where Theorem 13 is bounded so."""
    beta_1, beta_2, beta_3 = _betas(k, form)
    beta = max(beta_1, beta_2)
    found = {"β₁": beta_1, "β₂": beta_2, "β₃": beta_3, "M": float(k.width), "η": k.learning_rate, "δ": k.delta}
    rate = beta / math.sqrt(k.width)
    exponent = step * (rate if exponential else math.log1p(rate))
    if exponent == 0:  # no step, or no slope: then only φ(0) moves the weights
        return _log(step * beta_3 / math.sqrt(k.width)), found
    log_expm1 = exponent + math.log(-math.expm1(-exponent))
    return _log(k.max_weight + beta_3 / beta) + log_expm1, found


def _kappa(k: Constants, form: Form) -> float:
    return 16 * _squared_rate(k) * k.c_in**2 * (math.sqrt(k.d_in) if form == "printed" else k.d_in)


def _squared_rate(k: Constants) -> float:
    """ηQ²L_φ²/δ²."""
    return k.learning_rate * (k.n_pairs * k.lipschitz / k.delta) ** 2


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
