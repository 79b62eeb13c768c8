"""Claim A.lem16: the contrastive matrix C_V stays near its start."""

from __future__ import annotations

import numpy as np

from kontrast.claims.a.orthonormal import PCA_RATE, orthonormal_net, orthonormal_run, pca_scale
from kontrast.claims.a.runs import ALL_FORMS, DELTA
from kontrast.claims.evidence import Evidence, Verdict, corrected, informative, judged, printed, shown
from kontrast.claims.panels import log_steps, width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest, smallest, sweep, width_law
from kontrast.lazy import constants_of, lemma16


@claim(
    "A.lem16",
    source="Paper A, Lemma 16",
    title="The contrastive matrix C_V stays near its start",
    printed="‖C_V(t) − C_V(0)‖_F ≤ κ t/√M, κ = 16 δ⁻² η Q² L² c_in² √D.",
    corrected="Equation (35) of the proof lost a factor √D. With it the bound holds, and so does the sharper "
    "4ηQ²L²c_in²D·t/(δ²M). At δ = 0.01 all of them exceed the trivial bound. The measured drift goes as ηt/M.",
    recorded=Verdict.VACUOUS,
    cost=5,
)
def lemma_16(setting: Setting) -> Evidence:
    """Compare the drift at every recorded step with the three forms of the bound."""
    widths, n_samples, n_steps = pca_scale(setting)
    steps = log_steps(n_steps, 8)[1:]

    def measure(width: int, seed: int) -> dict[str, object]:
        pairs = setting.pairs(n_samples, seed=seed)
        net = orthonormal_net(setting, pairs, width, 10, seed=seed)
        drift = orthonormal_run(net, pairs, n_steps=n_steps, steps=steps)["drift"]
        constants = constants_of(net, pairs, delta=DELTA, learning_rate=PCA_RATE)
        bounds = {form: [lemma16(constants, t, form=form) for t in steps] for form in ALL_FORMS}
        ratios = {f"over_{form}": drift / np.array([bound.value for bound in bounds[form]]) for form in ALL_FORMS}
        first = bounds["printed"][0]
        assert first.trivial is not None
        return {"drift": drift, "bound_over_trivial": first.value / first.trivial, **ratios}

    data = sweep(widths, setting.seeds(quick=2, full=5, paper=3), measure, t=steps)
    wide, trivial = data.drift.sel(t=steps[-1]), smallest(data.bound_over_trivial)
    over = {form: largest(data[f"over_{form}"]) for form in ALL_FORMS}
    return judged(
        printed("measured_over_printed", over["printed"], "the printed bound is never violated", high=1),
        corrected("measured_over_corrected", over["corrected"], "the bound with √D is never violated", high=1),
        corrected("measured_over_sharp", over["sharp"], "the sharper bound is never violated", high=1),
        informative("bound_over_trivial", trivial, "after one step the printed bound is below the trivial 2Q", high=1),
        *shown(exponent_in_width=width_law(wide, from_width=128)),
        data=data,
        panels=[width_panel(f"Drift of C_V after {steps[-1]} steps", {"measured": wide}, "‖C_V(t) − C_V(0)‖_F")],
        setting={"n_samples": n_samples, "d_out": 10, "learning_rate": PCA_RATE, "n_steps": n_steps},
    )
