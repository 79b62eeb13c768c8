"""B.prop1: every output obeys the same equation, and the embedding collapses to one dimension."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from torch.autograd.functional import hessian

from kontrast.claims.b.problems import moon_pairs, output_velocity, runge_kutta
from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, corrected, curve, judged, printed, shown
from kontrast.claims.panels import guide, log_steps
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest, seed_mean, smallest, sweep
from kontrast.data import Pairs
from kontrast.deep_linear import Collapse, data_matrix, kernel_collapse, linear_collapse, pair_weights
from kontrast.dynamics import Problem, gradient_descent
from kontrast.kernels import infinite_ntk
from kontrast.linalg import effective_rank, fit_power_law, random_frame
from kontrast.losses import alignment_loss, contrastive_trace_loss, info_nce, spectral_contrastive
from kontrast.nets import MLP, Parameters, PureFunction, parameters_of
from kontrast.runs import padded

N, D, Z = 100, 3, 2  # half moons in R³
SPAN = 30.0  # how long models are followed, in decay times of s₂/s₁, which ends at 1e-13
MOMENTS = np.linspace(0, SPAN, 61)
LATE = 1e-8  # below this, s₂/s₁ decays as a single exponential
MODELS = {"linear": "linear model", "kernel": "kernel model (NTK of ReLU)", "projected": "projected, AΘx"}
LOSSES = {
    "contrastive": "contrastive (1)",
    "non_contrastive": "non-contrastive (12)",
    "info_nce": "InfoNCE",
    "spectral": "spectral contrastive",
}
UNEVEN = 0.7  # the second singular value of a projector A; the first is 1
SCALES = (1e-3, 1e-2, 1e-1, 1.0)  # of Θ, for the coupling of outputs


@claim(
    "B.prop1",
    source="Paper B, Prop. 1 with Remarks 2 and 3",
    title="Every output obeys the same equation, and the embedding collapses to one dimension",
    printed="Under (1) all outputs of linear and kernel models, and of wide networks, have identical dynamics and "
    "collapse to one dimension at convergence. Fixed projections u = AΘx do not help: their components have identical "
    "dynamics. InfoNCE decouples and collapses as well; the spectral contrastive loss stays coupled.",
    corrected="The outputs obey the same equation but are not identical, and nothing converges: Θ(t) = Θ₀e^{−2Ct} and "
    "U(t) = e^{−2KSt}U₀ diverge while s₂/s₁ decays at the rate 2(λ₂ − λ₁). Projected outputs are coupled through AA^T "
    "unless it is a multiple of I, and still collapse. InfoNCE decouples outputs only as Θ → 0, where the coupling "
    "falls as ‖Θ‖². A linear model trained to the end keeps its dimensions under InfoNCE and under the spectral loss.",
    recorded=Verdict.CORRECTED,
    cost=3,
)
def proposition_1(setting: Setting) -> Evidence:
    """Three models by DOP853 against their closed forms; networks; four losses, which couple outputs or do not."""
    seeds = setting.seeds(quick=3, full=10)
    width = setting.pick(quick=128, full=512, paper=2048)
    steps = log_steps(setting.pick(quick=200, full=1000), 14)
    data = xr.merge(
        [
            sweep((width,), seeds, lambda _, seed: _follow_all(seed), time=MOMENTS),
            sweep((width,), seeds, _network_ranks),
            sweep((width,), seeds, lambda _, seed: _loss_ranks(seed, steps), step=steps),
            sweep((width,), seeds, lambda _, seed: _couplings(seed), scale=SCALES),
        ]
    )
    return judged(
        *_collapse_of_models(data),
        *_coupling_of_outputs(data),
        *_end_of_descent(data),
        data=data,
        panels=_panels(data),
        setting={"data": "half moons in R³", "n_samples": N, "d_out": Z, "n_steps": steps[-1]},
        warnings=["(1) diverges, so networks leave the kernel regime in the end; ReLU networks overflow"],
    )


def _collapse_of_models(data: xr.Dataset) -> list[Finding]:
    """Linear, kernel and projected models against their closed forms; the ranks of networks."""
    ranks = {m: largest(data[f"rank_{m}"].isel(time=-1)) for m in MODELS}
    rate = {m: float(np.median(data[f"rate_error_{m}"])) for m in MODELS}  # where λ₃ ≈ λ₂, the rate is reached late
    worst_rate = {m: largest(data[f"rate_error_{m}"]) for m in MODELS}
    growth = largest(*(data[f"growth_error_{m}"] for m in MODELS))
    tanh, relu = (largest(data[f"network_{phi}"]) for phi in ("tanh", "relu"))
    said = "{}: s₂/s₁ decays at the predicted rate (relative error, {})"
    return [
        *(
            corrected(f"error_{m}", largest(data[f"error_{m}"]), f"{m}: DOP853 agrees with the closed form", high=1e-6)
            for m in MODELS
        ),
        *(corrected(f"rank_{m}", ranks[m], f"{m}: the effective rank tends to 1", high=1.001) for m in MODELS),
        corrected("largest_rate_error_linear", worst_rate["linear"], said.format("linear", "always"), high=0.01),
        corrected("rate_error_kernel", rate["kernel"], said.format("kernel", "median"), high=0.01),
        corrected("rate_error_projected", rate["projected"], said.format("projected", "median"), high=0.01),
        *shown(
            rate_error_linear=rate["linear"],
            largest_rate_error_kernel=worst_rate["kernel"],
            largest_rate_error_projected=worst_rate["projected"],
        ),
        corrected("growth_error", growth, "the norm diverges as e^{−2λ₁t} (relative error of the rate)", high=0.01),
        corrected("rank_network_tanh", tanh, "wide tanh networks collapse too (effective rank)", high=1.05),
        corrected("rank_network_relu", relu, "wide ReLU networks collapse before they overflow", high=1.05),
    ]


def _coupling_of_outputs(data: xr.Dataset) -> list[Finding]:
    """How strongly the equation of one output depends on the other, by loss and with a projector."""
    at_one, projected = data.sel(scale=1.0), smallest(data.projected)
    free, free_12 = (largest(at_one[f"coupling_{m}"]) for m in ("contrastive", "non_contrastive"))
    info_nce, spectral = (smallest(at_one[f"coupling_{m}"]) for m in ("info_nce", "spectral"))
    difference, orthogonal = (largest(data[name]) for name in ("difference", "projected_orthogonal"))
    small = seed_mean(data.coupling_info_nce.isel(width=0))[:3]
    law = fit_power_law(np.array(SCALES[:3]), small) if (small > 0).all() else math.nan
    return [
        printed("coupling_projected", projected, "projected outputs do not interact (Remark 3)", high=1e-6),
        printed("coupling_info_nce", info_nce, "outputs do not interact under InfoNCE (Remark 2)", high=1e-6),
        corrected("coupling_contrastive", free, "outputs do not interact under (1)", high=1e-12),
        corrected("coupling_non_contrastive", free_12, "outputs do not interact under (12)", high=1e-12),
        corrected("difference_between_outputs", difference, "all outputs obey the same equation", high=1e-12),
        corrected("coupling_projected", projected, "projected outputs interact", low=0.02),
        corrected("coupling_projected_orthogonal", orthogonal, "they do not if AA^T = I", high=1e-12),
        corrected("coupling_info_nce", info_nce, "InfoNCE couples outputs", low=1e-3),
        corrected("exponent_of_info_nce_coupling", law, "this coupling grows as ‖Θ‖² near Θ = 0", low=1.8, high=2.2),
        corrected("coupling_spectral", spectral, "the spectral loss couples outputs", low=1e-3),
    ]


def _end_of_descent(data: xr.Dataset) -> list[Finding]:
    """Effective rank of a linear model with two outputs after gradient descent, by loss."""
    ranks = {m: data[f"rank_under_{m}"].isel(step=-1).values for m in LOSSES}
    info_nce = float(ranks["info_nce"].min())
    free, free_12, spectral = ranks["contrastive"].max(), ranks["non_contrastive"].max(), ranks["spectral"].min()
    return [
        printed("rank_under_info_nce", info_nce, "a linear model collapses under InfoNCE", high=1.01),
        corrected("rank_under_contrastive", float(free), "it collapses under (1)", high=1.01),
        corrected("rank_under_non_contrastive", float(free_12), "it collapses under (12)", high=1.01),
        corrected("rank_under_info_nce", info_nce, "it keeps its two dimensions under InfoNCE", low=1.7),
        corrected("rank_under_spectral", float(spectral), "it keeps them under the spectral loss", low=1.7),
    ]


@dataclass(frozen=True)
class Model:
    """A model under (1), given twice: in closed form, and as an equation of a state from which the outputs follow."""

    closed: Callable[[Sequence[float]], Collapse]
    basis: Tensor  # maps the values of the closed form to outputs at all rows
    velocity: Callable[[Tensor], Tensor]
    start: Tensor
    outputs: Callable[[Tensor], Tensor] = lambda state: state


def _models(seed: int) -> dict[str, Model]:
    pairs, draw = moon_pairs(N, seed), generator("models", seed)
    x, C = pairs.rows, data_matrix(pairs) / N
    K, S, identity = infinite_ntk(x) / N, pair_weights(pairs), torch.eye(len(x), dtype=x.dtype)
    theta, wide, start = (torch.randn(*shape, generator=draw, dtype=x.dtype) for shape in ((Z, D), (4, D), (len(x), Z)))
    A = _projector(UNEVEN, seed)

    def descent(weights: Tensor) -> Tensor:
        leaf = weights.clone().requires_grad_()
        loss = contrastive_trace_loss(*pairs.split(x @ (A @ leaf).mT)).total / N
        return -torch.autograd.grad(loss, leaf)[0]

    return {
        "linear": Model(
            lambda times: linear_collapse(C, theta, times=times), x, output_velocity(x @ x.mT / N, pairs), x @ theta.mT
        ),
        "kernel": Model(
            lambda times: kernel_collapse(K, S, start, times=times), identity, output_velocity(K, pairs), start
        ),
        "projected": Model(
            lambda times: linear_collapse(C, wide, times=times, projector=A),
            x,
            descent,
            wide,
            lambda states: x @ (A @ states).mT,
        ),
    }


def _projector(smallest: float, seed: int) -> Tensor:
    """A (2, 4) with singular values 1 and `smallest` along random directions."""
    left, right = (random_frame(size, Z, generator=generator("projector", seed, size)) for size in (Z, 4))
    return left * torch.tensor([1.0, smallest], dtype=torch.float64) @ right.mT


def _follow_all(seed: int) -> dict[str, object]:
    return {f"{what}_{name}": value for name, model in _models(seed).items() for what, value in _follow(model).items()}


def _follow(model: Model) -> dict[str, object]:
    """Follow a model for SPAN decay times of s₂/s₁: its distance to the closed form, its rank, its rates."""
    times = (MOMENTS / model.closed([0.0]).predicted_rate).tolist()
    closed = model.closed(times)
    exact = model.basis @ closed.values * closed.log_scale.exp()[:, None, None]
    outputs = model.outputs(runge_kutta(model.velocity, model.start, times))
    norms = torch.linalg.matrix_norm(outputs)
    seen = dataclasses.replace(closed, values=outputs / norms[:, None, None], log_scale=norms.log())
    ratios = seen.singular_ratios()
    late = ratios < LATE
    rate = dataclasses.replace(seen, times=seen.times[late], values=seen.values[late]).measured_rate()
    half = len(times) // 2
    growth = float((seen.log_scale[-1] - seen.log_scale[half]) / (seen.times[-1] - seen.times[half]))
    return {
        "error": float((torch.linalg.matrix_norm(outputs - exact) / torch.linalg.matrix_norm(exact)).max()),
        "rank": seen.effective_ranks(),
        "ratio": ratios,
        "rate_error": abs(rate / closed.predicted_rate - 1),
        "growth_error": abs(growth / (-2 * float(closed.eigenvalues[0])) - 1),
    }


def _network_ranks(width: int, seed: int) -> dict[str, object]:
    """The effective rank of a wide network's outputs when training ends: after all steps, or just before overflow."""
    found: dict[str, object] = {}
    for phi in ("relu", "tanh"):
        net = MLP(D, width, Z, activation=phi, generator=generator("wide", seed, width), dtype=torch.float64)
        ranks = _ranks(net.at, parameters_of(net), "contrastive", moon_pairs(N, seed), range(401), rate=0.05)
        found[f"network_{phi}"] = float(ranks[torch.isfinite(ranks)][-1])
    return found


def _loss(name: str, pairs: Pairs, U: Tensor) -> Tensor:
    """The loss of outputs at all rows; losses that are sums are divided by n."""
    anchor, positive, negative = pairs.split(U)
    if name == "contrastive":
        return contrastive_trace_loss(anchor, positive, negative).total / len(anchor)
    if name == "non_contrastive":
        return alignment_loss(anchor, positive).total / len(anchor)
    if name == "info_nce":
        return info_nce(anchor, positive[:, 0], temperature=1.0, normalize=False).total
    return spectral_contrastive(anchor, positive[:, 0]).total


def _ranks(
    model: PureFunction, start: Parameters, loss: str, pairs: Pairs, steps: Sequence[int], *, rate: float
) -> Tensor:
    """The effective rank of the outputs at `steps` of gradient descent, as long as they are finite."""
    problem = Problem(inputs=pairs.rows, objective=lambda U: _loss(loss, pairs, U), size=pairs.n_anchors)
    rank = {"rank": lambda now: effective_rank(now.outputs, centered=False)}
    run = gradient_descent(
        model, start, problem, learning_rate=rate, n_steps=steps[-1], record_at=steps, recorders=rank
    )
    return run.records["rank"]


def _loss_ranks(seed: int, steps: Sequence[int]) -> dict[str, object]:
    """The effective rank of a linear model during gradient descent on each loss, by step."""
    start = {"theta": 0.1 * torch.randn(Z, D, generator=generator("linear", seed), dtype=torch.float64)}
    pairs = moon_pairs(N, seed)

    def model(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return x @ parameters["theta"].mT

    ranks = {loss: _ranks(model, start, loss, pairs, steps, rate=0.1) for loss in LOSSES}
    return {f"rank_under_{loss}": padded(values, len(steps)) for loss, values in ranks.items()}


def _couplings(seed: int) -> dict[str, object]:
    """The coupling of two outputs under each loss by the scale of Θ, and with two projectors under (1)."""
    pairs = moon_pairs(N, seed)
    theta = torch.randn(Z, D, generator=generator("coupled", seed), dtype=torch.float64)
    found: dict[str, object] = {
        f"coupling_{loss}": np.array([_coupling(loss, pairs, scale * theta)[0] for scale in SCALES]) for loss in LOSSES
    }
    found["difference"] = _coupling("contrastive", pairs, theta)[1]
    found["projected"] = _coupling("contrastive", pairs, theta, _projector(UNEVEN, seed))[0]
    found["projected_orthogonal"] = largest(*_coupling("contrastive", pairs, theta, _projector(1.0, seed)))
    return found


def _coupling(loss: str, pairs: Pairs, G: Tensor, A: Tensor | None = None) -> tuple[float, float]:
    """How much the equation of one output depends on the other, and how much the two equations differ; both relative.

    Outputs are Gx with G = AΘ. As Θ' = −∇L, G' = −AA^T ∂L/∂G; its derivative by G is −AA^T times the Hessian of L.
    """
    mixing = torch.eye(Z, dtype=G.dtype) if A is None else A @ A.mT
    H = hessian(lambda map: _loss(loss, pairs, pairs.rows @ map.mT), G)  # type: ignore[no-untyped-call]
    J = torch.einsum("ab,bicj->aicj", mixing, H)  # (output, d, output, d)
    size = float(J[0, :, 0].norm())
    return float(J[0, :, 1].norm()) / size, float((J[0, :, 0] - J[1, :, 1]).norm()) / size


def _panels(data: xr.Dataset) -> list[Panel]:
    first = data.isel(width=0)
    later = first.sel(step=first.step > 0)
    decays = (
        *(curve(label, MOMENTS, seed_mean(first[f"ratio_{m}"]), "plain") for m, label in MODELS.items()),
        curve("e^{−rate·t}", MOMENTS, np.exp(-MOMENTS), "dashed"),
    )
    ranks = tuple(curve(label, later.step, seed_mean(later[f"rank_under_{m}"])) for m, label in LOSSES.items())
    couplings = (
        *(curve(LOSSES[m], SCALES, seed_mean(first[f"coupling_{m}"])) for m in ("info_nce", "spectral")),
        guide(SCALES, seed_mean(first.coupling_info_nce), 2.0, "‖Θ‖²"),
    )
    title = "s₂/s₁ of the outputs decays at the predicted rate"
    return [
        Panel(title, "time × predicted rate", "s₂/s₁", decays, x_log=False),
        Panel("Effective rank of a linear model by loss", "step", "effective rank", ranks, y_log=False),
        Panel("Coupling of two outputs", "scale of Θ", "cross block of the Hessian / own block", couplings),
    ]
