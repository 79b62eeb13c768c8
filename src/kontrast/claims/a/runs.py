"""Training runs that several claims of paper A share, and what they record."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import xarray as xr
from torch import Tensor

from kontrast.claims.evidence import Panel, curve
from kontrast.claims.panels import log_steps, step_panel
from kontrast.claims.setting import Setting, loss_of, seed_mean, sweep
from kontrast.data import Pairs
from kontrast.dynamics import (
    Problem,
    Recorder,
    Snapshot,
    Status,
    Trajectory,
    contrastive_problem,
    distance_from,
    gradient_descent,
)
from kontrast.kernels import empirical_ntk
from kontrast.linalg import LogLaw, fit_log_law
from kontrast.nets import MLP, parameters_of, pure_function
from kontrast.runs import padded

RATE = 0.1  # 0.01 barely moves f, 1 converges
DELTA = 0.01  # δ in the norms of cosine similarity
MOST_PROBES = 10  # points at which tangent kernels are compared


def train(
    net: MLP,
    problem: Problem,
    *,
    n_steps: int,
    record_at: Sequence[int],
    recorders: dict[str, Recorder],
    learning_rate: float = RATE,
    keep_parameters: bool = False,
) -> Trajectory:
    """Full-batch gradient descent from the present weights of `net`."""
    return gradient_descent(
        pure_function(net),
        parameters_of(net),
        problem,
        learning_rate=learning_rate,
        n_steps=n_steps,
        record_at=record_at,
        recorders=recorders,
        keep_parameters=keep_parameters,
    )


def probes_of(pairs: Pairs) -> Tensor:
    """The points at which tangent kernels are compared: the first anchors."""
    return pairs.rows[pairs.anchor[:MOST_PROBES]]


def ntk_change(net: MLP, probes: Tensor) -> Recorder:
    """Recorder of max |K(t) − K(0)| over points and outputs, as in Figs. 2, 3 and 5 to 7 of paper A."""
    start = empirical_ntk(net, probes)

    def change(now: Snapshot) -> Tensor:
        return (empirical_ntk(net, probes, parameters=now.parameters) - start).abs().max()

    return change


def dot_rate(setting: Setting, data: str | None = None) -> float:
    """Learning rate for the dot product, whose time scale depends on the mean of ‖x‖²; about 0.05 on digits."""
    return 0.8 / setting.mean_square(data)


def dot_divergence(
    setting: Setting,
    widths: Sequence[int],
    seeds: Sequence[int],
    *,
    n_samples: int,
    learning_rate: float,
    depth: int = 1,
) -> xr.Dataset:
    """Train under the dot product; record the step at which every run overflows, and the change of its NTK."""
    steps = list(range(0, 81, 2))

    def measure(width: int, seed: int) -> dict[str, object]:
        pairs = setting.pairs(n_samples, seed=seed)
        net = setting.net(pairs.x, width, 10, seed=seed, depth=depth)
        run = train(
            net,
            contrastive_problem(pairs, loss_of("dot")),
            n_steps=400,
            record_at=steps,
            recorders={"change": ntk_change(net, probes_of(pairs))},
            learning_rate=learning_rate,
        )
        diverged = run.status is Status.DIVERGED
        return {
            "diverged_at": run.stopped_at if diverged else math.nan,
            "change": padded(run.records["change"], len(steps)),
        }

    return sweep(widths, seeds, measure, t=steps)


def divergence_law(data: xr.Dataset) -> LogLaw | None:
    """The mean step of divergence as a linear function of ln M; None unless every run diverged."""
    means = seed_mean(data.diverged_at)
    return fit_log_law(data.width.values, means) if np.isfinite(means).all() else None


def divergence_panels(data: xr.Dataset) -> list[Panel]:
    """Figures of when runs under the dot product overflow, and of their NTK on the way."""
    return [
        Panel(
            "When training under the dot product overflows",
            "width M",
            "step",
            (curve("mean over seeds", data.width, seed_mean(data.diverged_at)),),
            y_log=False,
        ),
        step_panel("NTK change in time, dot product", data.change),
    ]


def cosine_drift(
    setting: Setting,
    widths: Sequence[int],
    seeds: Sequence[int],
    *,
    n_samples: int,
    n_steps: int,
    activation: str = "relu",
    link: str = "linear",
    depth: int = 1,
) -> xr.Dataset:
    """Train under cosine similarity; record how far the NTK and the weights move, at step 100 among others."""
    steps = sorted({*log_steps(n_steps, setting.pick(quick=5, full=16, paper=16)), min(100, n_steps)})

    def measure(width: int, seed: int) -> dict[str, object]:
        pairs = setting.pairs(n_samples, seed=seed)
        net = setting.net(pairs.x, width, 10, seed=seed, activation=activation, depth=depth)
        run = train(
            net,
            contrastive_problem(pairs, loss_of("cosine", link, delta=DELTA)),
            n_steps=n_steps,
            record_at=steps,
            recorders={"change": ntk_change(net, probes_of(pairs)), "weights_moved": distance_from(parameters_of(net))},
        )
        return {name: padded(values, len(steps)) for name, values in run.records.items()}

    return sweep(widths, seeds, measure, t=steps)
