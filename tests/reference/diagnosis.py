"""The numbers of a diagnosis, slowly: differences along a path, one refit for every sample that is left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from scipy import stats
from torch import Tensor, nn
from torch.func import functional_call

State = Mapping[str, Tensor]


def outputs(module: nn.Module, state: State, x: Tensor) -> Tensor:
    """What a module returns at a state."""
    with torch.no_grad():
        return functional_call(module, dict(state), (x,))


def along(module: nn.Module, start: State, end: State, x: Tensor, length: float) -> Tensor:
    """The outputs so far along the straight path from one state to another, every floating-point entry with it."""
    between = {
        name: value + length * (end[name] - value) if value.is_floating_point() else value
        for name, value in start.items()
    }
    return outputs(module, between, x)


def linearization_error(module: nn.Module, start: State, end: State, x: Tensor, *, h: float = 1e-4) -> float:
    """‖f − f_lin‖ / ‖f − f(0)‖, the slope at the start by differences of fourth order."""
    f = [along(module, start, end, x, k * h) for k in (-2, -1, 1, 2)]
    slope = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h)
    change = outputs(module, end, x) - outputs(module, start, x)
    return float((change - slope).norm() / change.norm())


def tangent_kernel(module: nn.Module, state: State, x: Tensor) -> Tensor:
    """The sum over outputs of K, from one gradient for every sample and output."""
    parameters = {name: state[name].clone().requires_grad_() for name, _ in module.named_parameters()}
    f = functional_call(module, {**state, **parameters}, (x,))
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(one, list(parameters.values()), retain_graph=True)])
        for one in f.flatten()
    ]
    J = torch.stack(rows).reshape(*f.shape, -1)
    return torch.einsum("icp,jcp->ij", J, J)


def full_kernel(module: nn.Module, state: State, x: Tensor) -> Tensor:
    """The kernel between all samples and outputs, (n c, n c)."""
    parameters = {name: state[name].clone().requires_grad_() for name, _ in module.named_parameters()}
    f = functional_call(module, {**state, **parameters}, (x,))
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(one, list(parameters.values()), retain_graph=True)])
        for one in f.flatten()
    ]
    J = torch.stack(rows)
    return J @ J.mT


def explained_share(K: Tensor, change: Tensor, ridges: Tensor) -> float:
    """1 − leave-one-out error of kernel regression, refitted for every sample, at the best ridge."""
    n, y = len(K), change - change.mean(0)
    found = []
    for ridge in ridges.tolist():
        error = 0.0
        for i in range(n):
            rest = [j for j in range(n) if j != i]
            weights = torch.linalg.solve(K[rest][:, rest] + ridge * torch.eye(n - 1, dtype=K.dtype), y[rest])
            error += float((y[i] - K[i, rest] @ weights).square().sum())
        found.append(error)
    return 1 - min(found) / float(y.square().sum())


def ridge_probe(
    train: Tensor, labels: Tensor, test: Tensor, test_labels: Tensor, ridges: Callable[[Tensor], list[float]]
) -> tuple[float, float]:
    """Test accuracy and ridge of the regression of indicators that predicts samples best that were left out.

    Columns are standardised once, by all training samples; the intercept is refitted with every sample left out.
    """
    x, other = train.double(), test.double()
    mean, deviation = x.mean(0), x.std(0, correction=0)
    varies = deviation > 1e-12 * x.abs().amax(0)
    x, other = ((z - mean)[:, varies] / deviation[varies] for z in (x, other))
    classes = labels.unique()
    Y = (labels[:, None] == classes).double()

    def fitted(rows: list[int], ridge: float) -> Callable[[Tensor], Tensor]:
        center, level = x[rows].mean(0), Y[rows].mean(0)
        X = x[rows] - center
        weights = torch.linalg.solve(X.mT @ X + ridge * torch.eye(X.shape[1], dtype=X.dtype), X.mT @ (Y[rows] - level))
        return lambda z: level + (z - center) @ weights

    n, best = len(x), (math.inf, 0.0)
    for ridge in ridges(x):
        error = 0.0
        for i in range(n):
            predict = fitted([j for j in range(n) if j != i], ridge)
            error += float((Y[i] - predict(x[i])).square().sum())
        if error < best[0] * (1 - 1e-9):
            best = (error, ridge)
    said = classes[fitted(list(range(n)), best[1])(other).argmax(1)]
    return float((said == test_labels).double().mean()), best[1]


def corrected_interval(differences: list[float], ratio: float) -> tuple[float, float, float]:
    """Nadeau and Bengio (2003): t with J − 1 degrees of freedom, the variance times 1/J + n_test/n_train."""
    J = len(differences)
    mean = sum(differences) / J
    variance = sum((d - mean) ** 2 for d in differences) / (J - 1)
    half = float(stats.t.ppf(0.975, J - 1)) * math.sqrt((1 / J + ratio) * variance)
    return mean, mean - half, mean + half
