"""Claim A.lem16: the contrastive matrix C_V stays near its start."""

from __future__ import annotations

import numpy as np

from kontrast.bounds import Form
from kontrast.claims.a.orthonormal import PCA_RATE, orthonormal_net, orthonormal_run, pca_scale
from kontrast.claims.a.runs import DELTA
from kontrast.claims.evidence import Evidence, Verdict, corrected, informative, judged, printed, shown
from kontrast.claims.panels import log_steps, width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, sweep, width_law
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
    seeds = setting.seeds(quick=2, full=5, paper=3)
    steps = [t for t in log_steps(n_steps, 8) if t > 0]
    forms: tuple[Form, ...] = ("printed", "corrected", "sharp")

    def measure(width: int, seed: int) -> dict[str, object]:
        pairs = setting.pairs(n_samples, seed=seed)
        net = orthonormal_net(setting, pairs, width, 10, seed=seed)
        drift = orthonormal_run(net, pairs, n_steps=n_steps, steps=steps)["drift"]
        constants = constants_of(net, pairs, delta=DELTA, learning_rate=PCA_RATE)
        bounds = {form: [lemma16(constants, t, form=form) for t in steps] for form in forms}
        ratios = {f"over_{form}": drift / np.array([bound.value for bound in bounds[form]]) for form in forms}
        first = bounds["printed"][0]
        assert first.trivial is not None
        return {"drift": drift, "bound_over_trivial": first.value / first.trivial, **ratios}

    data = sweep(widths, seeds, measure, t=steps)
    wide = data.drift.sel(t=steps[-1])
    return judged(
        printed("measured_over_printed", data.over_printed.values.max(), "the printed bound is never violated", high=1),
        corrected(
            "measured_over_corrected", data.over_corrected.values.max(), "the bound with √D is never violated", high=1
        ),
        corrected("measured_over_sharp", data.over_sharp.values.max(), "the sharper bound is never violated", high=1),
        informative(
            "bound_over_trivial",
            data.bound_over_trivial.values.min(),
            "after one step the printed bound is below the trivial 2Q",
            high=1,
        ),
        *shown(exponent_in_width=width_law(wide, from_width=128)),
        data=data,
        panels=[width_panel(f"Drift of C_V after {steps[-1]} steps", {"measured": wide}, "‖C_V(t) − C_V(0)‖_F")],
        setting={"n_samples": n_samples, "d_out": 10, "learning_rate": PCA_RATE, "n_steps": n_steps},
    )
