"""B.prop2: a bound on Frobenius norms does not prevent dimension collapse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kontrast.claims.b.problems import matrix_with, moon_pairs, perturbed
from kontrast.claims.evidence import Evidence, Panel, Verdict, curve, judged, printed
from kontrast.claims.panels import log_steps
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest, smallest, sweep
from kontrast.deep_linear import constrained_descent, constrained_optimum
from kontrast.dynamics import contrastive_problem, gradient_descent
from kontrast.linalg import effective_rank, frobenius_ball
from kontrast.losses import contrastive_trace_loss
from kontrast.nets import MLP, parameters_of

D, Z, WIDTH, BOUNDS = 5, 3, 8, (1.5, 0.8)


@claim(
    "B.prop2",
    source="Paper B, Prop. 2",
    title="A bound on Frobenius norms does not prevent dimension collapse",
    printed="The minimum of (1) under ‖W₁‖_F ≤ c₁, ‖W₂‖_F ≤ c₂ is attained with a single nonzero output: it is "
    "c₁²c₂²λ₁ for a linear network, and W₂ has rank one for any φ.",
    recorded=Verdict.HOLDS,
)
def proposition_2(setting: Setting) -> Evidence:
    """Linear networks: projected descent, random feasible points and the closed form; then tanh networks."""
    seeds = setting.seeds(quick=6, full=40)
    n_steps, n_points = setting.pick(quick=400, full=1500), 2000
    steps = log_steps(n_steps, 14)

    def measure(width: int, seed: int) -> dict[str, object]:
        return _frobenius(width, seed, steps, n_points) | _bounded_network(seed, n_steps)

    data = sweep((WIDTH,), seeds, measure, t=steps)
    end, distance, vanishing = data.isel(t=-1), largest(data.distance), largest(data.vanishing)
    return judged(
        printed("gap_at_the_end", largest(end.gap), "descent reaches c₁²c₂²λ₁ (relative gap)", low=-1e-9, high=1e-3),
        printed("rank_at_the_end", largest(end.ranks), "it ends with an effective rank of 1", high=1.01),
        printed("error_of_the_closed_form", largest(data.closed), "a single output attains the optimum", high=1e-12),
        printed("distance_between_solutions", distance, "all solutions have one u^T u (relative distance)", high=0.05),
        printed("lowest_random_point", smallest(data.lowest), "no feasible point is lower (relative)", low=-1e-12),
        printed("norm_without_negative_eigenvalues", vanishing, "the outputs vanish if no λ is negative", high=0.01),
        printed("rank_of_tanh_network", largest(data.rank_tanh), "a tanh network ends with rank 1", high=1.01),
        data=data,
        panels=[
            Panel(
                "Projected descent with bounded Frobenius norms",
                "step",
                label,
                tuple(
                    curve(f"start {k + 1}", data.t[1:], np.maximum(run[1:], 1e-16), "plain")
                    for k, run in enumerate(data[what].isel(width=0)[:6])
                ),
                y_log=what == "gap",
            )
            for what, label in (("gap", "loss above the optimum, relative"), ("ranks", "effective rank"))
        ],
        setting={"d": D, "d_out": Z, "width": WIDTH, "bounds": list(BOUNDS), "n_steps": n_steps, "n_points": n_points},
    )


def _frobenius(width: int, seed: int, steps: Sequence[int], n_points: int) -> dict[str, object]:
    """One matrix C and one start: descent against the optimum, random points, and a C without negative eigenvalues."""
    draw = generator("frobenius", seed)
    values = torch.cat([torch.linspace(-1, -0.5, 3), torch.linspace(0.1, 1, D - 3)]).double()
    C = matrix_with(values, seed)
    options: Any = {"width": width, "constraint": "frobenius", "bounds": BOUNDS}
    best = constrained_optimum(C, Z, **options)
    options |= {"learning_rate": 0.2, "generator": draw}
    run = constrained_descent(C, Z, n_steps=steps[-1], record_at=steps, **options)
    assert run.outputs is not None
    u = best.W1.mT @ best.W2  # (d, z)
    v = torch.linalg.eigh(C).eigenvectors[:, :1]
    expected = (BOUNDS[0] * BOUNDS[1]) ** 2 * v @ v.mT
    W1, W2 = run.final_parameters["W1"], run.final_parameters["W2"]
    found = W1.mT @ W2 @ W2.mT @ W1
    vanishing = constrained_descent(matrix_with(values.abs().clamp(min=0.5), seed), Z, n_steps=600, **options)
    target = (BOUNDS[0] * BOUNDS[1]) ** 2 * float(values[0])
    return {
        "gap": (run.losses[list(steps)] - target) / abs(target),
        "ranks": np.array([effective_rank(q, centered=False) for q in run.outputs]),
        "closed": largest(
            abs(best.value - target),
            abs(float(torch.trace(u.mT @ C @ u)) - target),
            float(u[:, 1:].abs().max()),
            float(best.W1.norm()) - BOUNDS[0],
            float(best.W2.norm()) - BOUNDS[1],
        ),
        "distance": float((found - expected).norm() / expected.norm()),
        "lowest": _lowest_point(C, (best.W1, best.W2), n_points, draw, target),
        "vanishing": float(vanishing.final_outputs.norm()),
    }


def _lowest_point(C: Tensor, best: tuple[Tensor, Tensor], n: int, draw: torch.Generator, target: float) -> float:
    """The least (loss − optimum)/|optimum| among random weights of the largest norms, most of them near the optimum."""
    lowest = math.inf
    for spread in (None, 0.1, 0.01):
        W1, W2 = (perturbed(W, n // 3, spread, draw) for W in best)
        W1, W2 = (c * W / torch.linalg.matrix_norm(W)[:, None, None] for c, W in zip(BOUNDS, (W1, W2), strict=True))
        u = W1.mT @ W2
        losses = torch.einsum("nij,ik,nkj->n", u, C, u)
        lowest = smallest(lowest, (losses.min() - target) / abs(target))
    return lowest


def _bounded_network(seed: int, n_steps: int) -> dict[str, object]:
    """The effective rank of a tanh network after descent on (1) with bounded Frobenius norms, on half moons."""
    pairs, draw = moon_pairs(100, seed), generator("bounded", seed)
    net = MLP(3, WIDTH, 2, activation="tanh", parametrization="standard", generator=draw, dtype=torch.float64)

    def step(parameter: Tensor, gradient: Tensor, /, *, learning_rate: float) -> Tensor:
        return frobenius_ball(parameter - learning_rate * gradient, 2.0)

    start = parameters_of(net)
    run = gradient_descent(
        net.at,
        start,
        contrastive_problem(pairs, contrastive_trace_loss),
        learning_rate=0.2 / pairs.n_anchors,
        n_steps=n_steps,
        steps=dict.fromkeys(start, step),
    )
    return {"rank_tanh": effective_rank(run.final_outputs, centered=False)}
