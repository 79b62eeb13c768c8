"""B.nc: the non-contrastive loss is a trace too, with the other sign; the expectation of C."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.b.problems import (
    NOISE_STD,
    moon_pairs,
    moons,
    noisy_pairs,
    orthogonal_net,
    output_velocity,
    runge_kutta,
    start_of,
)
from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, corrected, curve, judged, printed, shown
from kontrast.claims.panels import guide
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest, seed_mean, smallest, sweep
from kontrast.data import Pairs
from kontrast.deep_linear import data_matrix, deep_linear_flow, expected_data_matrix, linear_collapse
from kontrast.dynamics import Problem, gradient_descent
from kontrast.linalg import fit_power_law, subspace_sines
from kontrast.losses import alignment_loss
from kontrast.nets import MLP, parameters_of

N, D, Z, WIDTH = 200, 3, 2, 10  # half moons in R³, outputs, and the width of networks
RATE = 0.01
END = 15.0  # the time at which training ends; by then the top eigenvectors of Σxx^T/n have won
SPAN = 25.0  # the length of the flow without constraints, in decay times of s₂/s₁
MOMENTS = np.linspace(0, 1, 26)
CANDIDATES = {"covariance": "−n Cov(x)", "moment": "−n E[xx^T]", "centred": "−n E[xx^T], centred data"}  # for E[C]


@claim(
    "B.nc",
    source="Paper B, Sec. 5, (12), and Sec. 4.1, E[C]",
    title="The non-contrastive loss is a trace too, with the other sign",
    printed="(12) is the general loss (7) with C̃ = Σ x_i x_i^{+T}, so Theorems 2 and 3 hold for it, and so does Prop. "
    "1: outputs collapse. For the contrastive loss E[C] = −n E[xx^T].",
    corrected="C̃ = −Σ x_i x_i^{+T}. The printed sign negates the loss: with it a network would end at the bottom "
    "eigenvectors of Σxx^T (at h = d) or at 0 (at h ≥ d + z), while (12) leads to the top ones. E[C] = −n Cov(x), "
    "which equals −n E[xx^T] only for centred data.",
    recorded=Verdict.CORRECTED,
)
def non_contrastive(setting: Setting) -> Evidence:
    """The trace with both signs, E[C] by Monte Carlo, the collapse, and networks trained on (12) itself."""
    seeds = setting.seeds(quick=2, full=8, paper=20)
    draws = setting.pick(quick=(20, 60, 200), full=(25, 100, 400, 1600), paper=(25, 100, 400, 1600, 6400))
    flow = sweep((WIDTH,), seeds, lambda _, seed: _signs(seed) | _collapse(seed) | _training(seed), time=MOMENTS)
    mean = sweep((WIDTH,), seeds, lambda _, seed: _expectation(seed, draws), draws=draws)
    return judged(
        *_trace_findings(flow, mean, draws),
        *_dynamics_findings(flow),
        data=flow,
        panels=_panels(flow, mean, draws),
        setting={"data": "half moons in R³", "n_samples": N, "d_out": Z, "noise_std": NOISE_STD, "learning_rate": RATE},
    )


def _trace_findings(flow: xr.Dataset, mean: xr.Dataset, draws: Sequence[int]) -> list[Finding]:
    """The loss as a trace with either sign, and the expectation of C; all errors are relative."""
    errors = {name: seed_mean(values.isel(width=0)) for name, values in mean.items()}
    second_moment, trace = errors["moment"][-1], "(12) is Tr(ΘC̃Θ^T) with C̃ = {}Σxx^{{+T}}"
    return [
        printed("loss_error_printed_sign", smallest(flow.printed), trace.format(""), high=1e-12),
        corrected("loss_error_right_sign", largest(flow.right), trace.format("−"), high=1e-12),
        printed("expectation_error_second_moment", second_moment, "E[C] = −n E[xx^T] on half moons", high=0.05),
        corrected(
            "expectation_error",
            errors["expected"][-1],
            "the mean of C over draws is the closed form of E[C]",
            high=0.02,
        ),
        corrected("expectation_error_covariance", errors["covariance"][-1], "E[C] = −n Cov(x)", high=0.02),
        corrected("expectation_error_second_moment", second_moment, "E[C] is not −n E[xx^T] on half moons", low=0.1),
        corrected("expectation_error_centred", errors["centred"][-1], "E[C] = −n E[xx^T] on centred data", high=0.02),
        *shown(exponent_in_draws=fit_power_law(np.array(draws), errors["expected"])),
        corrected("largest_eigenvalue_of_mean", largest(mean.top), "E[C] is negative definite", high=-1e-4),
    ]


def _dynamics_findings(flow: xr.Dataset) -> list[Finding]:
    """The collapse without constraints, and networks trained on (12) against (8) with either sign."""
    worst = {name: largest(values) for name, values in flow.items() if values.dims == ("width", "seed")}
    rank, apart = largest(flow.rank_free.isel(time=-1)), smallest(flow.trained_printed)
    right, bottom, size = (worst[name] for name in ("trained_right", "bottom_printed", "size_printed"))
    follow, wrong = "networks follow (8) with C̃ = {}Σxx^{{+T}}", "(8) with the printed sign"
    return [
        corrected("collapse_error", worst["collapse"], "under (12) DOP853 agrees with the closed form", high=1e-6),
        corrected("collapse_rank", rank, "under (12) the outputs collapse (effective rank)", high=1.001),
        corrected("collapse_direction", worst["direction"], "they collapse to the top eigenvector of Σxx^T", high=0.1),
        printed("training_error_printed_sign", apart, follow.format(""), high=0.02),
        corrected("training_error_right_sign", right, follow.format("−"), high=0.02),
        corrected("end_sine_to_top", worst["top"], "networks end at the top eigenvectors of Σxx^T", high=0.1),
        corrected("end_sine_to_bottom_printed", bottom, f"{wrong} ends at bottom eigenvectors at h = d", high=0.1),
        corrected("end_size_printed", size, f"{wrong} ends at 0 at h ≥ d + z", high=1e-3),
    ]


def _panels(flow: xr.Dataset, mean: xr.Dataset, draws: Sequence[int]) -> list[Panel]:
    errors = {name: seed_mean(values.isel(width=0)) for name, values in mean.items()}
    candidates = (
        *(curve(label, draws, errors[name]) for name, label in CANDIDATES.items()),
        guide(draws, errors["expected"], -0.5, "draws^−1/2"),
    )
    losses = (
        curve("trained", END * MOMENTS, seed_mean(flow.loss_trained)[0], "plain"),
        curve("(8) with −Σxx^{+T}", END * MOMENTS, seed_mean(flow.loss_right)[0], "dashed"),
        curve("(8) with Σxx^{+T}", END * MOMENTS, seed_mean(flow.loss_printed)[0], "dashed"),
    )
    return [
        Panel("Mean of C over draws against candidates for E[C]", "draws", "relative error", candidates),
        Panel("A network trained on (12)", "time ηt", "loss (12) / n", losses, x_log=False, y_log=False),
    ]


def _pairs(seed: int) -> Pairs:
    """Anchors and positives, for the non-contrastive loss (12)."""
    pairs = moon_pairs(N, seed)
    return dataclasses.replace(pairs, negative=pairs.negative[:, :0])


def _signs(seed: int) -> dict[str, float]:
    """Relative distances of (12) from both traces and from the library's C, over random maps."""
    pairs = _pairs(seed)
    x, positive = pairs.rows[pairs.anchor], pairs.rows[pairs.positive[:, 0]]
    as_printed = x.mT @ positive  # Σ x_i x_i^{+T}
    worst = {"right": 0.0, "printed": math.inf}
    for theta in torch.randn(5, Z, D, generator=generator("maps", seed), dtype=x.dtype):
        loss = alignment_loss(*pairs.split(pairs.rows @ theta.mT)[:2]).total
        right, matrix, wrong = (
            float((loss - torch.trace(theta @ C @ theta.mT)).abs() / loss.abs())
            for C in (-as_printed, data_matrix(pairs), as_printed)
        )
        worst = {"right": largest(worst["right"], right, matrix), "printed": smallest(worst["printed"], wrong)}
    return worst


def _expectation(seed: int, draws: Sequence[int]) -> dict[str, object]:
    """Relative distances of the mean of C over draws of noise and negatives from the candidates for E[C]."""
    x = moons(N, seed)
    centered, found = x - x.mean(0), list[dict[str, float]]()
    total, total_centered = torch.zeros(D, D, dtype=x.dtype), torch.zeros(D, D, dtype=x.dtype)
    for draw in range(1, draws[-1] + 1):
        key = 100_000 * (seed + 1) + draw
        total += data_matrix(noisy_pairs(x, key))
        total_centered += data_matrix(noisy_pairs(centered, key))
        if draw in draws:
            mean = total / draw
            errors = {
                "expected": _relative(mean, expected_data_matrix(x)),
                "covariance": _relative(mean, -N * torch.cov(x.mT)),
                "moment": _relative(mean, -x.mT @ x),
                "centred": _relative(total_centered / draw, -centered.mT @ centered),
            }
            found.append({**errors, "top": float(torch.linalg.eigvalsh(mean / N)[-1])})
    return {name: [row[name] for row in found] for name in found[0]}


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def _collapse(seed: int) -> dict[str, object]:
    """Prop. 1 under (12): its equation as printed against the closed form, the rank, and the remaining direction."""
    pairs = _pairs(seed)
    x, C = pairs.rows, data_matrix(pairs) / N
    theta = torch.randn(Z, D, generator=generator("free", seed), dtype=x.dtype)
    times = (SPAN * MOMENTS / linear_collapse(C, theta, times=[0.0]).predicted_rate).tolist()
    closed = linear_collapse(C, theta, times=times)
    outputs = runge_kutta(output_velocity(x @ x.mT / N, pairs), x @ theta.mT, times)
    exact = x @ closed.values * closed.log_scale.exp()[:, None, None]
    errors = torch.linalg.matrix_norm(outputs - exact) / torch.linalg.matrix_norm(exact)
    direction = torch.linalg.svd(closed.values[-1]).U[:, :1]
    return {
        "collapse": float(errors.max()),
        "rank_free": closed.effective_ranks(),
        "direction": float(subspace_sines(direction, _eigenvectors(seed)[:, -1:])[0]),
    }


def _eigenvectors(seed: int) -> Tensor:
    """The eigenvectors of Σxx^T, the top ones last."""
    x = moons(N, seed)
    vectors: Tensor = torch.linalg.eigh(x.mT @ x).eigenvectors
    return vectors


def _training(seed: int) -> dict[str, object]:
    """A network with orthonormal layers trained on (12), against (8) with either sign; where each ends."""
    pairs, net = _pairs(seed), orthogonal_net(D, WIDTH, Z, seed)
    C, start, basis = data_matrix(pairs) / N, start_of(net), _eigenvectors(seed)
    times = (END * MOMENTS).tolist()
    flows = {"right": deep_linear_flow(C, start, times=times), "printed": deep_linear_flow(-C, start, times=times)}
    maps = _train(net, pairs, times)
    square, wide = (
        deep_linear_flow(-C, start_of(orthogonal_net(D, width, Z, seed)), times=[500.0]).maps[-1]
        for width in (D, WIDTH)
    )
    return {
        **{f"trained_{sign}": float((flow.maps - maps).abs().max()) for sign, flow in flows.items()},
        **{f"loss_{sign}": torch.einsum("tij,ik,tkj->t", flow.maps, C, flow.maps) for sign, flow in flows.items()},
        "loss_trained": torch.einsum("tij,ik,tkj->t", maps, C, maps),
        "top": float(subspace_sines(maps[-1], basis[:, -Z:])[0]),
        "bottom_printed": float(subspace_sines(square, basis[:, :Z])[0]),
        "size_printed": float(wide.norm()),
    }


def _train(net: MLP, pairs: Pairs, times: Sequence[float]) -> Tensor:
    """The maps (T, d, z) of a network during descent on (12)/n, every layer on the Grassmannian; C is not used."""
    start, steps = parameters_of(net), [round(time / RATE) for time in times]
    problem = Problem(pairs.rows, lambda U: alignment_loss(*pairs.split(U)[:2]).total / N, pairs.n_anchors)
    options: Any = {"learning_rate": RATE, "n_steps": steps[-1], "record_at": steps, "keep_parameters": True}
    run = gradient_descent(net.at, start, problem, orthonormal=start, **options)
    assert run.parameters is not None
    return run.parameters["hidden.0"].mT @ run.parameters["output"]
