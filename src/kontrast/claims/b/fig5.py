"""B.fig5: the equation is faster than training, and its embedding classifies as well."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import torch
import xarray as xr
from sklearn.svm import SVC
from torch import Tensor

from kontrast.claims.b.problems import noisy_pairs, orthogonal_net, start_of
from kontrast.claims.evidence import Evidence, Finding, Verdict, judged, printed, shown
from kontrast.claims.panels import width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest, seed_mean, sweep
from kontrast.deep_linear import data_matrix, deep_linear_descent, deep_linear_flow, train_deep_linear
from kontrast.errors import InputError

Z = 2
PER_CLASS = 200
TIMED_STEPS = 3000  # of (11), whose steps are short
NEAR = 1e-3  # a loss within this share of the least one has converged


@claim(
    "B.fig5",
    source="Paper B, Fig. 5",
    title="The equation is faster than training and classifies as well",
    printed="The time of a step of (11) does not depend on the width and is far shorter than that of a projected step "
    "of the network, which grows with h. A linear SVM is equally accurate on both embeddings.",
    recorded=Verdict.HOLDS,
    cost=4,
)
def figure_5(setting: Setting) -> Evidence:
    """Two classes of images: seconds per step, and the accuracy of both embeddings once both losses have converged."""
    seeds = setting.seeds(quick=2, full=5, paper=2)
    x, labels = _two_classes(setting)
    factors = setting.pick(quick=(1.25, 5), full=(1.25, 5, 20), paper=(1.02, 3.06))  # MNIST: h = 800 and 2400
    widths = [round(factor * x.shape[1]) for factor in factors]

    def measure(width: int, seed: int) -> dict[str, object]:
        C = data_matrix(noisy_pairs(x, seed)) / len(x)
        eigenvalues = torch.linalg.eigvalsh(C)
        least, fastest = float(eigenvalues[:Z].sum()), float(eigenvalues.abs().max())
        rate, slow, gap = 0.5 / fastest, 0.05 / fastest, float(eigenvalues[Z] - eigenvalues[Z - 1])
        net = orthogonal_net(x.shape[1], width, Z, seed)
        start = start_of(net)
        n_steps = math.ceil((8 - math.log(gap / fastest)) / (3 * gap * rate))  # β = 3 of two layers
        run = train_deep_linear(net, C, flow="polar", learning_rate=rate, n_steps=n_steps)
        flow = deep_linear_flow(C, start, times=[rate * n_steps], flow="polar")
        trained = x @ (flow.basis @ run.final_outputs)
        return {
            "loss_gap_trained": float(run.losses[-1]) / least - 1,
            "loss_gap_flow": float(flow.losses[-1]) / least - 1,
            "accuracy_trained": _accuracy(trained, labels, seed),
            "accuracy_flow": _accuracy(flow.outputs(x)[-1], labels, seed),
            "seconds_trained": _seconds(lambda n: train_deep_linear(net, C, learning_rate=rate, n_steps=n), 10),
            "seconds_flow": _seconds(
                lambda n: deep_linear_descent(C, start, learning_rate=slow, n_steps=n), TIMED_STEPS
            ),
            "n_steps": n_steps,
        }

    data = sweep(widths, seeds, measure)
    seconds = {"projected descent": data.seconds_trained, "(11)": data.seconds_flow}
    accuracy = {"trained network": data.accuracy_trained, "equation": data.accuracy_flow}
    return judged(
        *_findings(data),
        data=data,
        panels=[
            width_panel("Seconds per step", seconds, "seconds", guides=(), letter="h"),
            width_panel("Linear SVM", accuracy, "accuracy", guides=(), dashed=["equation"], y_log=False, letter="h"),
        ],
        setting={"n_samples": len(x), "d": x.shape[1], "z": Z, "classes": sorted(set(labels.tolist()))},
    )


def _findings(data: xr.Dataset) -> list[Finding]:
    """Loss gaps and accuracies of both embeddings; seconds per step, compared."""
    network, equation = seed_mean(data.seconds_trained), seed_mean(data.seconds_flow)
    trained, flow = seed_mean(data.accuracy_trained), seed_mean(data.accuracy_flow)
    gap, difference = largest(abs(data.loss_gap_trained), abs(data.loss_gap_flow)), largest(abs(trained - flow))
    ratio, network_growth, growth = network / equation, network[-1] / network[0], equation[-1] / equation[0]
    return [
        printed("largest_loss_gap", gap, "both have converged, to 0.1 % of the least loss", high=NEAR),
        *shown(accuracy_trained=float(trained[-1]), accuracy_flow=float(flow[-1])),
        printed("largest_accuracy_difference", difference, "a linear SVM is equally accurate on both", high=0.01),
        printed("step_time_ratio_narrowest", ratio[0], "a step of the network takes longer than one of (11)", low=5),
        *shown(step_time_ratio_widest=ratio[-1]),
        printed("network_widest_over_narrowest", network_growth, "the network's time per step grows with h", low=1.2),
        printed("equation_widest_over_narrowest", growth, "that of (11) does not grow with h", low=0.5, high=2),
    ]


def _two_classes(setting: Setting) -> tuple[Tensor, Tensor]:
    """Up to 200 images of each of the two classes whose means are nearest, as rows in float64."""
    dataset = setting.dataset()
    if dataset.y is None or len(torch.unique(dataset.y)) < 2:
        raise InputError(
            f"this claim compares two classes, and {setting.data_names[0]!r} does not have two; give labelled `data`"
        )
    x, labels = dataset.x.flatten(1).double(), torch.unique(dataset.y)
    means = torch.stack([x[dataset.y == label].mean(0) for label in labels])
    apart = torch.cdist(means, means).fill_diagonal_(torch.inf)
    nearest = divmod(int(apart.argmin()), len(labels))
    draw, rows = generator("two classes"), []
    for label in sorted(nearest):
        members = (dataset.y == labels[label]).nonzero().flatten()
        rows.append(members[torch.randperm(len(members), generator=draw)[:PER_CLASS]])
    chosen = torch.cat(rows)
    return x[chosen], dataset.y[chosen]


def _accuracy(embedding: Tensor, labels: Tensor, seed: int) -> float:
    """Accuracy of a linear SVM: trained on one half of the samples, tested on the other."""
    order = torch.randperm(len(labels), generator=generator("svm", seed))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    scale = embedding[train].std()
    model = SVC(kernel="linear").fit((embedding[train] / scale).numpy(), labels[train].numpy())
    return float(model.score((embedding[test] / scale).numpy(), labels[test].numpy()))


def _seconds(train: Callable[[int], object], n: int) -> float:
    """Process time per step: the median of three measurements of n further steps; NaN where it is not positive."""
    spent = []
    for _ in range(3):
        begun = time.process_time()
        train(1)
        between = time.process_time()
        train(1 + n)
        spent.append((time.process_time() - between - (between - begun)) / n)
    median = statistics.median(spent)
    return median if median > 0 else math.nan
