"""Paper D, Theorem 2.1: wide networks train as their linearisation does, below a critical learning rate."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.evidence import Criterion, Estimate, Evidence, Panel, Role, Verdict, curve, evidence
from kontrast.claims.panels import guide, log_steps, width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest, loss_of, seed_mean, sweep, width_law
from kontrast.dynamics import (
    Problem,
    Snapshot,
    Status,
    Trajectory,
    classification_problem,
    contrastive_problem,
    gradient_descent,
    regression_problem,
)
from kontrast.errors import InputError
from kontrast.kernels import NTKOperator, empirical_ntk, infinite_ntk
from kontrast.learnability import learning_rates, linearization_gap, mse_training
from kontrast.linalg import fit_log_law
from kontrast.nets import MLP, Linearized, parameters_of
from kontrast.runs import padded

D, Z = 10, 8  # inputs: principal components of the data; outputs
N, N_NEW = 10, 10
HARD_N = 20

Target = Literal["easy", "hard"]


@dataclass(frozen=True)
class Network:
    """What is trained, and on what."""

    activation: str
    parametrization: str = "ntk"
    depth: int = 1
    target: Target = "easy"
    centered: bool = True  # the inputs are

    @property
    def name(self) -> str:
        """tanh, relu_hard, tanh_standard_2: what differs from the plain case."""
        differs = {
            "standard": self.parametrization == "standard",
            str(self.depth): self.depth > 1,
            "hard": self.target == "hard",
            "cone": not self.centered,
        }
        return "_".join([self.activation, *(word for word, does in differs.items() if does)])


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


@dataclass(frozen=True, eq=False)
class Sample:
    """Inputs on the unit sphere, as Theorem 2.1 wants them: to train on, and new ones."""

    x: Tensor
    new: Tensor


@functools.lru_cache(maxsize=8)
def sample(setting: Setting, n: int, *, centered: bool = True) -> Sample:
    """Data in their ten leading principal components, divided by their norms; not centred, they share a direction.

    Few inputs: in the standard parametrisation the first layer's part of the kernel is d/width of the others', and
    has to be small before a law in the width can be seen.
    """
    rows = setting.dataset().rows
    if n + N_NEW > len(rows) or rows.shape[1] < D:
        raise InputError(
            f"this claim needs {n + N_NEW} samples of at least {D} features, got {tuple(rows.shape)}; "
            f"give a larger --data"
        )
    rows = rows - rows.mean(0) if centered else rows
    _, _, directions = torch.linalg.svd(rows, full_matrices=False)
    order = torch.randperm(len(rows), generator=generator("D.sample"))[: n + N_NEW]
    x = rows[order] @ directions[:D].mT
    x = (x / x.norm(dim=1, keepdim=True)).to(setting.device)
    return Sample(x[:n], x[n:])


def net_of(setting: Setting, network: Network, width: int, *, seed: int, d_out: int = Z) -> MLP:
    """The network at one width in float64; its weights depend on width and seed alone."""
    return MLP(
        D,
        width,
        d_out,
        depth=network.depth,
        activation=network.activation,
        parametrization=network.parametrization,
        generator=generator("net", seed, width),
        dtype=torch.float64,
        device=setting.device,
    )


def targets_of(network: Network, x: Tensor, *, d_out: int = Z) -> Tensor:
    """As large as the outputs at the start: a linear function, or what the kernel learns last."""
    size = 1 / math.sqrt(D) if network.parametrization == "standard" else 1.0
    if network.target == "hard":
        _, modes = torch.linalg.eigh(infinite_ntk(x, activation=network.activation))
        last: Tensor = modes[:, :d_out]
        return size * math.sqrt(len(x)) * last
    weights = torch.randn(D, d_out, generator=generator("D.target"), dtype=torch.float64).to(x)
    return size * x @ weights


def half_rate(net: MLP, x: Tensor) -> float:
    """Half the paper's critical rate for this net: η_0/width in the standard parametrisation, η_0 in the other."""
    return learning_rates(empirical_ntk(net, x)).critical / 2


@claim(
    "D.lee",
    source="Paper D, Theorem 2.1, (1) to (4)",
    title="Wide networks train as their linearisation does",
    printed="Under MSE and η < η_critical, ‖f − f_lin‖, ‖θ_t − θ_0‖/√n and ‖Θ_t − Θ_0‖ are O(1/√n) at every t.",
    corrected="An upper bound. With a smooth activation outputs and kernel differ by 1/n, and by 1/n² with one hidden "
    "layer in the standard parametrisation, where in the limit only the last layer trains. ReLU, which (62) excludes, "
    "comes down to n^−1/2, and on hard targets not even to that at these widths. Weights move by O(1) in the NTK "
    "parametrisation and by n^−1/2 in the standard one, √n less than (3) allows. Hard targets come to the law later. "
    "f_lin starts from f(θ_0), as in (1); with f(θ_t), as (22) and (101) print it, nothing falls. Under "
    "cross-entropy and contrastive losses the difference keeps growing.",
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
        f"exponent_{network.name}_{quantity}": width_law(data[f"{network.name}_{quantity}"])
        for data, networks in ((shallow, SHALLOW), (deep, DEEP))
        for network in networks
        for quantity in QUANTITIES
    }
    wide = {f"exponent_relu_{q}_wide": width_law(shallow[f"relu_{q}"], from_width=widths[-3]) for q in QUANTITIES[:3]}
    judged = (*SHALLOW, *(n for n in DEEP if n.target == "easy"))  # deep ones are too narrow for hard targets here
    smooth = [n.name for n in judged if n.activation != "relu"]
    slowest = {f"slowest_{q}": _slowest([laws[f"exponent_{name}_{q}"] for name in smooth]) for q in QUANTITIES[:4]}
    error, new_error = closed_form_error(setting)
    over_time = losses_over_time(setting, seeds[: setting.pick(quick=1, full=5, paper=5)])
    grown = {f"growth_{name}": growth(over_time[name]) for name in over_time}
    return evidence(
        {
            **slowest,
            **laws,
            **wide,
            "steepening_tanh_hard_kernel": _steepening(shallow.tanh_hard_kernel),
            "closed_form_error": error,
            "closed_form_new_error": new_error,
            **grown,
        },
        _lee_criteria(),
        data=xr.merge([shallow, deep.rename(width="deep_width"), over_time], join="outer"),
        panels=[*_lee_panels(shallow, deep), _loss_panel(over_time)],
        setting={"n_samples": N, "hard_n_samples": HARD_N, "d_in": D, "d_out": Z, "n_steps": n_steps},
        warnings=[
            f"deep networks are at most {deep_widths[-1]} wide: their exponents on hard targets, and with ReLU, are "
            "measured and not judged",
        ],
    )


def _steepening(values: xr.DataArray) -> float:
    """The exponent from the second-last width to the last, less that from the first to the second."""
    means, widths = np.log(seed_mean(values)), np.log(values.width.values)
    slopes = np.diff(means) / np.diff(widths)
    return float(slopes[-1] - slopes[0])


def gaps(
    setting: Setting, networks: Sequence[Network], widths: Sequence[int], seeds: Sequence[int], n_steps: int
) -> xr.Dataset:
    """The largest over recorded steps of all that Theorem 2.1 bounds, and of what training moved."""

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
    """The law that falls most slowly; not a number where one is not."""
    values = [law.value for law in laws]
    return Estimate.of(math.nan) if np.isnan(values).any() else laws[int(np.argmax(values))]


def closed_form_error(setting: Setting) -> tuple[float, float]:
    """(1 − ηΘ)^t against gradient descent of the linearised network itself: training and new inputs, relative."""
    networks = (Network("relu", depth=2), Network("tanh", "standard"))
    errors = np.concatenate([_closed_form_errors(setting, network) for network in networks])  # (steps, 2)
    return largest(*errors[:, 0]), largest(*errors[:, 1])


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
    """‖f − f_lin‖ in time under three losses, at width 256: at new inputs, and for pairs at their own."""
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
            # The softmax's curvature is at most 1/2, so that twice the rate is safe.
            "cross_entropy": in_time(net, classification_problem(points.x, labels), 2 * rate, points.new),
            "contrastive": in_time(on_pairs, contrastive_problem(pairs, loss_of("cosine")), 0.1, None),
        }

    return sweep((256,), seeds, measure, t=steps).isel(width=0, drop=True)


def growth(values: xr.DataArray) -> float:
    """The mean at the end over the mean at a third of the steps."""
    means, t = seed_mean(values), [int(step) for step in values.t]
    return float(means[-1] / means[t.index(t[-1] // 3)])


def _lee_criteria() -> list[Criterion]:
    def law(name: str, statement: str, low: float, high: float, role: Role = "corrected") -> Criterion:
        return Criterion(f"exponent_{name}", statement, low, high, role)

    return [
        Criterion(
            "slowest_output",
            "(2), training inputs: outputs at least as n^−1/2; smooth networks, a hard target with one hidden layer",
            high=-0.5,
        ),
        Criterion("slowest_new", "(2), new inputs: the same", high=-0.5),
        Criterion("slowest_weights", "(3): weights move by O(1) at most", high=0.1),
        Criterion("slowest_kernel", "(4): the kernel at least as n^−1/2", high=-0.5),
        Criterion("closed_form_error", "(1 − ηΘ)^t is the trained linear model", high=1e-12),
        Criterion("closed_form_new_error", "at new inputs too", high=1e-12),
        law("tanh_output", "in fact outputs fall as 1/n (tanh, one hidden layer)", -1.2, -0.8),
        law("tanh_new", "at new inputs too", -1.2, -0.7),
        law("tanh_kernel", "and the kernel as 1/n", -1.2, -0.8),
        law("tanh_2_kernel", "with two hidden layers too", -1.2, -0.75),
        law("tanh_3_kernel", "and with three", -1.2, -0.75),
        law("tanh_weights", "weights move by O(1) in the NTK parametrisation", -0.1, 0.1),
        law("tanh_standard_weights", "and as n^−1/2 in the standard one", -0.56, -0.42),
        law("tanh_standard_output", "where one hidden layer's outputs differ by 1/n²", -2.3, -1.6),
        law("tanh_standard_kernel", "and its kernel moves by 1/n²", -2.3, -1.7),
        law("tanh_standard_2_kernel", "with two hidden layers by 1/n", -1.4, -0.8),
        law("relu_output", "ReLU: more slowly, towards n^−1/2", -0.85, -0.35),
        law("relu_kernel", "so does its kernel", -0.92, -0.45),
        law("relu_hard_output", "on a hard target not even that at these widths", -0.5, 0.05),
        law("tanh_hard_kernel", "a hard target's kernel falls more slowly, smooth as the network is", -0.92, -0.4),
        Criterion(
            "steepening_tanh_hard_kernel",
            "and the faster the wider: the exponent between the last two widths less that between the first two",
            high=-0.02,
            role="corrected",
        ),
        law("tanh_moved", "what (22) and (101) print as f_lin differs by what was learned: no law at all", -0.1, 0.1),
        Criterion("growth_mse", "MSE: the difference stops growing", 0.9, 1.15, "corrected"),
        Criterion("growth_cross_entropy", "cross-entropy: it does not", low=1.25, role="corrected"),
        Criterion("growth_contrastive", "nor under a contrastive loss", low=1.15, role="corrected"),
    ]


def _lee_panels(shallow: xr.Dataset, deep: xr.Dataset) -> list[Panel]:
    """Against the width: outputs, kernels and weights."""

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
    return Panel("In time, by the loss (width 256)", "step t", "‖f − f_lin‖", curves)


CONVERGED = 1e-2  # of the loss at the start; what diverges is far above it
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
    "never says. Nothing breaks there: the linearised network converges up to 2/λ_max, and no further. Networks go on: "
    "the loss first grows, to the order of the width in a number of steps that grows as its logarithm, until the "
    "kernel's largest eigenvalue has fallen below 2/η. One hidden layer converges at 1.5 times 2/λ_max and diverges at "
    "2.5 times, but not with ReLU where the inputs share a direction; two layers of ReLU still converge at 2.5 times.",
    recorded=Verdict.HOLDS,
    cost=4,
)
def critical_rate(setting: Setting) -> Evidence:
    """Where (80) ends, where the linearised network diverges, and what networks do at multiples of 2/λ_max."""
    width, n_steps = setting.pick(quick=256, full=512, paper=1024), setting.pick(quick=150, full=300, paper=300)
    widths = setting.pick(quick=(64, 256, 1024, 4096), full=(64, 256, 1024, 4096), paper=(64, 256, 1024, 4096, 16384))
    seeds = setting.seeds(quick=2, full=6, paper=8)
    limits = [linear_limits(setting, seed) for seed in setting.seeds(quick=1, full=4, paper=4)]
    runs, peaks = endings(setting, width, seeds, n_steps), catapults(setting, widths, range(4 * len(seeds)))
    converged = {
        f"{network.name}_at_{multiple:g}": float(runs[f"{network.name}_converged"].sel(multiple=multiple).mean())
        for network in TRAINED
        for multiple in MULTIPLES
    }
    return evidence(
        {
            **{name: largest(*(found[name] for found in limits)) for name in limits[0]},
            **converged,
            "least_at_0.9": min(converged[f"{network.name}_at_0.9"] for network in TRAINED),
            "least_at_1.5": min(converged[f"{network.name}_at_1.5"] for network in TRAINED),
            **_catapult_summary(runs),
            "exponent_peak": width_law(peaks.peak),
            "peak_step_slope": fit_log_law(peaks.width.values, seed_mean(peaks.peak_step)),
        },
        _eta_criteria(),
        data=xr.merge([runs, peaks], join="outer"),
        panels=[*_run_panels(setting, width), _ending_panel(runs), _peak_panel(peaks)],
        setting={"n_samples": N, "d_in": D, "d_out": 1, "width": width, "n_steps": n_steps},
    )


def linear_limits(setting: Setting, seed: int) -> dict[str, float]:
    """How far the rates of `learning_rates` are from where (80) ends and where the linearised network diverges."""
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
        return bool(run.losses[-1] < run.losses[-2])  # slow modes are gone by then, or next to nothing

    return {
        "critical_error": abs(_last(contracts, rates.stable, n_rounds=40) / rates.critical - 1),
        "linear_limit_error": abs(_last(shrinks, rates.stable, n_rounds=9) / rates.stable - 1),
        "lanczos_error": abs(by_lanczos.largest / float(values[-1]) - 1),
        "critical_over_stable": rates.critical / rates.stable,
    }


def _last(holds: Callable[[float], bool], near: float, *, n_rounds: int) -> float:
    """The rate up to which something holds, between half and twice the one it should be near, by bisection."""
    low, high = near / 2, 2 * near
    for _ in range(n_rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return (low + high) / 2


def train_at(
    setting: Setting,
    network: Network,
    width: int,
    seed: int,
    multiple: float,
    *,
    n_steps: int,
    record_at: Sequence[int],
) -> Trajectory:
    """Training at a multiple of 2/λ_max, recording the kernel's largest eigenvalue over 2/η."""
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
        n_steps=n_steps,
        record_at=record_at,
        recorders={"sharpness": sharpness},
    )


def endings(setting: Setting, width: int, seeds: Sequence[int], n_steps: int) -> xr.Dataset:
    """How training ends at every multiple of 2/λ_max: the loss over that at the start, its peak, λ_max η/2."""

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
    """At 1.5 times 2/λ_max: how high the loss of a tanh network goes, and when."""

    def measure(width: int, seed: int) -> dict[str, float]:
        run = train_at(setting, Network("tanh"), width, seed, 1.5, n_steps=40, record_at=[])
        return {"peak": float(run.losses.max() / run.losses[0]), "peak_step": float(run.losses.argmax())}

    return sweep(widths, seeds, measure)


def _catapult_summary(runs: xr.Dataset) -> dict[str, float]:
    """Over all networks: whether the loss grows at all below 2/λ_max and beyond, and where λ_max ends at 1.5."""

    def values(what: str, multiples: list[float]) -> np.ndarray:
        return np.stack([runs[f"{network.name}_{what}"].sel(multiple=multiples).values for network in TRAINED])

    return {
        "peak_below": float(values("peak", [0.9]).max()),
        "peak_at_1.5": float(values("peak", [1.5]).mean(axis=(1, 2)).min()),
        "sharpness_after_1.5": float(values("sharpness", [1.5]).max()),
    }


def _eta_criteria() -> list[Criterion]:
    def share(name: str, statement: str, low: float = 0.0, high: float = 1.0) -> Criterion:
        return Criterion(name, statement, low, high, "corrected")

    return [
        Criterion("critical_error", "(80) holds up to 2/(λ_min + λ_max)", high=1e-6),
        Criterion("least_at_0.9", "below, all networks converge (share of runs)", low=1),
        Criterion("peak_below", "and no loss grows", high=1.1),
        Criterion("linear_limit_error", "the linearised network diverges from 2/λ_max on", high=0.01, role="corrected"),
        Criterion("lanczos_error", "λ_max by Lanczos, without the kernel", high=1e-6, role="corrected"),
        share("least_at_1.5", "all networks still converge at 1.5 times that", low=0.9),
        Criterion("peak_at_1.5", "after the loss has grown", low=1.2, role="corrected"),
        Criterion("sharpness_after_1.5", "until λ_max is below 2/η", high=1.0, role="corrected"),
        Criterion("exponent_peak", "the peak grows with the width", 0.7, 1.3, "corrected"),
        Criterion("peak_step_slope", "the time to it with its logarithm", 0.4, 1.6, "corrected"),
        *(
            share(f"{name}_at_2.5", f"{name}, one hidden layer: most runs diverge at 2.5", high=0.5)
            for name in ("linear", "tanh", "relu")
        ),
        *(share(f"{name}_at_4", f"{name}: all do at 4", high=0) for name in ("linear", "tanh", "tanh_2")),
        share("relu_2_at_2.5", "but not two layers of ReLU", low=0.9),
        share("relu_cone_at_2.5", "nor one where the inputs share a direction", low=0.9),
    ]


def _run_panels(setting: Setting, width: int) -> list[Panel]:
    """Loss and largest eigenvalue in time at some multiples, for one tanh network."""
    n_steps, losses, sharpness = 60, [], []
    for multiple in (0.9, 1.1, 1.5, 1.9, 2.5):
        run = train_at(
            setting, Network("tanh"), width, 0, multiple, n_steps=n_steps, record_at=range(0, n_steps + 1, 2)
        )
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
    return Panel("Which runs converge", "η over 2/λ_max", "share of runs", curves, x_log=False, y_log=False)


def _peak_panel(peaks: xr.Dataset) -> Panel:
    heights = seed_mean(peaks.peak)
    return Panel(
        "How high the loss goes at 1.5 times 2/λ_max",
        "width n",
        "largest loss over that at the start",
        (curve("tanh", peaks.width, heights), guide(peaks.width, heights, 1.0, "n")),
    )
