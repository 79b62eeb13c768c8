"""Paper D's bounds and its Gaussian processes: their networks are what they are called, and broken code is noticed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kontrast.claims.d import bounds, gaussian
from kontrast.learnability import bounds as paper_d
from tests.cases import generator, randn
from tests.claims.breaks import Break, assert_noticed, each_of, scaled_rate, times


def small_task() -> bounds._Task:
    x = 3.0 * torch.eye(4, 9, dtype=torch.float64) + 0.3 * randn(4, 9)
    return bounds._Task(x[:3], torch.tensor([[1.0], [-1.0], [1.0]], dtype=torch.float64), x[3:])


def test_the_descent_is_watched_as_it_is() -> None:
    run = bounds._Descent.of(small_task(), 50, 0, 20)
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
    *_, flow = bounds._flow_points(net, task, 0.02, 10)
    small = small_descent(net, task, 0.02 / 100, 1000)
    for name, p in flow.items():
        torch.testing.assert_close(p, small[name], rtol=1e-3, atol=2e-4)


def small_descent(net: Any, task: bounds._Task, rate: float, n_steps: int) -> dict[str, Tensor]:
    V, W = net.hidden[0].detach().clone(), net.output.detach().clone()
    for _ in range(n_steps):
        h = torch.tanh(task.x @ V.mT)
        g = h @ W - task.targets
        V, W = V - rate * (((g @ W.mT) * (1 - h**2)).mT @ task.x), W - rate * (h.mT @ g)
    return {"hidden.0": V, "output": W}


def test_rows_of_different_classes_come_first() -> None:
    assert bounds._different_first(torch.tensor([3, 3, 1, 3, 0, 1])) == [0, 2, 4, 1, 3, 5]


@pytest.mark.parametrize("case", gaussian.CASES, ids=lambda case: case.name)
def test_many_networks_have_the_limits_covariance(case: gaussian.Case) -> None:
    """(52) holds at every width, in the coordinates of the points' span too."""
    x = randn(3, 7)
    draws = gaussian.Draws.of(case, x, 5, 40_000, generator())
    wanted = gaussian.limit_kernel(case, x)
    assert draws.hidden.shape == (40_000, 5, 3)
    torch.testing.assert_close(draws.outputs.mT @ draws.outputs / 40_000, wanted, rtol=0.05, atol=0.05)
    torch.testing.assert_close(gaussian.finite_kernel(draws.hidden).mean(0), wanted, rtol=0.02, atol=0.02)


def evenly_spread(real: Any) -> Any:
    """Numbers of mean 0 and variance 1 that are not normal."""
    return lambda draw, *shape: math.sqrt(12) * (torch.rand(*shape, generator=draw, dtype=torch.float64) - 0.5)


BROKEN: list[tuple[str, Any, str, Break]] = [
    ("D.b2", paper_d, "_rate", times(3.5)),  # the residual's bound decays faster than the residual
    ("D.b2", paper_d, "infinite_nngp", times(1.2)),
    ("D.b2", bounds, "gradient_descent", scaled_rate(3.0)),
    ("D.b2", paper_d, "_largest_growth", times(0.1)),
    ("D.nngp", gaussian, "infinite_nngp", times(1.1)),
    ("D.nngp", gaussian, "finite_kernel", times(1.1)),
    ("D.nngp", gaussian, "hidden_activations", times(1.1)),
    ("D.nngp", gaussian, "_normal", evenly_spread),
]


@each_of(BROKEN)
def test_a_broken_implementation_changes_the_verdict(
    claim_id: str, where: Any, name: str, broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_noticed(claim_id, where, name, broken, monkeypatch, n_seeds=None)
