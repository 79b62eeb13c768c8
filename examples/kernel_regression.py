"""Classify digits with kernels alone: infinitely wide networks, and your own module at its random start.

    python examples/kernel_regression.py

Kernel ridge regression with the NTK of infinitely wide networks, then with the tangent kernel of a small ConvNet that
was never trained: what a linearised network, trained to the end, would predict. How well, the training set tells alone,
by leaving out one digit at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import kontrast as kt


def accuracy(kernel: Callable[..., Tensor], train: Tensor, test: Tensor, labels: Tensor, truth: Tensor) -> str:
    targets = nn.functional.one_hot(labels).to(train) - 0.1
    ridge = 1e-4 * float(kernel(train[:100]).diagonal().mean())
    fit = kt.learnability.kernel_regression(kernel, train, targets, ridge=ridge)
    left_out = fit.leave_one_out().residuals  # targets less predictions, each without its own sample
    expected = ((targets - left_out).argmax(1) == labels).double().mean()
    found = (fit.predict(test).argmax(1) == truth).double().mean()
    return f"left out one by one {float(expected):.3f}, new digits {float(found):.3f}"


def main() -> None:
    data = kt.load("digits")
    order = torch.randperm(len(data.y), generator=torch.Generator().manual_seed(0))
    train, test = order[:1000], order[1000:1500]
    torch.manual_seed(0)
    convnet = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(32 * 16, 1),
    )  # fmt: skip
    kernels: dict[str, Callable[..., Tensor]] = {
        "linear": kt.kernels.InfiniteNetwork(activation="linear").ntk,
        "infinite ReLU NTK, 1 layer": kt.kernels.InfiniteNetwork(depth=1).ntk,
        "infinite ReLU NTK, 3 layers": kt.kernels.InfiniteNetwork(depth=3).ntk,
        "infinite erf NNGP, 2 layers": kt.kernels.InfiniteNetwork(depth=2, activation="erf").nngp,
        "untrained ConvNet's tangent kernel": partial(kt.kernels.empirical_ntk_trace, convnet),
    }
    for name, kernel in kernels.items():
        x = data.rows
        print(f"{name:<36} {accuracy(kernel, x[train], x[test], data.y[train], data.y[test])}")


if __name__ == "__main__":
    main()
