"""Training runs that several claims of paper A share, and what they record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import xarray as xr
from torch import Tensor

from kontrast.bounds import Form
from kontrast.claims.evidence import Panel
from kontrast.claims.panels import log_steps, step_panel, width_panel
from kontrast.claims.setting import Setting, loss_of, seed_mean, sweep
from kontrast.data import Pairs
from kontrast.dynamics import (
    Problem,
    Recorder,
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
ALL_FORMS: tuple[Form, ...] = ("printed", "corrected", "sharp")  # of a bound


def train(
    net: MLP,
    problem: Problem,
    record_at: Sequence[int],
    recorders: dict[str, Recorder] | None = None,
    *,
    n_steps: int | None = None,
    learning_rate: float = RATE,
    keep_parameters: bool = False,
) -> Trajectory:
    """Full-batch gradient descent from the present weights of `net`, by default up to the last recorded step."""
    return gradient_descent(
        pure_function(net),
        parameters_of(net),
        problem,
        learning_rate=learning_rate,
        n_steps=record_at[-1] if n_steps is None else n_steps,
        record_at=record_at,
        recorders=recorders or {},
        keep_parameters=keep_parameters,
    )


def probes_of(pairs: Pairs) -> Tensor:
    """The points at which tangent kernels are compared: the first anchors."""
    return pairs.rows[pairs.anchor[:MOST_PROBES]]


def ntk_change(net: MLP, pairs: Pairs) -> Recorder:
    """Recorder of max |K(t) − K(0)| over the probes and outputs, as in Figs. 2, 3 and 5 to 7 of paper A."""
    probes = probes_of(pairs)
    start = empirical_ntk(net, probes)
    return lambda now: (empirical_ntk(net, probes, parameters=now.parameters) - start).abs().max()


def unit_shift(net: MLP, pairs: Pairs) -> Recorder:
    """Recorder of how far the inputs of the first units have moved, at the probe where they moved farthest.

    It is the root mean square of v·x − v(0)·x over units, weighted by φ'(v(0)·x)²: a unit whose slope is zero neither
    moves nor counts in the NTK.
    """
    probes = probes_of(pairs)

    def inputs(layers: Sequence[Tensor]) -> Tensor:
        return net.scales[0] * probes @ layers[0].mT  # (probes, width)

    start = inputs(net.layers()[0])
    weight = net.activation.first(start).square()
    weight /= weight.sum(1, keepdim=True).clamp(min=1e-300)  # a row of zeros has no ReLU with a slope
    return lambda now: (weight * (inputs(net.layers(now.parameters)[0]) - start).square()).sum(1).sqrt().max()


def dot_rate(setting: Setting, data: str | None = None) -> float:
    """Learning rate for the dot product, whose time scale depends on the mean of ‖x‖²; about 0.05 on digits."""
    return 0.8 / setting.mean_square(data)


def dot_divergence(
    setting: Setting, widths: Sequence[int], seeds: Sequence[int], *, n_samples: int, depth: int = 1
) -> xr.Dataset:
    """Train under the dot product; record the step at which every run overflows, and the change of its NTK."""
    steps, rate = list(range(0, 81, 2)), dot_rate(setting)

    def measure(width: int, seed: int) -> dict[str, object]:
        pairs = setting.pairs(n_samples, seed=seed)
        net = setting.net(pairs.x, width, 10, seed=seed, depth=depth)
        problem, recorders = contrastive_problem(pairs, loss_of("dot")), {"change": ntk_change(net, pairs)}
        run = train(net, problem, steps, recorders, n_steps=400, learning_rate=rate)
        return {
            "diverged_at": run.stopped_at if run.status is Status.DIVERGED else math.nan,
            "change": padded(run.records["change"], len(steps)),
        }

    return sweep(widths, seeds, measure, t=steps)


def divergence_law(data: xr.Dataset) -> LogLaw | None:
    """The mean step of divergence as a linear function of ln M; None unless every run diverged."""
    means = seed_mean(data.diverged_at)
    return fit_log_law(data.width.values, means) if np.isfinite(means).all() else None


def divergence_panels(data: xr.Dataset) -> list[Panel]:
    """Figures of when runs under the dot product overflow, and of their NTK on the way."""
    title, steps = "When training under the dot product overflows", {"mean over seeds": data.diverged_at}
    return [
        width_panel(title, steps, "step", guides=(), y_log=False),
        step_panel("NTK change in time, dot product", data.change),
    ]


def drift_steps(setting: Setting) -> list[int]:
    """The steps at which `cosine_drift` records for Figs. 3 and 5, step 100 among them."""
    return sorted({*log_steps(setting.pick(quick=100, full=500), setting.pick(quick=5, full=16)), 100})


def cosine_drift(
    setting: Setting,
    widths: Sequence[int],
    seeds: Sequence[int],
    steps: Sequence[int],
    *,
    n_samples: int = 10,
    activation: str = "relu",
    link: str = "linear",
    depth: int = 1,
    largest_square: float | None = None,
) -> xr.Dataset:
    """Train under cosine similarity; record how far the NTK, the weights and the inputs of the first units move.

    With `largest_square` all inputs are multiplied by one factor, such that this is the largest ‖x‖².
    """

    def measure(width: int, seed: int) -> dict[str, object]:
        pairs = setting.pairs(n_samples, seed=seed)
        square = float(pairs.rows.square().sum(1).max())
        if largest_square is not None:
            pairs = replace(pairs, x=math.sqrt(largest_square / square) * pairs.x)
        net = setting.net(pairs.x, width, 10, seed=seed, activation=activation, depth=depth)
        recorders = {
            "change": ntk_change(net, pairs),
            "weights_moved": distance_from(parameters_of(net)),
            "shift": unit_shift(net, pairs),
        }
        run = train(net, contrastive_problem(pairs, loss_of("cosine", link, delta=DELTA)), steps, recorders)
        records = {name: padded(values, len(steps)) for name, values in run.records.items()}
        return {**records, "largest_square": square if largest_square is None else largest_square}

    return sweep(widths, seeds, measure, t=steps)
