"""Claim A.fig3: under cosine similarity the NTK change falls with the width."""

from __future__ import annotations

import xarray as xr

from kontrast.claims.a.runs import RATE, cosine_drift, drift_steps
from kontrast.claims.evidence import Evidence, Verdict, corrected, judged, printed, shown
from kontrast.claims.panels import step_panel, width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, geometric, width_law


@claim(
    "A.fig3",
    source="Paper A, Figs. 3, 6 and 7",
    title="Cosine similarity: the NTK change falls with the width",
    printed="At a fixed number of steps the change of the NTK goes down roughly as 1/√M.",
    corrected="−1/2 is only an upper bound on the exponent. With tanh the change falls nearly as 1/M, with ReLU about "
    "as M^−0.8: the first-order change is odd in w and averages to 1/M, and ReLU units that switch on or off add "
    "M^−3/4. ‖θ(t) − θ(0)‖ does not depend on M.",
    recorded=Verdict.CORRECTED,
    cost=12,
)
def figure_3(setting: Setting) -> Evidence:
    """Train ReLU networks with linear and softmax links, and tanh (Fig. 7), over widths and over time (Fig. 6)."""
    widths = setting.pick(quick=geometric(256, 2048), full=geometric(32, 8192), paper=geometric(32, 16384))
    n_samples, steps = setting.pick(quick=10, full=10, paper=1000), drift_steps(setting)
    data = {
        f"{activation}_{link}": cosine_drift(
            setting, widths, setting.seeds(quick=8), steps, n_samples=n_samples, activation=activation, link=link
        )
        for activation, link in (("relu", "linear"), ("relu", "softmax"), ("tanh", "linear"))
    }
    changes = {name: found.change.sel(t=100) for name, found in data.items()}
    laws = {name: width_law(change, from_width=256) for name, change in changes.items()}
    moved = width_law(data["relu_linear"].weights_moved.sel(t=100), from_width=256)
    return judged(
        *(
            printed(f"exponent_{name}", law, f"the change falls as M^−1/2 ({name})", low=-0.6, high=-0.4)
            for name, law in laws.items()
        ),
        *(
            corrected(
                f"exponent_{name}",
                law,
                f"the change falls faster than M^−1/2 ({name})",
                low=-1.1 if "tanh" in name else -0.95,
                high=-0.75 if "tanh" in name else -0.6,
            )
            for name, law in laws.items()
        ),
        corrected("exponent_weights_moved", moved, "the weights move equally far at every width", low=-0.1, high=0.1),
        *shown(change_widest=changes["relu_linear"].isel(width=-1).values.mean()),
        data=xr.merge(
            [found.rename({name: f"{key}_{name}" for name in found.data_vars}) for key, found in data.items()]
        ),
        panels=[
            width_panel("NTK change after 100 steps (Figs. 3, 7)", changes),
            step_panel("NTK change in time, ReLU (Fig. 6a)", data["relu_linear"].change),
        ],
        setting={"n_samples": n_samples, "d_out": 10, "learning_rate": RATE, "n_steps": steps[-1]},
    )
