"""B.lem1: do the outputs of a model interact through its tangent kernel?"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import xarray as xr
from torch import Tensor, nn

from kontrast.claims.b.problems import moons
from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, corrected, judged, printed
from kontrast.claims.panels import width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest, sweep, width_law
from kontrast.kernels import empirical_ntk, empirical_ntk_components, infinite_ntk
from kontrast.nets import MLP


class KernelMachine(nn.Module):
    """u(x) = Θψ(x) with features that are not trained; ψ(x) = x gives the linear model."""

    def __init__(self, theta: Tensor, features: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.theta, self.features = nn.Parameter(theta), features

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) → (n, z)."""
        return self.features(x) @ self.theta.mT


ACTIVATIONS = ("relu", "tanh", "linear")
N_POINTS, N_OUTPUTS = 8, 4


@claim(
    "B.lem1",
    source="Paper B, Lemma 1 and its proof A.1",
    title="No interaction across outputs: exact for linear and kernel models, in the limit for networks",
    printed="The tangent kernel between two outputs is 0, and that of one output with itself is k(x, x'). For wide "
    "networks the proof lets all gradients vanish except those of the last layer: the W₁ part is 0 for l = j as well, "
    "and the kernel of one output is ⟨φ(W₁x), φ(W₁x')⟩ (x^T x' for the identity).",
    corrected="Exact for Θψ(x). In networks the kernel between outputs falls as h^{−1/2}, but the W₁ part of the "
    "kernel of one output does not fall: it tends to a fixed share (1/2 for ReLU and the identity), and the whole "
    "kernel to the infinite NTK (2x^T x' for the identity). W₁ moves little, yet its movement matters.",
    recorded=Verdict.CORRECTED,
)
def lemma_1(setting: Setting) -> Evidence:
    """Empirical tangent kernels, split by layer, over widths and seeds, compared with the infinite NTK."""
    widths = setting.pick(quick=(64, 256, 1024), full=(32, 128, 512, 2048), paper=(32, 128, 512, 2048, 8192))
    seeds = setting.seeds(quick=30, full=100, paper=200)
    x = moons(N_POINTS, 0)

    def measure(width: int, seed: int) -> dict[str, float]:
        parts = {phi: _kernel_parts(x, phi, width, seed) for phi in ACTIVATIONS}
        return {f"{what}_{phi}": value for phi in ACTIVATIONS for what, value in parts[phi].items()}

    data = sweep(widths, seeds, measure)
    exact = largest(*(_exact_model_error(x, seed) for seed in seeds[:5]))
    return judged(
        corrected("exact_model_error", exact, "exact for linear and kernel models (relative error)", high=1e-12),
        *(finding for phi in ACTIVATIONS for finding in _network_findings(data, phi)),
        data=data,
        panels=[_kernel_panel(data, phi) for phi in ("relu", "tanh")],
        setting={"data": "half moons in R³", "n_samples": N_POINTS, "d_out": N_OUTPUTS},
    )


def _network_findings(data: xr.Dataset, phi: str) -> list[Finding]:
    """Parts of the tangent kernel of networks with one activation: exponents in the width, and sizes at the widest."""
    first_layer = width_law(data[f"share_{phi}"])
    share, distance = (float(data[f"{what}_{phi}"].isel(width=-1).mean(skipna=False)) for what in ("share", "last"))
    cross, total = (width_law(data[f"{what}_{phi}"]) for what in ("cross", "total"))
    low, high = (0.5, 0.6) if phi == "tanh" else (0.47, 0.53)
    stays, tends = f"{phi}: the W₁ part does not fall", f"{phi}: the kernel tends to the infinite NTK"
    return [
        printed(f"exponent_of_first_layer_{phi}", first_layer, f"{phi}: the W₁ part vanishes", high=-0.4),
        printed(f"distance_to_last_layer_{phi}", distance, f"{phi}: the kernel is ⟨φ(W₁x), φ(W₁x')⟩", high=0.1),
        corrected(f"exponent_between_outputs_{phi}", cross, f"{phi}: outputs decouple as h^−1/2", low=-0.6, high=-0.4),
        corrected(f"exponent_to_the_infinite_ntk_{phi}", total, tends, low=-0.65, high=-0.35),
        corrected(f"exponent_of_first_layer_{phi}", first_layer, stays, low=-0.05, high=0.05),
        corrected(f"share_of_first_layer_{phi}", share, f"{phi}: the share of the W₁ part", low=low, high=high),
    ]


def _kernel_parts(x: Tensor, activation: str, width: int, seed: int) -> dict[str, float]:
    """Kernel between outputs, share of W₁ in the kernel of one output, distances to limits; all relative."""
    draw = generator("kernel", seed, width)
    net = MLP(3, width, N_OUTPUTS, activation=activation, generator=draw, dtype=torch.float64)
    parts = empirical_ntk_components(net, x)
    whole = parts["hidden.0"] + parts["output"]  # (n, n, z, z)
    limit = infinite_ntk(x, activation=activation)
    own, first, last = (
        torch.stack([kernel[:, :, k, k] for k in range(N_OUTPUTS)])
        for kernel in (whole, parts["hidden.0"], parts["output"])
    )
    across = whole[:, :, ~torch.eye(N_OUTPUTS, dtype=torch.bool)]  # (n, n, z(z − 1))
    size = float(limit.norm())
    return {
        "cross": float(across.norm()) / math.sqrt(across.shape[2]) / size,
        "total": float((own - limit).norm()) / math.sqrt(N_OUTPUTS) / size,
        "share": float(torch.einsum("kii->", first) / torch.einsum("kii->", own)),
        "last": float((own - last).norm() / own.norm()),
    }


def _exact_model_error(x: Tensor, seed: int) -> float:
    """Relative distance of the tangent kernels of Θx and Θψ(x) from I ⊗ k(x, x')."""
    net = MLP(3, 50, 1, activation="tanh", generator=generator("features", seed), dtype=torch.float64)
    W1 = net.layers()[0][0]
    errors = []
    for features in (lambda points: points, lambda points: torch.tanh(points @ W1.mT)):
        psi = features(x)
        theta = torch.randn(N_OUTPUTS, psi.shape[1], generator=generator("theta", seed), dtype=torch.float64)
        K = empirical_ntk(KernelMachine(theta, features), x)
        expected = (psi @ psi.mT)[:, :, None, None] * torch.eye(N_OUTPUTS, dtype=x.dtype)
        errors.append(float((K - expected).norm() / expected.norm()))
    return largest(*errors)


def _kernel_panel(data: xr.Dataset, phi: str) -> Panel:
    series = {
        "between two outputs": data[f"cross_{phi}"],
        "one output: distance to the infinite NTK": data[f"total_{phi}"],
        "one output: share of W₁": data[f"share_{phi}"],
    }
    return width_panel(f"Parts of the tangent kernel ({phi})", series, "relative size", guides=[-0.5], letter="h")
