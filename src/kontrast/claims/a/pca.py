"""Claim A.pca: is the trained model PCA of C̃(0)?"""

from __future__ import annotations

from collections.abc import Sequence

import xarray as xr
from torch import Tensor

from kontrast.claims.a.orthonormal import PCA_RATE
from kontrast.claims.a.runs import DELTA
from kontrast.claims.evidence import Evidence, Panel, Verdict, corrected, curve, judged, printed, shown
from kontrast.claims.panels import width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, geometric, largest, seed_mean, smallest, sweep, width_law
from kontrast.data import pair_matrix
from kontrast.linalg import subspace_sines
from kontrast.nets import Parameters
from kontrast.pca import contrastive_pca, pair_features, train_pca_network
from kontrast.runs import padded


@claim(
    "A.pca",
    source="Paper A, Sec. 5, open problem",
    title="Is the trained model PCA of C̃(0)?",
    printed="Open: W and C_V evolve together. Fig. 4 suggests that W is PCA of a matrix C̃ close to C̃(0).",
    corrected="It is, in the window 1/(η·gap) ≪ t ≪ M/η, up to an angle of order 1/M. For ηt ≳ M the model leaves PCA "
    "of C̃(0) and stays at PCA of the current C̃(t).",
    recorded=Verdict.CORRECTED,
    cost=5,
)
def trained_is_pca(setting: Setting) -> Evidence:
    """Measure sines between the trained span and both PCAs, by width at a fixed time and by ηt/M."""
    widths = setting.pick(quick=geometric(128, 2048), full=geometric(128, 4096), paper=geometric(128, 16384))
    seeds = setting.seeds(quick=2)
    data = sweep(widths, seeds, lambda w, s: _angles(setting, w, s, d_out=1, steps=[200]), t=[200])
    ratios, late_widths = setting.pick(quick=((1, 2, 4, 8), (64,)), full=((1, 2, 4, 8, 16), (64, 256)))
    late = sweep(
        late_widths, seeds, lambda w, s: _angles(setting, w, s, d_out=5, steps=[r * w for r in ratios]), ratio=ratios
    )
    at_8, early = late.sel(ratio=8), data.sine_start.sel(t=200)
    to_start, to_now = smallest(seed_mean(at_8.sine_start)), largest(seed_mean(at_8.sine_now))
    return judged(
        printed("sine_to_start_late", to_start, "the trained span stays PCA of C̃(0) at any time", high=0.05),
        corrected("exponent_sine", width_law(early), "in the window the angle falls as 1/M", low=-1.15, high=-0.85),
        corrected("sine_to_start_late", to_start, "at ηt = 8M it has left PCA of C̃(0)", low=0.5),
        corrected("sine_to_now_late", to_now, "at ηt = 8M it is PCA of the current C̃(t)", high=0.05),
        *shown(sine_narrowest=seed_mean(early)[0], sine_widest=seed_mean(early)[-1]),
        data=xr.merge([data, late.rename({name: f"late_{name}" for name in late.data_vars})], join="outer"),
        panels=[
            width_panel("Trained span against PCA of C̃(0), t = 200", {"Z = 1": early}, "max sine"),
            Panel(
                "From PCA of C̃(0) to PCA of C̃(t)",
                "ηt / M",
                "max sine",
                tuple(
                    curve(f"to PCA of {name}, M = {width}", ratios, seed_mean(late[key].sel(width=width)))
                    for width in late_widths
                    for key, name in (("sine_start", "C̃(0)"), ("sine_now", "C̃(t)"))
                ),
            ),
        ],
        setting={"n_samples": 50, "learning_rate": PCA_RATE},
    )


def _angles(setting: Setting, width: int, seed: int, *, d_out: int, steps: Sequence[int]) -> dict[str, object]:
    """Largest sines between span W(t) and PCA of C̃(0) and of C̃(t), for 50 samples."""
    pairs = setting.pairs(50, seed=seed)
    net = setting.net(pairs.x, width, d_out, seed=seed)
    S = pair_matrix(pairs)

    def solution(parameters: Parameters | None) -> Tensor:
        return contrastive_pca(pair_features(net, pairs.rows, delta=DELTA, parameters=parameters), S, d_out).frame

    start = solution(None)
    run = train_pca_network(
        net,
        pairs,
        delta=DELTA,
        learning_rate=PCA_RATE,
        n_steps=steps[-1],
        record_at=steps,
        recorders={
            "sine_start": lambda now: subspace_sines(now.parameters["output"], start)[0],
            "sine_now": lambda now: subspace_sines(now.parameters["output"], solution(dict(now.parameters)))[0],
        },
    )
    return {name: padded(values, len(steps)) for name, values in run.records.items()}
