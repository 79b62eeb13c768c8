"""Claim A.thm13: the change of the NTK is O(M^−1/6 log³M) after M^1/6 steps."""

from __future__ import annotations

import math

import numpy as np

from kontrast.claims.a.runs import ALL_FORMS, DELTA, probes_of
from kontrast.claims.a.weight_paths import SETTING, bound_scale, weight_path
from kontrast.claims.evidence import Evidence, Verdict, corrected, informative, judged, printed, shown
from kontrast.claims.panels import width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest, seed_mean, smallest, sweep
from kontrast.lazy import theorem13


@claim(
    "A.thm13",
    source="Paper A, Theorem 13",
    title="The change of the NTK is O(M^−1/6 log³M) after M^1/6 steps",
    printed="|K(t) − K(0)| ≤ γ c(0)e^{βM^{α−½}}(α₁R² + α₂R)/√M after t = M^α steps.",
    corrected="The bound holds with η in β and the corrected Lemma 7; but at δ = 0.01 it exceeds 10^50, far above any "
    "kernel.",
    recorded=Verdict.VACUOUS,
)
def theorem_13(setting: Setting) -> Evidence:
    """Compare the measured change after M^1/6 steps with all three forms of the bound, tanh."""
    widths, seeds, _ = bound_scale(setting)

    def measure(width: int, seed: int) -> dict[str, float]:
        t = max(1, round(width ** (1 / 6)))
        path = weight_path(setting, width, seed, activation="tanh", record_at=[0, t])
        K0, K = path.kernels(probes_of(path.pairs))
        return {
            "change": float((K - K0).abs().max()),
            "log10_trivial": math.log10(2 * largest(K0.abs(), K.abs())),
            **{f"log10_{form}": theorem13(path.constants, t, form=form).log10 for form in ALL_FORMS},
        }

    data = sweep(widths, seeds, measure)
    change = np.log10(data.change)
    over = {form: largest(change - data[f"log10_{form}"]) for form in ALL_FORMS}
    trivial = smallest(data.log10_corrected - data.log10_trivial)
    bounds = {f"bound, {form}": data[f"log10_{form}"] for form in ALL_FORMS}
    return judged(
        printed("log10_measured_over_printed", over["printed"], "the printed bound is not violated here", high=0),
        corrected("log10_measured_over_corrected", over["corrected"], "with η the bound is never violated", high=0),
        corrected("log10_measured_over_sharp", over["sharp"], "its sharper form is never violated either", high=0),
        informative("log10_corrected_over_trivial", trivial, "the bound is below 2 max|K|", high=0),
        *shown(log10_corrected_smallest=smallest(data.log10_corrected), change_widest=seed_mean(data.change)[-1]),
        data=data,
        panels=[
            width_panel(
                "Theorem 13 and what it bounds",
                {"measured change": change, **bounds},
                "log10 of change and bounds",
                guides=(),
                dashed=bounds,
                y_log=False,
            )
        ],
        setting=SETTING | {"delta": DELTA, "steps": "M^(1/6)"},
    )
