"""The watched descent and the flow are what they are called."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kontrast.claims.d.descents import Descent, Task, different_first, flow_points
from tests.cases import randn


def small_task() -> Task:
    x = 3.0 * torch.eye(4, 9, dtype=torch.float64) + 0.3 * randn(4, 9)
    return Task(x[:3], torch.tensor([[1.0], [-1.0], [1.0]], dtype=torch.float64), x[3:])


def test_the_descent_is_watched_as_it_is() -> None:
    run = Descent.of(small_task(), 50, 0, 20)
    moves = [run.points[1][name] - run.points[0][name] for name in run.points[0]]
    assert float(run.paths[0]) == 0
    assert float(run.paths[1]) == pytest.approx(math.sqrt(sum(float(move.pow(2).sum()) for move in moves)))
    assert float(run.gaps[0]) < 1e-14
    assert float(run.residuals[20]) < float(run.residuals[0])
    net = run.net.at(run.points[20], run.task.x) - run.task.targets
    assert float(run.residuals[20]) == pytest.approx(float(net.norm()))
    assert set(run.points) == set(run.drifts) == set(run.remainders)


def test_the_flow_is_the_limit_of_small_steps() -> None:
    """Against descent, by hand, with steps a hundred times smaller; its own error is of their first order."""
    task = small_task()
    net = task.net(20, 0)
    *_, flow = flow_points(net, task, 0.02, 10)
    small = small_descent(net, task, 0.02 / 100, 1000)
    for name, p in flow.items():
        torch.testing.assert_close(p, small[name], rtol=1e-3, atol=2e-4)


def small_descent(net: Any, task: Task, rate: float, n_steps: int) -> dict[str, Tensor]:
    V, W = net.hidden[0].detach().clone(), net.output.detach().clone()
    for _ in range(n_steps):
        h = torch.tanh(task.x @ V.mT)
        g = h @ W - task.targets
        V, W = V - rate * (((g @ W.mT) * (1 - h**2)).mT @ task.x), W - rate * (h.mT @ g)
    return {"hidden.0": V, "output": W}


def test_rows_of_different_classes_come_first() -> None:
    assert different_first(torch.tensor([3, 3, 1, 3, 0, 1])) == [0, 2, 4, 1, 3, 5]
