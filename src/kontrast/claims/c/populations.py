"""Populations whose roughness is known exactly: evenly filled bodies about the axis of a filter."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kontrast.bounds import Form
from kontrast.patterns import roughness_bound

Array = NDArray[np.float64]

NODES = np.polynomial.legendre.leggauss(400)
TEMPERATURES = (0.01, 0.1, 1.0)
FORMS: tuple[Form, ...] = ("printed", "corrected", "sharp")


@dataclass(frozen=True)
class Body:
    """A body about the axis w; its section at height t = w^T x is a ball of radius `section`(t) in d − 1 dimensions."""

    low: float
    high: float
    section: Callable[[Array], Array]

    @classmethod
    def ball(cls, center: float, radius: float) -> Body:
        """A ball about centre·w."""
        return cls(center - radius, center + radius, lambda t: np.sqrt(np.clip(radius**2 - (t - center) ** 2, 0, None)))

    @classmethod
    def slab(cls, half: float) -> Body:
        """|t| ≤ half, cut off at the unit sphere."""
        return cls(-half, half, lambda t: np.full_like(t, math.sqrt(1 - half**2)))

    def nodes(self) -> tuple[Array, Array]:
        """Gauss-Legendre nodes and weights for the heights, on each side of the plane."""
        cuts = [self.low, 0.0, self.high] if self.low < 0 < self.high else [self.low, self.high]
        parts = [(a + (b - a) * (NODES[0] + 1) / 2, NODES[1] * (b - a) / 2) for a, b in itertools.pairwise(cuts)]
        return np.concatenate([t for t, _ in parts]), np.concatenate([weight for _, weight in parts])


@dataclass(frozen=True)
class Population:
    """A density inside the unit ball: evenly filled bodies, each with its share of the mass."""

    d: int
    bodies: Sequence[tuple[float, Body]]

    @cached_property
    def moments(self) -> Moments:
        """All quantities of Theorem 2."""
        d = self.d
        section_volume = math.pi ** ((d - 1) / 2) / math.gamma((d + 1) / 2)
        heights, masses, squares = [], [], []
        boundary = at_plane = 0.0
        for share, body in self.bodies:
            t, weight = body.nodes()
            section = body.section(t)
            slices = section_volume * section ** (d - 1) * weight
            level = share / slices.sum()
            heights.append(t)
            masses.append(level * slices)
            squares.append(section**2 / (d + 1))  # E[(u·x)²] at this height
            if body.low < 0 < body.high:
                radius = float(body.section(np.zeros(1))[0])
                boundary += level * section_volume * radius ** (d + 1) / (d + 1)
                at_plane += level
        joined = [np.concatenate(rows) for rows in (heights, masses, squares)]
        return Moments(d, joined[0], joined[1], joined[2], boundary, at_plane)

    def density(self, x: Tensor) -> Tensor:
        """p(x) for d = 2, for x (…, 2) with t first."""
        t, across = x[..., 0], x[..., 1].abs()
        total = torch.zeros_like(t)
        for share, body in self.bodies:
            nodes, weight = body.nodes()
            area = float((2 * body.section(nodes) * weight).sum())
            inside = (t >= body.low) & (t <= body.high)
            section = torch.from_numpy(body.section(t.numpy()))
            total += share / area * (inside & (across <= section))
        return total


@dataclass(frozen=True)
class Moments:
    """Moments of a `Population`: heights of nodes, their masses, and the mean square along the plane at each."""

    d: int
    heights: Array = field(repr=False)
    masses: Array = field(repr=False)
    squares: Array = field(repr=False)
    boundary: float  # ‖M‖, M = E[x x^T δ(w^T x)]
    at_plane: float  # max p(x) on the plane

    def mean(self, values: Array) -> float:
        """The mean of a function of the height, given at the nodes."""
        return float(self.masses @ values)

    @property
    def outputs(self) -> Array:
        """h(w^T x) of ReLU at the nodes."""
        return np.clip(self.heights, 0, None)

    @property
    def roughness(self) -> float:
        """ρ = E[h]·‖M‖."""
        return self.mean(self.outputs) * self.boundary

    def gaussian_roughness(self, temperature: float) -> tuple[float, float]:
        """ρ for Gaussian α held fixed, E[h e^{−h²/2τ}]·‖M‖, and z_0."""
        damping = np.exp(-(self.outputs**2) / (2 * temperature))
        return self.mean(self.outputs * damping) * self.boundary, self.mean(damping)

    @property
    def gap(self) -> float:
        """λ_1 − λ_2 of A(w) at w, if w is its top eigenvector: Var h − E[(u·x)²; w^T x > 0]."""
        h = self.outputs
        return self.mean(h**2) - self.mean(h) ** 2 - self.mean(self.squares * (self.heights > 0))

    @cached_property
    def cases(self) -> list[tuple[float, float]]:
        """ρ and z_0 for uniform α and for Gaussian ones."""
        return [(self.roughness, 1.0), *(self.gaussian_roughness(temperature) for temperature in TEMPERATURES)]

    @property
    def corrected_bound(self) -> float:
        """Theorem 2's bound, corrected, on ρ for uniform α."""
        return roughness_bound(1.0, self.at_plane, self.d).value

    def shares(self, radius: float) -> dict[str, float]:
        """ρ over each bound, for x scaled to ‖x‖ ≤ radius; the worst of uniform and Gaussian α."""
        at_plane = self.at_plane * radius**-self.d
        found: dict[str, float] = {}
        for form in FORMS:
            bounds = [roughness_bound(radius, z_0 * at_plane, self.d, form=form) for _, z_0 in self.cases]
            pairs = zip(bounds, self.cases, strict=True)
            found[form] = max(1 / bound.with_measured(rho * radius**2).ratio for bound, (rho, _) in pairs)
        return found


def populations(d: int) -> dict[str, Population]:
    """The populations on which Theorem 2 is tried, by name."""
    return {
        "uniform in a ball": Population(d, [(1.0, Body.ball(0, 1))]),
        "uniform in a shifted ball": Population(d, [(1.0, Body.ball(0.3, 0.7))]),
        "Gaussian, cut off": _gaussian(d, 0.15),
        "thin slab and far lump": Population(d, [(0.02, Body.slab(0.01)), (0.98, Body.ball(0.98, 0.02))]),
        "two lumps in a thin mist": Population(
            d, [(0.48, Body.ball(0.9, 0.1)), (0.48, Body.ball(-0.9, 0.1)), (0.04, Body.ball(0, 1))]
        ),
    }


def _gaussian(d: int, std: float, n_steps: int = 25) -> Population:
    """A Gaussian cut off at the unit sphere, as a staircase of evenly filled balls, whose moments are exact."""
    edges = np.arange(1, n_steps + 1) / n_steps
    heights = np.exp(-((edges - 0.5 / n_steps) ** 2) / (2 * std**2))
    shares = (heights - np.append(heights[1:], 0)) * edges**d
    return Population(
        d, [(share, Body.ball(0, edge)) for share, edge in zip(shares / shares.sum(), edges, strict=True)]
    )
