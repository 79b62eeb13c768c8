"""Claim A.lem12: after t steps no weight has moved by more than c(t) − c(0)."""

from __future__ import annotations

import math

from kontrast.claims.a.runs import RATE
from kontrast.claims.a.weight_paths import FORMS, WeightPath, bound_scale, counter_example_path, weight_path
from kontrast.claims.evidence import Evidence, Verdict, corrected, judged, printed, shown
from kontrast.claims.panels import log_steps
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest, sweep
from kontrast.lazy import lemma12


@claim(
    "A.lem12",
    source="Paper A, Lemma 12",
    title="After t steps no weight has moved by more than c(t) − c(0)",
    printed="‖V(t) − V(0)‖_max, ‖W(t) − W(0)‖_max ≤ c(0)((1 + β/√M)^t − 1), β = max(β₁, β₂).",
    corrected="True with η in β and with φ(0). Without them the counter-example of Lemma 11 violates it at t = 1.",
    recorded=Verdict.CORRECTED,
)
def lemma_12(setting: Setting) -> Evidence:
    """Compare the largest change of a weight at every recorded step, and in a counter-example, with the bound."""
    widths, seeds, n_steps = bound_scale(setting)

    def ratios(path: WeightPath) -> dict[str, float]:
        worst = {"over_printed": 0.0, "over_corrected": 0.0}
        for k in range(1, len(path.steps)):
            moved = largest(*(float(change.abs().max()) for change in path.change(k).values()))
            for form in FORMS:
                bound = lemma12(path.constants, path.steps[k], form=form)
                worst[f"over_{form}"] = largest(worst[f"over_{form}"], _over(moved, bound.log10))
        return worst

    data = sweep(
        widths,
        seeds,
        lambda w, s: ratios(weight_path(setting, w, s, activation="relu", record_at=log_steps(n_steps, 5))),
    )
    counter = ratios(counter_example_path(100.0))
    return judged(
        printed(
            "counter_example_over_printed",
            counter["over_printed"],
            "the printed bound holds at D = Z = M = N = 1, η = 100",
            high=1,
        ),
        corrected(
            "measured_over_corrected",
            largest(*data.over_corrected.values.flat, counter["over_corrected"]),
            "with η and φ(0) the bound is never violated",
            high=1,
        ),
        *shown(measured_over_printed_in_training=data.over_printed.values.max()),
        data=data,
        setting={"n_samples": 10, "d_out": 10, "learning_rate": RATE, "n_steps": n_steps},
    )


def _over(measured: float, log10_bound: float) -> float:
    """measured/bound, for a bound that may lie beyond the range of floats."""
    return 0.0 if measured == 0 else 10 ** (math.log10(measured) - log10_bound)
