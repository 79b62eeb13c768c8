"""The equations that deep linear networks obey, and their exact solutions (paper B, Sec. 4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from scipy import linalg, special
from scipy.integrate import solve_ivp

from kontrast.checks import require_choice, require_whole
from kontrast.errors import ConvergenceError

Flow = Literal["grassmann", "polar", "oja"]
Array = np.ndarray[Any, np.dtype[np.float64]]
LONGEST = 300.0  # the largest range of exponents in one exact step of Oja's flow: e^-300 is far from underflow


@dataclass(frozen=True)
class FlowLaw:
    """q' = −αΛq + γΛqq^Tq + βqq^TΛq with α = β + γ."""

    beta: float
    gamma: float

    @property
    def alpha(self) -> float:
        """The factor of −Λq."""
        return self.beta + self.gamma

    def velocity(self, values: Any, q: Any) -> Any:
        """The q' at q (…, d, z) for the eigenvalues (…, d, 1) of C, as numpy arrays or as tensors."""
        drift, transposed = values * q, q.swapaxes(-1, -2)
        return -self.alpha * drift + self.gamma * (drift @ (transposed @ q)) + self.beta * (q @ (transposed @ drift))


def flow_law(flow: Flow = "grassmann", *, depth: int = 1) -> FlowLaw:
    """The equation of a network with `depth` hidden layers, l = depth + 1 in all, under one kind of descent."""
    depth = require_whole("depth", depth)
    require_choice("flow", flow, get_args(Flow))
    laws = {
        "grassmann": FlowLaw(beta=2, gamma=2),
        "polar": FlowLaw(beta=3 + (depth - 1), gamma=1),
        "oja": FlowLaw(beta=2 * (depth + 1), gamma=0),
    }
    return laws[flow]


def exact_solution(law: FlowLaw, values: Array, q0: Array, times: Array) -> Array:
    """The q (T, d, z) at all times, from q(0) (d, z): for one output, or for γ = 0 up to a rotation of the outputs."""
    one = q0.shape[1] == 1
    return _one_output_solution(law, values, q0[:, 0], times) if one else _oja_solution(law, values, q0, times)


def _oja_solution(law: FlowLaw, values: Array, q0: Array, times: Array) -> Array:
    r"""Oja's flow q' = −c(I − qq^T)Λq at all times: $q q^\top = E q_0 [I + q_0^\top(E^2 - I)q_0]^{-1} q_0^\top E$.

    Rows $r$ of eigenvalue 0 below q, with $r^\top r = I - q^\top q$, complete it to a frame, whose span is moved by
    $E = e^{-c\Lambda t}$ alone. So q is the upper part of the orthonormal factor of $E [q_0; r_0]$. The rows differ by
    hundreds of orders of magnitude: Householder QR with pivoting and the largest rows first is exact to rounding in
    every row (Cox & Higham 1998), and long times are split before the smallest underflows. The columns differ as
    much, so the rotation U V^T that turns the factor into the nearest frame is kept separately.
    """
    rest = remainder(q0)
    all_values = np.concatenate([values, np.zeros(len(rest))])
    exponents = -law.beta * (all_values - all_values.min())  # of growth against the fastest
    frame = np.concatenate([q0, rest])
    turn, now, result = np.eye(q0.shape[1]), 0.0, np.empty((len(times), *q0.shape))
    longest = LONGEST / max(float(-exponents.min()), 1e-300)
    for k, time in enumerate(times):
        while now < time:
            step = min(longest, time - now)
            moved, further = _orthonormal_factor(np.exp(step * exponents)[:, None] * frame)
            now = time if step == time - now or np.array_equal(moved, frame) else now + step
            frame, turn = moved, further @ turn
        result[k] = frame[: len(values)] @ turn
    return result


def remainder(q0: Array) -> Array:
    """Rows r with r^T r = I − q^T q: one per singular value below 1, none for those within rounding of 1."""
    _, sizes, right = np.linalg.svd(q0, full_matrices=False)
    below = sizes < 1 - rounding(len(q0), torch.float64)
    return np.asarray(np.sqrt((1 - sizes[below]) * (1 + sizes[below]))[:, None] * right[below])


def rounding(d: int, dtype: torch.dtype) -> float:
    """The largest change by rounding of a singular value 1 of a map with d rows."""
    return 8 * math.sqrt(d) * torch.finfo(dtype if dtype.is_floating_point else torch.float64).eps


def _orthonormal_factor(matrix: Array) -> tuple[Array, Array]:
    """Q, exact to rounding in every row (a row of zeros stays one), and the T of the nearest frame Q T."""
    order = np.argsort(-np.abs(matrix).max(axis=1), kind="stable")
    Q, R, pivots = linalg.qr(matrix[order], mode="economic", pivoting=True, check_finite=False)
    signs = np.where(R.diagonal() < 0, -1.0, 1.0)
    triangle, frame = np.empty_like(R), np.empty_like(matrix)
    triangle[:, pivots] = signs[:, None] * R
    frame[order] = Q * signs
    left, _, right = np.linalg.svd(triangle)
    return frame, left @ right


def _one_output_solution(law: FlowLaw, values: Array, q0: Array, times: Array) -> Array:
    r"""The solution for z = 1 (paper B, Theorem 3), up to one quadrature; in logarithms, so that nothing overflows.

    q = w √(ρ/N) with w = e^{−Λτ}q_0, N = |w|² and ρ = |q|². ρ^α/(1 − ρ)^β is proportional to N^α, and time runs as
    dτ/dt = α − γρ. For (8) that is ρ = (−κ + √(κ² + 4κ))/2 with κ = ρ_0²/(1 − ρ_0)·(N/N_0)².
    """
    nonzero = q0 != 0
    if not nonzero.any():
        return np.zeros((len(times), len(q0), 1))
    logs, least = 2 * np.log(np.abs(q0[nonzero])), float(values[nonzero].min())

    def log_parts(tau: float) -> Array:
        """The log of w² without −2λτ of the smallest λ, in which the differences would be lost at long times."""
        return np.asarray(logs - 2 * (values[nonzero] - least) * tau)

    def log_N(tau: float) -> float:
        return float(special.logsumexp(log_parts(tau))) - 2 * least * tau

    size, log_size = float(q0 @ q0), log_N(0)  # `size` underflows for tiny starts
    on_the_sphere = size >= 1 - 2 * rounding(len(q0), torch.float64)  # |q| = 1 stays
    start = math.inf if on_the_sphere else _potential(law, log_size - math.log1p(-size))

    def log_odds(tau: float) -> float:
        """log(ρ/(1 − ρ))."""
        return math.inf if on_the_sphere else _log_odds(law, start + law.alpha * (log_N(tau) - log_size))

    clock = _clock(law, log_odds, times)
    q = np.zeros((len(times), len(q0), 1))
    for k, tau in enumerate(clock):
        log_rho = float(special.log_expit(log_odds(tau)))
        q[k, :, 0] = np.sign(q0)
        parts = log_parts(tau)
        q[k, nonzero, 0] *= np.exp((parts - special.logsumexp(parts) + log_rho) / 2)
    return q


def _potential(law: FlowLaw, s: float) -> float:
    """α log ρ − β log(1 − ρ) for the log-odds s of ρ."""
    return float(law.alpha * special.log_expit(s) - law.beta * special.log_expit(-s))


def _log_odds(law: FlowLaw, potential: float) -> float:
    """The s with that potential; it is concave in s and at most αs, so Newton's method climbs from potential/α to s."""
    s = potential / law.alpha
    for _ in range(100):
        slope = law.alpha * special.expit(-s) + law.beta * special.expit(s)
        step = (potential - _potential(law, s)) / slope
        s += step
        if abs(step) <= 1e-15 * max(1.0, abs(s)):
            break
    return float(s)


def _clock(law: FlowLaw, log_odds: Callable[[float], float], times: Array) -> Array:
    """τ at the given times: dτ/dt = α − γρ(τ)."""
    if law.gamma == 0 or times[-1] == 0:
        return law.alpha * times
    clock = solve_ivp(
        lambda _, tau: law.alpha - law.gamma * special.expit(log_odds(float(tau[0]))),
        (0.0, float(times[-1])),
        [0.0],
        "DOP853",
        times,
        rtol=1e-12,
        atol=1e-13,
    )
    if not clock.success:
        raise ConvergenceError(f"the quadrature could not be followed to time {times[-1]:g}: {clock.message}")
    return np.asarray(clock.y[0])
