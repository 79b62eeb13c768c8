"""Paper B, Sec. 5: the non-contrastive loss, its sign, and what C is in expectation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kontrast.claims.b.problems import (
    NOISE,
    moons,
    noisy_pairs,
    orthogonal_net,
    output_velocity,
    runge_kutta,
    start_of,
    without_negatives,
)
from kontrast.claims.evidence import Criterion, Evidence, Panel, Verdict, curve, evidence
from kontrast.claims.panels import guide
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, seed_mean, sweep
from kontrast.data import Pairs
from kontrast.deep_linear import data_matrix, deep_linear_flow, expected_data_matrix, linear_collapse
from kontrast.dynamics import Problem, gradient_descent
from kontrast.linalg import fit_power_law, subspace_sines
from kontrast.losses import alignment_loss
from kontrast.nets import MLP, parameters_of

N, D, Z, WIDTH = 200, 3, 2, 10  # half moons in R³, their embedding, the width of networks
RATE = 0.01
END = 15.0  # of training, over which the top eigenvectors of Σxx^T/n win
SPAN = 25.0  # of the free flow, over the decay time of s₂/s₁
MOMENTS = np.linspace(0, 1, 26)


@claim(
    "B.nc",
    source="Paper B, Sec. 5, (12), and Sec. 4.1, E[C]",
    title="The non-contrastive loss is a trace too, with the other sign",
    printed="(12) is the general loss (7) with C̃ = Σ x_i x_i^{+T}, so that Theorems 2 and 3 hold for it, and Prop. 1: "
    "outputs collapse. For the contrastive loss E[C] = −n E[xx^T].",
    corrected="C̃ = −Σ x_i x_i^{+T}: the printed sign negates the loss, and with it a network would end at the bottom "
    "eigenvectors of Σxx^T (at h = d) or at 0 (at h ≥ d + z), not at the top ones, where (12) ends. E[C] = −n Cov(x), "
    "which is −n E[xx^T] for centred data only.",
    recorded=Verdict.CORRECTED,
)
def non_contrastive(setting: Setting) -> Evidence:
    """The identity for both signs, E[C] by Monte Carlo, the collapse, and networks trained on (12) itself."""
    seeds = setting.seeds(quick=2, full=8, paper=20)
    draws = setting.pick(quick=(20, 60, 200), full=(25, 100, 400, 1600), paper=(25, 100, 400, 1600, 6400))
    flow = sweep((WIDTH,), seeds, lambda _, seed: _signs(seed) | _collapse(seed) | _training(seed), time=MOMENTS)
    mean = sweep((WIDTH,), seeds, lambda _, seed: _expectation(seed, draws), draws=draws)
    worst = {name: float(values.values.max()) for name, values in flow.items() if values.dims == ("width", "seed")}
    least = {name: float(values.values.min()) for name, values in flow.items() if values.dims == ("width", "seed")}
    errors = {name: seed_mean(values.isel(width=0)) for name, values in mean.items()}
    return evidence(
        {
            "loss_error_printed_sign": least["printed"],
            "loss_error_right_sign": worst["right"],
            "expectation_error": errors["expected"][-1],
            "expectation_error_covariance": errors["covariance"][-1],
            "expectation_error_second_moment": errors["moment"][-1],
            "expectation_error_centred": errors["centred"][-1],
            "exponent_in_draws": fit_power_law(np.array(draws), errors["expected"]),
            "largest_eigenvalue_of_mean": float(mean.top.values.max()),
            "collapse_error": worst["collapse"],
            "collapse_rank": float(flow.rank_free.isel(time=-1).values.max()),
            "collapse_direction": worst["direction"],
            "training_error_right_sign": worst["trained_right"],
            "training_error_printed_sign": least["trained_printed"],
            "end_sine_to_top": worst["top"],
            "end_sine_to_bottom_printed": worst["bottom_printed"],
            "end_size_printed": worst["size_printed"],
        },
        [
            Criterion("loss_error_printed_sign", "(12) = Tr(ΘC̃Θ^T) with C̃ = Σxx^{+T}, relative", high=1e-12),
            Criterion("expectation_error_second_moment", "E[C] = −n E[xx^T] on half moons, relative", high=0.05),
            Criterion("training_error_printed_sign", "networks follow (8) with the printed C̃", high=0.02),
            *_CORRECTED,
        ],
        data=flow,
        panels=[
            Panel(
                "Mean of C over draws against what it should be",
                "draws",
                "relative error",
                (
                    *(curve(label, draws, errors[name]) for name, label in _EXPECTED.items()),
                    guide(draws, errors["expected"], -0.5, "draws^−1/2"),
                ),
            ),
            Panel(
                "A network trained on (12)",
                "time ηt",
                "loss (12) / n",
                (
                    curve("trained", END * MOMENTS, seed_mean(flow.loss_trained.isel(width=0)), "plain"),
                    curve("(8) with −Σxx^{+T}", END * MOMENTS, seed_mean(flow.loss_right.isel(width=0)), "dashed"),
                    curve("(8) with Σxx^{+T}", END * MOMENTS, seed_mean(flow.loss_printed.isel(width=0)), "dashed"),
                ),
                x_log=False,
                y_log=False,
            ),
        ],
        setting={"data": "half moons in R³", "n_samples": N, "d_out": Z, "noise_std": NOISE, "learning_rate": RATE},
    )


_EXPECTED = {"covariance": "−n Cov(x)", "moment": "−n E[xx^T]", "centred": "−n E[xx^T], centred data"}
_CORRECTED = (
    Criterion("loss_error_right_sign", "with C̃ = −Σxx^{+T}", high=1e-12, role="corrected"),
    Criterion("expectation_error", "E[C] in closed form, as far as draws tell", high=0.02, role="corrected"),
    Criterion("expectation_error_covariance", "E[C] = −n Cov(x)", high=0.02, role="corrected"),
    Criterion("expectation_error_second_moment", "−n E[xx^T] is another matrix", low=0.1, role="corrected"),
    Criterion("expectation_error_centred", "but for centred data", high=0.02, role="corrected"),
    Criterion("largest_eigenvalue_of_mean", "E[C] is negative definite", high=-1e-4, role="corrected"),
    Criterion("collapse_error", "(12): closed form and DOP853 agree", high=1e-6, role="corrected"),
    Criterion("collapse_rank", "its outputs collapse", high=1.001, role="corrected"),
    Criterion("collapse_direction", "to the top eigenvector of Σxx^T", high=0.1, role="corrected"),
    Criterion("training_error_right_sign", "networks follow (8) with −Σxx^{+T}", high=0.02, role="corrected"),
    Criterion("end_sine_to_top", "and end at the top eigenvectors of Σxx^T", high=0.1, role="corrected"),
    Criterion("end_sine_to_bottom_printed", "the printed sign: at the bottom (h = d)", high=0.1, role="corrected"),
    Criterion("end_size_printed", "or at 0 (h ≥ d + z)", high=1e-3, role="corrected"),
)


def _pairs(seed: int) -> Pairs:
    return without_negatives(noisy_pairs(moons(N, seed), seed))


def _signs(seed: int) -> dict[str, float]:
    """The loss (12) against both traces and the library's C, relative, over random maps."""
    pairs = _pairs(seed)
    x, positive = pairs.rows[pairs.anchor], pairs.rows[pairs.positive[:, 0]]
    printed = x.mT @ positive  # Σ x_i x_i^{+T}
    worst = {"right": 0.0, "printed": math.inf}
    for theta in torch.randn(5, Z, D, generator=generator("maps", seed), dtype=x.dtype):
        loss = alignment_loss(*pairs.split(pairs.rows @ theta.mT)[:2]).total
        right, matrix, wrong = (
            float((loss - torch.trace(theta @ C @ theta.mT)).abs() / loss.abs())
            for C in (-printed, data_matrix(pairs), printed)
        )
        worst["right"] = float(np.max([worst["right"], right, matrix]))
        worst["printed"] = float(np.min([worst["printed"], wrong]))
    return worst


def _expectation(seed: int, draws: Sequence[int]) -> dict[str, object]:
    """The mean of C over draws of noise and negatives against the candidates, relative, by the number of draws."""
    x = moons(N, seed)
    centered = x - x.mean(0)
    covariance = -N * torch.cov(x.mT)
    found: dict[str, list[float]] = {"expected": [], "covariance": [], "moment": [], "centred": [], "top": []}
    total, total_centered = torch.zeros(D, D, dtype=x.dtype), torch.zeros(D, D, dtype=x.dtype)
    for draw in range(1, draws[-1] + 1):
        key = 100_000 * (seed + 1) + draw
        total += data_matrix(noisy_pairs(x, key))
        total_centered += data_matrix(noisy_pairs(centered, key))
        if draw in draws:
            mean = total / draw
            found["expected"].append(_relative(mean, expected_data_matrix(x)))
            found["covariance"].append(_relative(mean, covariance))
            found["moment"].append(_relative(mean, -x.mT @ x))
            found["centred"].append(_relative(total_centered / draw, -centered.mT @ centered))
            found["top"].append(float(torch.linalg.eigvalsh(mean / N)[-1]))
    return {name: np.array(values) for name, values in found.items()}


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def _collapse(seed: int) -> dict[str, object]:
    """Prop. 1 under (12): its equation as printed against the closed form, the rank, and the direction that wins."""
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
    """Those of Σxx^T, the top ones last."""
    x = moons(N, seed)
    vectors: Tensor = torch.linalg.eigh(x.mT @ x).eigenvectors
    return vectors


def _training(seed: int) -> dict[str, object]:
    """A network trained on (12) with orthonormal layers, beside (8) with either sign; and where each of them ends."""
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
    """The maps (T, d, z) of a network on its way down (12)/n, every layer on the Grassmannian; no C is involved."""
    parameters = parameters_of(net)
    problem = Problem(
        inputs=pairs.rows,
        objective=lambda U: alignment_loss(*pairs.split(U)[:2]).total / N,
        size=pairs.n_anchors,
    )
    steps = [round(time / RATE) for time in times]
    run = gradient_descent(
        net.at,
        parameters,
        problem,
        learning_rate=RATE,
        n_steps=steps[-1],
        record_at=steps,
        keep_parameters=True,
        orthonormal=parameters,
    )
    assert run.parameters is not None
    return run.parameters["hidden.0"].mT @ run.parameters["output"]
