"""The error now and with more labels: what n labelled samples say of it, beside the error measured on held-out samples.

On scikit-learn's digits, and with the files below KONTRAST_DATA on MNIST, Fashion-MNIST and CIFAR-10, for kernel
regression with n = 200, 400 and 800 labels: the infinite ReLU NTK, and linear kernels of random ReLU features, more
than labels (1024) and fewer (128). Ratios of predicted to measured error, in per cent above 1, and of accuracies the
difference in points, averages over random training sets. With n labels: one κ (all n but one of them, as if there were
no others), generalised cross-validation, leave-one-out. With 2 n, 4 n and 8 n: the curve calibrated to leave-one-out,
and a straight line through log(leave-one-out error) against log n. `inside` is how often the 95 % interval holds the
measured error, and `none` how often there was no answer.

    KONTRAST_DATA=folder .venv/bin/python benchmarks/labels_needed.py
"""

from __future__ import annotations

import argparse
import math
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tables import OtherWork, Requirement, conclude, print_table
from torch import Tensor

import kontrast as kt
from kontrast.estimators.kernel_learnability import linear_kernel
from kontrast.learnability import CalibratedCurve, calibrated_curve, eigensystem, predict_learning

FILES = {
    "MNIST": "mnist.npz",
    "Fashion-MNIST": "fashion_mnist_subset.npz",
    "CIFAR-10": "cifar10_subset.npz",
}
KERNELS = {
    "NTK": (None, 0.01),
    "1024 features": (1024, 0.1),
    "1024 features, δ/10": (1024, 0.01),
    "128 features": (128, 0.1),
    "128 features, δ/10": (128, 0.01),
}
LABELS = (200, 400, 800)
FACTORS = (1, 2, 4, 8)
HELD_OUT = 1500
MOST = 8000  # samples of a data set, of which all but the held-out ones may be labelled


@dataclass(frozen=True)
class Problem:
    """A kernel over samples with labels."""

    data: str
    kernel: str
    K: Tensor
    y: Tensor
    ridge: float
    rank: float

    @property
    def most(self) -> int:
        """The labels there may be."""
        return len(self.y) - min(HELD_OUT, len(self.y) // 10)


@dataclass(frozen=True)
class Row:
    """One training set of n labels, and a factor."""

    data: str
    kernel: str
    n: int
    factor: int
    true_error: float
    error: dict[str, float]  # by way, over the true one; NaN where there was no answer
    accuracy: float  # less the true one
    inside: float  # whether the interval holds the true error


def problems(names: list[str]) -> Iterator[Problem]:
    for name in names:
        x, y = samples(name)
        for kernel, (features, relative_ridge) in KERNELS.items():
            K = kt.kernels.infinite_ntk(x) if features is None else linear_kernel(random_features(x, features))
            rank = math.inf if features is None else features + 1
            yield Problem(name, kernel, K, y, relative_ridge * float(K.diagonal().mean()), rank)


def samples(name: str) -> tuple[Tensor, Tensor]:
    """Some of a data set in random order, as rows in float64."""
    if name == "digits":
        data = kt.data.load("digits", dtype=torch.float64)
    else:
        data = kt.data.load(Path(os.environ["KONTRAST_DATA"]) / FILES[name], split="all", dtype=torch.float64)
    order = torch.randperm(len(data.rows), generator=generator(0))[:MOST]
    return data.rows[order], data.y[order]


def random_features(x: Tensor, number: int) -> Tensor:
    draws = generator(1)
    V = torch.randn(x.shape[1], number, generator=draws, dtype=torch.float64) * math.sqrt(2 / x.shape[1])
    return (x @ V + 0.1 * torch.randn(number, generator=draws, dtype=torch.float64)).relu()


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def measured(problem: Problem, n: int) -> tuple[float, float]:
    """Error and accuracy at held-out samples with n labels, over training sets."""
    found = []
    for seed in range(max(1, min(12, 6400 // n))):
        order = torch.randperm(len(problem.y), generator=generator(1000 + seed))
        seen, others = order[:n], order[problem.most :]
        targets = torch.nn.functional.one_hot(problem.y).double()
        center = targets[seen].mean(0)
        G = problem.K[seen][:, seen]
        G.diagonal().add_(problem.ridge)
        weights = torch.cholesky_solve(targets[seen] - center, torch.linalg.cholesky(G))
        outputs = problem.K[others][:, seen] @ weights + center
        error = (outputs - targets[others]).square().sum(1).mean() / targets.var(0, correction=0).sum()
        found.append((float(error), float((outputs.argmax(1) == problem.y[others]).double().mean())))
    error, accuracy = np.mean(found, axis=0)
    return float(error), float(accuracy)


def one_kappa(K: Tensor, targets: Tensor, ridge: float) -> float:
    """The error at the last of n samples from the others, by one κ for all."""
    system, centered = eigensystem(K), targets - targets.mean(0)
    found = predict_learning(
        system.spectrum, system.powers(centered), len(K) - 1, ridge=ridge, replacement=False
    ).unseen_error
    return float(found.sum() / centered.square().mean(0).sum())


def cross_validated(K: Tensor, targets: Tensor, ridge: float) -> float:
    """Generalised cross-validation (Golub, Heath & Wahba 1979): residuals over the mean of 1 − H_ii."""
    centered = targets - targets.mean(0)
    inverse = torch.linalg.inv(K + ridge * torch.eye(len(K), dtype=K.dtype))
    residuals = inverse @ centered / inverse.diagonal().mean()
    return float(residuals.square().mean(0).sum() / centered.square().mean(0).sum())


def straight_line(curve: CalibratedCurve, n: int) -> float:
    x, y = np.log(curve.sizes), np.log(curve.errors)
    return math.exp(y[-1] + np.polyfit(x, y, 1)[0] * (math.log(n) - x[-1]))


def rows(problem: Problem, n: int, truth: dict[int, tuple[float, float]], repeats: int) -> Iterator[Row]:
    for seed in range(repeats):
        chosen = torch.randperm(len(problem.y), generator=generator(seed))[:n]
        K, y = problem.K[chosen][:, chosen], problem.y[chosen]
        targets = torch.nn.functional.one_hot(y).double()
        curve = calibrated_curve(K, y, ridge=problem.ridge, rank=problem.rank, generator=generator(seed))
        for factor, (error, accuracy) in truth.items():
            more = factor * n
            answered = more <= curve.reach
            found = {
                "calibrated": curve.error(more).value if answered else math.nan,
                "line": straight_line(curve, more),
            }
            if factor == 1:
                found |= {"one κ": one_kappa(K, targets, problem.ridge)}
                found |= {"GCV": cross_validated(K, targets, problem.ridge)}
            interval = curve.error(more) if answered else None
            guess = curve.accuracy(more) if answered else None
            yield Row(
                problem.data,
                problem.kernel,
                n,
                factor,
                error,
                {way: value / error for way, value in found.items()},
                math.nan if guess is None else guess.value - accuracy,
                math.nan if interval is None else float(interval.low <= error <= interval.high),
            )


def mean(values: list[float]) -> float:
    return float(np.nanmean(values)) if not all(map(math.isnan, values)) else math.nan


def percent(values: list[float]) -> str:
    average = mean(values)
    return "–" if math.isnan(average) else f"{100 * average:+.1f}"


def cells(group: list[Row]) -> list[str]:
    """Of rows of one factor."""

    def bias(way: str) -> str:
        return percent([row.error[way] - 1 for row in group if way in row.error])

    now = [bias("one κ"), bias("GCV")] if "GCV" in group[0].error else ["", ""]
    answered = [row for row in group if not math.isnan(row.inside)]
    none = 1 - len(answered) / len(group)
    inside = f"{mean([row.inside for row in answered]):.0%}" if answered else "–"
    return [*now, bias("calibrated"), bias("line"), percent([row.accuracy for row in group]), inside, f"{none:.0%}"]


COLUMNS = ("one κ %", "GCV %", "calibrated %", "line %", "accuracy, points", "inside", "none")


def show(found: list[Row]) -> None:
    for factor in FACTORS:
        groups = defaultdict(list)
        for row in found:
            if row.factor == factor:
                groups[row.data, row.kernel, row.n].append(row)
        table = [
            (f"{data}, {kernel}", str(n), f"{group[0].true_error:.3f}", *cells(group))
            for (data, kernel, n), group in groups.items()
        ]
        title = "with n labels (calibrated: leave-one-out)" if factor == 1 else f"with {factor} n labels"
        print_table(title, ("", "n", "measured", *COLUMNS), table)
    summary = []
    for kernel in KERNELS:
        for factor in FACTORS:
            group = [row for row in found if (row.kernel, row.factor) == (kernel, factor)]
            if group:
                summary.append(
                    (
                        f"{kernel}, {factor} n",
                        *cells(group),
                        *(f"{100 * rms(group, way):.1f}" for way in ("calibrated", "line")),
                    )
                )
    print_table("over the data sets", ("", *COLUMNS, "calibrated, rms %", "line, rms %"), summary)


def rms(group: list[Row], way: str) -> float:
    """Of one training set, where there was an answer."""
    return math.sqrt(mean([(row.error[way] - 1) ** 2 for row in group if not math.isnan(row.inside)]))


def requirements(found: list[Row]) -> list[Requirement]:
    now = [row for row in found if row.factor == 1]
    groups = defaultdict(list)
    for row in now:
        groups[row.data, row.kernel, row.n].append(row.error["calibrated"] - 1)
    typical = float(np.median([abs(mean(group)) for group in groups.values()]))
    ahead = [row for row in found if row.factor > 1 and not math.isnan(row.inside)]
    return [
        Requirement("leave-one-out with n labels: bias, median over problems", typical, 0.04, at_least=False),
        Requirement("intervals that hold the error with more labels", mean([row.inside for row in ahead]), 0.9, True),
        Requirement("calibrated beside a straight line: rms", rms(ahead, "calibrated") / rms(ahead, "line"), 1, False),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=8, help="training sets of every size that predict")
    parser.add_argument("--data", choices=("digits", *FILES), nargs="+", default=None)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = Path(os.environ.get("KONTRAST_DATA", "."))
    there = ["digits", *(name for name, file in FILES.items() if (folder / file).exists())]
    work, found = OtherWork(), list[Row]()
    for problem in problems(options.data or there):
        print(f"  {problem.data}, {problem.kernel} …", flush=True)
        sizes = sorted({n * factor for n in LABELS for factor in FACTORS if n * factor <= problem.most})
        truth = {size: measured(problem, size) for size in sizes}
        for n in LABELS:
            known = {factor: truth[n * factor] for factor in FACTORS if n * factor in truth}
            found += rows(problem, n, known, options.repeats)
    show(found)
    conclude(requirements(found), found, work, options.json, threads=str(torch.get_num_threads()))


if __name__ == "__main__":
    main()
