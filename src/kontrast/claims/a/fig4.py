"""Claim A.fig4: the drift of C_V, the rates of C_V and W, frozen against trained C_V."""

from __future__ import annotations

import xarray as xr

from kontrast.claims.a.orthonormal import PCA_RATE, orthonormal_net, orthonormal_run, pca_scale
from kontrast.claims.evidence import Evidence, Panel, Style, Verdict, corrected, curve, judged, printed, shown
from kontrast.claims.panels import log_steps, width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest, seed_mean, sweep, width_law


@claim(
    "A.fig4",
    source="Paper A, Fig. 4",
    title="Drift of C_V, rates of C_V and W, frozen against trained",
    printed="‖C_V(t) − C_V(0)‖_F goes down roughly as 1/√M; W changes much faster than C_V; the difference between "
    "frozen and trained C_V goes to zero with the width.",
    corrected="The drift falls as 1/M. W changes faster than C_V only in wide networks.",
    recorded=Verdict.CORRECTED,
    cost=8,
)
def figure_4(setting: Setting) -> Evidence:
    """Measure the three panels by Grassmannian descent of W and plain descent of V."""
    widths, n_samples, n_steps = pca_scale(setting)
    seeds, steps = setting.seeds(quick=2), log_steps(n_steps, 8)

    def measure(width: int, seed: int) -> dict[str, object]:
        pairs = setting.pairs(n_samples, seed=seed)
        net = orthonormal_net(setting, pairs, width, 10, seed=seed)
        return dict(orthonormal_run(net, pairs, n_steps=n_steps, steps=steps, frozen=True))

    data = sweep(widths, seeds, measure, t=steps)
    single = sweep([w for w in widths if w >= 128], seeds, lambda w, s: _single_component_drift(setting, w, s))
    last = data.sel(t=steps[-1])
    faster, apart = seed_mean(last.frame_change / last.relative_drift), seed_mean(last.frozen_difference)
    law, frozen = width_law(single.drift), width_law(last.frozen_difference, from_width=128)
    falls = "the drift falls as {} (Z = 1, t = 200)"
    return judged(
        printed("exponent_drift_one_output", law, falls.format("1/√M"), low=-0.6, high=-0.4),
        corrected("exponent_drift_one_output", law, falls.format("1/M"), low=-1.2, high=-0.9),
        corrected("W_over_C_widest", faster[-1], "in the widest network W moves faster than C_V", low=1),
        corrected("exponent_frozen_difference", frozen, "frozen and trained C_V meet as the width grows", high=-0.4),
        corrected("orthonormality_error", largest(data.orthonormality), "W stays orthonormal", high=1e-12),
        *shown(exponent_drift=width_law(last.drift, from_width=128), W_over_C_narrowest=faster[0]),
        *shown(frozen_difference_narrowest=apart[0], frozen_difference_widest=apart[-1]),
        data=xr.merge([data, single.rename(drift="drift_one_output")], join="outer"),
        panels=[
            width_panel(f"Drift of C_V after {steps[-1]} steps", {"Z = 10": last.drift}, "‖C_V(t) − C_V(0)‖_F"),
            _rates_panel(data),
            width_panel(
                "Trained against frozen C_V",
                {"row-wise difference": last.frozen_difference},
                "mean ‖f − f_frozen‖/‖f_frozen‖",
            ),
        ],
        setting={"n_samples": n_samples, "d_out": 10, "learning_rate": PCA_RATE, "n_steps": n_steps},
    )


def _single_component_drift(setting: Setting, width: int, seed: int) -> dict[str, float]:
    """Drift ‖C_V(200) − C_V(0)‖_F for Z = 1 and 50 samples, the setting of the expected exponent."""
    pairs = setting.pairs(50, seed=seed)
    net = orthonormal_net(setting, pairs, width, 1, seed=seed)
    return {"drift": float(orthonormal_run(net, pairs, n_steps=200, steps=[200])["drift"][0])}


def _rates_panel(data: xr.Dataset) -> Panel:
    """Relative changes of C_V and W against the step, in the narrowest and the widest network (Fig. 4, middle)."""
    later = data.sel(t=data.t > 0)
    series: tuple[tuple[str, str, Style], ...] = (("relative_drift", "C_V", "line"), ("frame_change", "W", "plain"))
    curves = [
        curve(f"{label}, M = {width}", later.t, seed_mean(later[name].sel(width=width)), style)
        for width in (int(data.width[0]), int(data.width[-1]))
        for name, label, style in series
    ]
    return Panel("Relative change of C_V and W", "step t", "‖·(t) − ·(0)‖ / ‖·(0)‖", tuple(curves))
