"""Claim A.lem7: the norm of the Hessian is O(R/√M)."""

from __future__ import annotations

import numpy as np

from kontrast.bounds import Form
from kontrast.claims.a.weight_paths import FORMS, SETTING, bound_scale, weight_path, worst_by_form
from kontrast.claims.evidence import Evidence, Verdict, corrected, judged, printed, shown
from kontrast.claims.panels import log_steps, width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest, seed_mean, sweep, width_law
from kontrast.lazy import lemma7
from kontrast.nets import hessian_norm, two_layer_hessian_norm

ROUNDING = 1e-9  # a linear network attains the bound


@claim(
    "A.lem7",
    source="Paper A, Lemma 7",
    title="The norm of the Hessian is O(R/√M)",
    printed="‖H(t)‖ ≤ (α₁R + α₂)/√M, α₁ = 4β c_in² L, α₂ = 4L c_in(1 + β c_in s₀ c_s).",
    corrected="False as printed: c_in bounds ‖x‖_∞ where ‖x‖₂ is needed, and β carries a spurious L. The right bound "
    "is [β c²(s₀c_s + R) + L c]/√M with c = max ‖x‖₂. And s₀ is not a constant: it grows like √(2 log M).",
    recorded=Verdict.CORRECTED,
    cost=3,
)
def lemma_7(setting: Setting) -> Evidence:
    """Compare the exact norm along training with both forms of the bound, for tanh, sigmoid and linear networks."""
    widths, seeds, n_steps = bound_scale(setting)
    activations = ("tanh", "sigmoid", "linear")

    def measure(width: int, seed: int) -> dict[str, float]:
        ratios, found = list[dict[Form, float]](), dict[str, float]()
        for activation in activations:
            path = weight_path(setting, width, seed, activation=activation, record_at=log_steps(n_steps, 5))
            for k in range(len(path.steps)):
                R = float(sum(part.norm() for part in path.change(k).values()))
                norm = float(two_layer_hessian_norm(path.at(k), path.pairs.rows).max())
                ratios.append({form: norm / lemma7(path.constants, R, form=form).value for form in FORMS})
            if activation == "tanh":
                found = {"norm": norm, "s_0": path.constants.s_0}
        return found | worst_by_form(ratios)

    data = sweep(widths, seeds, measure)
    growth = seed_mean(data.s_0) / np.sqrt(2 * np.log(data.width.values))
    worst, law, error = largest(data.over_corrected), width_law(data.norm), _exact_against_lanczos(setting)
    return judged(
        printed("measured_over_printed", largest(data.over_printed), "the printed bound is never violated", high=1),
        corrected("measured_over_corrected", worst, "the corrected bound is never violated", high=1 + ROUNDING),
        corrected("exact_against_lanczos", error, "the block form gives the norm of the Hessian", high=1e-12),
        corrected("exponent_tanh", law, "the norm falls as M^−1/2, up to logarithms", low=-0.6, high=-0.3),
        *shown(s_0_over_root_2_log_M=float(growth[-1])),
        data=data,
        panels=[width_panel("Norm of the Hessian after training, tanh", {"measured": data.norm}, "max ‖H‖")],
        setting=SETTING | {"n_steps": n_steps, "activations": list(activations)},
    )


def _exact_against_lanczos(setting: Setting) -> float:
    """Relative error of the block form against Lanczos on Hessian-vector products."""
    x = setting.pairs(2, seed=0).rows
    net = setting.net(x, 16, 2, seed=0, activation="tanh")
    exact = two_layer_hessian_norm(net, x)
    return float(((hessian_norm(net, x).norms - exact) / exact).abs().max())
