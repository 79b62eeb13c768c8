r"""Paper A's Lemma 9 with the kernel held fixed: $\dot F = -K\,\partial L/\partial F$, in steps or as a flow.

The step version $F_{t+1} = F_t - \eta K\,\partial L/\partial F_t$ is exactly gradient descent on the linearised
network, so its distance from real training is the part of training that no kernel explains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from kontrast.checks import increasing_times, require_positive
from kontrast.dynamics.loop import descend
from kontrast.dynamics.problem import Objective
from kontrast.dynamics.trajectory import Recorder, Snapshot, Tape, Trajectory
from kontrast.errors import InputError, KontrastError

FixedKernel = Tensor | Callable[[Tensor], Tensor]


def fixed_kernel_descent(
    kernel: FixedKernel,
    outputs: Tensor,
    objective: Objective,
    *,
    learning_rate: float,
    n_steps: int,
    record_at: Collection[int] | None = None,
    recorders: Mapping[str, Recorder] | None = None,
    keep_outputs: bool = False,
    tolerance: float = 0.0,
) -> Trajectory:
    """Descent of the (m, z) outputs themselves under a fixed kernel, for any objective of them.

    `kernel` is (m, m, z, z) as `empirical_ntk` gives it, (m, m) for a kernel that acts on every output alike (an
    infinite-width NTK), or a function V ↦ K V of (m, z) tensors (`Linearized.kernel_product`) if K is too large to
    store. Points whose output does not enter the objective move along, which gives predictions at new inputs.
    """
    require_positive(learning_rate=learning_rate)
    product = _product(kernel, outputs)
    tape = Tape(n_steps, record_at, recorders or {}, keep_outputs)
    return descend(_KernelDescent(product, outputs, objective, learning_rate), tape, tolerance=tolerance)


def fixed_kernel_flow(
    kernel: FixedKernel, outputs: Tensor, objective: Objective, *, times: Sequence[float], tolerance: float = 1e-9
) -> Tensor:
    """Outputs (len(times), m, z) of the continuous flow, by DOP853 in float64 with relative tolerance `tolerance`.

    Raises `KontrastError` if the flow blows up before the last time, as with a dot-product loss in finite time.
    """
    times_ = increasing_times(times)
    start = outputs.detach().double()
    product = _product(kernel.double() if isinstance(kernel, Tensor) else kernel, start)

    def velocity(_: float, flat: np.ndarray) -> np.ndarray:
        point = torch.from_numpy(flat).to(start.device).view_as(start)
        speed = -product(_value_and_gradient(objective, point)[1])
        return speed.reshape(-1).cpu().numpy()

    span = (0.0, float(times_[-1]))
    with np.errstate(over="ignore", invalid="ignore"):  # a blow-up ends in the status that is checked below
        flow = solve_ivp(
            velocity, span, start.reshape(-1).cpu().numpy(), "DOP853", times_, rtol=tolerance, atol=tolerance * 1e-3
        )
    if not flow.success or not np.isfinite(flow.y).all():
        raise KontrastError(
            f"the flow could not be followed to time {span[1]:g}: {flow.message} "
            "The loss may blow up in finite time (dot product); ask for earlier times"
        )
    return torch.from_numpy(flow.y.T.copy()).to(start.device).view(len(times_), *start.shape)


class _KernelDescent:
    def __init__(
        self, product: Callable[[Tensor], Tensor], outputs: Tensor, objective: Objective, learning_rate: float
    ) -> None:
        self.product, self.objective, self.rate = product, objective, learning_rate
        self.outputs = outputs.detach().clone()

    @property
    def state(self) -> list[Tensor]:
        return [self.outputs]

    def loss(self) -> Tensor:
        value, self.gradient = _value_and_gradient(self.objective, self.outputs)
        return value

    def gradient_norm(self) -> float:
        return float(self.gradient.norm())

    def update(self) -> None:
        self.outputs.sub_(self.product(self.gradient), alpha=self.rate)

    def snapshot(self, step: int) -> Snapshot:
        return Snapshot(step, self.outputs, {})


def _value_and_gradient(objective: Objective, outputs: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        point = outputs.detach().requires_grad_()
        value = objective(point)
    (gradient,) = torch.autograd.grad(value, point)
    return value.detach(), gradient


def _product(kernel: FixedKernel, outputs: Tensor) -> Callable[[Tensor], Tensor]:
    if not isinstance(kernel, Tensor):
        return kernel
    m, z = outputs.shape
    if kernel.shape == (m, m):
        return lambda v: kernel @ v
    if kernel.shape == (m, m, z, z):
        matrix = flat_kernel(kernel)  # one dense product per step
        return lambda v: (matrix @ v.reshape(-1)).view(m, z)
    raise InputError(
        f"kernel must be {(m, m)} or {(m, m, z, z)} for outputs of shape {(m, z)}, got {tuple(kernel.shape)}"
    )


def flat_kernel(kernel: Tensor) -> Tensor:
    """A (n, m, z, z) kernel as the (nz, mz) matrix K_(x i)(y j); a matrix as it is."""
    if kernel.ndim != 4:
        return kernel
    n, m, z, w = kernel.shape
    return kernel.permute(0, 2, 1, 3).reshape(n * z, m * w)
