"""Linearised networks and kernel regression (paper D) against the training they stand for.

* limit: the linearised network at t = ∞, its kernel included, against gradient descent on it until the residual is 1e-6
  of what it was, in parameter space and under its kernel held densely, both at the best rate 2/(λ_min + λ_max). How
  many steps that takes follows from the spectrum; some are timed, and must be where the closed form says.
* regression: n digits by conjugate gradients with and without a preconditioner, and by Cholesky. With real MNIST below
  KONTRAST_DATA it is n = 20,000; without, the 5,000 digits that install with kontrast, turned by noise.
* curve: an error curve over the number of labels, predicted, against measuring it by regressions.

    make bench-linearized
    .venv/bin/python benchmarks/linearized.py --only limit
"""

from __future__ import annotations

import argparse
import math
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from stopwatch import CLOCKS, Stopwatch
from tables import OtherWork, Requirement, conclude, print_table
from torch import Tensor

import kontrast as kt
from kontrast.dynamics import fixed_kernel_descent, gradient_descent, regression_problem
from kontrast.learnability import learning_rates, linearized_mse, mse_training

N_LIMIT, N_NEW, WIDTH = 2000, 500, 512
RESIDUAL = 1e-6  # of the residual at the start
TIMED = 50  # steps of descent under the kernel; a fifth of them in parameter space
PARTS = ("limit", "regression", "curve")


@dataclass(frozen=True)
class Result:
    """One way to compute something; numbers that were not measured are nan."""

    case: str
    way: str
    seconds: float
    error: float = math.nan
    steps: float = math.nan
    note: str = ""


def once(compute: Callable[[], object]) -> float:
    """Seconds on the wall of one call."""
    clock = CLOCKS["wall"]
    begin = clock()
    compute()
    return clock() - begin


def limit(watch: Stopwatch) -> list[Result]:
    """2000 digits, even or odd; a ReLU network of 512 units, float64."""
    data = kt.data.load("mnist5k", dtype=torch.float64)
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(0))
    train, new = order[:N_LIMIT], order[N_LIMIT : N_LIMIT + N_NEW]
    x, y = data.rows[train], 1.0 - 2 * (data.y[train, None] % 2).double()
    net = kt.nets.MLP(x.shape[1], WIDTH, 1, dtype=torch.float64)
    case = f"linearised network, t = ∞, n = {N_LIMIT}"
    closed = watch.seconds(lambda: linearized_mse(net, x, y).predict(data.rows[new], math.inf))

    K = kt.kernels.empirical_ntk(net, x)
    kernel = watch.seconds(lambda: kt.kernels.empirical_ntk(net, x))
    rate = learning_rates(K).critical
    start = net(x).detach()
    training = mse_training(K, start, y, learning_rate=rate, method="descent")
    steps = steps_to(training, RESIDUAL)
    problem = regression_problem(x, y)
    dense = step_of(lambda n: fixed_kernel_descent(K, start, problem.objective, learning_rate=rate, n_steps=n), TIMED)
    model = kt.nets.Linearized.of(net)
    free = step_of(lambda n: gradient_descent(model, model.origin, problem, learning_rate=rate, n_steps=n), TIMED // 5)
    apart = float((dense.outputs - training.outputs(TIMED)).norm() / (y - start).norm())
    note = f"λ_max/λ_min = {float(training.eigenvalues[-1] / training.eigenvalues[0]):.2g}"
    return [
        Result(case, f"kontrast, with its kernel and {N_NEW} predictions", closed, note=note),
        Result(case, "descent under its kernel, held densely", kernel + steps * dense.seconds, apart, steps),
        Result(case, "descent in parameter space", steps * free.seconds, math.nan, steps),
    ]


@dataclass(frozen=True, eq=False)
class Timed:
    """Seconds a step, and where the run ended."""

    seconds: float
    outputs: Tensor


def step_of(run: Callable[[int], kt.dynamics.Trajectory], n: int) -> Timed:
    run(1)
    short = once(lambda: run(1))
    ends: list[kt.dynamics.Trajectory] = []
    long = once(lambda: ends.append(run(n)))
    return Timed((long - short) / (n - 1), ends[0].final_outputs)


def steps_to(training: kt.learnability.MSETraining, share: float) -> int:
    """The first step whose residual is `share` of that at the start, by bisection of the closed form."""
    goal = share**2 * training.loss(0)
    low, high = 0, 1
    while training.loss(high) > goal:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if training.loss(middle) <= goal else (middle, high)
    return high


def digits(n: int) -> tuple[Tensor, Tensor, str]:
    """N images of MNIST as float32 rows, their labels, and which they are."""
    file = Path(os.environ.get("KONTRAST_DATA", "")) / "mnist.npz"
    if os.environ.get("KONTRAST_DATA") and file.exists():
        data = kt.data.load(str(file), split="train", dtype=torch.float32)
        return data.rows[:n], data.y[:n], "MNIST"
    data = kt.data.load("mnist5k", dtype=torch.float32)
    copies = -(-n // len(data.rows))
    rows, labels = data.rows.repeat(copies, 1)[:n], data.y.repeat(copies)[:n]
    return rows + 0.05 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(1)), labels, "5,000 with noise"


def regression(n: int) -> list[Result]:
    """Ten classes, NTK of three layers, ridge of 1e-4 of the diagonal, float32."""
    x, labels, which = digits(n)
    targets = torch.nn.functional.one_hot(labels).double() - 0.1
    kernel = kt.kernels.TangentKernel(kt.kernels.InfiniteNetwork(depth=3, weight_std=math.sqrt(2)))
    ridge = 1e-4 * float(kernel.diagonal(x).mean())
    case = f"kernel regression, n = {n:,}, {which}"
    fits: list[kt.learnability.KernelRegression] = []
    seconds = once(
        lambda: fits.append(kt.learnability.kernel_regression(kernel, x, targets, ridge=ridge, exact_below=1))
    )
    peak = f"kernel included; peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB in all"
    fit = fits.pop()
    way = "conjugate gradients, preconditioned"
    results = [Result(case, way, seconds, float(fit.residuals.max()), fit.n_steps, peak)]
    del fit
    K = kt.kernels.tiled(kernel, x)
    solve = kt.linalg.ridge_solve
    for way, options in (("Cholesky", {"method": "cholesky"}), ("conjugate gradients", {"method": "cg"})):
        found: list[kt.linalg.RidgeSolution] = []
        try:
            # Plain gradients in float32 drift before they reach 1e-5: they are asked for less.
            loose = {"tolerance": 1e-4} if way != "Cholesky" else {}
            took = once(lambda: found.append(solve(K, targets, ridge=ridge, **options, **loose)))  # noqa: B023
        except kt.errors.ConvergenceError as error:
            results.append(Result(case, way, math.nan, note=str(error).split(";")[0]))
            continue
        result = found[0]
        results.append(Result(case, way, took, float(result.residuals.max()), result.n_steps, "kernel not included"))
    return results


def curve() -> list[Result]:
    """All 1,797 small digits, ten numbers of labels."""
    data = kt.data.load("digits", dtype=torch.float64)
    model = kt.estimators.KernelLearnability().fit(data.rows, data.y)
    sizes = [20, 40, 80, 120, 200, 300, 500, 700, 1000, 1400]
    case = f"error curve, M = {len(data.rows)}, {len(sizes)} numbers of labels"
    ways = {
        "measured, 20 regressions each": lambda: model.measure(sizes, n_draws=20),
        "predicted, one κ": lambda: model.learning_curve(sizes),
        "predicted, one κ a sample": lambda: model.learning_curve(sizes, by="points"),
    }
    found: dict[str, kt.estimators.LearningCurve] = {}
    took = {way: once(lambda: found.update({way: compute()})) for way, compute in ways.items()}  # noqa: B023
    truth = found["measured, 20 regressions each"].test_error
    note = "error: of the worst ratio, less 1"
    return [
        Result(case, way, seconds, float(abs(found[way].test_error / truth - 1).max()), note=note)
        for way, seconds in took.items()
    ]


def requirements(results: list[Result]) -> list[Requirement]:
    """What was asked for, of the parts that ran."""
    limits = [r for r in results if r.case.startswith("linearized")]
    if not limits:
        return []
    ours, *others = limits
    asked = [Requirement(f"t = ∞: times faster than {r.way}", r.seconds / ours.seconds, 50, True) for r in others]
    return [*asked, Requirement("t = ∞: descent is where it was said to be", limits[1].error, 1e-12, at_least=False)]


def row(result: Result) -> tuple[str, ...]:
    def text(value: float, form: str) -> str:
        return "–" if math.isnan(value) else f"{value:{form}}"

    numbers = text(result.seconds, ".4g"), text(result.error, ".1e"), text(result.steps, ",.0f")
    return (result.case, result.way, *numbers, result.note or "–")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--samples", type=int, default=20_000, help="of the regression")
    parser.add_argument("--repeats", type=int, default=3, help="of every short timing")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    work, watch = OtherWork(), Stopwatch(CLOCKS["wall"], options.repeats)
    results: list[Result] = []
    for part, measure in (
        ("limit", lambda: limit(watch)),
        ("regression", lambda: regression(options.samples)),
        ("curve", curve),
    ):
        if part in options.only:
            print(f"  {part} …", flush=True)
            results += measure()
    print_table("linearised networks", ("", "way", "s", "error", "steps", ""), [row(r) for r in results])
    conclude(requirements(results), results, work, options.json, threads=str(torch.get_num_threads()))


if __name__ == "__main__":
    main()
