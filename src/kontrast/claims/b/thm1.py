"""B.thm1: at the start, nonlinear networks with orthonormal weights are almost linear."""

from __future__ import annotations

import math

import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.b.problems import orthogonal_net
from kontrast.claims.evidence import (
    Evidence,
    Finding,
    Panel,
    Verdict,
    corrected,
    informative,
    judged,
    printed,
    shown,
)
from kontrast.claims.panels import width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest, sweep, width_law
from kontrast.deep_linear import nonlinear_gap, unit_slope
from kontrast.nets import Activation, activation_from

D, Z, N_POINTS = 5, 2, 20  # the points lie on the unit sphere
KINDS = ("absolute", "relative")  # of differences
TANH_CURVATURE = 4 / (3 * math.sqrt(3))  # c = max |tanh''|

# φ and the exponents of the absolute and the relative difference. They follow from ε = φ(W₁x) − W₁x, as
# ‖u^φ − u^I‖² is (z/h)‖ε‖² on average.
AT_START: dict[str, tuple[str | Activation, float, float]] = {
    "tanh": ("tanh", -1.5, -1.0),  # ε_i ~ a_i³, a_i ~ h^−1/2
    "relu": ("relu", -0.5, 0.0),  # ε_i ~ a_i
    "sigmoid": ("sigmoid", 0.0, 0.5),  # ε_i ~ 1/2
    "gelu_unit": (unit_slope("gelu"), -1.0, -0.5),  # ε_i ~ a_i²: Theorem 1 in general
    "sigmoid_unit": (unit_slope("sigmoid"), -1.5, -1.0),  # 2 tanh(a/2), odd like tanh
}


@claim(
    "B.thm1",
    source="Paper B, Theorem 1 and Lemma 2",
    title="At the start, nonlinear networks with orthonormal weights are almost linear",
    printed="If φ(0) = 0, φ'(0) = 1 and |φ''| ≤ c, then ‖u^φ − u^I‖ ≤ K c ‖x‖² d √(log⁴h/h) for random orthonormal "
    "weights.",
    corrected="The bound holds, but u^I itself vanishes as √(z/h): relative to it the bound grows as log²h, and ReLU, "
    "which is not almost linear, stays within it as well. The proof loses the factor √(z/h) of W₂. With this factor "
    "the relative difference falls as h^−1/2, and as 1/h for odd φ. That of ReLU does not fall, and that of sigmoid "
    "grows as √h unless it is shifted and scaled to φ(0) = 0, φ'(0) = 1.",
    recorded=Verdict.VACUOUS,
)
def theorem_1(setting: Setting) -> Evidence:
    """Random networks with the same weights for each φ, against the bound with the proof's constant K = C/2."""
    widths = setting.pick(
        quick=(32, 100, 316, 1000, 3162),
        full=(10, 32, 100, 316, 1000, 3162),
        paper=(10, 32, 100, 316, 1000, 3162, 10000, 31623),
    )
    data = sweep(widths, setting.seeds(quick=60, full=60), _at_start)
    return judged(
        *_bound_findings(data),
        *_exponent_findings(data),
        data=data,
        panels=_panels(data),
        setting={"d": D, "z": Z, "n_points": N_POINTS, "activations": list(AT_START)},
    )


def _at_start(width: int, seed: int) -> dict[str, object]:
    """One draw of the weights and of points on the sphere: the gaps of every φ, and the bound of Theorem 1."""
    net = orthogonal_net(D, width, Z, seed)
    x = torch.randn(N_POINTS, D, generator=generator("sphere", seed), dtype=torch.float64)
    x = x / x.norm(dim=1, keepdim=True)
    gaps = {name: nonlinear_gap(net, x, activation=phi) for name, (phi, _, _) in AT_START.items()}
    (W_1,), _ = net.layers()
    rate = math.log(width) ** 2
    C = float(W_1.square().max()) * width / rate  # Lemma 2
    unit = TANH_CURVATURE * D * rate / math.sqrt(width)  # Theorem 1's bound at K = 1 and ‖x‖ = 1
    tanh, relu = (float(gaps[name].differences.max()) for name in ("tanh", "relu"))
    return {
        **{f"{name}_{kind}": getattr(gap, kind) for kind in KINDS for name, gap in gaps.items()},
        "lemma_2_constant": C,
        "bound": C / 2 * unit,
        "bound_over_output": unit * gaps["tanh"].relative / gaps["tanh"].absolute,
        "tanh_over_bound": tanh / (C / 2 * unit),
        "relu_over_bound": relu / (C / 2 * unit / TANH_CURVATURE),
        "K_needed": tanh / unit,
        "mean_square": gaps["tanh"].absolute ** 2 * width**3,  # divided by its scale, so that every width counts
        "expected_square": _expected_square(W_1, x, Z / width) * width**3,
    }


def _expected_square(W_1: Tensor, x: Tensor, share: float) -> float:
    """(z/h)‖ε‖²: the mean over W₂ of ‖W₂^T ε‖² with ε = tanh(W₁x) − W₁x."""
    a = x @ W_1.mT
    return share * float((activation_from("tanh")(a) - a).square().sum(1).mean())


def _bound_findings(data: xr.Dataset) -> list[Finding]:
    """The bound of Theorem 1, the constants of its proof, and its size relative to the outputs."""
    needed, constant, over_output = (width_law(data[n]) for n in ("K_needed", "lemma_2_constant", "bound_over_output"))
    tanh, relu = largest(data.tanh_over_bound), largest(data.relu_over_bound)
    square = float(data.mean_square.values.sum() / data.expected_square.values.sum())
    said = "‖u^φ − u^I‖² is (z/h)‖φ(W₁x) − W₁x‖² on average"
    return [
        printed("largest_over_bound_tanh", tanh, "tanh stays within the bound with the proof's K = C/2", high=1),
        printed("exponent_K_needed", needed, "the K that tanh needs does not grow with the width", high=0),
        printed("exponent_lemma_2_constant", constant, "C of Lemma 2, max W₁² ≤ C log²h/h, does not grow", high=0),
        *shown(largest_K_needed=largest(data.K_needed), largest_lemma_2_constant=largest(data.lemma_2_constant)),
        informative("exponent_bound_over_output", over_output, "the bound falls as fast as ‖u^I‖, for any K", high=0),
        corrected("largest_over_bound_relu", relu, "ReLU stays within the same bound (c = 1)", high=1),
        corrected("mean_square_over_expected", square, f"{said} (tanh)", low=0.8, high=1.25),
    ]


def _exponent_findings(data: xr.Dataset) -> list[Finding]:
    """The exponents in the width of every activation of AT_START."""
    return [
        corrected(
            f"exponent_{name}_{kind}",
            width_law(data[f"{name}_{kind}"], from_width=30),
            f"{_label(name)}: the {kind} difference goes as h^{exponent:g}",
            low=exponent - 0.15,
            high=exponent + 0.15,
        )
        for name, (_, *exponents) in AT_START.items()
        for kind, exponent in zip(KINDS, exponents, strict=True)
    ]


def _label(name: str) -> str:
    return name.replace("_unit", " at unit slope")


def _panels(data: xr.Dataset) -> list[Panel]:
    """Absolute and relative differences against the width; the bound is shown with the absolute ones."""
    absolute, relative = ({_label(name): data[f"{name}_{kind}"] for name in AT_START} for kind in KINDS)
    bound, title = {"Theorem 1, K = C/2": data.bound}, "The {} difference at the start"
    return [
        width_panel(title.format("absolute"), absolute | bound, "‖u^φ − u^I‖", guides=(), dashed=bound, letter="h"),
        width_panel(title.format("relative"), relative, "‖u^φ − u^I‖ / ‖u^I‖", guides=(), letter="h"),
    ]
