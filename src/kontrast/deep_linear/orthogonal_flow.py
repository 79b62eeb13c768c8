r"""The flow of deep linear networks under orthogonality constraints (paper B, Sec. 4): one equation for the outputs.

The network is $u(x) = W_l^\top W_{l-1} \cdots W_1 x$ with $W_i^\top W_i = I$, its loss (7) $\mathrm{Tr}(u C u^\top)$
with C of (5). In the eigenbasis $C = V \Lambda V^\top$ and with $q = [u(v_1), \dots, u(v_d)]^\top$, (d, z),
training obeys

$$\dot q = -\alpha \Lambda q + \gamma \Lambda q q^\top q + \beta q q^\top \Lambda q, \qquad \alpha = \beta + \gamma,$$

whatever the width. β and γ depend on the meaning of "gradient descent under the constraint" (claim B.thm2):

* "grassmann", γ = 2, β = 2: the left factor $I - W W^\top$ on every layer. This is the paper's (8), for every depth,
  because square layers do not move.
* "polar", γ = 1, β = 3 + m for m = l − 2 square layers: a plain step, then the nearest frame (the paper's
  experiments).
* "oja", γ = 0, β = 2l: the canonical metric of the Stiefel manifold; Oja's flow.

With γ = 0, and for z = 1 in all three, the equation has an exact solution.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.integrate import solve_ivp
from torch import Tensor

from kontrast import checks
from kontrast.deep_linear.flow_laws import Array, Flow, FlowLaw, exact_solution, flow_law, remainder, rounding
from kontrast.dynamics import Recorder, Snapshot, Step, Tape, Trajectory, descend, gradient_descent, trace_problem
from kontrast.errors import ConvergenceError, InputError
from kontrast.linalg import as_symmetric, cayley_step, grassmann_step, polar_step
from kontrast.nets import MLP, parameters_of

Method = Literal["auto", "exact", "dop853"]
STEPS: dict[str, Step] = {"grassmann": grassmann_step, "polar": polar_step, "oja": cayley_step}
LONGEST = 2e5  # the largest α · time · max |λ| that is integrated: half a minute for d = 784
FINEST = 1e-13  # DOP853 takes no relative tolerance below 100 roundings
ABOVE_ONE = 1e-6  # the excess over 1 of a singular value of the start that counts as rounding, float32's included


@dataclass(frozen=True, eq=False)
class DeepLinearFlow:
    """The outputs of a deep linear network over time, float64. `q[k]` belongs to `times[k]`."""

    times: tuple[float, ...]
    q: Tensor  # (T, d, z): row i is u(v_i)
    eigenvalues: Tensor  # (d,), ascending
    basis: Tensor  # (d, d): column i is v_i

    @property
    def losses(self) -> Tensor:
        """Tr(u C u^T) at every time, (T,)."""
        return (self.eigenvalues[:, None] * self.q.square()).sum((1, 2))

    @property
    def maps(self) -> Tensor:
        """The maps (T, d, z) in the coordinates of x: u_t(x) = maps[t]^T x."""
        return self.basis @ self.q

    def outputs(self, x: Tensor) -> Tensor:
        """u_t(x) = q_t^T V^T x at new points x (n, d): (T, n, z) (paper B, "New Datapoint")."""
        d = len(self.basis)
        if not _is_real(x) or x.ndim != 2 or x.shape[1] != d:
            raise InputError(
                f"x must be rows (n, {d}) in a real tensor, as C is {(d, d)}, got {checks.in_words(x)}; convert an "
                "array with torch.as_tensor(x)"
            )
        return x.detach().to(self.maps) @ self.maps

    def projections(self, k: int) -> Tensor:
        """The norms (T, k) of the projections of v_1 … v_k on the span of q's columns (Fig. 4); 0 where q is 0."""
        k = checks.require_whole("k", k, most=len(self.basis))
        left, sizes, _ = torch.linalg.svd(self.q, full_matrices=False)
        spanned = sizes > len(self.basis) * torch.finfo(torch.float64).eps * sizes[:, :1]
        return torch.sum(left[:, :k].square() * spanned[:, None], dim=2).sqrt()


def deep_linear_flow(
    C: Tensor,
    start: Tensor,
    *,
    times: ArrayLike,
    flow: Flow = "grassmann",
    depth: int = 1,
    method: Method = "auto",
    tolerance: float = 1e-10,
    symmetrize: bool = False,
) -> DeepLinearFlow:
    """The outputs of a deep linear network at given times of training, without a network (paper B, Theorem 2).

    Args:
        C: the data matrix (d, d) of (5), symmetric; `kontrast.deep_linear.data_matrix`.
        start: the map (d, z) at time 0, u_0(x) = start^T x: `net(torch.eye(d))`. Its singular values are at most 1,
            like those of a product of orthonormal layers. For a diagonal C it is the paper's q.
        times: increasing, from 0 on; time is learning rate × steps.
        flow: the kind of descent, see `flow_law`.
        depth: its number of hidden layers; "grassmann" does not depend on it.
        method: "dop853" integrates. "exact" takes the exact solution where there is one (z = 1, up to one quadrature;
            "oja", up to a rotation of the outputs). "auto" is "exact" for z = 1 and "dop853" for z > 1, and always
            gives the outputs themselves. The rotation of exact "oja" outputs is found from each time to the next. So it
            depends on the other times in `times`, and tends to the true one as these become dense; `projections`,
            `losses` and q q^T do not depend on them.
        tolerance: relative, of the integration.
        symmetrize: take (C + C^T)/2 instead of refusing a C that is not symmetric.
    """
    law, C = flow_law(flow, depth=depth), as_symmetric(C, "C", symmetrize=symmetrize)
    map0 = _checked_start(start, C)
    times_ = checks.increasing_times(times)
    checks.require_positive(tolerance=tolerance)
    if tolerance < FINEST:
        raise InputError(f"tolerance must be at least {FINEST:g}, the limit of float64, got {tolerance:g}; raise it")
    checks.require_choice("method", method, get_args(Method))
    z = map0.shape[1]
    if method == "exact" and z > 1 and law.gamma != 0:
        raise InputError(f"no exact solution of the {flow!r} flow is known for z = {z}; use method='dop853'")
    eigenvalues, basis = torch.linalg.eigh(C)
    q0 = (basis.mT @ map0).cpu().numpy()
    scale = float(eigenvalues.abs().max()) or 1.0  # only Λt matters; the solvers' tolerances are for |Λ| = 1
    if not np.isfinite(float(times_[-1]) * scale):
        raise InputError(
            f"time={times_[-1]:g} × eigenvalues of up to {scale:.3g} is beyond the range of floats; divide C by the "
            "number of anchors, or take the limit instead"
        )
    values, clock = eigenvalues.cpu().numpy() / scale, times_ * scale
    if method == "dop853" or (method == "auto" and z > 1):
        _require_short(law, float(eigenvalues.abs().max()), float(times_[-1]))
        q = _integrated(law, values, q0, clock, tolerance)
    else:
        q = exact_solution(law, values, q0, clock)
    return DeepLinearFlow(tuple(times_), torch.from_numpy(q).to(C.device), eigenvalues, basis)


def deep_linear_descent(
    C: Tensor,
    start: Tensor,
    *,
    learning_rate: float,
    n_steps: int,
    flow: Flow = "grassmann",
    depth: int = 1,
    printed: bool = False,
    eigenbasis: bool = True,
    record_at: Collection[int] | None = None,
    recorders: Mapping[str, Recorder] | None = None,
    keep_outputs: bool = False,
    tolerance: float = 0.0,
    symmetrize: bool = False,
) -> Trajectory:
    """Paper B's (11) with its missing factor: q_{t+1} = q_t + η q'(q_t). Outputs are q, (d, z), in the eigenbasis of C.

    `printed=True` takes (11) as printed, without the factor 2 of (8), and so needs twice the steps.
    `eigenbasis=False` is the same equation for the map (d, z) itself, u(x) = outputs^T x: no eigenproblem is solved
    before the first step, and every step multiplies by C. For a few hundred steps at large d that is faster.
    """
    law, C = flow_law(flow, depth=depth), as_symmetric(C, "C", symmetrize=symmetrize)
    map0 = _checked_start(start, C)
    checks.require_positive(learning_rate=learning_rate)
    tape = Tape(n_steps, record_at, recorders or {}, keep_outputs)
    rate = learning_rate / 2 if printed else learning_rate
    if not eigenbasis:
        return descend(_OutputDescent(law, C.matmul, map0, rate), tape, tolerance=tolerance)
    eigenvalues, basis = torch.linalg.eigh(C)
    return descend(_OutputDescent(law, eigenvalues[:, None].mul, basis.mT @ map0, rate), tape, tolerance=tolerance)


def train_deep_linear(
    net: MLP,
    C: Tensor,
    *,
    learning_rate: float,
    n_steps: int,
    flow: Flow = "polar",
    record_at: Collection[int] | None = None,
    recorders: Mapping[str, Recorder] | None = None,
    keep_outputs: bool = False,
    tolerance: float = 0.0,
    symmetrize: bool = False,
) -> Trajectory:
    """Train an actual deep linear network on (7), every layer under W^T W = I. Outputs are q, (d, z).

    The three kinds of descent are those of `flow_law`: tangent step and QR ("grassmann"), plain step and polar factor
    ("polar"), Cayley's transform ("oja"). To order η each follows its flow, at the time ηt after t steps. `net` is
    `MLP(d, width, z, depth=…, activation="linear", parametrization="orthogonal")` of width ≥ d, and not changed. The
    other arguments are those of `gradient_descent`.
    """
    C = as_symmetric(C, "C", symmetrize=symmetrize)
    flow_law(flow)  # refuses an unknown one
    _require_deep_linear(net, len(C))
    eigenvalues, basis = (part.to(net.output.dtype) for part in torch.linalg.eigh(C.to(net.output.device)))
    parameters = parameters_of(net)
    return gradient_descent(
        net.at,
        parameters,
        trace_problem(eigenvalues, basis),
        learning_rate=learning_rate,
        n_steps=n_steps,
        record_at=record_at,
        recorders=recorders,
        keep_outputs=keep_outputs,
        tolerance=tolerance,
        orthonormal=set(parameters),
        steps=dict.fromkeys(parameters, STEPS[flow]),
    )


def _require_deep_linear(net: MLP, d: int) -> None:
    wanted = f"MLP({d}, width, z, activation='linear', parametrization='orthogonal')"
    checks.require_type("net", net, MLP, f"pass {wanted}")
    if net.activation.name != "linear" or net.parametrization != "orthogonal" or net.d_in != d:
        raise InputError(f"net must be {wanted}, got MLP {net.extra_repr()}")
    if net.width < net.d_in:
        raise InputError(
            f"W_1^T W_1 = I needs a width of at least the {net.d_in} inputs, got {net.width}; raise the width"
        )


class _OutputDescent:
    """(11): descent of q itself, in as few products as possible, as each costs more to launch than to compute."""

    def __init__(self, law: FlowLaw, C: Callable[[Tensor], Tensor], q: Tensor, learning_rate: float) -> None:
        self.law, self.C, self.q, self.rate = law, C, q.clone(), learning_rate
        self.plain = learning_rate * law.alpha * torch.eye(q.shape[1], dtype=q.dtype, device=q.device)

    @property
    def state(self) -> list[Tensor]:
        return [self.q]

    def loss(self) -> Tensor:
        self.drift = self.C(self.q)
        self.inner = self.q.mT @ self.drift  # q^T Λq
        return self.inner.trace()

    def gradient_norm(self) -> float:
        return float((self._next() - self.q).norm()) / self.rate

    def update(self) -> None:
        self.q.copy_(self._next())

    def snapshot(self, step: int) -> Snapshot:
        return Snapshot(step, self.q, {})

    def _next(self) -> Tensor:
        inside = torch.addmm(self.plain, self.q.mT, self.q, alpha=-self.rate * self.law.gamma)  # η(αI − γq^T q)
        turned = torch.addmm(self.q, self.q, self.inner, alpha=self.rate * self.law.beta)
        return torch.addmm(turned, self.drift, inside, alpha=-1)


def _integrated(law: FlowLaw, values: Array, q0: Array, times: Array, tolerance: float) -> Array:
    r"""The flow of q and of rows r below it, $r^\top r = I - q^\top q$, $\dot r = \alpha r M$, $M = q^\top \Lambda q$.

    A network of width below d + z keeps a singular value 1 of q. Where M is positive, rounding alone would drive q off
    it; r, with one row per smaller singular value, prevents that: as written here, $q^\top q + r^\top r$ never moves.
    """
    if times[-1] == 0:
        return q0[None]
    (d, z), column = q0.shape, values[:, None]

    def velocity(_: float, flat: Array) -> Array:
        frame = flat.reshape(-1, z)
        q, r = frame[:d], frame[d:]
        drift = column * q
        M = q.T @ drift
        speed: Array = law.beta * (frame @ np.linalg.solve(frame.T @ frame, M))
        speed[:d] -= law.beta * drift + law.gamma * (drift @ (r.T @ r))
        speed[d:] += law.gamma * (r @ M)
        return speed.reshape(-1)

    start = np.concatenate([q0, remainder(q0)])
    # A row's velocity is linear in the row itself: one that starts tiny and grows needs an error of its own size.
    sizes = np.linalg.norm(start, axis=1).clip(min=np.finfo(float).tiny)
    error = np.repeat(1e-3 * tolerance * sizes, z)
    flow = solve_ivp(velocity, (0.0, float(times[-1])), start.reshape(-1), "DOP853", times, rtol=tolerance, atol=error)
    if not flow.success or not np.isfinite(flow.y).all():
        raise ConvergenceError(f"the flow could not be followed to the last time: {flow.message}")
    return np.asarray(flow.y.T).reshape(len(times), -1, z)[:, :d]


def _require_short(law: FlowLaw, largest: float, time: float) -> None:
    """Refuse long times, or a C of large scale, that explicit steps of about 1/(α|λ|) would follow for minutes."""
    if law.alpha * largest * time > LONGEST:
        most = LONGEST / (law.alpha * largest)
        raise InputError(
            f"time={time:g} is too long for eigenvalues of up to {largest:.3g}: at most {most:.3g} is followed step by "
            "step; take the limit instead, or flow='oja' with its exact solution, or divide C by the number of anchors"
        )


def _is_real(given: Tensor) -> bool:
    """Whether it is a real tensor: imaginary parts would be dropped."""
    return isinstance(given, Tensor) and not given.is_complex()


def _checked_start(start: Tensor, C: Tensor) -> Tensor:
    """The map (d, z) in float64, on C's device."""
    d = len(C)
    if not _is_real(start) or start.ndim != 2 or len(start) != d or not 1 <= start.shape[1] <= d:
        raise InputError(
            f"start must be a map (d, z) with d = {d}, as C is {(d, d)}, and 1 <= z <= d, in a real tensor, got "
            f"{checks.in_words(start)}; use net(torch.eye({d})) of an orthogonal MLP"
        )
    map0 = start.detach().to(C)
    checks.require_finite("start", map0)
    left, sizes, right = torch.linalg.svd(map0, full_matrices=False)
    largest = float(sizes[0])
    if largest > 1 + ABOVE_ONE:
        raise InputError(
            f"start must have singular values of at most 1, like a product of orthonormal layers, got {largest:.6g}; "
            f"divide it by {largest:.6g}, or use net(torch.eye({d})) of an orthogonal MLP"
        )
    ones = sizes > 1 - rounding(d, start.dtype)
    return torch.matmul(left * torch.where(ones, 1.0, sizes), right) if ones.any() else map0
