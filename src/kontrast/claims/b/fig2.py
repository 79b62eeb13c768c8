"""B.fig2: trained nonlinear networks with orthonormal weights against linear ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.b.problems import NOISE_STD, moon_pairs, orthogonal_net
from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, corrected, judged, printed, shown
from kontrast.claims.panels import log_steps, step_panel, width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest, sweep, width_law
from kontrast.deep_linear import output_gap
from kontrast.dynamics import Problem, contrastive_problem, gradient_descent
from kontrast.linalg import Estimate, best_rotation, polar_step
from kontrast.losses import contrastive_trace_loss
from kontrast.nets import MLP, parameters_of

Z = 2
RATE = 0.01
TRAINED = ("tanh", "relu", "sigmoid")  # any name that `activation_from` knows may be added


@claim(
    "B.fig2",
    source="Paper B, Conjecture 1 and Fig. 2",
    title="Trained nonlinear networks with orthonormal weights against linear ones",
    printed="During training, too, the difference goes to zero with the width for tanh, and more slowly for ReLU; for "
    "sigmoid it grows.",
    corrected="Tanh: it falls nearly as 1/h, relative to the outputs and at every step. ReLU: it does not fall at all, "
    "not even up to a rotation of the outputs. Sigmoid: it grows as √h.",
    recorded=Verdict.CORRECTED,
    cost=8,
)
def figure_2(setting: Setting) -> Evidence:
    """Linear and nonlinear networks trained separately from the same weights, on the half moons of Fig. 1a.

    The limit of the outputs is unique only up to a rotation, which depends on the start: if the start nearly loses a
    dimension, a small difference turns into a large angle. So the difference has heavy tails over starts, and the
    exponents are those of its geometric mean. A second set is measured after the best rotation of the final outputs,
    which can only reduce the difference. (For tanh its local exponents still approach −1: they are −0.82, −0.89 and
    −0.93 between h = 316, 1000, 3162 and 10⁴.)
    """
    widths = setting.pick(
        quick=(16, 50, 160, 500), full=(10, 32, 100, 316, 1000, 3162), paper=(10, 32, 100, 316, 1000, 3162)
    )
    n_samples, steps = setting.pick(quick=40, full=100, paper=200), log_steps(100, 8)

    def measure(width: int, seed: int) -> dict[str, object]:
        problem = contrastive_problem(moon_pairs(n_samples, seed), contrastive_trace_loss)
        u = {
            name: trained_outputs(orthogonal_net(3, width, Z, seed, activation=name), problem, steps)
            for name in ("linear", *TRAINED)
        }
        return {key: value for name in TRAINED for key, value in _gaps(name, u[name], u["linear"]).items()}

    data = sweep(widths, setting.seeds(quick=6, full=10), measure, t=steps)
    return judged(
        *_findings(data),
        data=data,
        panels=_panels(data),
        setting={"n_samples": n_samples, "d": 3, "z": Z, "noise_std": NOISE_STD, "learning_rate": RATE, "n_steps": 100},
    )


def _findings(data: xr.Dataset) -> list[Finding]:
    """Exponents in the width of the differences at the end, absolute, relative and up to a rotation."""
    last = data.isel(t=-1)
    absolute, relative, rotated = (
        {name: typical_law(last[f"{name}_{kind}"]) for name in TRAINED} for kind in ("absolute", "relative", "rotated")
    )
    worst_step = typical_law(data.tanh_relative.max("t", skipna=False))
    relu_widest = float(last.relu_rotated.isel(width=-1).values.mean())
    tanh_widest = largest(last.tanh_relative.isel(width=-1))
    return [
        printed("exponent_tanh_absolute", absolute["tanh"], "tanh: the difference tends to zero with h", high=-0.25),
        printed("exponent_tanh_worst_step", worst_step, "tanh: it tends to zero at every step of training", high=-0.25),
        printed("exponent_relu_rotated", rotated["relu"], "ReLU: it tends to zero, up to a rotation", high=-0.2),
        printed("exponent_sigmoid_absolute", absolute["sigmoid"], "sigmoid: it grows with h", low=0.1),
        corrected("exponent_tanh_absolute", absolute["tanh"], "tanh: it falls nearly as 1/h", low=-1.25, high=-0.6),
        corrected(
            "exponent_tanh_relative", relative["tanh"], "tanh: relative to the outputs too", low=-1.25, high=-0.6
        ),
        corrected("exponent_tanh_rotated", rotated["tanh"], "tanh: up to a rotation as well", low=-1.1, high=-0.7),
        corrected("exponent_tanh_worst_step", worst_step, "tanh: at every step of training", low=-1.25, high=-0.5),
        corrected("exponent_relu_relative", relative["relu"], "ReLU: it does not fall", low=-0.3, high=0.3),
        corrected(
            "exponent_relu_rotated",
            rotated["relu"],
            "ReLU: up to a rotation it does not fall either",
            low=-0.05,
            high=0.05,
        ),
        corrected("relu_rotated_widest", relu_widest, "ReLU: it stays at about a third of the outputs", low=0.2),
        corrected("exponent_sigmoid_absolute", absolute["sigmoid"], "sigmoid: it grows as √h", low=0.35, high=0.65),
        *shown(exponent_relu_absolute=absolute["relu"], exponent_sigmoid_relative=relative["sigmoid"]),
        *shown(exponent_sigmoid_rotated=rotated["sigmoid"], tanh_relative_widest=tanh_widest),
    ]


def trained_outputs(net: MLP, problem: Problem, steps: Sequence[int]) -> Tensor:
    """Outputs (T, m, z) at `steps` of projected descent with orthonormal layers; NaN once they overflow."""
    parameters = parameters_of(net)
    run = gradient_descent(
        net.at,
        parameters,
        problem,
        learning_rate=RATE,
        n_steps=steps[-1],
        record_at=steps,
        keep_outputs=True,
        orthonormal=parameters.keys(),
        steps=dict.fromkeys(parameters, polar_step),
    )
    assert run.outputs is not None  # they were asked for
    missing = run.outputs.new_full((len(steps) - len(run.outputs), *run.final_outputs.shape), math.nan)
    return torch.cat([run.outputs, missing])


def _gaps(name: str, nonlinear: Tensor, linear: Tensor) -> dict[str, object]:
    """Differences at every step, and the relative one at the end after the best rotation."""
    gaps = [output_gap(u, v) for u, v in zip(nonlinear, linear, strict=True)]
    u, v = nonlinear[-1], linear[-1]
    finite = bool(torch.isfinite(u).all() and torch.isfinite(v).all())
    return {
        f"{name}_absolute": np.array([gap.absolute for gap in gaps]),
        f"{name}_relative": np.array([gap.relative for gap in gaps]),
        f"{name}_rotated": output_gap(u @ best_rotation(u, v), v).relative if finite else math.nan,
    }


def typical(values: xr.DataArray) -> xr.DataArray:
    """The geometric mean over starts, in the place of a single start."""
    logarithm = values.copy(data=np.log(values.values)).mean("seed", skipna=False)
    return logarithm.copy(data=np.exp(logarithm.values)).expand_dims("seed")


def typical_law(values: xr.DataArray) -> Estimate:
    """The exponent in the width of the geometric mean over starts."""
    return width_law(typical(values))


def _panels(data: xr.Dataset) -> list[Panel]:
    """Fig. 2 as geometric means over starts: against the width at the end, and over training."""
    absolute = {name: typical(data[f"{name}_absolute"].isel(t=-1)) for name in TRAINED}
    relative = {name: typical(data[f"{name}_relative"]) for name in TRAINED}
    rotated = {name: typical(data[f"{name}_rotated"]) for name in TRAINED}
    gap, relative_gap = "‖u^φ − u^I‖", "‖u^φ − u^I‖ / ‖u^I‖"
    return [
        width_panel("After 100 epochs (Fig. 2)", absolute, gap, guides=[-1.0], letter="h"),
        width_panel("After 100 epochs, up to a rotation", rotated, relative_gap, guides=[-1.0], letter="h"),
        *(
            step_panel(f"Over training, {name}", values, relative_gap, step="epoch", letter="h")
            for name, values in relative.items()
        ),
    ]
