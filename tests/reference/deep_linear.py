"""Deep linear networks under W^T W = I as the flows of their weights, and Oja's flow at hundreds of digits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import mpmath
import numpy as np
from scipy.integrate import solve_ivp


def gradients(weights: Sequence[np.ndarray], C: np.ndarray) -> list[np.ndarray]:
    """∇ of Tr(u C u^T), u = W_l^T W_{l−1} … W_1, with respect to every layer."""
    *hidden, output = weights
    u = output.T @ _product(hidden, len(C))
    of_u = 2 * u @ C
    result = []
    for i in range(len(hidden)):
        before = _product(hidden[:i], len(C))
        after = output.T @ _product(hidden[i + 1 :], hidden[i].shape[0])
        result.append(after.T @ of_u @ before.T)
    return [*result, _product(hidden, len(C)) @ of_u.T]


def descent_direction(W: np.ndarray, G: np.ndarray, flow: str) -> np.ndarray:
    """What a layer moves against: the gradient G, by the three meanings of "under the constraint"."""
    if flow == "grassmann":
        return G - W @ (W.T @ G)
    if flow == "polar":
        return G - W @ (W.T @ G + G.T @ W) / 2  # the Stiefel manifold's gradient in the Euclidean metric
    return G - W @ (G.T @ W)  # in the canonical metric


def weight_flow(weights: Sequence[np.ndarray], C: np.ndarray, times: Sequence[float], flow: str) -> np.ndarray:
    """The maps u_t^T (T, d, z) of a network whose weights W_1 (h, d), (h, h), …, W_l (h, z) flow; `times` from 0."""
    shapes = [W.shape for W in weights]
    cuts = np.cumsum([W.size for W in weights])[:-1]

    def unpack(flat: np.ndarray) -> list[np.ndarray]:
        return [part.reshape(shape) for part, shape in zip(np.split(flat, cuts), shapes, strict=True)]

    def velocity(_: float, flat: np.ndarray) -> np.ndarray:
        now = unpack(flat)
        moves = [-descent_direction(W, G, flow) for W, G in zip(now, gradients(now, C), strict=True)]
        return np.concatenate([move.ravel() for move in moves])

    start = np.concatenate([W.ravel() for W in weights])
    solution = solve_ivp(velocity, (times[0], times[-1]), start, "DOP853", times, rtol=1e-12, atol=1e-14)
    assert solution.success, solution.message
    maps = []
    for flat in solution.y.T:
        *hidden, output = unpack(flat)
        maps.append((output.T @ _product(hidden, len(C))).T)
    return np.stack(maps)


def output_flow(values: np.ndarray, q0: np.ndarray, times: Sequence[float], *, beta: float, gamma: float) -> np.ndarray:
    """q' = −(β + γ)Λq + γΛqq^Tq + βqq^TΛq from q0, entry by entry as it is written."""
    L = np.diag(values)

    def velocity(_: float, flat: np.ndarray) -> np.ndarray:
        q = flat.reshape(q0.shape)
        return (-(beta + gamma) * L @ q + gamma * L @ q @ q.T @ q + beta * q @ q.T @ L @ q).ravel()

    solution = solve_ivp(velocity, (0, times[-1]), q0.ravel(), "DOP853", times, rtol=1e-13, atol=1e-15)
    assert solution.success, solution.message
    return solution.y.T.reshape(len(times), *q0.shape)


def oja_projector(values: np.ndarray, q0: np.ndarray, time: float, *, beta: float) -> np.ndarray:
    """q q^T = E q0 [I + q0^T(E² − I)q0]^{−1} q0^T E with E = e^{−βΛt} (claim B.thm2), in digits enough for E²."""
    digits = 700 + int(2 * beta * np.abs(values).max() * time * q0.shape[1])
    with mpmath.workdps(digits):
        d, z = q0.shape
        q = mpmath.matrix(q0.tolist())
        E = mpmath.diag([mpmath.exp(-mpmath.mpf(beta) * mpmath.mpf(float(v)) * mpmath.mpf(time)) for v in values])
        middle = mpmath.eye(z) + q.T * (E * E - mpmath.eye(d)) * q
        P = E * q * mpmath.inverse(middle) * q.T * E
        return np.array([[float(P[i, j]) for j in range(d)] for i in range(d)])


def _product(hidden: Sequence[np.ndarray], d: int) -> np.ndarray:
    result = np.eye(d)
    for W in hidden:
        result = W @ result
    return result


def best_loss(values: np.ndarray, z: int) -> float:
    """The sum of the min(z, number of negatives) most negative eigenvalues, by trying every choice of at most z."""
    choices = itertools.chain.from_iterable(itertools.combinations(values, k) for k in range(z + 1))
    return float(min(sum(choice) for choice in choices))
