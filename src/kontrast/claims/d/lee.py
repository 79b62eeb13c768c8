"""D.lee: wide networks train as their linearisation does (Theorem 2.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.d.networks import D, N, Network, Z, net_of, sample, targets_of
from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, corrected, curve, judged, printed, shown
from kontrast.claims.panels import log_steps, width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest, loss_of, seed_mean, sweep, width_law
from kontrast.dynamics import (
    Problem,
    Snapshot,
    Status,
    classification_problem,
    contrastive_problem,
    gradient_descent,
    regression_problem,
)
from kontrast.kernels import empirical_ntk
from kontrast.learnability import learning_rates, linearization_gap, mse_training
from kontrast.linalg import Estimate
from kontrast.nets import MLP, Linearized, parameters_of
from kontrast.runs import padded

HARD_N = 20
SHALLOW = (
    Network("tanh"),
    Network("tanh", target="hard"),
    Network("relu"),
    Network("relu", target="hard"),
    Network("tanh", "standard"),
)
DEEP = (
    Network("tanh", depth=2),
    Network("tanh", depth=3),
    Network("relu", depth=2),
    Network("relu", depth=3),
    Network("tanh", depth=2, target="hard"),
    Network("tanh", depth=3, target="hard"),
    Network("tanh", "standard", depth=2),
    Network("tanh", "standard", depth=3),
)
QUANTITIES = ("output", "new", "kernel", "weights", "moved")


@claim(
    "D.lee",
    source="Paper D, Theorem 2.1, (1) to (4)",
    title="Wide networks train as their linearisation does",
    printed="Under MSE and η < η_critical, ‖f − f_lin‖, ‖θ_t − θ_0‖/√n and ‖Θ_t − Θ_0‖ are O(1/√n) at every t.",
    corrected="This is an upper bound. With a smooth activation outputs and kernel differ by 1/n, and by 1/n² with one "
    "hidden layer in the standard parametrisation, where only the last layer trains in the limit. ReLU, which (62) "
    "excludes, comes down to n^−1/2, and on hard targets not even to that at these widths. Weights move by O(1) in the "
    "NTK parametrisation and by n^−1/2 in the standard one, √n less than (3) allows. Hard targets follow the law only "
    "at larger widths. f_lin starts from f(θ_0), as in (1); with f(θ_t), as printed in (22) and (101), nothing falls. "
    "Under cross-entropy and contrastive losses the difference keeps growing.",
    recorded=Verdict.HOLDS,
    cost=6,
)
def theorem_2_1(setting: Setting) -> Evidence:
    """Gradient descent of networks beside their linearisation; exponents in the width of the worst recorded step."""
    widths = setting.pick(
        quick=(64, 256, 1024, 4096), full=(64, 256, 1024, 4096, 16384), paper=(64, 256, 1024, 4096, 16384, 65536)
    )
    deep_widths = setting.pick(quick=(64, 128, 256), full=(64, 128, 256, 512), paper=(64, 128, 256, 512, 1024))
    seeds = setting.seeds(quick=2, full=6, paper=8)
    n_steps = setting.pick(quick=60, full=200, paper=200)
    shallow = gaps(setting, SHALLOW, widths, seeds, n_steps)
    deep = gaps(setting, DEEP, deep_widths, seeds, n_steps)
    laws = {
        f"{network.name}_{quantity}": width_law(data[f"{network.name}_{quantity}"])
        for data, networks in ((shallow, SHALLOW), (deep, DEEP))
        for network in networks
        for quantity in QUANTITIES
    }
    steeper = _steepening(shallow.tanh_hard_kernel)
    over_time = losses_over_time(setting, seeds[: setting.pick(quick=1, full=5, paper=5)])
    return judged(
        *_slowest_laws(laws),
        *_closed_form(setting),
        *_laws(laws),
        corrected("steepening_tanh_hard_kernel", steeper, "tanh, hard: kernel's last exponent minus first", high=-0.02),
        *_growth(over_time),
        *shown(
            **{f"exponent_{name}": law for name, law in laws.items()},
            **{
                f"exponent_relu_{quantity}_wide": width_law(shallow[f"relu_{quantity}"], from_width=widths[-3])
                for quantity in QUANTITIES[:3]
            },
        ),
        data=xr.merge([shallow, deep.rename(width="deep_width"), over_time], join="outer"),
        panels=[*_width_panels(shallow, deep), _loss_panel(over_time)],
        setting={"n_samples": N, "hard_n_samples": HARD_N, "d_in": D, "d_out": Z, "n_steps": n_steps},
        warnings=[
            f"deep networks are at most {deep_widths[-1]} wide: their exponents on hard targets, and with ReLU, are "
            "measured but not judged"
        ],
    )


def half_rate(net: MLP, x: Tensor) -> float:
    """Half the paper's critical rate for this net: η_0/width in the standard parametrisation, η_0 in the NTK one."""
    return learning_rates(empirical_ntk(net, x)).critical / 2


def _slowest_laws(laws: Mapping[str, Estimate]) -> tuple[Finding, ...]:
    """The slowest exponent of each quantity over smooth networks; deep ones are too narrow for hard targets."""
    networks = (*SHALLOW, *(network for network in DEEP if network.target == "easy"))
    smooth = [network.name for network in networks if network.activation != "relu"]
    output, new, kernel, weights = (_slowest([laws[f"{name}_{q}"] for name in smooth]) for q in QUANTITIES[:4])
    return (
        printed("slowest_output", output, "(2), training inputs: slowest exponent over smooth networks", high=-0.5),
        printed("slowest_new", new, "(2), new inputs: the same", high=-0.5),
        printed("slowest_weights", weights, "(3): slowest exponent of the move of the weights", high=0.1),
        printed("slowest_kernel", kernel, "(4): slowest exponent of the kernel's change", high=-0.5),
    )


def _laws(laws: Mapping[str, Estimate]) -> tuple[Finding, ...]:
    """The exponents in the width that are found for single networks."""

    def law(name: str, statement: str, low: float, high: float) -> Finding:
        return corrected(f"exponent_{name}", laws[name], statement, low=low, high=high)

    return (
        law("tanh_output", "in fact outputs differ by 1/n (tanh, one hidden layer)", -1.2, -0.8),
        law("tanh_new", "at new inputs too", -1.2, -0.7),
        law("tanh_kernel", "the kernel changes by 1/n", -1.2, -0.8),
        law("tanh_2_kernel", "with two hidden layers too", -1.2, -0.75),
        law("tanh_3_kernel", "and with three", -1.2, -0.75),
        law("tanh_weights", "weights move by O(1) in the NTK parametrisation", -0.1, 0.1),
        law("tanh_standard_weights", "and by n^−1/2 in the standard one", -0.56, -0.42),
        law("tanh_standard_output", "standard parametrisation, one hidden layer: outputs differ by 1/n²", -2.3, -1.6),
        law("tanh_standard_kernel", "and the kernel changes by 1/n²", -2.3, -1.7),
        law("tanh_standard_2_kernel", "with two hidden layers by 1/n", -1.4, -0.8),
        law("relu_output", "ReLU: outputs approach n^−1/2 instead", -0.85, -0.35),
        law("relu_kernel", "and so does its kernel", -0.92, -0.45),
        law("relu_hard_output", "on a hard target not even that at these widths", -0.5, 0.05),
        law("tanh_hard_kernel", "hard target, tanh: the kernel's change falls more slowly", -0.92, -0.4),
        law("tanh_moved", "f_lin as printed in (22) and (101) differs by what was learned: no decay", -0.1, 0.1),
    )


def _steepening(values: xr.DataArray) -> float:
    """The exponent between the last two widths minus that between the first two."""
    means, widths = np.log(seed_mean(values)), np.log(values.width.values)
    slopes = np.diff(means) / np.diff(widths)
    return float(slopes[-1] - slopes[0])


def gaps(
    setting: Setting, networks: Sequence[Network], widths: Sequence[int], seeds: Sequence[int], n_steps: int
) -> xr.Dataset:
    """The largest value over recorded steps of each quantity that Theorem 2.1 bounds, and of the outputs' move."""

    def measure(width: int, seed: int) -> dict[str, float]:
        return {
            f"{network.name}_{quantity}": value
            for network in networks
            for quantity, value in _gap(setting, network, width, seed, n_steps).items()
        }

    return sweep(widths, seeds, measure)


def _gap(setting: Setting, network: Network, width: int, seed: int, n_steps: int) -> dict[str, float]:
    hard = network.target == "hard"
    points, steps = sample(setting, HARD_N if hard else N), n_steps * (2 if hard else 1)
    net = net_of(setting, network, width, seed=seed)
    found = linearization_gap(
        net,
        regression_problem(points.x, targets_of(network, points.x)),
        learning_rate=half_rate(net, points.x),
        n_steps=steps,
        record_at=log_steps(steps, 6),
        new_inputs=points.new,
    )
    assert found.new_gap is not None  # there are new inputs
    ended = found.status is not Status.DIVERGED
    scale = 1 / width if network.parametrization == "standard" else 1.0  # (61)
    values = (found.output_gap, found.new_gap, scale * found.kernel_drift, found.parameter_move, found.output_move)
    return {name: float(v.max()) if ended else math.nan for name, v in zip(QUANTITIES, values, strict=True)}


def _slowest(laws: Sequence[Estimate]) -> Estimate:
    """The law that falls most slowly; NaN if one of them is."""
    values = [law.value for law in laws]
    return Estimate.of(math.nan) if np.isnan(values).any() else laws[int(np.argmax(values))]


def _closed_form(setting: Setting) -> tuple[Finding, ...]:
    """(1 − ηΘ)^t against gradient descent of the linearised network itself: training and new inputs, relative."""
    networks = (Network("relu", depth=2), Network("tanh", "standard"))
    errors = np.concatenate([_closed_form_errors(setting, network) for network in networks])  # (steps, 2)
    error, new_error = (largest(*column) for column in errors.T)
    return (
        printed("closed_form_error", error, "(1 − ηΘ)^t is the trained linear model: relative error", high=1e-12),
        printed("closed_form_new_error", new_error, "at new inputs too", high=1e-12),
    )


def _closed_form_errors(setting: Setting, network: Network) -> np.ndarray:
    points, net = sample(setting, N), net_of(setting, network, 64, seed=0)
    targets, rate, linear = targets_of(network, points.x), half_rate(net, points.x), Linearized.of(net)

    def at_new(now: Snapshot) -> Tensor:
        return linear(now.parameters, points.new)

    run = gradient_descent(
        linear,
        parameters_of(net),
        regression_problem(points.x, targets),
        learning_rate=rate,
        n_steps=30,
        record_at=(1, 10, 30),
        keep_outputs=True,
        recorders={"new": at_new},
    )
    with torch.no_grad():
        start, new_start = net(points.x), net(points.new)
    exact = mse_training(empirical_ntk(net, points.x), start, targets, learning_rate=rate, method="descent")
    cross = empirical_ntk(net, points.new, points.x)
    assert run.outputs is not None  # they were asked for
    return np.array(
        [
            (_relative(f, exact.outputs(step)), _relative(f_new.to(f), exact.predict(cross, new_start, step)))
            for step, f, f_new in zip(run.steps, run.outputs, run.records["new"], strict=True)
        ]
    )


def _relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def losses_over_time(setting: Setting, seeds: Sequence[int]) -> xr.Dataset:
    """‖f − f_lin‖ over time under three losses, at width 256: at new inputs, or for pairs at their own."""
    last = setting.pick(quick=300, full=1200, paper=1200)
    steps = sorted({*log_steps(last, 10), last // 3})
    points = sample(setting, N)
    labels = torch.randint(Z, (N,), generator=generator("D.labels")).to(setting.device)

    def in_time(net: MLP, problem: Problem, rate: float, new: Tensor | None) -> np.ndarray:
        found = linearization_gap(net, problem, learning_rate=rate, n_steps=last, record_at=steps, new_inputs=new)
        return padded(found.output_gap if found.new_gap is None else found.new_gap, len(steps))

    def measure(width: int, seed: int) -> dict[str, np.ndarray]:
        net, pairs = net_of(setting, Network("tanh"), width, seed=seed), setting.pairs(N, seed=0)
        on_pairs, rate = setting.net(pairs.x, width, Z, seed=seed, activation="tanh"), half_rate(net, points.x)
        one_hot = torch.nn.functional.one_hot(labels, Z).to(points.x)
        return {
            "mse": in_time(net, regression_problem(points.x, one_hot), rate, points.new),
            # The softmax's curvature is at most 1/2, so twice the rate is safe.
            "cross_entropy": in_time(net, classification_problem(points.x, labels), 2 * rate, points.new),
            "contrastive": in_time(on_pairs, contrastive_problem(pairs, loss_of("cosine")), 0.1, None),
        }

    return sweep((256,), seeds, measure, t=steps).isel(width=0, drop=True)


def growth(values: xr.DataArray) -> float:
    """The mean at the end over the mean at a third of the steps."""
    means, t = seed_mean(values), [int(step) for step in values.t]
    return float(means[-1] / means[t.index(t[-1] // 3)])


def _growth(over_time: xr.Dataset) -> tuple[Finding, ...]:
    words = "‖f − f_lin‖ at the end over that at a third of the steps"
    mse, entropy, contrastive = (growth(over_time[name]) for name in ("mse", "cross_entropy", "contrastive"))
    return (
        corrected("growth_mse", mse, f"MSE: {words}; it stops growing", low=0.9, high=1.15),
        corrected("growth_cross_entropy", entropy, f"cross-entropy: {words}; it keeps growing", low=1.25),
        corrected("growth_contrastive", contrastive, f"contrastive loss: {words}; it keeps growing", low=1.15),
    )


def _width_panels(shallow: xr.Dataset, deep: xr.Dataset) -> list[Panel]:
    """Outputs, kernels and weights against the width."""

    def panel(title: str, data: xr.Dataset, networks: Sequence[Network], quantity: str, label: str) -> Panel:
        series = {network.name: data[f"{network.name}_{quantity}"] for network in networks}
        return width_panel(title, series, label)

    return [
        panel("Outputs, one hidden layer (2)", shallow, SHALLOW, "output", "sup ‖f − f_lin‖"),
        panel("Outputs at new inputs (2)", shallow, SHALLOW, "new", "sup ‖f − f_lin‖"),
        panel("Weights (3)", shallow, SHALLOW, "weights", "sup ‖θ(t) − θ(0)‖"),
        panel("Kernel, one hidden layer (4)", shallow, SHALLOW, "kernel", "sup ‖Θ(t) − Θ(0)‖"),
        panel("Outputs, two and three hidden layers", deep, DEEP, "output", "sup ‖f − f_lin‖"),
        panel("Kernel, two and three hidden layers", deep, DEEP, "kernel", "sup ‖Θ(t) − Θ(0)‖"),
    ]


def _loss_panel(over_time: xr.Dataset) -> Panel:
    curves = tuple(
        curve(str(name).replace("_", "-"), over_time.t[1:], seed_mean(over_time[name])[1:]) for name in over_time
    )
    return Panel("Over time, by loss (width 256)", "step t", "‖f − f_lin‖", curves)
