r"""Where a chattering filter comes to rest: the maxima of paper C's energy on the edges of samples' gates.

For samples and a ReLU the energy $J(w) = \frac12 w^\top A(w) w$ is piecewise quadratic, with concave ridges
$w^\top x_i = 0$ on which its maxima tend to lie. There no gate g_i in {0, 1} makes w an eigenvector of A(w), but a
fractional one does (Filippov). Let S be the samples on the edge. Then w maximises $w^\top A w$ among the
$w \perp x_S$, as the outputs of S are 0 for any gates, and the gates $g_S \in [0, 1]$ are the multipliers. `settled`
climbs there with an active set, exact to rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import lsq_linear
from torch import Tensor

from kontrast.patterns.gated_covariance import GatedCovariance

REST = 1e3  # a residual of up to this many roundings counts as 0
HELD_ROUNDS = 40  # climbs with an α that depends on w and is held fixed during each
FEWEST_ROUNDS, MOST_ROUNDS = 20, 200  # of the active set; usually a few more than there are samples on the edge
MOST_WORK = 1e13  # multiplications for all starts, a few minutes: maxima of unstructured data lie on many edges
MOST_CROSSINGS = 32  # gates crossed in one ascent


@dataclass(frozen=True, eq=False)
class Limit:
    """A point at rest: w (d,), and the gates (m,) that make it an eigenvector, fractional for those on the `edge`."""

    w: Tensor
    gates: Tensor
    edge: Tensor


def resting(field: GatedCovariance, w: Tensor) -> Limit:
    """The limit at w, which is at rest already."""
    z = field.points @ w
    return Limit(w, field.activation.gate(z, field.tolerance), z.abs() <= field.tolerance)


def rounds_for(field: GatedCovariance, n_starts: int) -> int:
    """The number of rounds that each of `n_starts` may take."""
    work = n_starts * (len(field.points) * field.d**2 + 10 * field.d**3)
    return int(min(MOST_ROUNDS, max(FEWEST_ROUNDS, MOST_WORK // work)))


def settled(field: GatedCovariance, w: Tensor, flipping: Tensor, *, n_rounds: int = MOST_ROUNDS) -> Limit | None:
    """The limit of an ascent from w; None if it fails. An α that depends on w is held fixed, then updated there."""
    if field.activation.degree != 1:
        return None
    if field.is_fixed:
        return _climb(field, w, flipping, n_rounds)
    for _ in range(HELD_ROUNDS):
        limit = _climb(field.frozen(w), w, flipping, n_rounds)
        if limit is None or float((limit.w - w).norm()) > 0.1:  # it moved to another maximum, one of this α
            return None
        if float((limit.w - w).norm()) <= REST * torch.finfo(w.dtype).eps:
            return limit
        w, flipping = limit.w, limit.edge
    return None


def _climb(field: GatedCovariance, w: Tensor, flipping: Tensor, n_rounds: int) -> Limit | None:
    """The maximum of the piecewise quadratic energy that an ascent from w reaches; None if it fails.

    With S the samples on the edge, each round goes towards the top eigenvector of A among the w ⊥ x_S, through the
    gates on its way as long as the energy rises (`_ascend`). A ridge that stops it joins S. At the eigenvector itself,
    samples leave S if their gates would have to be more than open or less than closed to keep w there.
    """
    w, edge = _onto_ridges(field, w, flipping & (field.activation.jump != 0))
    for _ in range(n_rounds):
        # 0 for samples on the edge, whose gates come from `_multipliers`
        gates = field.activation.gate(field.points @ w, field.tolerance).masked_fill(edge, 0.0)
        on_edge = torch.nonzero(edge)[:, 0]
        top = _top_within(field.matrix(w, gates=gates), field.points[on_edge], w)
        if top is None:
            return None
        ascent = _ascend(field, w, top, edge, to_top=True)
        if ascent is None:  # w is that eigenvector, or the energy does not rise towards it
            multipliers, push, at_rest = _multipliers(field, w, gates, on_edge)
            if at_rest:
                return Limit(w, gates.index_copy(0, on_edge, multipliers), edge)
            low, high = sorted((-field.activation.left, field.activation.right))
            edge[on_edge[(multipliers <= low) | (multipliers >= high)]] = False
            ascent = _ascend(field, w, w + push / push.norm(), edge)
            if ascent is None:
                return None
        w, stopped = ascent
        edge |= stopped | _on_plane(field, w)
    return None


def _onto_ridges(field: GatedCovariance, w: Tensor, flipping: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest w on the ridges at which it chatters: those that fractional gates can hold it on."""
    edge = torch.zeros_like(flipping)
    places = torch.nonzero(flipping)[:, 0]
    if not len(places):
        return w, edge
    gates = field.activation.gate(field.points @ w, field.tolerance).masked_fill(flipping, 0.0)
    multipliers, _, _ = _multipliers(field, w, gates, places)
    low, high = sorted((-field.activation.left, field.activation.right))
    edge[places[(multipliers > low) & (multipliers < high)]] = True
    basis = orthogonal_to(field.points[edge]) if edge.any() else torch.eye(len(w)).to(w)
    nearest = basis.mT @ (basis @ w)
    if not len(basis) or float(nearest.norm()) < 0.9:  # it chatters far from there
        return w, torch.zeros_like(flipping)
    nearest = nearest / nearest.norm()
    return nearest, edge | _on_plane(field, nearest)


def _on_plane(field: GatedCovariance, w: Tensor) -> Tensor:
    """The samples whose gate jumps at w itself, (m,) of bool."""
    return ((field.points @ w).abs() <= field.tolerance) & (field.activation.jump != 0)


def _ascend(
    field: GatedCovariance, w: Tensor, towards: Tensor, edge: Tensor, *, to_top: bool = False
) -> tuple[Tensor, Tensor] | None:
    """Go from w `towards` a point, up to the first maximum of the energy; None where the energy does not rise.

    Returns the new w and the samples on whose edge it stopped, (m,) of bool. On the great circle outputs are
    cos θ z + sin θ y, so crossings are known, and between two of them the energy is a quadratic form. With `to_top` the
    goal is the eigenvector of these gates, which is reached exactly if none flips.
    """
    u = towards - (towards @ w) * w
    end = math.atan2(float(u.norm()), float(towards @ w))
    if end < REST * torch.finfo(w.dtype).eps:
        return None
    u = u / u.norm()
    z, y = ((field.points @ v).masked_fill(edge, 0.0) for v in (w, u))
    z = z.masked_fill(z.abs() <= field.tolerance, 0.0)
    angles = torch.atan2(z.abs(), y.abs()).masked_fill((z * y >= 0) | (field.activation.jump == 0), math.inf)
    crossings = z.new_tensor(sorted(set(angles[angles < end].tolist()))[:MOST_CROSSINGS])
    stops = torch.cat([crossings.new_zeros(1), crossings, crossings.new_full((1,), end)])[: MOST_CROSSINGS + 1]
    first, last = stops[:-1], stops[1:]
    middle = (first + last) / 2
    gates = field.activation.gate(z[:, None] * middle.cos() + y[:, None] * middle.sin())  # (m, intervals)
    nowhere = torch.zeros_like(edge)
    if to_top and not len(crossings) and torch.equal(gates[:, 0] * y, field.activation.gate(z) * y):
        return towards, nowhere

    def slope(angle: Tensor) -> Tensor:
        outputs = gates * (z[:, None] * angle.cos() + y[:, None] * angle.sin())
        moving = gates * (y[:, None] * angle.cos() - z[:, None] * angle.sin())
        return (field.pull(outputs) * moving).sum(0)

    up, still_up = slope(first) > 0, slope(last) > 0
    stopping = torch.nonzero(~(up & still_up))[:, 0]
    if not len(stopping):
        return _turned(w, u, float(last[-1])), nowhere
    k = int(stopping[0])
    if up[k]:
        hz, hy = gates[:, k] * z, gates[:, k] * y
        pz, py = field.pull(torch.stack([hz, hy], dim=1)).unbind(1)
        peak = math.atan2(float(2 * hz @ py), float(hz @ pz - hy @ py)) / 2
        return _turned(w, u, min(max(peak, float(first[k])), float(last[k]))), nowhere
    if k == 0:
        return None
    return _turned(w, u, float(first[k])), angles == first[k]


def _turned(w: Tensor, u: Tensor, angle: float) -> Tensor:
    v = math.cos(angle) * w + math.sin(angle) * u
    return torch.as_tensor(v / v.norm())


def _top_within(A: Tensor, normals: Tensor, near: Tensor) -> Tensor | None:
    """A's top eigenvector among the vectors orthogonal to all `normals` (s, d), with the sign of `near`, if any."""
    basis = orthogonal_to(normals) if len(normals) else torch.eye(len(A)).to(A)
    if not len(basis):
        return None
    w: Tensor = basis.mT @ torch.linalg.eigh(basis @ A @ basis.mT).eigenvectors[:, -1]
    return torch.as_tensor(w / w.norm() * (-1.0 if w @ near < 0 else 1.0))


def orthogonal_to(normals: Tensor) -> Tensor:
    """Orthonormal rows that span the complement of `normals` (s, d), some of which may coincide."""
    triangle = torch.linalg.qr(normals, mode="r").R  # (min(s, d), d), of the same span
    _, sizes, vh = torch.linalg.svd(triangle, full_matrices=True)
    return torch.as_tensor(vh[int((sizes > 1e-9 * sizes[0]).sum()) :])


def _multipliers(field: GatedCovariance, w: Tensor, gates: Tensor, on_edge: Tensor) -> tuple[Tensor, Tensor, bool]:
    """The gates of samples on the edge, from closed to open, that make w most nearly an eigenvector.

    Also A(w)w − λw with these, the steepest ascent from w, and whether it is 0.
    """
    pull, residual = residual_at(field, w, gates)
    near_zero = REST * torch.finfo(w.dtype).eps * float((pull.abs() @ field.points.abs()).norm())
    if not len(on_edge):
        return residual[:0], residual, float(residual.norm()) <= near_zero
    tangent = field.points[on_edge] - (field.points[on_edge] @ w)[:, None] * w
    forces = (tangent * pull[on_edge, None]).mT.double().cpu().numpy()
    bounds = sorted((-field.activation.left, field.activation.right))
    scale = np.abs(forces).max() or 1.0
    fit = lsq_linear(forces / scale, -residual.double().cpu().numpy() / scale, bounds=bounds, method="bvls")
    found = torch.as_tensor(fit.x).to(w)
    push = residual + (found * pull[on_edge]) @ tangent
    return found, push, float(push.norm()) <= near_zero


def residual_at(field: GatedCovariance, w: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
    """The pull on each output, (m,), and A(w)w − λw, for the given gates."""
    pull = field.pull((gates * (field.points @ w))[:, None])[:, 0]
    product = (gates * pull) @ field.points
    return pull, product - (product @ w) * w
