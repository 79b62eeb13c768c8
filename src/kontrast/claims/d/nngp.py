"""D.nngp: networks at initialisation become Gaussian processes (Appendix A.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.d.networks import Network
from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, corrected, curve, judged, printed
from kontrast.claims.panels import guide
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest, seed_mean, sweep, width_law
from kontrast.kernels import infinite_nngp
from kontrast.linalg import Estimate, fit_power_law
from kontrast.nets import activation_from, hidden_activations

N_POINTS = 4
N_NETWORKS = 20  # per seed; their mean square error is one measurement
WEIGHT_STD, BIAS_STD = 0.8, 0.2  # ω_v = ω_u and σ_b, for one call of `infinite_nngp`
DEPTHS = (1, 2, 3)
KURTOSIS_WIDTHS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Case:
    """A network (44), (45): its activation, and the mean of its hidden biases, which (49) leaves open."""

    name: str
    activation: str
    bias_mean: float = 0.0


CASES = (Case("tanh", "tanh"), Case("tanh, biases of mean 1", "tanh", 1.0), Case("relu", "relu"))


@dataclass(frozen=True, eq=False)
class Draws:
    """Independent networks (44), (45) at the same points: hidden values (draws, H, points), one output (draws, points).

    U_ji ~ N(0, ω²/I), a_j ~ N(bias_mean, σ_b²), V_kj ~ N(0, ω²/H), b_k ~ N(0, σ_b²).
    """

    hidden: Tensor
    outputs: Tensor

    @classmethod
    def of(cls, case: Case, x: Tensor, width: int, n_draws: int, draw: torch.Generator) -> Draws:
        """Draw them. Only the part of U in the span of x matters, so coordinates there suffice: one per point."""
        span = torch.linalg.qr(x.mT / math.sqrt(x.shape[1])).R  # x^T = Q R, and Q^T U is as normal as U
        U, a = _normal(draw, n_draws, width, len(span)), _normal(draw, n_draws, width, 1)
        V, b = _normal(draw, n_draws, 1, width), _normal(draw, n_draws, 1)
        hidden = activation_from(case.activation)(case.bias_mean + BIAS_STD * a + WEIGHT_STD * U @ span)
        outputs = BIAS_STD * b + WEIGHT_STD / math.sqrt(width) * (V @ hidden)[:, 0]
        return cls(hidden, outputs)


def _normal(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


def finite_kernel(hidden: Tensor) -> Tensor:
    """σ_b² + ω² h(x_p)·h(x_q)/H: the covariance of the outputs given the hidden layer, (…, points, points)."""
    return BIAS_STD**2 + WEIGHT_STD**2 / hidden.shape[-2] * hidden.mT @ hidden


def limit_kernel(case: Case, x: Tensor) -> Tensor:
    """(52); a shift of the biases is one of the activation."""
    phi = activation_from(case.activation)
    shifted: Callable[[Tensor], Tensor] = lambda a: phi(a + case.bias_mean)  # noqa: E731
    return infinite_nngp(
        x,
        activation=shifted if case.bias_mean else phi,
        weight_std=WEIGHT_STD,
        bias_std=BIAS_STD,
        input_scale=1 / x.shape[1],
    )


@claim(
    "D.nngp",
    source="Paper D, Appendix A.1, (44) to (53)",
    title="Wide networks at initialisation are Gaussian processes",
    printed="Var f(x) = σ_b² + Σ σ_v² Var[h_j(x)] (49), whatever the hidden weights' distribution; as H → ∞ the "
    "outputs are jointly Gaussian with the covariances σ_b² + ω_v² E[h(x_p)h(x_q)] (52).",
    corrected="(49) needs E[h²] in place of Var[h], as in (50) and (52). For tanh with symmetric weights both are "
    "equal, as E[h] = 0; for tanh with biases of mean 1 (49) is 2.5 times too small here, and for ReLU its second term "
    "is 1 − 1/π of the right one. (52) is exact at every H: only the shape changes, with an excess kurtosis of "
    "3ω_v⁴Var[h²]/(HΣ²). The kernel of one network is off by H^−1/2, at every depth.",
    recorded=Verdict.CORRECTED,
)
def gaussian_process(setting: Setting) -> Evidence:
    """Kernels of single networks against (52) by width and depth; moments of many networks' outputs by width."""
    x = _points(setting)
    widths = setting.pick(quick=(32, 128, 512), full=(32, 64, 128, 256, 512, 1024, 2048), paper=(64, 512, 4096))
    seeds = setting.seeds(quick=3, full=5, paper=3)
    n_draws = setting.pick(quick=100_000, full=1_000_000, paper=1_000_000)
    kernels = _kernel_errors(setting, x, widths, seeds)
    shape = _shapes(x, n_draws)
    variances = {case.name: _variances(case, x, n_draws) for case in CASES}
    # Wide networks count less in this ratio, as their kurtosis is small beside the noise.
    ratio = float(shape.kurtosis.sum() / shape.predicted.sum())
    return judged(
        *_variance_findings(variances),
        _rate("exponent_one_layer_with_biases", kernels.biased, "one hidden layer with biases"),
        *(
            _rate(f"exponent_depth_{depth}", kernels[f"depth_{depth}"], f"depth {depth}, without biases")
            for depth in DEPTHS
        ),
        corrected("exponent_of_kurtosis", _law(shape.kurtosis), "excess kurtosis falls as 1/H", low=-1.2, high=-0.8),
        corrected("kurtosis_over_predicted", ratio, "the excess kurtosis over 3ω⁴Var[h²]/(HΣ²)", low=0.9, high=1.1),
        corrected("exponent_of_joint_kurtosis", _law(shape.joint), "joint kurtosis falls as 1/H", low=-1.2, high=-0.8),
        corrected("mean_over_deviation", float(shape["mean"].max()), "E f = 0 (48): mean over deviation", high=0.03),
        data=kernels.assign(shape),
        panels=[_kernel_panel(kernels), _shape_panel(shape), _variance_panel(variances)],
        setting={"n_points": N_POINTS, "n_networks": N_NETWORKS, "n_draws": n_draws}
        | {"weight_std": WEIGHT_STD, "bias_std": BIAS_STD},
    )


def _rate(name: str, errors: xr.DataArray, words: str) -> Finding:
    statement = f"exponent in the width of a network's distance from (52): {words}"
    return corrected(name, width_law(errors), statement, low=-0.6, high=-0.4)


def _variance_findings(variances: Mapping[str, Mapping[str, float]]) -> tuple[Finding, ...]:
    tanh, shifted, relu = (variances[case.name] for case in CASES)

    def over_49(name: str, found: Mapping[str, float], words: str) -> Finding:
        return printed(f"variance_over_49_{name}", found["printed"], f"{words}: Var f over (49)", low=0.97, high=1.03)

    error = largest(*(found["error"] for found in variances.values()))
    return (
        over_49("tanh", tanh, "tanh, symmetric weights"),
        over_49("tanh_shifted", shifted, "tanh, biases of mean 1"),
        over_49("relu", relu, "ReLU"),
        corrected("variance_over_52_error", error, "largest relative error of Var f against (52)", high=0.03),
        corrected("second_term_of_49_over_right_relu", relu["second_term"], "ReLU: Var[h]/E[h²]", low=0.66, high=0.7),
    )


def _kernel_errors(setting: Setting, x: Tensor, widths: Sequence[int], seeds: Sequence[int]) -> xr.Dataset:
    """Relative distances of networks' kernels from their limits, rms over networks."""
    limits = {"biased": limit_kernel(CASES[0], x)} | {
        f"depth_{depth}": infinite_nngp(x, depth=depth, activation="tanh", input_scale=1 / x.shape[1])
        for depth in DEPTHS
    }

    def measure(width: int, seed: int) -> dict[str, float]:
        return {
            name: float(((K - limits[name]).square().sum((1, 2)).mean()).sqrt() / limits[name].norm())
            for name, K in _network_kernels(setting, x, width, seed).items()
        }

    return sweep(widths, seeds, measure)


def _points(setting: Setting) -> Tensor:
    """Some samples, scaled to rows of mean square 1."""
    rows = setting.dataset().subsample(N_POINTS, generator=generator("points of A.1")).rows
    return torch.as_tensor(math.sqrt(rows.shape[1]) * rows / rows.norm(dim=1, keepdim=True))


def _network_kernels(setting: Setting, x: Tensor, width: int, seed: int) -> dict[str, Tensor]:
    """Kernels (networks, points, points) of some networks with biases, and of `MLP`s of each depth."""
    draw = generator("networks of A.1", seed, width)
    found = {"biased": finite_kernel(Draws.of(CASES[0], x, width, N_NETWORKS, draw).hidden)}
    for depth in DEPTHS:
        kernels = [_mlp_kernel(x.to(setting.device), width, depth, draw) for _ in range(N_NETWORKS)]
        found[f"depth_{depth}"] = torch.stack(kernels).cpu()
    return found


def _mlp_kernel(x: Tensor, width: int, depth: int, draw: torch.Generator) -> Tensor:
    net = Network("tanh", "standard", depth).net(x.shape[1], width, 1, draw, x.device)
    h = hidden_activations(x, net.layers()[0], net.scales[:-1], net.activation)
    return h @ h.mT / width


def _shapes(x: Tensor, n_draws: int) -> xr.Dataset:
    r"""Excess kurtosis of f at the first point, and of all points jointly (Mardia's), by width, for tanh.

    Given the hidden layer f is Gaussian with the variance S = σ_b² + ω² mean h², so the excess kurtosis is
    3Var S/(E S)², and Var S = ω⁴ Var[h²]/H. Mardia's is E[(f^T Σ^-1 f)²]/(m(m + 2)) − 1 for m points.
    """
    case, m = CASES[0], len(x)
    limit = limit_kernel(case, x)
    inverse, rows = torch.linalg.inv(limit), []
    for width in KURTOSIS_WIDTHS:
        draws = _many(case, x, width, n_draws)
        f = torch.cat([part.outputs for part in draws])
        squares = torch.cat([part.hidden[:, 0, 0] for part in draws]).square()
        variance = float(limit[0, 0])
        joint = torch.einsum("di,ij,dj->d", f, inverse, f).square().mean() / (m * (m + 2)) - 1
        rows.append(
            {
                "kurtosis": float(f[:, 0].pow(4).mean()) / variance**2 - 3,
                "predicted": 3 * WEIGHT_STD**4 * float(squares.var()) / (width * variance**2),
                "joint": float(joint),
                "mean": float(f.mean(0).abs().max()) / math.sqrt(variance),
            }
        )
    return xr.Dataset(
        {name: ("H", [row[name] for row in rows]) for name in rows[0]}, coords={"H": list(KURTOSIS_WIDTHS)}
    )


def _many(case: Case, x: Tensor, width: int, n_draws: int) -> list[Draws]:
    """Many networks, drawn in parts that fit into memory; only the first hidden value is kept."""
    part = max(1, min(n_draws, 2**21 // (width * len(x))))
    draw, found = generator(f"outputs of A.1, {case.name}", width), []
    for start in range(0, n_draws, part):
        draws = Draws.of(case, x, width, min(part, n_draws - start), draw)
        found.append(Draws(draws.hidden[:, :1, :1].clone(), draws.outputs))
    return found


def _variances(case: Case, x: Tensor, n_draws: int, width: int = 8) -> dict[str, float]:
    """The outputs' variance at the first point: over (49) as printed, and its relative error against (52)."""
    draws = _many(case, x, width, n_draws)
    h = torch.cat([part.hidden[:, 0, 0] for part in draws])
    variance = float(torch.cat([part.outputs[:, 0] for part in draws]).square().mean())
    printed, right = (BIAS_STD**2 + WEIGHT_STD**2 * float(moment) for moment in (h.var(), h.square().mean()))
    exact = float(limit_kernel(case, x)[0, 0])
    return {
        "printed": variance / printed,
        "right": variance / right,
        "error": abs(variance / exact - 1),
        "second_term": float(h.var() / h.square().mean()),
    }


def _law(values: xr.DataArray) -> Estimate:
    y = values.values
    return Estimate.of(fit_power_law(values.H.values, y) if (y > 0).all() else math.nan)


def _kernel_panel(kernels: xr.Dataset) -> Panel:
    names = {"biased": "one layer with biases, (52)", **{f"depth_{d}": f"depth {d}" for d in DEPTHS}}
    curves = (
        *(curve(label, kernels.width, seed_mean(kernels[name])) for name, label in names.items()),
        guide(kernels.width, seed_mean(kernels.biased), -0.5, "H^−1/2"),
    )
    return Panel("Distance of one network's kernel from the limit", "width H", "‖Σ̂ − Σ‖/‖Σ‖", curves)


def _shape_panel(shape: xr.Dataset) -> Panel:
    curves = (
        curve("one point", shape.H, shape.kurtosis),
        curve("3ω⁴Var[h²]/(HΣ²)", shape.H, shape.predicted, "dashed"),
        curve(f"{N_POINTS} points jointly", shape.H, np.abs(shape.joint)),
    )
    return Panel("Excess kurtosis of the outputs, tanh", "width H", "excess kurtosis", curves)


def _variance_panel(variances: dict[str, dict[str, float]]) -> Panel:
    places = np.arange(1, len(variances) + 1)
    curves = (
        curve("Var[h], printed", places, [found["printed"] for found in variances.values()]),
        curve("E[h²]", places, [found["right"] for found in variances.values()]),
    )
    title = "Var f over (49): " + ", ".join(f"{k} {name}" for k, name in zip(places, variances, strict=True))
    return Panel(title, "network", "measured over formula", curves, x_log=False, y_log=False)
