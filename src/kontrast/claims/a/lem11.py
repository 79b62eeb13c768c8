"""Claim A.lem11: one step moves every weight by O(1/√M)."""

from __future__ import annotations

from kontrast.claims.a.runs import RATE
from kontrast.claims.a.weight_paths import FORMS, WeightPath, bound_scale, counter_example_path, weight_path
from kontrast.claims.evidence import Evidence, Verdict, corrected, judged, printed, shown
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest, sweep
from kontrast.lazy import lemma11


@claim(
    "A.lem11",
    source="Paper A, Lemma 11",
    title="One step moves every weight by O(1/√M)",
    printed="|ΔV_ij| ≤ β₁‖W‖_max/√M and |ΔW_ij| ≤ β₂‖V‖_max/√M, β₁ = 4c_l c_in Q√Z L/δ, β₂ = 4c_l c_in QDL/δ.",
    corrected="The learning rate η and φ(0) are missing: D = Z = M = N = 1 with |wv| = δ/2 violates the bounds for "
    "large η. With both they hold.",
    recorded=Verdict.CORRECTED,
    cost=2,
)
def lemma_11(setting: Setting) -> Evidence:
    """Compare single steps along training, and a counter-example, with both forms of the bound."""
    widths, seeds, _ = bound_scale(setting)
    activations = ("relu", "tanh", "sigmoid")

    def measure(width: int, seed: int) -> dict[str, float]:
        worst = {"over_printed": 0.0, "over_corrected": 0.0}
        for activation in activations:
            path = weight_path(setting, width, seed, activation=activation, record_at=[0, 1, 5, 6, 20, 21])
            for k in (0, 2, 4):
                for form, ratio in _one_step_ratios(path, k).items():
                    worst[f"over_{form}"] = largest(worst[f"over_{form}"], ratio)
        return worst

    data = sweep(widths, seeds, measure)
    counter = _one_step_ratios(counter_example_path(100.0), 0)
    return judged(
        printed(
            "counter_example_over_printed",
            counter["printed"],
            "the printed bound holds at D = Z = M = N = 1, η = 100",
            high=1,
        ),
        corrected(
            "measured_over_corrected",
            largest(*data.over_corrected.values.flat, counter["corrected"]),
            "with η and φ(0) the bound is never violated",
            high=1,
        ),
        *shown(measured_over_printed_in_training=data.over_printed.values.max()),
        data=data,
        setting={"n_samples": 10, "d_out": 10, "learning_rate": RATE, "activations": list(activations)},
    )


def _one_step_ratios(path: WeightPath, k: int) -> dict[str, float]:
    """The largest |Δ| over the bound of Lemma 11, between recorded steps k and k + 1."""
    now, then = path.points[k], path.points[k + 1]
    moved = [float((then[name] - now[name]).abs().max()) for name in ("hidden.0", "output")]
    largest_w, largest_v = float(now["output"].abs().max()), float(now["hidden.0"].abs().max())
    return {
        form: largest(
            *(
                step / bound.value
                for step, bound in zip(moved, lemma11(path.constants, largest_w, largest_v, form=form), strict=True)
            )
        )
        for form in FORMS
    }
