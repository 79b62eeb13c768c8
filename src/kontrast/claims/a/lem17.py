"""Claim A.lem17: representations from PCA of C̃(0) and of C̃(t) are close."""

from __future__ import annotations

import math

import numpy as np

from kontrast.claims.a.orthonormal import PCA_RATE, orthonormal_net, pca_scale
from kontrast.claims.a.runs import DELTA
from kontrast.claims.evidence import Evidence, Verdict, informative, judged, printed, shown
from kontrast.claims.panels import width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest, seed_mean, smallest, sweep
from kontrast.data import pair_matrix
from kontrast.lazy import constants_of, davis_kahan, lemma17
from kontrast.linalg import best_rotation
from kontrast.nets import parameters_of
from kontrast.pca import contrastive_drift, contrastive_pca, hidden_features, pair_features, train_pca_network


@claim(
    "A.lem17",
    source="Paper A, Lemma 17",
    title="Representations from PCA of C̃(0) and of C̃(t) are close",
    printed="Up to a rotation they differ by at most ζ t/√M (1 + ξ log M/(λ_Z − λ_{Z+1})).",
    recorded=Verdict.VACUOUS,
    cost=5,
)
def lemma_17(setting: Setting) -> Evidence:
    """Compare both PCA representations of the pool, optimally rotated, with the bound and with Davis–Kahan."""
    widths, n_samples, n_steps = pca_scale(setting)
    warnings: list[str] = []

    def measure(width: int, seed: int) -> dict[str, float]:
        pairs = setting.pairs(n_samples, seed=seed)
        net = orthonormal_net(setting, pairs, width, 10, seed=seed)
        S, start = pair_matrix(pairs), parameters_of(net)
        run = train_pca_network(net, pairs, delta=DELTA, learning_rate=PCA_RATE, n_steps=n_steps, start=start)
        ends = (start, run.final_parameters)
        features = [pair_features(net, pairs.rows, delta=DELTA, parameters=parameters) for parameters in ends]
        solutions = [contrastive_pca(phi, S, 10) for phi in features]
        warnings.extend(warning for solution in solutions for warning in solution.warnings)
        O = best_rotation(solutions[1].frame, solutions[0].frame)  # noqa: E741 (the paper's name)
        raw = [hidden_features(net, pairs.rows, parameters) / math.sqrt(width) for parameters in ends]
        difference = raw[1] @ solutions[1].frame @ O - raw[0] @ solutions[0].frame
        constants = constants_of(net, pairs, delta=DELTA, learning_rate=PCA_RATE)
        bound = lemma17(constants, n_steps, solutions[0].gap, form="printed")
        drift = contrastive_drift(features[1], features[0], S)
        frame_gap = float((solutions[1].frame @ O - solutions[0].frame).norm())
        return {
            "difference": float(difference.norm(dim=1).max()),
            "log10_bound": bound.log10,
            "gap": solutions[0].gap,
            "size": float((raw[0].norm(dim=1) + raw[1].norm(dim=1)).max()),
            "frame_over_davis_kahan": frame_gap / davis_kahan(drift, solutions[0].gap, n_components=10).value,
        }

    data = sweep(widths, setting.seeds(quick=2, full=5, paper=3), measure)
    bound = 10.0 ** np.minimum(data.log10_bound, 300)
    over, trivial, frame = data.difference / bound, bound / data["size"], largest(data.frame_over_davis_kahan)
    title, difference = f"PCA of C̃({n_steps}) against PCA of C̃(0)", {"measured": data.difference}
    return judged(
        printed("measured_over_bound", largest(over), "the bound is never violated", high=1),
        printed("frame_over_davis_kahan", frame, "Davis–Kahan with the measured drift is never violated", high=1),
        informative("bound_over_trivial", smallest(trivial), "the bound is below ‖u‖ + ‖u~‖", high=1),
        *shown(difference_widest=seed_mean(data.difference)[-1]),
        *shown(smallest_gap=smallest(data.gap), largest_gap=largest(data.gap)),
        data=data,
        panels=[width_panel(title, difference, "max ‖O^T u_t − u_0‖")],
        setting={"n_samples": n_samples, "d_out": 10, "learning_rate": PCA_RATE, "n_steps": n_steps},
        warnings=warnings,
    )
