"""D.eta: the critical learning rate of Theorem 2.1, and training beyond it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr

from kontrast.claims.d.networks import D, N, Network, net_of, sample, targets_of
from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, corrected, curve, judged, printed, shown
from kontrast.claims.panels import guide
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest, seed_mean, sweep, width_law
from kontrast.dynamics import Snapshot, Status, Trajectory, gradient_descent, regression_problem
from kontrast.kernels import NTKOperator, empirical_ntk
from kontrast.learnability import learning_rates
from kontrast.linalg import fit_log_law
from kontrast.nets import Linearized, parameters_of

CONVERGED = 1e-2  # of the loss at the start; diverged runs are far above it
MULTIPLES = (0.9, 1.1, 1.5, 1.9, 2.5, 4.0)  # of 2/λ_max
TRAINED = (
    Network("linear"),
    Network("tanh"),
    Network("relu"),
    Network("tanh", depth=2),
    Network("relu", depth=2),
    Network("relu", centered=False),
)


@claim(
    "D.eta",
    source="Paper D, Theorem 2.1 and (80)",
    title="The critical learning rate",
    printed="Gradient descent converges for η < η_critical, where ‖1 − ηΘ‖ ≤ 1 − ηλ_min.",
    corrected="(80) does not follow from (79): it holds exactly up to η_critical = 2/(λ_min + λ_max), which the text "
    "never says. Nothing breaks there: the linearised network converges up to 2/λ_max and no further. Networks go on: "
    "the loss first grows to the order of the width, in a number of steps that grows as the logarithm of the width, "
    "until the kernel's largest eigenvalue has fallen below 2/η. One hidden layer converges at 1.5 times 2/λ_max and "
    "diverges at 2.5 times, but not with ReLU if the inputs share a direction; two layers of ReLU still converge at "
    "2.5 times.",
    recorded=Verdict.HOLDS,
    cost=4,
)
def critical_rate(setting: Setting) -> Evidence:
    """The ends of (80) and of the linearised network's convergence, and networks at multiples of 2/λ_max."""
    width, n_steps = setting.pick(quick=256, full=512, paper=1024), setting.pick(quick=150, full=300, paper=300)
    widths = setting.pick(quick=(64, 256, 1024, 4096), full=(64, 256, 1024, 4096), paper=(64, 256, 1024, 4096, 16384))
    seeds = setting.seeds(quick=2, full=6, paper=8)
    runs, peaks = endings(setting, width, seeds, n_steps), catapults(setting, widths, range(4 * len(seeds)))
    slope = fit_log_law(peaks.width.values, seed_mean(peaks.peak_step))
    return judged(
        *_limits(setting),
        *_shares_converged(runs),
        *_catapult_summary(runs),
        corrected("exponent_peak", width_law(peaks.peak), "width exponent of the loss's peak", low=0.7, high=1.3),
        corrected("peak_step_slope", slope, "slope of the peak's step in the log of the width", low=0.4, high=1.6),
        data=xr.merge([runs, peaks], join="outer"),
        panels=[*_run_panels(setting, width), _ending_panel(runs), _peak_panel(peaks)],
        setting={"n_samples": N, "d_in": D, "d_out": 1, "width": width, "n_steps": n_steps},
    )


def _limits(setting: Setting) -> tuple[Finding, ...]:
    """The worst of `linear_limits` over some networks."""
    found = [linear_limits(setting, seed) for seed in setting.seeds(quick=1, full=4, paper=4)]
    worst = {name: largest(*(each[name] for each in found)) for name in found[0]}
    linear = worst["linear_limit_error"]
    return (
        printed("critical_error", worst["critical_error"], "(80) holds up to 2/(λ_min + λ_max): error", high=1e-6),
        corrected("linear_limit_error", linear, "the linear model diverges from 2/λ_max on: error", high=0.01),
        corrected("lanczos_error", worst["lanczos_error"], "λ_max by Lanczos, without the kernel: error", high=1e-6),
        *shown(critical_over_stable=worst["critical_over_stable"]),
    )


def linear_limits(setting: Setting, seed: int) -> dict[str, float]:
    """Relative distances of `learning_rates` from the end of (80) and from the divergence of the linearised network."""
    x = sample(setting, N).x
    net = net_of(setting, Network("tanh"), 64, seed=seed, d_out=1)
    problem = regression_problem(x, targets_of(Network("tanh"), x, d_out=1))
    K = empirical_ntk(net, x)[:, :, 0, 0]
    values = torch.linalg.eigvalsh(K)
    rates, by_lanczos = learning_rates(K), learning_rates(NTKOperator(net, x))
    linear, one = Linearized.of(net), torch.eye(len(K)).to(K)

    def contracts(rate: float) -> bool:
        return float(torch.linalg.matrix_norm(one - rate * K, 2)) <= 1 - rate * float(values[0]) + 1e-12

    def shrinks(rate: float) -> bool:
        run = gradient_descent(linear, parameters_of(net), problem, learning_rate=rate, n_steps=100)
        return bool(run.losses[-1] < run.losses[-2])  # by then slow modes are negligible

    return {
        "critical_error": abs(_last(contracts, rates.stable, n_rounds=40) / rates.critical - 1),
        "linear_limit_error": abs(_last(shrinks, rates.stable, n_rounds=9) / rates.stable - 1),
        "lanczos_error": abs(by_lanczos.largest / float(values[-1]) - 1),
        "critical_over_stable": rates.critical / rates.stable,
    }


def _last(holds: Callable[[float], bool], near: float, *, n_rounds: int) -> float:
    """The rate up to which something holds, by bisection between half and twice `near`."""
    low, high = near / 2, 2 * near
    for _ in range(n_rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return (low + high) / 2


def train_at(setting: Setting, network: Network, width: int, seed: int, multiple: float, **options: Any) -> Trajectory:
    """Train at a multiple of 2/λ_max, with options of `gradient_descent`; record the kernel's λ_max over 2/η."""
    x = sample(setting, N, centered=network.centered).x
    net = net_of(setting, network, width, seed=seed, d_out=1)
    rate = multiple * learning_rates(empirical_ntk(net, x)).stable

    def sharpness(now: Snapshot) -> float:
        K = empirical_ntk(net, x, parameters=now.parameters)[:, :, 0, 0]
        return rate / 2 * float(torch.linalg.matrix_norm(K, 2)) if bool(torch.isfinite(K).all()) else math.nan

    return gradient_descent(
        net.at,
        parameters_of(net),
        regression_problem(x, targets_of(network, x, d_out=1)),
        learning_rate=rate,
        recorders={"sharpness": sharpness},
        **options,
    )


def endings(setting: Setting, width: int, seeds: Sequence[int], n_steps: int) -> xr.Dataset:
    """The end of training at every multiple of 2/λ_max: loss over that at the start, its peak, λ_max η/2."""

    def measure(width: int, seed: int) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for network in TRAINED:
            ends = np.array([_ending(setting, network, width, seed, multiple, n_steps) for multiple in MULTIPLES])
            names = (f"{network.name}_{what}" for what in ("converged", "loss", "peak", "sharpness"))
            found |= dict(zip(names, ends.T, strict=True))
        return found

    return sweep((width,), seeds, measure, multiple=MULTIPLES).isel(width=0, drop=True)


def _ending(
    setting: Setting, network: Network, width: int, seed: int, multiple: float, n_steps: int
) -> tuple[float, ...]:
    run = train_at(setting, network, width, seed, multiple, n_steps=n_steps, record_at=[n_steps])
    losses = (run.losses / run.losses[0]).nan_to_num(math.inf, posinf=math.inf)
    loss, peak = float(losses[-1]), float(losses.max())
    ended = run.status is not Status.DIVERGED
    return float(loss < CONVERGED), loss, peak, float(run.records["sharpness"][-1]) if ended else math.nan


def catapults(setting: Setting, widths: Sequence[int], seeds: Sequence[int]) -> xr.Dataset:
    """The height and the step of the loss's peak for a tanh network at 1.5 times 2/λ_max."""

    def measure(width: int, seed: int) -> dict[str, float]:
        run = train_at(setting, Network("tanh"), width, seed, 1.5, n_steps=40, record_at=[])
        return {"peak": float(run.losses.max() / run.losses[0]), "peak_step": float(run.losses.argmax())}

    return sweep(widths, seeds, measure)


def _shares_converged(runs: xr.Dataset) -> tuple[Finding, ...]:
    """Shares of runs that converge at each multiple of 2/λ_max."""
    shares = {
        f"{network.name}_at_{multiple:g}": float(runs[f"{network.name}_converged"].sel(multiple=multiple).mean())
        for network in TRAINED
        for multiple in MULTIPLES
    }

    def share(name: str, statement: str, low: float = 0.0, high: float = 1.0) -> Finding:
        return corrected(name, shares[name], statement, low=low, high=high)

    least = {at: min(shares[f"{network.name}_at_{at}"] for network in TRAINED) for at in ("0.9", "1.5")}
    shallow = ("linear", "tanh", "relu")  # networks of one hidden layer
    return (
        printed("least_at_0.9", least["0.9"], "below it all networks converge: smallest share of runs", low=1),
        corrected("least_at_1.5", least["1.5"], "at 1.5 times all still converge: smallest share", low=0.9, high=1.0),
        *(share(f"{name}_at_2.5", f"{name}: most runs diverge at 2.5 times", high=0.5) for name in shallow),
        *(share(f"{name}_at_4", f"{name}: all diverge at 4 times", high=0) for name in ("linear", "tanh", "tanh_2")),
        share("relu_2_at_2.5", "two layers of ReLU still converge at 2.5 times", low=0.9),
        share("relu_cone_at_2.5", "so does one layer if the inputs share a direction", low=0.9),
        *shown(**shares),
    )


def _catapult_summary(runs: xr.Dataset) -> tuple[Finding, ...]:
    """Growth of the loss below 2/λ_max and beyond, and λ_max after training at 1.5 times, over all networks."""

    def values(what: str, multiples: list[float]) -> np.ndarray:
        return np.stack([runs[f"{network.name}_{what}"].sel(multiple=multiples).values for network in TRAINED])

    grown = float(values("peak", [1.5]).mean(axis=(1, 2)).min())
    sharpness = float(values("sharpness", [1.5]).max())
    return (
        printed("peak_below", float(values("peak", [0.9]).max()), "below it no loss grows: peak over start", high=1.1),
        corrected("peak_at_1.5", grown, "at 1.5 times 2/λ_max the loss first grows: its peak over the start", low=1.2),
        corrected("sharpness_after_1.5", sharpness, "until λ_max is below 2/η: largest λ_max η/2 at the end", high=1.0),
    )


def _run_panels(setting: Setting, width: int) -> list[Panel]:
    """Loss and largest eigenvalue over time at some multiples, for one tanh network."""
    losses, sharpness = [], []
    for multiple in (0.9, 1.1, 1.5, 1.9, 2.5):
        run = train_at(setting, Network("tanh"), width, 0, multiple, n_steps=60, record_at=range(0, 61, 2))
        label, ratio = f"η = {multiple:g}·2/λ_max", run.losses / run.losses[0]
        losses.append(curve(label, range(len(ratio)), ratio.clamp(max=1e12), "plain"))
        sharpness.append(curve(label, run.steps, run.records["sharpness"], "plain"))
    title = f"tanh, width {width}"
    return [
        Panel(f"Loss, {title}", "step t", "loss over that at the start", tuple(losses), x_log=False),
        Panel(f"Largest eigenvalue, {title}", "step t", "λ_max η/2", tuple(sharpness), x_log=False),
    ]


def _ending_panel(runs: xr.Dataset) -> Panel:
    curves = tuple(
        curve(network.name.replace("_", " "), MULTIPLES, seed_mean(runs[f"{network.name}_converged"]))
        for network in TRAINED
    )
    return Panel("Share of runs that converge", "η over 2/λ_max", "share of runs", curves, x_log=False, y_log=False)


def _peak_panel(peaks: xr.Dataset) -> Panel:
    heights = seed_mean(peaks.peak)
    curves = (curve("tanh", peaks.width, heights), guide(peaks.width, heights, 1.0, "n"))
    return Panel("Peak of the loss at 1.5 times 2/λ_max", "width n", "largest loss over that at the start", curves)
