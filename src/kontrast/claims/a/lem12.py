"""Claim A.lem12: after t steps no weight has moved by more than c(t) − c(0)."""

from __future__ import annotations

import math

from kontrast.claims.a import weight_paths
from kontrast.claims.a.weight_paths import FORMS, WeightPath, both_forms, worst_by_form
from kontrast.claims.evidence import Evidence, Verdict
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
    widths, seeds, n_steps = weight_paths.bound_scale(setting)

    def measure(width: int, seed: int) -> dict[str, float]:
        return _ratios(
            weight_paths.weight_path(setting, width, seed, activation="relu", record_at=log_steps(n_steps, 5))
        )

    return both_forms(sweep(widths, seeds, measure), _ratios(weight_paths.counter_example_path(100.0)), n_steps=n_steps)


def _ratios(path: WeightPath) -> dict[str, float]:
    """The largest change of a weight over the bound of Lemma 12, at the worst recorded step."""
    changes = {t: largest(*(dW.abs() for dW in path.change(k).values())) for k, t in enumerate(path.steps) if k > 0}
    return worst_by_form(
        {form: _over(moved, lemma12(path.constants, t, form=form).log10) for form in FORMS}
        for t, moved in changes.items()
    )


def _over(measured: float, log10_bound: float) -> float:
    """measured/bound, for a bound that may lie beyond the range of floats."""
    return 0.0 if measured == 0 else 10 ** (math.log10(measured) - log10_bound)
