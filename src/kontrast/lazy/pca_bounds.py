"""Bounds on contrastive PCA (paper A, Lemmas 16 and 17): how far C_V and its eigenvectors move in training.

They stand beside `bounds`, and not in `kontrast.pca`, because they are made of the same constants and assumptions.
"""

from __future__ import annotations

import math

from kontrast.bounds import Assumption, Bound, Form
from kontrast.checks import require_choice, require_not_negative, require_number, require_whole
from kontrast.lazy.bounds import assumed, lipschitz, source
from kontrast.lazy.constants import Constants


def lemma16(constants: Constants, step: int, *, form: Form = "sharp") -> Bound:
    r"""Lemma 16: $\|C_V(t) - C_V(0)\|_F$ after t Grassmannian steps on the loss (10).

    Printed: κt/√M with κ = 16δ⁻²ηQ²L_φ²c_in²√D. Corrected: D for √D, as (35) lost a √D between max norm and
    Frobenius norm, ‖A‖_F ≤ √(MD)‖A‖_max. (This need not violate the printed value: the sharp one is smaller for
    M ≥ D/16.)

    Sharp: 4ηQ²L_φ²c²t/(δ²M) with c = max‖x‖₂ ≤ √D c_in. Let n(φ) = φ/(‖φ‖ + √M δ). Its derivative is symmetric with
    the eigenvalues 1/(‖φ‖ + √Mδ) across φ and √Mδ/(‖φ‖ + √Mδ)² along it: at most 1/(√Mδ). A pair's term is n_xᵀWWᵀn_y
    with ‖WWᵀn_y‖ < 1, so its gradient in V, two outer products (φ' ∘ n'(φ_x)WWᵀn_y)xᵀ, has ‖·‖_F ≤ 2L_φc/(√Mδ), and
    t steps give ‖V(t) − V(0)‖_F ≤ 2ηQL_φct/(√Mδ). Then ‖n_x(t) − n_x(0)‖ ≤ L_φc‖V(t) − V(0)‖/(√Mδ), twice for n_y n_xᵀ,
    and C_V has Q of these. It needs WᵀW = 1 and a Lipschitz φ, which may have kinks, and nothing about V(0).

    The trivial bound is 2Q, as a pair adds less than 1 to ‖C_V‖_F.
    """
    require_choice("form", form, ("printed", "corrected", "sharp"))
    require_not_negative(step=step)
    k = constants
    rate = k.learning_rate * (k.n_pairs * k.lipschitz / k.delta) ** 2  # ηQ²L_φ²/δ²
    if form == "sharp":
        value = rate * k.c_norm**2 * 4 * step / k.width
    else:
        kappa = 16 * rate * k.c_in**2 * (math.sqrt(k.d_in) if form == "printed" else k.d_in)
        value = kappa * step / math.sqrt(k.width)
    assumptions = assumed(k, "12345") if form == "printed" else (*assumed(k, "13"), lipschitz(k))
    orthonormal = Assumption("WᵀW = 1", k.frame_error < 1e-4, f"max |WᵀW − 1| = {k.frame_error:.2g}")
    return Bound(
        name="‖C_V(t) − C_V(0)‖_F",
        source=source("Lemma 16", form, "A.lem16"),
        value=value,
        constants={"η": k.learning_rate, "Q": k.n_pairs, "L": k.lipschitz, "c": k.c_norm, "c_in": k.c_in}
        | {"D": k.d_in, "δ": k.delta, "M": k.width, "t": step},
        assumptions=(*assumptions, orthonormal),
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
    require_choice("form", form, ("printed", "corrected", "sharp"))
    require_not_negative(step=step)
    k, root = constants, math.sqrt(constants.width)
    rate = k.learning_rate * k.n_pairs * k.lipschitz**2 / k.delta
    if form == "sharp":
        moved, features = 2 * rate * k.c_norm**2 * step / k.width, k.feature_norm
    elif form == "corrected":
        moved = 4 * rate * k.d_in * k.c_in**2 * step / root
        features = k.value_at_zero + k.lipschitz * (k.d_in * k.c_in * k.max_weight)
    else:
        moved = 4 * rate * math.sqrt(k.d_in) * k.c_in**2 * step / root
        at_zero = k.value_at_zero * math.log(k.width) if k.width > 1 else 0.0
        features = k.d_in * k.c_in * (k.lipschitz * k.max_weight + at_zero)  # c_2 log M
    drift = lemma16(k, step, form=form)
    frames = davis_kahan(drift.value, gap, n_components=k.d_out)
    return Bound(
        name="‖Oᵀu(t) − u(0)‖",
        source=source("Lemma 17", form, "A.lem17"),
        value=moved + features * frames.value,
        constants={"moved": moved, "features": features, "frames": frames.value, "gap": gap, "t": step},
        assumptions=(*drift.assumptions, *frames.assumptions),
        trivial=moved + math.sqrt(2) * k.feature_norm,
    )


def davis_kahan(drift_norm: float, gap: float, *, n_components: int, of: str = "frames") -> Bound:
    r"""Davis–Kahan after Yu, Wang and Samworth (2015, Theorem 2), for the top eigenvectors of two symmetric matrices.

    With ‖ΔC‖_F = `drift_norm` and the gap λ_Z − λ_{Z+1} of one of them, "frames" bounds $\min_O\|\tilde W O - W\|_F$ by
    $2^{3/2}\|ΔC\|_F/\mathrm{gap}$, and "angles" bounds $\|\sin Θ\|_F$ by $2\|ΔC\|_F/\mathrm{gap}$. Trivially they
    are at most √(2Z) and √Z.
    """
    require_choice("of", of, ("frames", "angles"))
    require_not_negative(drift_norm=drift_norm)
    require_number(gap=gap)
    k = require_whole("n_components", n_components)
    factor, most = (2 * math.sqrt(2), math.sqrt(2 * k)) if of == "frames" else (2.0, math.sqrt(k))
    return Bound(
        name="min ‖W̃O − W‖_F" if of == "frames" else "‖sin Θ‖_F",
        source="Davis–Kahan (Yu et al. 2015)",
        value=factor * drift_norm / gap if gap > 0 else math.inf,
        constants={"‖ΔC‖_F": drift_norm, "gap": gap},
        assumptions=(Assumption("eigengap", gap > 0, f"λ_Z − λ_Z+1 = {gap:.4g}"),),
        trivial=most,
    )
