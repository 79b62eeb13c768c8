"""Paper B, Section 3: are nonlinear networks under orthogonality almost linear, at the start and after training?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.b.problems import NOISE, moons, noisy_pairs, orthogonal_net
from kontrast.claims.evidence import Criterion, Estimate, Evidence, Panel, Role, Verdict, curve, evidence
from kontrast.claims.panels import guide, log_steps
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, seed_mean, sweep, width_law
from kontrast.deep_linear import nonlinear_gap, output_gap, unit_slope
from kontrast.dynamics import Problem, contrastive_problem, gradient_descent
from kontrast.linalg import best_rotation, polar_step
from kontrast.losses import contrastive_trace_loss
from kontrast.nets import MLP, Activation, activation_from, parameters_of

D, Z = 5, 2  # of Theorem 1's measurement; its points lie on the unit sphere
N_POINTS = 20
TANH_CURVATURE = 4 / (3 * math.sqrt(3))  # c = max |tanh''|
RATE = 0.01  # of Fig. 2
TRAINED = ("tanh", "relu", "sigmoid")  # any name that `activation_from` knows may join

# φ, and the exponents that follow from ε = φ(W₁x) − W₁x: absolute, relative. ‖u^φ − u^I‖² is (z/h)‖ε‖² on average.
AT_START: dict[str, tuple[str | Activation, float, float]] = {
    "tanh": ("tanh", -1.5, -1.0),  # ε_i ~ a_i³, a_i ~ h^−1/2
    "relu": ("relu", -0.5, 0.0),  # ε_i ~ a_i
    "sigmoid": ("sigmoid", 0.0, 0.5),  # ε_i ~ 1/2
    "gelu_unit": (unit_slope("gelu"), -1.0, -0.5),  # ε_i ~ a_i²: Theorem 1 in general
    "sigmoid_unit": (unit_slope("sigmoid"), -1.5, -1.0),  # 2 tanh(a/2), odd as tanh is
}


@claim(
    "B.thm1",
    source="Paper B, Theorem 1 and Lemma 2",
    title="At the start, nonlinear networks with orthonormal weights are almost linear",
    printed="If φ(0) = 0, φ'(0) = 1 and |φ''| ≤ c, then ‖u^φ − u^I‖ ≤ K c ‖x‖² d √(log⁴h/h) for random orthonormal "
    "weights.",
    corrected="The bound holds, but u^I itself vanishes as √(z/h): relative to it the bound grows as log²h, and ReLU, "
    "which is not almost linear, keeps it as well. The proof lost the factor √(z/h) of W₂. With it the relative "
    "difference falls as h^−1/2, for odd φ as 1/h; that of ReLU does not fall, and that of sigmoid grows as √h unless "
    "it is shifted and scaled to φ(0) = 0, φ'(0) = 1.",
    recorded=Verdict.VACUOUS,
)
def theorem_1(setting: Setting) -> Evidence:
    """Random networks, the same weights under each φ, against the bound with the proof's own constant K = C/2."""
    widths = setting.pick(
        quick=(32, 100, 316, 1000, 3162),
        full=(10, 32, 100, 316, 1000, 3162),
        paper=(10, 32, 100, 316, 1000, 3162, 10000, 31623),
    )
    data = sweep(widths, setting.seeds(quick=60, full=60, paper=60), _at_start)
    laws = {
        f"exponent_{name}_{kind}": width_law(data[f"{name}_{kind}"], from_width=30)
        for name in AT_START
        for kind in ("absolute", "relative")
    }
    return evidence(
        {
            "largest_over_bound_tanh": float(data.tanh_over_bound.values.max()),
            "largest_over_bound_relu": float(data.relu_over_bound.values.max()),
            "largest_K_needed": float(data.K_needed.values.max()),
            "exponent_K_needed": width_law(data.K_needed),
            "largest_lemma_2_constant": float(data.lemma_2_constant.values.max()),
            "exponent_lemma_2_constant": width_law(data.lemma_2_constant),
            "exponent_bound_over_output": width_law(data.bound_over_output),
            "mean_square_over_expected": float(data.mean_square.values.sum() / data.expected_square.values.sum()),
            **laws,
        },
        [
            Criterion("largest_over_bound_tanh", "tanh keeps the bound with K = C/2 of the proof, always", high=1),
            Criterion("exponent_K_needed", "the K that tanh needs does not grow with the width", high=0),
            Criterion("exponent_lemma_2_constant", "nor does C of Lemma 2: max W₁² ≤ C log²h/h", high=0),
            Criterion(
                "exponent_bound_over_output",
                "the bound falls faster than ‖u^I‖ does, for any K",
                high=0,
                role="informative",
            ),
            Criterion("largest_over_bound_relu", "ReLU keeps the same bound (c = 1)", high=1, role="corrected"),
            Criterion(
                "mean_square_over_expected",
                "‖u^φ − u^I‖² is (z/h)‖φ(W₁x) − W₁x‖² on average (tanh)",
                low=0.8,
                high=1.25,
                role="corrected",
            ),
            *_start_criteria(),
        ],
        data=data,
        panels=_start_panels(data),
        setting={"d": D, "z": Z, "n_points": N_POINTS, "activations": list(AT_START)},
    )


def _at_start(width: int, seed: int) -> dict[str, object]:
    """One draw of the weights and of points on the sphere: every φ, and what Theorem 1 says of tanh."""
    net = orthogonal_net(D, width, Z, seed)
    x = torch.randn(N_POINTS, D, generator=generator("sphere", seed), dtype=torch.float64)
    x = x / x.norm(dim=1, keepdim=True)
    gaps = {name: nonlinear_gap(net, x, activation=phi) for name, (phi, _, _) in AT_START.items()}
    (W_1,), _ = net.layers()
    rate = math.log(width) ** 2
    C = float(W_1.square().max()) * width / rate  # Lemma 2
    unit = TANH_CURVATURE * D * rate / math.sqrt(width)  # Theorem 1's bound at K = 1 and ‖x‖ = 1
    largest = {name: float(gap.differences.max()) for name, gap in gaps.items()}
    return {
        **{f"{name}_absolute": gap.absolute for name, gap in gaps.items()},
        **{f"{name}_relative": gap.relative for name, gap in gaps.items()},
        "lemma_2_constant": C,
        "bound": C / 2 * unit,
        "bound_over_output": unit * gaps["tanh"].relative / gaps["tanh"].absolute,
        "tanh_over_bound": largest["tanh"] / (C / 2 * unit),
        "relu_over_bound": largest["relu"] / (C / 2 * unit / TANH_CURVATURE),
        "K_needed": largest["tanh"] / unit,
        "mean_square": gaps["tanh"].absolute ** 2 * width**3,  # over its own scale, so that every width counts
        "expected_square": _expected_square(W_1, x, Z / width) * width**3,
    }


def _expected_square(W_1: Tensor, x: Tensor, share: float) -> float:
    """(z/h)‖ε‖², the mean over W₂ of ‖W₂^T ε‖² with ε = tanh(W₁x) − W₁x."""
    a = x @ W_1.mT
    return share * float((activation_from("tanh")(a) - a).square().sum(1).mean())


def _start_criteria() -> list[Criterion]:
    """Every exponent of AT_START, as corrected."""
    return [
        Criterion(
            f"exponent_{name}_{kind}",
            f"{_said(name)}: the {kind} difference goes as h^{exponent:g}",
            low=exponent - 0.15,
            high=exponent + 0.15,
            role="corrected",
        )
        for name, (_, absolute, relative) in AT_START.items()
        for kind, exponent in (("absolute", absolute), ("relative", relative))
    ]


def _said(name: str) -> str:
    return name.replace("_unit", " at unit slope")


def _start_panels(data: xr.Dataset) -> list[Panel]:
    """Absolute and relative differences against the width, the first beside the bound."""
    panels = []
    for kind, label in (("absolute", "‖u^φ − u^I‖"), ("relative", "‖u^φ − u^I‖ / ‖u^I‖")):
        curves = [curve(_said(name), data.width, seed_mean(data[f"{name}_{kind}"])) for name in AT_START]
        if kind == "absolute":
            curves.append(curve("Theorem 1, K = C/2", data.width, seed_mean(data.bound), "dashed"))
        panels.append(Panel(f"The {kind} difference at the start", "width h", label, tuple(curves)))
    return panels


@claim(
    "B.fig2",
    source="Paper B, Conjecture 1 and Fig. 2",
    title="Trained nonlinear networks with orthonormal weights against linear ones",
    printed="During training, too, the difference goes to zero with the width for tanh; for ReLU as well, more slowly; "
    "for sigmoid it grows.",
    corrected="Tanh: nearly as 1/h, relative to the outputs and at every step. ReLU: it does not fall at all, also up "
    "to a rotation of the outputs. Sigmoid: it grows as √h.",
    recorded=Verdict.CORRECTED,
    cost=8,
)
def figure_2(setting: Setting) -> Evidence:
    """Linear and nonlinear networks from the same weights, each trained on its own, on the half moons of Fig. 1a.

    Outputs have a limit only up to a rotation, which the start decides: where it nearly loses a dimension, a small
    difference turns into a large angle. So the difference has heavy tails over starts, and the exponents are those of
    its geometric mean; beside them stand those after the best rotation of the final outputs, which never exceed it.
    (For tanh these have local exponents that still approach −1: −0.82, −0.89, −0.93 at h = 316, 1000, 3162 and 10⁴.)
    """
    widths = setting.pick(
        quick=(16, 50, 160, 500), full=(10, 32, 100, 316, 1000, 3162), paper=(10, 32, 100, 316, 1000, 3162)
    )
    n_samples, n_steps = setting.pick(quick=40, full=100, paper=200), 100
    steps = log_steps(n_steps, 8)

    def measure(width: int, seed: int) -> dict[str, object]:
        pairs = noisy_pairs(moons(n_samples, seed), seed)
        problem = contrastive_problem(pairs, contrastive_trace_loss)
        u = {
            name: trained_outputs(orthogonal_net(3, width, Z, seed, activation=name), problem, steps)
            for name in ("linear", *TRAINED)
        }
        return {key: value for name in TRAINED for key, value in _gaps(name, u[name], u["linear"]).items()}

    data = sweep(widths, setting.seeds(quick=6, full=10, paper=10), measure, t=steps)
    last = data.isel(t=-1)
    return evidence(
        {
            **{f"exponent_{name}_absolute": typical_law(last[f"{name}_absolute"]) for name in TRAINED},
            **{f"exponent_{name}_relative": typical_law(last[f"{name}_relative"]) for name in TRAINED},
            **{f"exponent_{name}_rotated": typical_law(data[f"{name}_rotated"]) for name in TRAINED},
            "exponent_tanh_worst_step": typical_law(data.tanh_relative.max("t", skipna=False)),
            "relu_rotated_widest": float(data.relu_rotated.isel(width=-1).values.mean()),
            "tanh_relative_widest": float(last.tanh_relative.isel(width=-1).values.max()),
        },
        _trained_criteria(),
        data=data,
        panels=_trained_panels(data),
        setting={"n_samples": n_samples, "d": 3, "z": Z, "learning_rate": RATE, "n_steps": n_steps, "noise_std": NOISE},
    )


def trained_outputs(net: MLP, problem: Problem, steps: Sequence[int]) -> Tensor:
    """Outputs (T, m, z) at some steps of projected descent, all layers orthonormal; NaN once they overflow."""
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
    """Differences at every step, and the relative one at the end after the best rotation of the outputs."""
    gaps = [output_gap(u, v) for u, v in zip(nonlinear, linear, strict=True)]
    u, v = nonlinear[-1], linear[-1]
    finite = bool(torch.isfinite(u).all() and torch.isfinite(v).all())
    return {
        f"{name}_absolute": np.array([gap.absolute for gap in gaps]),
        f"{name}_relative": np.array([gap.relative for gap in gaps]),
        f"{name}_rotated": output_gap(u @ best_rotation(u, v), v).relative if finite else math.nan,
    }


def typical(values: xr.DataArray) -> xr.DataArray:
    """The geometric mean over starts."""
    logarithm = values.copy(data=np.log(values.values)).mean("seed", skipna=False)
    return logarithm.copy(data=np.exp(logarithm.values))


def typical_law(values: xr.DataArray) -> Estimate:
    """The exponent in the width of the geometric mean over starts."""
    return width_law(typical(values).expand_dims("seed"))


def _trained_criteria() -> list[Criterion]:
    def exponent(name: str, low: float, high: float, statement: str, role: Role = "corrected") -> Criterion:
        return Criterion(f"exponent_{name}", statement, low, high, role)

    nothing = math.inf
    return [
        exponent("tanh_absolute", -nothing, -0.25, "tanh: the difference goes to zero with the width", "printed"),
        exponent("tanh_worst_step", -nothing, -0.25, "at every step of training", "printed"),
        exponent("relu_rotated", -nothing, -0.2, "ReLU: so it does, more slowly, at least up to a rotation", "printed"),
        exponent("sigmoid_absolute", 0.1, nothing, "sigmoid: it grows", "printed"),
        exponent("tanh_absolute", -1.25, -0.6, "tanh: it falls nearly as 1/h"),
        exponent("tanh_relative", -1.25, -0.6, "relative to the outputs as well"),
        exponent("tanh_rotated", -1.1, -0.7, "and up to a rotation of the outputs"),
        exponent("tanh_worst_step", -1.25, -0.5, "at every step of training"),
        exponent("relu_relative", -0.3, 0.3, "ReLU: it does not fall"),
        exponent("relu_rotated", -0.05, 0.05, "not even up to a rotation of the outputs"),
        Criterion("relu_rotated_widest", "but stays at a third of the outputs", low=0.2, role="corrected"),
        exponent("sigmoid_absolute", 0.35, 0.65, "sigmoid: it grows as √h"),
    ]


def _trained_panels(data: xr.Dataset) -> list[Panel]:
    """Fig. 2: against the width at the end, and over training; geometric means over starts."""
    widths = data.width.values

    def by_width(title: str, y_label: str, series: Mapping[str, xr.DataArray]) -> Panel:
        first = next(iter(series.values()))
        lines = [curve(name, widths, values) for name, values in series.items()]
        return Panel(title, "width h", y_label, (*lines, guide(widths, first, -1.0, "1/h")))

    last = data.isel(t=-1)
    return [
        by_width(
            "After 100 epochs (Fig. 2)", "‖u^φ − u^I‖", {name: typical(last[f"{name}_absolute"]) for name in TRAINED}
        ),
        by_width(
            "After 100 epochs, up to a rotation",
            "‖u^φ − u^I‖ / ‖u^I‖",
            {name: typical(data[f"{name}_rotated"]) for name in TRAINED},
        ),
        *(
            Panel(
                f"Over training, {name}",
                "epoch",
                "‖u^φ − u^I‖ / ‖u^I‖",
                tuple(
                    curve(f"h = {width}", data.t[1:], typical(data[f"{name}_relative"].sel(width=width))[1:], "plain")
                    for width in widths
                ),
            )
            for name in TRAINED
        ),
    ]
