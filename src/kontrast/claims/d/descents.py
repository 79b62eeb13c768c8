"""Networks on digits under gradient descent and under the flow, beside their linearisation and its bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vjp

from kontrast.bounds import Bound, Form
from kontrast.claims.d.networks import Network
from kontrast.claims.panels import log_steps
from kontrast.claims.setting import Setting, generator, largest
from kontrast.dynamics import Problem, Snapshot, gradient_descent
from kontrast.kernels import empirical_ntk, infinite_nngp
from kontrast.learnability import (
    JacobianBall,
    LinearizationConstants,
    gronwall,
    gronwall_at_new_point,
    linearization_constants,
    taylor_remainder,
    theorem_b2,
    theorem_b3,
)
from kontrast.nets import MLP, Linearized, Parameters, parameters_of, pure_function

N_NEW = 3
FORMS: tuple[Form, ...] = ("printed", "sharp")


@dataclass(frozen=True, eq=False)
class Task:
    """Digits with targets ±1, and new ones that are not trained on."""

    x: Tensor
    targets: Tensor
    new: Tensor

    def net(self, width: int, seed: int) -> MLP:
        """A tanh network of this width in the standard parametrisation."""
        draw = generator("net of B.2", seed, width)
        return Network("tanh", "standard").net(self.x.shape[1], width, 1, draw, self.x.device)

    def rate(self, net: MLP) -> float:
        """η_0 = 1/λ_max of Θ, or of Θ̂_0 if the first layer's part of it, d/n of the rest, is large."""
        limit = infinite_nngp(self.x, activation="tanh", input_scale=1 / self.x.shape[1])
        return 1 / largest(*(float(torch.linalg.eigvalsh(K)[-1]) for K in (limit, _kernel(net, self.x))))


def task_of(setting: Setting, n: int, seed: int, *, kind: bool) -> Task:
    """Raw digits; or `kind` ones, for a well-conditioned kernel: centred, of length √d, of different classes first."""
    dataset = setting.dataset()
    sample = dataset.subsample(min(len(dataset), 10 * (n + N_NEW)), generator=generator("samples of B.2", seed))
    x, labels = sample.rows, torch.arange(len(sample)) if sample.y is None else sample.y
    if kind:
        x = x - dataset.rows.mean(0)
        x = math.sqrt(x.shape[1]) * x / x.norm(dim=1, keepdim=True)
        order = different_first(labels)
        x, labels = x[order], labels[order]
    x = x[: n + N_NEW].to(setting.device)
    signs = torch.where(labels[:n] % 2 == 0, 1.0, -1.0).to(x)[:, None]
    return Task(x[:n], signs, x[n:])


def different_first(labels: Tensor) -> list[int]:
    """The first row of every class, then the others."""
    firsts = {int(label): k for k, label in reversed(list(enumerate(labels.tolist())))}
    leading = sorted(firsts.values())
    return leading + [k for k in range(len(labels)) if k not in set(leading)]


class _Watch:
    """A recorder of the length of every step that keeps the parameters at the wanted steps."""

    def __init__(self, start: Parameters, wanted: Iterable[int]) -> None:
        self.last, self.wanted = {name: p.clone() for name, p in start.items()}, frozenset(wanted)
        self.points: dict[int, Parameters] = {}

    def __call__(self, now: Snapshot) -> float:
        squares = sum(float((p - self.last[name]).pow_(2).sum()) for name, p in now.parameters.items())
        for name, p in now.parameters.items():
            self.last[name].copy_(p)
        if now.step in self.wanted:
            self.points[now.step] = {name: p.clone() for name, p in now.parameters.items()}
        return math.sqrt(squares)


@dataclass(frozen=True, eq=False)
class Descent:
    """Gradient descent of a network on ½‖f − Y‖² with rate η_0/n, beside that of its linearisation."""

    net: MLP
    task: Task
    constants: LinearizationConstants
    points: dict[int, Parameters]
    residuals: Tensor  # ‖f_t − Y‖ at every step
    paths: Tensor  # Σ ‖θ_j − θ_{j−1}‖ up to it
    gaps: Tensor  # ‖f_t − f_t^lin‖
    drifts: dict[int, float]  # ‖Θ̂_t − Θ̂_0‖_F at the points
    remainders: dict[int, float]  # ‖f(θ_t) − f_lin(θ_t)‖ at the points

    @classmethod
    def of(cls, task: Task, width: int, seed: int, n_steps: int) -> Descent:
        """Train a network of this width."""
        net = task.net(width, seed)
        rate = task.rate(net)
        watch = _Watch(parameters_of(net), log_steps(n_steps, 8))
        run = gradient_descent(
            pure_function(net),
            parameters_of(net),
            Problem(task.x, lambda f: (f - task.targets).square().sum() / 2, len(task.x)),
            learning_rate=rate / width,
            n_steps=n_steps,
            record_at=range(n_steps + 1),
            recorders={"move": watch},
            keep_outputs=True,
        )
        assert run.outputs is not None
        kernels = {step: _kernel(net, task.x, point) for step, point in watch.points.items()}
        linearized = Linearized.of(net)
        start = run.outputs[0] - task.targets
        linear = _linear_residuals(kernels[0], start, rate, len(run.steps) - 1)
        return cls(
            net,
            task,
            linearization_constants(net, task.x, task.targets, learning_rate=rate),
            watch.points,
            residuals=(run.outputs - task.targets).flatten(1).norm(dim=1).cpu(),
            paths=run.records["move"].cumsum(0),
            gaps=(run.outputs - task.targets - linear).flatten(1).norm(dim=1).cpu(),
            drifts={step: float((K - kernels[0]).norm()) for step, K in kernels.items()},
            remainders={t: float((net.at(p, task.x) - linearized(p, task.x)).norm()) for t, p in watch.points.items()},
        )

    def bounds(self, ball: JacobianBall, form: Form) -> dict[str, Bound]:
        """The bounds for all times, beside the largest measured value or that of the last step."""
        residual, path, drift = theorem_b2(self.constants, ball, step=len(self.residuals) - 1, form=form)
        return {
            "residual": residual.with_measured(float(self.residuals[-1])),
            "path": path.with_measured(float(self.paths[-1])),
            "drift": drift.with_measured(max(self.drifts.values())),
            "remainder": taylor_remainder(self.constants, ball, form=form).with_measured(max(self.remainders.values())),
            "gap": theorem_b3(self.constants, ball, form=form).with_measured(float(self.gaps.max())),
        }

    def shares(self, ball: JacobianBall, form: Form) -> dict[str, float]:
        """The measured values over their bounds, the largest over the steps."""
        found: dict[str, list[float]] = {name: [0.0] for name in ("residual", "path", "remainder")}
        for t in range(1, len(self.residuals)):
            residual, path, _ = theorem_b2(self.constants, ball, step=t, form=form)
            if residual.value < 1e-9 * self.constants.residual:
                break  # from here on only rounding is measured
            found["residual"].append(float(self.residuals[t]) / residual.value)
            found["path"].append(float(self.paths[t]) / path.value)
            if t in self.remainders:
                remainder = taylor_remainder(self.constants, ball, step=t, form=form)
                found["remainder"].append(self.remainders[t] / remainder.value)
        last = self.bounds(ball, form)
        found |= {name: [1 / last[name].ratio] for name in ("drift", "gap")}
        return {name: largest(*values) for name, values in found.items()}


def _kernel(net: MLP, x: Tensor, point: Parameters | None = None, y: Tensor | None = None) -> Tensor:
    """Θ̂ = JJ^T/n of a network with one output."""
    return empirical_ntk(net, x, y, parameters=point)[:, :, 0, 0] / net.width


def _linear_residuals(kernel: Tensor, start: Tensor, rate: float, n_steps: int) -> Tensor:
    """(1 − η_0Θ̂_0)^t g_0 for t = 0, …, n_steps."""
    values, vectors = torch.linalg.eigh(kernel)
    t = torch.arange(n_steps + 1, dtype=values.dtype, device=values.device)
    return torch.einsum("ij,tj,jo->tio", vectors, (1 - rate * values) ** t[:, None], vectors.mT @ start)


@dataclass(frozen=True)
class Flow:
    """A network under the gradient flow: the largest gaps to its linearisation, beside Grönwall's bounds."""

    gap: float
    shares: Mapping[str, float]
    bound: float  # the sharp one, with the measured drift

    @classmethod
    def of(cls, task: Task, width: int, seed: int) -> Flow:
        """Follow the flow of a network of this width."""
        net = task.net(width, seed)
        constants = linearization_constants(net, task.x, task.targets, learning_rate=task.rate(net))
        decay, top = constants.smallest_start, constants.largest_start
        tau = 0.1 / top  # in units of η_0 t; at 0.25 the error of the steps is as large as the gap
        n_steps = math.ceil(4 / (decay * tau))
        kept = set(log_steps(n_steps, 12))
        K_0, cross = _kernel(net, task.x), _kernel(net, task.new, y=task.x)
        values, vectors = torch.linalg.eigh(K_0)
        with torch.no_grad():
            first, at_new = net(task.x) - task.targets, net(task.new)
        gaps, new_gaps, drift, cross_drift = [], [], 0.0, 0.0
        for step, point in enumerate(flow_points(net, task, tau / width, n_steps)):
            t = step * tau
            weights = vectors @ (-torch.expm1(-values * t)[:, None] / values[:, None] * (vectors.mT @ first))
            gaps.append(float((net.at(point, task.x) - task.targets - first + K_0 @ weights).norm()))
            new_gaps.append(float((net.at(point, task.new) - at_new + cross @ weights).abs().max()))
            if step in kept:
                drift = max(drift, float(torch.linalg.matrix_norm(_kernel(net, task.x, point) - K_0, 2)))
                moved = _kernel(net, task.new, point, task.x) - cross
                cross_drift = max(cross_drift, float(moved.norm(dim=1).max()))
        bounds = {form: gronwall(constants, drift, form=form) for form in FORMS}
        cross_norm = float(cross.norm(dim=1).max())
        new_bound = gronwall_at_new_point(constants, drift, cross_norm=cross_norm, cross_drift=cross_drift)
        shares: dict[str, float] = {form: max(gaps) / bound.value for form, bound in bounds.items()}
        for k in range(1, len(gaps)):  # and at every time
            for form in FORMS:
                at = gronwall(constants, drift, time=k * tau / constants.learning_rate, form=form)
                shares[form] = largest(shares[form], gaps[k] / at.value)
        shares["new"] = max(new_gaps) / new_bound.value
        return cls(max(gaps), shares, bounds["sharp"].value)


def flow_points(net: MLP, task: Task, rate: float, n_steps: int) -> Iterator[Parameters]:
    """θ(t) under θ' = −∇½‖f − Y‖² at multiples of `rate`, by fourth-order Runge-Kutta steps."""
    function, point = pure_function(net), parameters_of(net)

    def slope(at: Parameters) -> Parameters:
        f, pull = vjp(lambda p: function(p, task.x), at)  # type: ignore[misc]
        return {name: -g for name, g in pull(f - task.targets)[0].items()}

    def moved(by: float, along: Parameters) -> Parameters:
        return {name: p + by * along[name] for name, p in point.items()}

    yield point
    for _ in range(n_steps):
        a = slope(point)
        b = slope(moved(rate / 2, a))
        c = slope(moved(rate / 2, b))
        d = slope(moved(rate, c))
        point = {n: p + rate / 6 * (a[n] + 2 * b[n] + 2 * c[n] + d[n]) for n, p in point.items()}
        yield point
