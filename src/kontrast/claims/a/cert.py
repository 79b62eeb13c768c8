"""Claim A.cert: the run itself gives a certificate on the change of the NTK."""

from __future__ import annotations

import numpy as np

from kontrast.claims.a.runs import probes_of
from kontrast.claims.a.weight_paths import SETTING, bound_scale, largest_gradient, weight_path
from kontrast.claims.evidence import Evidence, Verdict, judged, printed, shown
from kontrast.claims.panels import width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest, sweep
from kontrast.lazy import lemma8, ntk_certificate


@claim(
    "A.cert",
    source="Beyond paper A",
    title="A certificate on the change of the NTK, from the run itself",
    printed="For smooth networks the integral of |dK/ds| along the chord bounds every entry of K(t) − K(0). It is "
    "within a factor of 5 of the truth, Lemma 8 within 50.",
    recorded=Verdict.HOLDS,
    cost=3,
)
def certificate(setting: Setting) -> Evidence:
    """Compare the certificate and Lemma 8 with the measured change: largest bound over largest change, tanh."""
    widths, seeds, n_steps = bound_scale(setting)

    def measure(width: int, seed: int) -> dict[str, float]:
        path = weight_path(setting, width, seed, activation="tanh", record_at=[0, n_steps])
        probes = probes_of(path.pairs)
        found = ntk_certificate(path.net, path.points[0], path.points[-1], probes)
        epsilon, gradient = path.hessian_bound(probes), largest_gradient(path.kernels(probes))
        return {
            "ratio": found.ratio,
            "holds": float(found.holds and found.valid),
            "lemma_8": lemma8(epsilon, gradient, path.radius(-1)).value / found.measured,
            "quadrature": float(found.quadrature_error.max()) / found.value,
        }

    data = sweep(widths, seeds, measure)
    ratios, median = {"certificate": data.ratio, "Lemma 8": data.lemma_8}, float(np.median(data.ratio))
    return judged(
        printed("share_that_holds", data.holds.values.mean(), "the certificate bounds every entry of every run", low=1),
        printed("median_ratio", median, "its median ratio to the truth is below 5", low=1, high=5),
        *shown(
            largest_ratio=largest(data.ratio),
            median_ratio_lemma_8=float(np.median(data.lemma_8)),
            quadrature_share=largest(data.quadrature),
        ),
        data=data,
        panels=[width_panel("Bound over truth", ratios, "bound / max |ΔK|", guides=())],
        setting=SETTING | {"n_steps": n_steps},
    )
