"""B.prop3: four constraints with one optimum, and the width that the fourth needs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.b.problems import matrix_with, perturbed
from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, corrected, curve, judged, printed, shown
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest, seed_mean, smallest, sweep
from kontrast.deep_linear import Constraint, constrained_descent, constrained_optimum, scaled_loss

D, Z = 6, 3
PROBLEMS: tuple[Constraint, ...] = ("scaled", "operator", "product", "orthonormal")  # 1 to 4
FEW, MANY = 1, 4  # numbers of negative eigenvalues: fewer than the outputs, and more
ENOUGH = D + Z - FEW  # the smallest sufficient width with few negative eigenvalues
RATE = 0.1
SPREADS = (None, 0.3, 0.03)  # of random points: anywhere, around the optimum, close to it


@claim(
    "B.prop3",
    source="Paper B, Prop. 3",
    title="Scaled loss, operator norms and orthonormal weights have one optimum",
    printed="If C has a negative eigenvalue, there are W₁, W₂ that are optimal at once for (1) the loss divided by "
    "‖W₁‖₂²‖W₂‖₂², (2) the loss under ‖W₁‖₂, ‖W₂‖₂ ≤ 1, (3) under ‖W₂^T W₁‖₂ ≤ 1, and (4) under W₁^T W₁ = I, "
    "W₂^T W₂ = I.",
    corrected="The common optimum is the sum of the k = min(z, number of negative eigenvalues) smallest eigenvalues, "
    "and (4) reaches it only at a width h ≥ d + z − k. At smaller widths, down to h = d, (4) has to keep z + d − h "
    "directions, and its optimum is the sum of that many smallest eigenvalues, some of them positive.",
    recorded=Verdict.CORRECTED,
    cost=3,
)
def proposition_3(setting: Setting) -> Evidence:
    """All four problems by descent and at random feasible points; then (4) by width."""
    seeds = setting.seeds(quick=2, full=8)
    n_steps = setting.pick(quick=1000, full=3000)
    n_points = setting.pick(quick=2000, full=20_000)
    widths = range(D, D + Z + 1)
    four = sweep((ENOUGH,), seeds, lambda width, seed: _four_problems(width, seed, n_steps, n_points))
    by_width = sweep(widths, seeds, _orthonormal)
    return judged(
        *_findings(four, by_width),
        data=by_width,
        panels=_panels(four, by_width),
        setting={"d": D, "d_out": Z, "negative_eigenvalues": [FEW, MANY], "n_steps": n_steps, "n_points": n_points},
    )


def _panels(four: xr.Dataset, by_width: xr.Dataset) -> list[Panel]:
    """The optimum of (4) by width, and how near descent comes to the optimum in each problem."""
    excess = (
        curve("descent", by_width.width, seed_mean(by_width.reached)),
        curve("closed form", by_width.width, seed_mean(by_width.predicted), "dashed"),
    )
    gaps = np.maximum([four[f"gap_{name}"].values[0] for name in PROBLEMS], 1e-16)  # (problem, seed)
    lines = tuple(curve(f"seed {seed}", range(1, 5), gap) for seed, gap in enumerate(gaps.T))
    title = f"Problem 4, negative eigenvalues: {FEW}, outputs: {Z}"
    return [
        Panel(title, "width h", "optimum above that of problems 1 to 3, relative", excess, x_log=False, y_log=False),
        Panel(f"Descent at h = {ENOUGH}", "problem", "loss above the optimum, relative", lines, x_log=False),
    ]


def _findings(four: xr.Dataset, by_width: xr.Dataset) -> list[Finding]:
    """The four problems at a sufficient width, and (4) by width; gaps and excesses are relative."""
    reached, numbered = by_width.reached, list(enumerate(PROBLEMS, start=1))
    at_d, most_at_d = smallest(reached.sel(width=D)), largest(reached.sel(width=D))
    below = smallest(reached.where(by_width.width < ENOUGH, drop=True))
    enough = largest(np.abs(reached.where(by_width.width >= ENOUGH, drop=True)))
    gaps, lowest = ({p: four[f"{what}_{p}"] for p in PROBLEMS} for what in ("gap", "lowest"))
    common, error = largest(four.common), largest(by_width.error)
    there, under = "({}): descent reaches the optimum", "({}): no feasible point is below the optimum"
    return [
        printed("excess_at_h_equal_d", at_d, "(4) reaches the optimum of (1) to (3) at h = d", high=1e-3),
        *(corrected(f"gap_{p}", largest(gaps[p]), there.format(k), low=-1e-9, high=1e-3) for k, p in numbered),
        *(corrected(f"lowest_point_{p}", smallest(lowest[p]), under.format(k), low=-1e-12) for k, p in numbered),
        corrected("spread_of_common_weights", common, "optimal weights of (4) are optimal in all four", high=1e-12),
        corrected("excess_at_h_equal_d", at_d, "(4) has a larger optimum at h = d", low=0.02),
        *shown(largest_excess_at_h_equal_d=most_at_d),
        corrected("smallest_excess_below_the_width", below, "(4) has a larger optimum at all h < d + z − k", low=0.01),
        corrected("excess_from_the_width_on", enough, "(4) reaches the optimum at all h ≥ d + z − k", high=1e-3),
        corrected("error_of_predicted_excess", error, "the closed form predicts the optimum of (4)", high=1e-3),
    ]


def _matrix(n_negative: int, seed: int) -> Tensor:
    """A matrix with well separated eigenvalues from about −1 to −0.4, and others from 0.03 to 0.15."""
    draw = generator("signs", seed, n_negative)
    negative = -torch.linspace(1, 0.4, n_negative) - 0.05 * torch.rand(n_negative, generator=draw)
    positive = 0.03 + 0.12 * torch.rand(D - n_negative, generator=draw)
    return matrix_with(torch.cat([negative, positive]).double(), seed)


def _optimum(C: Tensor) -> float:
    """The sum of the min(z, number of negative eigenvalues) smallest eigenvalues, from its definition."""
    return float(torch.linalg.eigvalsh(C)[:Z].clamp(max=0).sum())


def _four_problems(width: int, seed: int, n_steps: int, n_points: int) -> dict[str, object]:
    """Gaps after descent, lowest random points, common weights; the worse of few and many negative eigenvalues."""
    found: dict[str, float] = {}
    for n_negative in (FEW, MANY):
        C = _matrix(n_negative, seed)
        target = _optimum(C)
        now = {"common": _common_weights(C, width, target)}
        for place, problem in enumerate(PROBLEMS):
            options: Any = {"n_steps": n_steps if problem == "scaled" else n_steps // 4, "learning_rate": RATE}
            draw = generator("descent", seed, n_negative, place)
            run = constrained_descent(C, Z, width=width, constraint=problem, generator=draw, **options)
            now[f"gap_{problem}"] = (float(run.losses[-1]) - target) / abs(target)
            draw = generator("feasible", seed, n_negative, place)
            now[f"lowest_{problem}"] = -_lowest(C, problem, width, n_points, draw, target)
        found = {name: largest(found.get(name, -math.inf), value) for name, value in now.items()}
    return {name: -value if name.startswith("lowest") else value for name, value in found.items()}


def _loss(C: Tensor, u: Tensor) -> Tensor:
    """Tr(u^T C u) of maps u = W₁^T W₂ (…, d, z)."""
    return torch.einsum("...ij,ik,...kj->...", u, C, u)


def _common_weights(C: Tensor, width: int, target: float) -> float:
    """How far the optimal weights of (4) are from feasible in (4) and from optimal in each of the four problems."""
    best = constrained_optimum(C, Z, width=width, constraint="orthonormal")
    u = best.W1.mT @ best.W2
    loss = _loss(C, u)
    feasible = [W.mT @ W - torch.eye(W.shape[1], dtype=W.dtype) for W in (best.W1, best.W2)]
    values = [constrained_optimum(C, Z, width=width, constraint=p).value for p in PROBLEMS]
    return largest(
        *(float(rest.abs().max()) for rest in feasible),
        float(torch.linalg.matrix_norm(u, ord=2)) - 1,
        *(abs(value - target) for value in (*values, float(loss), float(scaled_loss(loss, best.W1, best.W2)))),
    )


def _lowest(C: Tensor, problem: Constraint, width: int, n: int, draw: torch.Generator, target: float) -> float:
    """The least (objective − optimum)/|optimum| among random points that keep the constraint, in blocks."""
    best = constrained_optimum(C, Z, width=width, constraint="orthonormal")
    lowest = math.inf
    for block in range(max(1, n // 500)):
        W1, W2 = (perturbed(W, 500, SPREADS[block % 3], draw) for W in (best.W1, best.W2))
        lowest = smallest(lowest, (_objective(C, problem, W1, W2).min() - target) / abs(target))
    return lowest


def _objective(C: Tensor, problem: Constraint, W1: Tensor, W2: Tensor) -> Tensor:
    """The problem's own objective at the nearest feasible points."""

    def norm(W: Tensor) -> Tensor:
        return torch.as_tensor(torch.linalg.matrix_norm(W, ord=2))[:, None, None]

    if problem == "orthonormal":
        W1, W2 = (torch.linalg.qr(W).Q for W in (W1, W2))
    elif problem == "operator":
        W1, W2 = (W / norm(W).clamp(min=1) for W in (W1, W2))
    u = W1.mT @ W2
    if problem == "scaled":
        u = u / (norm(W1) * norm(W2))
    elif problem == "product":
        u = u / norm(u)
    return _loss(C, u)


def _orthonormal(width: int, seed: int) -> dict[str, object]:
    """How far (4) stays above the optimum of the others with few negative eigenvalues: by descent, and predicted."""
    C = _matrix(FEW, seed)
    target = _optimum(C)
    problem: Any = {"width": width, "constraint": "orthonormal"}
    draw = generator("width", seed, width)
    run = constrained_descent(C, Z, **problem, learning_rate=2 * RATE, n_steps=600, generator=draw)
    reached = (float(run.losses[-1]) - target) / abs(target)
    predicted = (constrained_optimum(C, Z, **problem).value - target) / abs(target)
    return {"reached": reached, "predicted": predicted, "error": abs(reached - predicted)}
