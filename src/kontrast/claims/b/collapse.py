"""Paper B, Prop. 1: every output obeys the same equation, and the collapse to one dimension that follows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.b.problems import moons, noisy_pairs, output_velocity, runge_kutta
from kontrast.claims.evidence import Criterion, Evidence, Panel, Verdict, curve, evidence
from kontrast.claims.panels import guide, log_steps
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest, seed_mean, sweep
from kontrast.data import Pairs
from kontrast.deep_linear import Collapse, data_matrix, kernel_collapse, linear_collapse, pair_weights
from kontrast.dynamics import Problem, gradient_descent
from kontrast.kernels import infinite_ntk
from kontrast.linalg import effective_rank, fit_power_law, random_frame
from kontrast.losses import alignment_loss, contrastive_trace_loss, info_nce, spectral_contrastive
from kontrast.nets import MLP, parameters_of
from kontrast.runs import padded

N, D, Z = 100, 3, 2  # half moons in R³
SPAN = 30.0  # the time to which models are followed, over the decay time of s₂/s₁: this ends at 1e-13
MOMENTS = np.linspace(0, SPAN, 61)
LATE = 1e-8  # s₂/s₁ below which its decay is one exponential
MODELS = {"linear": "linear model", "kernel": "kernel model (NTK of ReLU)", "projected": "projected, AΘx"}
LOSSES = {
    "contrastive": "contrastive (1)",
    "non_contrastive": "non-contrastive (12)",
    "info_nce": "InfoNCE",
    "spectral": "spectral contrastive",
}
UNEVEN = 0.7  # the second singular value of a projector A, beside 1
SCALES = (1e-3, 1e-2, 1e-1, 1.0)  # of Θ in the coupling of its outputs


@claim(
    "B.prop1",
    source="Paper B, Prop. 1 with Remarks 2 and 3",
    title="Every output obeys the same equation, and the embedding collapses to one dimension",
    printed="Under (1) all outputs of linear and kernel models have identical dynamics and collapse to one dimension "
    "at convergence, wide networks too. Fixed projections u = AΘx do not help: their components have identical "
    "dynamics. InfoNCE decouples and collapses as well; the spectral contrastive loss stays coupled.",
    corrected="Identical is the equation, not the outputs, and nothing converges: Θ(t) = Θ₀e^{−2Ct} and U(t) = "
    "e^{−2KSt}U₀ diverge while s₂/s₁ decays at the rate 2(λ₂ − λ₁). Projected outputs are coupled through AA^T unless "
    "it is a multiple of I, and collapse all the same. InfoNCE decouples only as Θ → 0, with a coupling as ‖Θ‖²; "
    "trained to its end a linear model keeps its dimensions under InfoNCE as under the spectral loss.",
    recorded=Verdict.CORRECTED,
    cost=3,
)
def proposition_1(setting: Setting) -> Evidence:
    """Three models by Runge and Kutta against their closed forms; networks; four losses, coupled or not."""
    seeds = setting.seeds(quick=3, full=10, paper=10)
    width = setting.pick(quick=128, full=512, paper=2048)
    steps = log_steps(setting.pick(quick=200, full=1000, paper=1000), 14)
    data = xr.merge(
        [
            sweep((width,), seeds, lambda _, seed: _follow_all(seed), time=MOMENTS),
            sweep((width,), seeds, _network_ranks),
            sweep((width,), seeds, lambda _, seed: _loss_ranks(seed, steps), step=steps),
            sweep((width,), seeds, lambda _, seed: _couplings(seed), scale=SCALES),
        ]
    )
    worst = {name: float(values.values.max()) for name, values in data.items() if values.dims == ("width", "seed")}
    ends = data.isel(step=-1, time=-1)
    at_one = data.sel(scale=1.0)
    small = seed_mean(data.coupling_info_nce.isel(width=0))[:3]
    law = fit_power_law(np.array(SCALES[:3]), small) if (small > 0).all() else math.nan
    return evidence(
        {
            **{f"error_{name}": worst[f"error_{name}"] for name in MODELS},
            **{f"rank_{name}": float(ends[f"rank_{name}"].values.max()) for name in MODELS},
            **{f"rate_error_{name}": float(np.median(data[f"rate_error_{name}"])) for name in MODELS},
            **{f"largest_rate_error_{name}": worst[f"rate_error_{name}"] for name in MODELS},
            "growth_error": largest(*(worst[f"growth_error_{name}"] for name in MODELS)),
            **{f"rank_network_{phi}": worst[f"network_{phi}"] for phi in ("relu", "tanh")},
            "difference_between_outputs": worst["difference"],
            "coupling_projected": float(data.projected.values.min()),
            "coupling_projected_orthogonal": worst["projected_orthogonal"],
            **{f"coupling_{loss}": float(at_one[f"coupling_{loss}"].values.max()) for loss in list(LOSSES)[:2]},
            **{f"coupling_{loss}": float(at_one[f"coupling_{loss}"].values.min()) for loss in list(LOSSES)[2:]},
            "exponent_of_info_nce_coupling": law,
            **{f"rank_under_{loss}": float(ends[f"rank_under_{loss}"].values.max()) for loss in list(LOSSES)[:2]},
            **{f"rank_under_{loss}": float(ends[f"rank_under_{loss}"].values.min()) for loss in list(LOSSES)[2:]},
        },
        [
            Criterion("coupling_projected", "projected outputs do not interact (Remark 3)", high=1e-6),
            Criterion("coupling_info_nce", "outputs do not interact under InfoNCE (Remark 2)", high=1e-6),
            Criterion("rank_under_info_nce", "and collapse (effective rank of 2 outputs)", high=1.01),
            *_CORRECTED_1,
        ],
        data=data,
        panels=_collapse_panels(data),
        setting={"data": "half moons in R³", "n_samples": N, "d_out": Z, "n_steps": steps[-1]},
        warnings=[
            "(1) diverges, so that networks leave the kernel regime in the end: ReLU ones overflow, their rank fallen"
        ],
    )


_CORRECTED_1 = (
    *(Criterion(f"error_{m}", f"{m}: closed form and DOP853 agree", high=1e-6, role="corrected") for m in MODELS),
    *(Criterion(f"rank_{m}", f"{m}: the effective rank tends to 1", high=1.001, role="corrected") for m in MODELS),
    Criterion("largest_rate_error_linear", "s₂/s₁ decays at the rate 2(λ₂ − λ₁), always", high=0.01, role="corrected"),
    Criterion(
        "rate_error_kernel", "of KS for a kernel (median: where λ₃ ≈ λ₂ it is late)", high=0.01, role="corrected"
    ),
    Criterion("rate_error_projected", "and of AA^T and C for a projector (median)", high=0.01, role="corrected"),
    Criterion("growth_error", "the norm diverges as e^{−2λ₁t}", high=0.01, role="corrected"),
    Criterion("rank_network_tanh", "wide networks collapse too", high=1.05, role="corrected"),
    Criterion("rank_network_relu", "with ReLU as well, until they overflow", high=1.05, role="corrected"),
    Criterion("coupling_contrastive", "under (1) outputs do not interact", high=1e-12, role="corrected"),
    Criterion("coupling_non_contrastive", "nor under (12)", high=1e-12, role="corrected"),
    Criterion("difference_between_outputs", "and obey the same equation", high=1e-12, role="corrected"),
    Criterion("coupling_projected", "projected outputs interact", low=0.02, role="corrected"),
    Criterion("coupling_projected_orthogonal", "but not for AA^T = I", high=1e-12, role="corrected"),
    Criterion("coupling_info_nce", "InfoNCE couples outputs", low=1e-3, role="corrected"),
    Criterion("exponent_of_info_nce_coupling", "by ‖Θ‖² near Θ = 0", low=1.8, high=2.2, role="corrected"),
    Criterion("coupling_spectral", "the spectral loss couples them", low=1e-3, role="corrected"),
    Criterion("rank_under_contrastive", "descent of (1) collapses", high=1.01, role="corrected"),
    Criterion("rank_under_non_contrastive", "so does that of (12)", high=1.01, role="corrected"),
    Criterion("rank_under_info_nce", "that of InfoNCE keeps its 2 dimensions", low=1.7, role="corrected"),
    Criterion("rank_under_spectral", "and that of the spectral loss", low=1.7, role="corrected"),
)


@dataclass(frozen=True)
class Model:
    """A model under (1), twice: in closed form, and as an equation for some state that gives outputs over the pool."""

    closed: Callable[[Sequence[float]], Collapse]
    basis: Tensor  # from the closed form's values to outputs over the pool
    velocity: Callable[[Tensor], Tensor]
    start: Tensor
    outputs: Callable[[Tensor], Tensor] = lambda state: state


def _models(seed: int) -> dict[str, Model]:
    pairs, draw = _pairs(seed), generator("models", seed)
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
            lambda times: linear_collapse(C, theta, times=times),
            x,
            output_velocity(x @ x.mT / N, pairs),
            x @ theta.mT,
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


def _pairs(seed: int) -> Pairs:
    return noisy_pairs(moons(N, seed), seed)


def _projector(smallest: float, seed: int) -> Tensor:
    """A (2, 4) with singular values 1 and `smallest` along random directions."""
    left, right = (random_frame(size, Z, generator=generator("projector", seed, size)) for size in (Z, 4))
    return left * torch.tensor([1.0, smallest], dtype=torch.float64) @ right.mT


def _follow_all(seed: int) -> dict[str, object]:
    return {f"{what}_{name}": value for name, model in _models(seed).items() for what, value in _follow(model).items()}


def _follow(model: Model) -> dict[str, object]:
    """A model to SPAN decay times of s₂/s₁: how far from the closed form it is, its rank, its rates."""
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
    """The effective rank of a wide network's outputs when training ends: at a norm of 10⁶, or one step before inf."""
    return {f"network_{phi}": _network_rank(phi, width, seed) for phi in ("relu", "tanh")}


def _network_rank(activation: str, width: int, seed: int) -> float:
    pairs, n_steps = _pairs(seed), 400
    net = MLP(D, width, Z, activation=activation, generator=generator("wide", seed, width), dtype=torch.float64)
    run = gradient_descent(
        net.at,
        parameters_of(net),
        _problem("contrastive", pairs),
        learning_rate=0.05,
        n_steps=n_steps,
        record_at=range(n_steps + 1),
        recorders={"rank": lambda now: effective_rank(now.outputs, centered=False)},
    )
    ranks = run.records["rank"]
    return float(ranks[torch.isfinite(ranks)][-1])


def _loss(name: str, pairs: Pairs, U: Tensor) -> Tensor:
    """A loss of outputs over the pool; sums are divided by n."""
    anchor, positive, negative = pairs.split(U)
    if name == "contrastive":
        return contrastive_trace_loss(anchor, positive, negative).total / len(anchor)
    if name == "non_contrastive":
        return alignment_loss(anchor, positive).total / len(anchor)
    if name == "info_nce":
        return info_nce(anchor, positive[:, 0], temperature=1.0, normalize=False).total
    return spectral_contrastive(anchor, positive[:, 0]).total


def _problem(loss: str, pairs: Pairs) -> Problem:
    return Problem(inputs=pairs.rows, objective=lambda U: _loss(loss, pairs, U), size=pairs.n_anchors)


def _loss_ranks(seed: int, steps: Sequence[int]) -> dict[str, object]:
    """The effective rank of a linear model under gradient descent of each loss, by step."""
    start = 0.1 * torch.randn(Z, D, generator=generator("linear", seed), dtype=torch.float64)
    pairs, found = _pairs(seed), dict[str, object]()
    for loss in LOSSES:
        run = gradient_descent(
            lambda parameters, x: x @ parameters["theta"].mT,
            {"theta": start},
            _problem(loss, pairs),
            learning_rate=0.1,
            n_steps=steps[-1],
            record_at=steps,
            recorders={"rank": lambda now: effective_rank(now.outputs, centered=False)},
        )
        found[f"rank_under_{loss}"] = padded(run.records["rank"], len(steps))
    return found


def _couplings(seed: int) -> dict[str, object]:
    """The coupling of two outputs under each loss by the scale of Θ; with projectors, and of one with the other."""
    pairs = _pairs(seed)
    theta = torch.randn(Z, D, generator=generator("coupled", seed), dtype=torch.float64)
    found: dict[str, object] = {
        f"coupling_{loss}": np.array([_coupling(loss, pairs, scale * theta)[0] for scale in SCALES]) for loss in LOSSES
    }
    found["difference"] = _coupling("contrastive", pairs, theta)[1]
    found["projected"] = _coupling("contrastive", pairs, theta, _projector(UNEVEN, seed))[0]
    found["projected_orthogonal"] = largest(*_coupling("contrastive", pairs, theta, _projector(1.0, seed)))
    return found


def _coupling(loss: str, pairs: Pairs, G: Tensor, A: Tensor | None = None) -> tuple[float, float]:
    """How the equation of one output depends on the other, and how the equations differ, relative to their size.

    Outputs are Gx, G = AΘ. As Θ' = −∇L, G' = −AA^T ∂L/∂G; its derivative by G is minus the Hessian without A.
    """
    mixing = torch.eye(Z, dtype=G.dtype) if A is None else A @ A.mT
    H = torch.autograd.functional.hessian(  # type: ignore[no-untyped-call]
        lambda map: _loss(loss, pairs, pairs.rows @ map.mT), G
    )
    J = torch.einsum("ab,bicj->aicj", mixing, H)  # (output, d, output, d)
    size = float(J[0, :, 0].norm())
    return float(J[0, :, 1].norm()) / size, float((J[0, :, 0] - J[1, :, 1]).norm()) / size


def _collapse_panels(data: xr.Dataset) -> list[Panel]:
    first = data.isel(width=0)
    later = first.sel(step=first.step > 0)
    return [
        Panel(
            "s₂/s₁ of the outputs decays at the predicted rate",
            "time × predicted rate",
            "s₂/s₁",
            (
                *(curve(label, MOMENTS, seed_mean(first[f"ratio_{m}"]), "plain") for m, label in MODELS.items()),
                curve("e^{−rate·t}", MOMENTS, np.exp(-MOMENTS), "dashed"),
            ),
            x_log=False,
        ),
        Panel(
            "Effective rank of a linear model by loss",
            "step",
            "effective rank",
            tuple(curve(label, later.step, seed_mean(later[f"rank_under_{m}"])) for m, label in LOSSES.items()),
            y_log=False,
        ),
        Panel(
            "Coupling of two outputs",
            "scale of Θ",
            "cross block of the Hessian / own block",
            (
                *(curve(LOSSES[m], SCALES, seed_mean(first[f"coupling_{m}"])) for m in ("info_nce", "spectral")),
                guide(SCALES, seed_mean(first.coupling_info_nce), 2.0, "‖Θ‖²"),
            ),
        ),
    ]
