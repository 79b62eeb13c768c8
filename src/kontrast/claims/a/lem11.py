"""Claim A.lem11: one step moves every weight by O(1/√M)."""

from __future__ import annotations

from kontrast.bounds import Form
from kontrast.claims.a import weight_paths
from kontrast.claims.a.weight_paths import FORMS, WeightPath, both_forms, worst_by_form
from kontrast.claims.evidence import Evidence, Verdict
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
    widths, seeds, _ = weight_paths.bound_scale(setting)
    activations = ("relu", "tanh", "sigmoid")

    def measure(width: int, seed: int) -> dict[str, float]:
        paths = [
            weight_paths.weight_path(setting, width, seed, activation=phi, record_at=[0, 1, 5, 6, 20, 21])
            for phi in activations
        ]
        return worst_by_form(_one_step_ratios(path, k) for path in paths for k in (0, 2, 4))

    counter_example = worst_by_form([_one_step_ratios(weight_paths.counter_example_path(100.0), 0)])
    return both_forms(sweep(widths, seeds, measure), counter_example, activations=list(activations))


def _one_step_ratios(path: WeightPath, k: int) -> dict[Form, float]:
    """The largest |Δ| over the bound of Lemma 11, between recorded steps k and k + 1."""
    now, then = path.points[k], path.points[k + 1]
    moved = [float((then[name] - now[name]).abs().max()) for name in ("hidden.0", "output")]
    sizes = [float(now[name].abs().max()) for name in ("output", "hidden.0")]
    bounds = {form: lemma11(path.constants, *sizes, form=form) for form in FORMS}
    return {
        form: largest(*(step / bound.value for step, bound in zip(moved, pair, strict=True)))
        for form, pair in bounds.items()
    }
