"""Claim A.thm13: the change of the NTK is O(M^−1/6 log³M) after M^1/6 steps."""

from __future__ import annotations

import math

import numpy as np
import torch

from kontrast.bounds import Form
from kontrast.claims.a.runs import DELTA, RATE, probes_of
from kontrast.claims.a.weight_paths import bound_scale, weight_path
from kontrast.claims.evidence import Evidence, Panel, Verdict, corrected, curve, informative, judged, printed, shown
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, seed_mean, sweep
from kontrast.lazy import theorem13

ALL_FORMS: tuple[Form, ...] = ("printed", "corrected", "sharp")


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
        probes = probes_of(path.pairs)
        K0, K = path.kernels(probes)
        logs = {form: theorem13(path.constants, t, form=form).log10 for form in ALL_FORMS}
        largest = float(torch.maximum(K0.abs().max(), K.abs().max()))
        change = float((K - K0).abs().max())
        return {"change": change, "log10_trivial": math.log10(2 * largest)} | {f"log10_{f}": v for f, v in logs.items()}

    data = sweep(widths, seeds, measure)
    change = np.log10(data.change)
    return judged(
        printed(
            "log10_measured_over_printed",
            float((change - data.log10_printed).values.max()),
            "the printed bound is not violated here",
            high=0,
        ),
        corrected(
            "log10_measured_over_corrected",
            float((change - data.log10_corrected).values.max()),
            "with η the bound is never violated",
            high=0,
        ),
        corrected(
            "log10_measured_over_sharp",
            float((change - data.log10_sharp).values.max()),
            "its sharper form is never violated either",
            high=0,
        ),
        informative(
            "log10_corrected_over_trivial",
            float((data.log10_corrected - data.log10_trivial).values.min()),
            "the bound is below 2 max|K|",
            high=0,
        ),
        *shown(log10_corrected_smallest=data.log10_corrected.values.min(), change_widest=seed_mean(data.change)[-1]),
        data=data,
        panels=[
            Panel(
                "Theorem 13 and what it bounds",
                "width M",
                "log10 of change and bounds",
                (
                    curve("measured change", data.width, seed_mean(change)),
                    *(
                        curve(f"bound, {form}", data.width, seed_mean(data[f"log10_{form}"]), "dashed")
                        for form in ALL_FORMS
                    ),
                ),
                y_log=False,
            )
        ],
        setting={"n_samples": 10, "d_out": 10, "learning_rate": RATE, "delta": DELTA, "steps": "M^(1/6)"},
    )
