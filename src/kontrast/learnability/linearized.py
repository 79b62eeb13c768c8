r"""The linearised network: in closed form under MSE, as an ODE under any loss, and compared with the true network.

$f^{lin}_t(x) = f(x; \theta_0) + J(x; \theta_0)(\theta_t - \theta_0)$. Paper D's (22) and (101) print $f(\theta_t)$
instead of $f(\theta_0)$, which counts the movement twice; the rest of the paper, and this file, use $f(\theta_0)$.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor, nn
from torch.func import vjp

from kontrast.checks import increasing_times, require_choice, require_finite, require_positive, require_type
from kontrast.dynamics import (
    Problem,
    Recorder,
    Status,
    Tape,
    Trajectory,
    distance_from,
    fixed_kernel_descent,
    fixed_kernel_flow,
    flat_kernel,
    gradient_descent,
)
from kontrast.errors import InputError
from kontrast.kernels import NTKOperator, empirical_ntk
from kontrast.learnability.mse import MSETraining, Training, mse_training, require_targets
from kontrast.nets import Linearized, Parameters


@dataclass(frozen=True, eq=False)
class LinearizedNetwork:
    """A module's linearisation in training on MSE, at any time; made by `linearized_mse`.

    `time` as in `MSETraining`: from 0 to `math.inf`, whole numbers for descent. Centred, f_lin is f_lin − f_0 in all
    that follows; `parameters` are those of f_lin itself.
    """

    training: MSETraining
    model: Linearized
    inputs: Tensor
    trained: tuple[str, ...]  # the names of the parameters that move
    centered: bool = False  # whether f_0 is subtracted

    def outputs(self, time: float) -> Tensor:
        """f_lin at the training inputs, (n, z)."""
        return self.training.outputs(time)

    @property
    def start_spread(self) -> float:
        """How far f_0 spreads over the training inputs: the root mean square deviation from its mean per output."""
        return _spread(self.training.start)

    @property
    def target_spread(self) -> float:
        """The same of the targets."""
        return _spread(self.training.targets)

    @property
    def advice(self) -> str:
        """Says so where f_0 spreads wider than the targets, and what helps; else empty.

        Training takes f_0 away at the training inputs. Elsewhere what the kernel cannot infer of it stays in the
        predictions, as noise of f_0's size beside a signal of the targets' size.
        """
        if not self.start_spread > self.target_spread:
            return ""
        return (
            f"f_0 spreads over the inputs by {self.start_spread:.3g} (root mean square), the targets by "
            f"{self.target_spread:.3g}: much of what is predicted at new inputs is f_0; pass center=True"
        )

    def predict(self, x: Tensor, time: float) -> Tensor:
        """f_lin at any inputs, (m, z), through the parameters: no kernel from x to the training inputs is formed."""
        parameters = self.parameters(time)
        like = next(iter(parameters.values()))
        require_type("x", x, Tensor)
        if x.device != like.device or (x.is_floating_point() and x.dtype != like.dtype):
            raise InputError(f"x must be {like.dtype} on {like.device} like the net, got {x.dtype} on {x.device}")
        if x.shape[1:] != self.inputs.shape[1:] or x.ndim == 0:
            sizes = ", ".join(map(str, self.inputs.shape[1:]))
            raise InputError(f"x must have shape (m, {sizes}) like the training inputs, got {tuple(x.shape)}")
        require_finite("x", x)
        with torch.no_grad():
            return self.model.change(parameters, x) if self.centered else self.model(parameters, x)

    def parameters(self, time: float) -> Parameters:
        r"""$\theta_t = \theta_0 + J^\top a_t$ by one backward pass; parameters that do not train stay."""
        weights, origin = self.training.weights(time), self.model.origin
        chosen = {name: origin[name] for name in self.trained}
        with torch.inference_mode(False):
            # A copy, made inside: a first layer may work in place.
            _, pullback = vjp(lambda p: self.model.function({**origin, **p}, self.inputs.clone()), chosen)  # type: ignore[misc]
            (direction,) = pullback(weights)
        return {name: p + direction[name] if name in direction else p.clone() for name, p in origin.items()}

    def distance(self, time: float) -> float:
        """‖θ_t − θ_0‖, from the kernel alone."""
        return self.training.distance(time)

    def loss(self, time: float) -> float:
        """½‖f_lin − Y‖² at the training inputs."""
        return self.training.loss(time)


def linearized_mse(
    module: nn.Module,
    x: Tensor,
    targets: Tensor,
    *,
    learning_rate: float = 1.0,
    method: Training = "flow",
    center: bool = False,
) -> LinearizedNetwork:
    """The linearisation of a module around its parameters, trained on ½‖f(x) − targets‖², at any time in closed form.

    The exact result of gradient flow, or descent, on `kontrast.nets.Linearized` (paper D, claim D.lee). The kernel is
    the `empirical_ntk` of the parameters that train, (n·z)² numbers.

    `module` has outputs (n, z) and independent rows, and is not changed. The inputs x are (n, …), the targets (n, z).
    `method` is "flow", or "descent" in steps of η.

    With `center=True` the model is f − f_0, which starts at zero everywhere: at the training inputs and in predictions.
    Its kernel is that of f; a network does the same when it is trained on targets + f_0(x) and f_0 is subtracted from
    what it predicts. A net in the NTK parametrisation starts with outputs of the size of its inputs' norm, which
    one-hot targets are small beside: `LinearizedNetwork.advice` says where f_0 spreads wider than the targets.
    """
    require_positive(learning_rate=learning_rate)
    require_choice("method", method, get_args(Training))
    require_type("center", center, bool)
    model, outputs = _at_start(module, x)
    require_targets(targets, outputs)
    start = torch.zeros_like(outputs) if center else outputs
    training = mse_training(empirical_ntk(module, x), start, targets, learning_rate=learning_rate, method=method)
    return LinearizedNetwork(training, model, x.detach(), _trained(module), center)


def _spread(outputs: Tensor) -> float:
    """The root mean square deviation of rows from their mean."""
    f = outputs.double()
    return float((f - f.mean(0)).square().mean().sqrt())


@dataclass(frozen=True, eq=False)
class LinearizedFlow:
    """Outputs of the linearised network along gradient flow; row k belongs to `times[k]`."""

    times: tuple[float, ...]
    outputs: Tensor  # (k, m, z) in float64, at the problem's inputs
    new_outputs: Tensor | None  # (k, p, z) in float64, at the new ones


def linearized_flow(
    module: nn.Module,
    problem: Problem,
    *,
    times: Sequence[float],
    new_inputs: Tensor | None = None,
    tolerance: float = 1e-9,
) -> LinearizedFlow:
    r"""Gradient flow of the linearised network on any objective: $\dot f(x) = -\Theta(x, X)\,\partial L/\partial f(X)$.

    For losses without a closed form, such as cross-entropy and contrastive ones; for MSE use `linearized_mse`.
    Integrated in float64 by `fixed_kernel_flow`, to a relative `tolerance`, at increasing `times` from 0 on. `module`
    has outputs (m, z) and independent rows; outputs at `new_inputs` are followed too.
    """
    times_ = tuple(increasing_times(times).tolist())
    require_positive(tolerance=tolerance)
    carried = _carried(module, problem, new_inputs)
    flow = fixed_kernel_flow(
        carried.product(double=True), carried.start, carried.objective, times=times_, tolerance=tolerance
    )
    m = carried.n_inputs
    return LinearizedFlow(times_, flow[:, :m], None if new_inputs is None else flow[:, m:])


@dataclass(frozen=True, eq=False)
class LinearizationGap:
    """A network's gradient descent and that of its linearisation; entry k of every tensor belongs to `steps[k]`.

    The network's records end where it diverges. Where only the linearised network has overflowed, its loss and the
    gaps are infinite.
    """

    steps: tuple[int, ...]
    output_gap: Tensor  # ‖f_t − f_t^lin‖ over the problem's inputs
    new_gap: Tensor | None  # the same over the new inputs
    output_move: Tensor  # ‖f_t − f_0‖
    parameter_move: Tensor  # ‖θ_t − θ_0‖
    kernel_drift: Tensor  # ‖Θ_t − Θ_0‖_F
    kernel_norm: float  # ‖Θ_0‖_F
    loss: Tensor
    linear_loss: Tensor
    status: Status
    linear_status: Status


def linearization_gap(
    module: nn.Module,
    problem: Problem,
    *,
    learning_rate: float,
    n_steps: int,
    record_at: Collection[int] | None = None,
    new_inputs: Tensor | None = None,
) -> LinearizationGap:
    """Gradient descent of the network and of its linearisation from the same start, by the same steps (claim D.lee).

    Norms are Frobenius norms without any normalisation. A network that is linear in its parameters has no gap except
    rounding. Every recorded step costs one tangent kernel. `module` has outputs (m, z) and independent rows, and is not
    changed; `new_inputs` are further points at which to compare the two. The other arguments are those of
    `gradient_descent`.
    """
    require_positive(learning_rate=learning_rate)
    Tape(n_steps, record_at)  # refuses impossible steps before the kernel is computed
    carried = _carried(module, problem, new_inputs)
    model, trained = carried.model, _trained(module)
    recorders: dict[str, Recorder] = {
        "move": distance_from(model.origin),
        "drift": lambda now: (
            empirical_ntk(module, problem.inputs, parameters={**model.buffers, **now.parameters}) - carried.kernel
        ).norm(),
    }
    if new_inputs is not None:
        recorders["new"] = lambda now: _without_gradients(model, now.parameters, new_inputs)
    run = gradient_descent(
        model.function,
        model.origin,
        problem,
        learning_rate={name: learning_rate if name in trained else 0.0 for name in model.origin},
        n_steps=n_steps,
        record_at=record_at,
        recorders=recorders,
        keep_outputs=True,
    )
    linear = fixed_kernel_descent(
        carried.product(),
        carried.start,
        carried.objective,
        learning_rate=learning_rate,
        n_steps=n_steps,
        record_at=record_at,
        keep_outputs=True,
    )
    return _compare(run, linear, carried)


def _compare(run: Trajectory, linear: Trajectory, carried: _Carried) -> LinearizationGap:
    m, start = carried.n_inputs, carried.start[: carried.n_inputs].double().cpu()
    f, new = _recorded(run, run.outputs), run.records.get("new")
    f_lin = dict(zip(linear.steps, _recorded(linear, linear.outputs), strict=True))
    pairs = [(k, f_lin[step]) if step in f_lin else (k, None) for k, step in enumerate(run.steps)]
    linear_loss = [float(linear.losses[step]) if step in f_lin else math.inf for step in run.steps]
    return LinearizationGap(
        steps=run.steps,
        output_gap=_norms(None if g is None else f[k] - g[:m] for k, g in pairs),
        new_gap=None if new is None else _norms(None if g is None else new[k].double() - g[m:] for k, g in pairs),
        output_move=_norms(row - start for row in f),
        parameter_move=_recorded(run, run.records.get("move")),
        kernel_drift=_recorded(run, run.records.get("drift")),
        kernel_norm=float(carried.kernel.norm()),
        loss=run.losses[list(run.steps)],
        linear_loss=torch.tensor(linear_loss, dtype=torch.float64),
        status=run.status,
        linear_status=linear.status,
    )


def _recorded(run: Trajectory, rows: Tensor | None) -> Tensor:
    """The records on the CPU in float64; empty if a run diverged before its first recorded step."""
    return torch.empty(len(run.steps), dtype=torch.float64) if rows is None else rows.double().cpu()


def _norms(differences: Iterable[Tensor | None]) -> Tensor:
    """Their norms; infinite where one of the two no longer exists."""
    return torch.tensor([math.inf if d is None else float(d.norm()) for d in differences], dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class _Carried:
    """A problem's outputs, and below them those at new inputs, which move with the others but have no loss."""

    model: Linearized
    problem: Problem
    kernel: Tensor  # Θ(X, X), (m, m, z, z)
    rows: Tensor  # Θ(X and new, X) as a matrix, ((m + p)·z, m·z)
    start: Tensor  # (m + p, z)

    @property
    def n_inputs(self) -> int:
        return len(self.kernel)

    def objective(self, outputs: Tensor) -> Tensor:
        return self.problem.objective(outputs[: self.n_inputs])

    def product(self, *, double: bool = False) -> Callable[[Tensor], Tensor]:
        rows = self.rows.double() if double else self.rows
        return lambda v: (rows @ v[: self.n_inputs].reshape(-1)).view_as(v)


def _carried(module: nn.Module, problem: Problem, new_inputs: Tensor | None) -> _Carried:
    require_type("problem", problem, Problem, "use regression_problem, classification_problem or contrastive_problem")
    model, start = _at_start(module, problem.inputs)
    problem.objective(start)  # fails before the kernel is computed if the objective does not fit the outputs
    new = None if new_inputs is None else _at_start(module, new_inputs)[1]
    kernel = empirical_ntk(module, problem.inputs)
    rows = flat_kernel(kernel)
    if new is not None and new_inputs is not None:
        rows = torch.cat([rows, flat_kernel(empirical_ntk(module, new_inputs, problem.inputs))])
        start = torch.cat([start, new])
    return _Carried(model, problem, kernel, rows, start)


def _at_start(module: nn.Module, x: Tensor) -> tuple[Linearized, Tensor]:
    """The linearisation and f_0(x); first refuses a module or rows without a tangent kernel."""
    NTKOperator(module, x)
    model = Linearized.of(module)
    return model, _without_gradients(model, model.origin, x)


def _without_gradients(model: Linearized, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    with torch.no_grad():
        return model.function(parameters, x.detach().clone())  # a copy: a first layer may work in place


def _trained(module: nn.Module) -> tuple[str, ...]:
    return tuple(name for name, p in module.named_parameters() if p.requires_grad)
