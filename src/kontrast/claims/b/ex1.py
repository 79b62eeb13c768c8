"""B.ex1: embeddings of half moons collapse without constraints, and do not with them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.b.problems import NOISE_STD, moon_pairs
from kontrast.claims.evidence import Curve, Evidence, Finding, Panel, Verdict, curve, judged, printed, shown
from kontrast.claims.panels import log_steps
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest, seed_mean, smallest, sweep
from kontrast.deep_linear import data_matrix, scaled_loss
from kontrast.dynamics import Problem, Status, Step, Trajectory, contrastive_problem, gradient_descent
from kontrast.linalg import effective_rank, polar_step
from kontrast.losses import contrastive_trace_loss
from kontrast.nets import MLP, Parameters, PureFunction, parameters_of
from kontrast.runs import padded

N, WIDTH, Z, RATE = 200, 50, 2, 1e-3
COLLAPSED_AT, N_STEPS = 30, 500  # the epochs of Fig. 1b
MODELS = {"unconstrained": "without constraints", "scaled": "scaled loss", "orthogonal": "orthonormal weights"}


@claim(
    "B.ex1",
    source="Paper B, Example 1 and Fig. 1",
    title="Half moons: dimension collapse without constraints, none with them",
    printed="For u(x) = W₂^T tanh(W₁x) on half moons, the unconstrained loss (1) does not converge and the embedding "
    "collapses to one dimension within 30 epochs; with the scaled loss it still has two dimensions after 500.",
    recorded=Verdict.HOLDS,
    cost=3,
)
def example_1(setting: Setting) -> Evidence:
    """The same network trained three times: without constraints, on the scaled loss, with orthonormal weights."""
    steps = sorted({*log_steps(N_STEPS, setting.pick(quick=12, full=24)), COLLAPSED_AT})
    seeds = setting.seeds(quick=3, full=10, paper=30)
    ends: dict[int, Parameters] = {}  # of training on the scaled loss, by seed

    def measure(width: int, seed: int) -> dict[str, object]:
        pairs = moon_pairs(N, seed)
        problem = contrastive_problem(pairs, contrastive_trace_loss)
        optimum = float(torch.linalg.eigvalsh(data_matrix(pairs))[:Z].sum())
        found: dict[str, object] = {}
        for model in MODELS:
            run = _train(model, _net(width, seed, model), problem, steps)
            if model == "scaled":
                ends[seed] = run.final_parameters
            found |= {
                f"rank_{model}": padded(run.records["rank"], len(steps)),
                f"loss_{model}": padded(run.losses[[step for step in steps if step < len(run.losses)]], len(steps)),
                f"overflows_{model}": run.status is Status.DIVERGED,
                f"settled_{model}": float(run.losses[-100:].mean()) / optimum,
                f"spread_{model}": float(run.losses[-100:].std() / run.losses[-100:].mean().abs()),
            }
        return found

    data = sweep((WIDTH,), seeds, measure, t=steps)
    return judged(
        *_findings(data),
        data=data,
        panels=[*_curves_of_training(data), *_embeddings(seeds[0], ends[seeds[0]])],
        setting={"n_samples": N, "d_out": Z, "learning_rate": RATE, "noise_std": NOISE_STD, "n_steps": N_STEPS},
    )


def _findings(data: xr.Dataset) -> list[Finding]:
    """Effective ranks of two outputs; losses at the end, relative to the least loss of a linear network (Prop. 3)."""
    overflows, end = float(data.overflows_unconstrained.mean()), data.isel(t=-1)
    rank, spread = largest(data.rank_unconstrained.sel(t=COLLAPSED_AT)), largest(data.spread_scaled)
    rank_scaled, rank_orthogonal = smallest(end.rank_scaled), smallest(end.rank_orthogonal)
    at_the_start = float(data.rank_scaled.sel(t=0).values.mean())
    settled, settled_orthogonal = (float(data[f"settled_{m}"].values.mean()) for m in ("scaled", "orthogonal"))
    return [
        printed("share_overflows_unconstrained", overflows, "unconstrained, the loss falls until it overflows", low=1),
        printed("largest_rank_unconstrained", rank, "unconstrained, the rank is 1 after 30 epochs", high=1.01),
        printed("smallest_rank_scaled", rank_scaled, "with the scaled loss it is nearly 2 after 500 epochs", low=1.6),
        printed(
            "smallest_rank_orthogonal", rank_orthogonal, "with orthonormal weights it is nearly 2 as well", low=1.6
        ),
        printed("largest_loss_spread_scaled", spread, "the scaled loss settles (std/mean, last 100 epochs)", high=0.1),
        printed("loss_over_linear_optimum_scaled", settled, "it settles near the linear optimum", low=0.7, high=1),
        *shown(loss_over_linear_optimum_orthogonal=settled_orthogonal, mean_rank_at_the_start=at_the_start),
    ]


def _net(width: int, seed: int, model: str) -> MLP:
    """A network with entries N(0, 1/fan-in), or with the orthonormal factor of the same draw."""
    kind = "orthogonal" if model == "orthogonal" else "standard"
    draw = generator("example 1", seed, width)
    return MLP(3, width, Z, activation="tanh", parametrization=kind, generator=draw, dtype=torch.float64)


def _train(model: str, net: MLP, problem: Problem, record_at: Sequence[int]) -> Trajectory:
    """Full-batch descent on the sum of the losses; records the rank of all outputs, uncentred."""
    parameters = parameters_of(net)
    constraint: dict[str, Step] = dict.fromkeys(parameters, polar_step) if model == "orthogonal" else {}
    return gradient_descent(
        scaled_network(net) if model == "scaled" else net.at,
        parameters,
        problem,
        learning_rate=RATE,
        n_steps=record_at[-1],
        record_at=record_at,
        recorders={"rank": lambda now: effective_rank(now.outputs, centered=False)},
        orthonormal=constraint.keys(),
        steps=constraint,
    )


def scaled_network(net: MLP) -> PureFunction:
    """The network u(x)/(‖W₁‖‖W₂‖); as (1) is quadratic in u, its loss is the scaled loss of `net` in Prop. 3 (1)."""

    def function(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        factor = scaled_loss(torch.ones((), dtype=x.dtype, device=x.device), *parameters.values())
        return factor.sqrt() * net.at(parameters, x)

    return function


def _curves_of_training(data: xr.Dataset) -> list[Panel]:
    """Loss and effective rank against the epoch, as means over the starts, as long as every run is finite.

    The loss is cut at −10⁸; without constraints it falls by 300 further decades.
    """

    def lines(what: str) -> tuple[Curve, ...]:
        found = []
        for model, label in MODELS.items():
            means = seed_mean(data[f"{what}_{model}"].isel(width=0))
            kept = (np.abs(means) < 1e8) & (data.t.values > 0)  # so neither NaN nor infinite
            found.append(curve(label, data.t.values[kept], -means[kept] if what == "loss" else means[kept], "plain"))
        return tuple(found)

    return [
        Panel("The loss (1) (Fig. 1a)", "epoch", "−loss, mean over starts, up to 10⁸", lines("loss")),
        Panel("Effective rank of the embedding", "epoch", "effective rank", lines("rank"), y_log=False),
    ]


def _embeddings(seed: int, scaled_end: Parameters) -> list[Panel]:
    """Fig. 1b for one start: the two moons in R² at the start, collapsed, and with the scaled loss."""
    problem = contrastive_problem(moon_pairs(N, seed), contrastive_trace_loss)
    net = _net(WIDTH, seed, "scaled")
    ends = {
        "at the start": parameters_of(net),
        "without constraints, epoch 30": _train("unconstrained", net, problem, [COLLAPSED_AT]).final_parameters,
        "scaled loss, epoch 500": scaled_end,
    }
    return [_embedding_panel(title, net, parameters) for title, parameters in ends.items()]


def _embedding_panel(title: str, net: MLP, parameters: Parameters) -> Panel:
    angle = torch.linspace(0, math.pi, 60, dtype=torch.float64, device=net.output.device)
    circle = torch.stack([angle.cos(), angle.sin(), torch.zeros_like(angle)], dim=1)
    moons = torch.stack([circle, torch.tensor([1.0, 0.5, 0.0]).to(circle) - circle])  # (2, 60, 3), without noise
    with torch.no_grad():
        u = torch.stack([net.at(parameters, moon) for moon in moons])
    u = (u / u.abs().max()).cpu()  # without constraints it grows without bound
    lines = tuple(
        curve(name, moon[:, 0], moon[:, 1], "plain") for name, moon in zip(("upper moon", "lower moon"), u, strict=True)
    )
    return Panel(f"Embedding {title} (Fig. 1b)", "u₁ / max |u|", "u₂ / max |u|", lines, x_log=False, y_log=False)
