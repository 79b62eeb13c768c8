"""B.thm3: with one output, q tends to 0 or to the lowest eigenvector."""

from __future__ import annotations

import math

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.b.problems import matrix_with, orthogonal_net, start_of
from kontrast.claims.evidence import Evidence, Finding, Panel, Style, Verdict, corrected, curve, judged, printed
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest, smallest, sweep
from kontrast.deep_linear import deep_linear_flow, train_deep_linear

D = 6
TIMES = tuple(np.geomspace(0.01, 100, 41))
LOWEST = 0.3  # the smallest eigenvalue where all are positive
WIDTHS: tuple[tuple[int, str, Style], ...] = ((D, "h = d", "dashed"), (2 * D, "h = 2d", "plain"))


@claim(
    "B.thm3",
    source="Paper B, Theorem 3, (9)",
    title="One output: q tends to 0 or to the lowest eigenvector",
    printed="For z = 1, if all eigenvalues are positive, q converges to 0 with probability 1; if one is negative, q "
    "converges to the eigenvector of the smallest.",
    corrected="q → 0 needs h > d: at h = d, q stays on the unit sphere and tends to ±v_1 there too. The limit is "
    "+v_1 or −v_1, whichever is nearer to q_0. There is an exact solution: w = e^{−Λτ}q_0, N = |w|², κ = ρ_0²/(1 − "
    "ρ_0)·(N/N_0)², |q|² = (−κ + √(κ² + 4κ))/2, dτ/dt = 2(2 − |q|²).",
    recorded=Verdict.CORRECTED,
)
def theorem_3(setting: Setting) -> Evidence:
    """Both cases at h = d and above, by the exact solution, by DOP853 and by training."""
    seeds = setting.seeds(quick=6, full=40)

    def measure(width: int, seed: int) -> dict[str, object]:
        start = start_of(orthogonal_net(D, width, 1, seed))
        found: dict[str, object] = {}
        for case, low in (("positive", LOWEST), ("negative", -1.0)):
            C = matrix_with(_spread(low, seed), seed)
            flow = deep_linear_flow(C, start, times=TIMES, method="exact")
            check = deep_linear_flow(C, start, times=TIMES, method="dop853", tolerance=1e-12)
            size = flow.q.norm(dim=(1, 2))
            target = torch.eye(D, dtype=C.dtype)[0] * torch.sign(flow.basis[:, 0] @ start[:, 0])
            found |= {
                f"size_{case}": size,
                f"overlap_{case}": flow.q[:, 0, 0].abs(),
                f"end_size_{case}": float(size[-1]),
                f"end_distance_{case}": float((flow.q[-1, :, 0] - target).norm()),
                f"error_{case}": float((flow.q - check.q).abs().max()),
                f"paper_formula_{case}": _paper_formula_error(flow.eigenvalues, flow.q, width > D),
            }
        return {**found, "trained_size_positive": _trained_size(matrix_with(_spread(LOWEST, seed), seed), width, seed)}

    data = sweep([D, D + 1, 2 * D], seeds, measure, t=TIMES)
    return judged(
        *_findings(data),
        data=data,
        panels=[
            Panel(
                title,
                "time t",
                label,
                tuple(
                    curve(f"{name}, start {seed + 1}", data.t, data[variable].sel(width=width).isel(seed=seed), style)
                    for width, name, style in WIDTHS
                    for seed in range(min(3, len(seeds)))
                ),
                y_log=False,
            )
            for title, variable, label in (
                ("All eigenvalues positive", "size_positive", "|q|"),
                ("At least one negative eigenvalue", "overlap_negative", "|v_1·q|"),
            )
        ],
        setting={"d": D, "z": 1, "last_time": TIMES[-1]},
    )


def _findings(data: xr.Dataset) -> list[Finding]:
    """Sizes |q| at the end at h = d and above, distances to ±v_1, errors of the exact solution."""
    square, wider = data.sel(width=D), data.sel(width=[D + 1, 2 * D])
    size = smallest(square.end_size_positive)
    trained, trained_wider = smallest(square.trained_size_positive), largest(wider.trained_size_positive)
    distance, negative = largest(square.end_distance_positive), largest(data.end_distance_negative)
    exact = largest(data.error_positive, data.error_negative)
    formula = largest(wider.paper_formula_positive, wider.paper_formula_negative)
    above, at_d = "all eigenvalues positive, h > d", "all eigenvalues positive, h = d"
    return [
        printed("end_size_positive_square", size, f"{at_d}: |q| → 0", high=1e-3),
        corrected("end_size_positive_wider", largest(wider.end_size_positive), f"{above}: |q| → 0", high=1e-3),
        corrected("end_size_positive_square", size, f"{at_d}: |q| stays at 1", low=1 - 1e-9),
        corrected("trained_size_positive_square", trained, f"{at_d}: |q| of a trained network stays 1", low=1 - 1e-9),
        corrected("trained_size_positive_wider", trained_wider, f"{above}: |q| of a trained network falls", high=0.5),
        corrected("end_distance_positive_square", distance, f"{at_d}: q → ±v_1", high=1e-3),
        corrected(
            "end_distance_negative", negative, "a negative eigenvalue: q → ±v_1, with the sign of q_0", high=1e-3
        ),
        corrected("exact_error", exact, "the exact solution agrees with DOP853", high=1e-8),
        corrected("formula_error", formula, "|q|² of the exact solution is given by κ", high=1e-10),
    ]


def _trained_size(C: Tensor, width: int, seed: int) -> float:
    """The size |q| of a network after training to time 3."""
    net = orthogonal_net(D, width, 1, seed)
    return float(train_deep_linear(net, C, flow="grassmann", learning_rate=0.02, n_steps=150).final_outputs.norm())


def _spread(low: float, seed: int) -> Tensor:
    """Eigenvalues from `low` to 1.5, evenly spaced up to a little noise, so that no gap is tiny."""
    values = torch.linspace(low, 1.5, D, dtype=torch.float64)
    return values + 0.05 * torch.rand(D, generator=generator("spread", seed), dtype=torch.float64)


def _paper_formula_error(eigenvalues: Tensor, q: Tensor, inside: bool) -> float:
    """Distance of ρ = |q|² from (−κ + √(κ² + 4κ))/2; NaN on the sphere, where κ is infinite.

    N/N_0 follows from the direction of q alone: q is parallel to e^{−Λτ}q_0, so two of its rows give τ, and τ gives N.
    """
    if not inside:
        return math.nan
    first, rows = q[0, :, 0], q[:, :, 0]
    ratio = torch.log((rows[:, 0] / rows[:, 1]) / (first[0] / first[1]))
    tau = ratio / (eigenvalues[1] - eigenvalues[0])
    early = tau < 20 / float(eigenvalues.abs().max())  # later, one row is rounding error
    log_N = torch.logsumexp(2 * torch.log(first.abs()) - 2 * eigenvalues * tau[early, None], dim=1)
    rho0, rho = float(first.square().sum()), rows[early].square().sum(1)
    kappa = rho0**2 / (1 - rho0) * torch.exp(2 * (log_N - math.log(rho0)))
    expected = 2 * kappa / (kappa + torch.sqrt(kappa.square() + 4 * kappa))  # the same, without cancellation
    return float((rho - expected).abs().max())
