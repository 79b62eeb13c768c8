"""The populations of claim C.thm2 are what they are called."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kontrast.claims.c.populations import Body, populations


@pytest.mark.parametrize("d", [2, 3, 8])
def test_the_moments_of_populations_are_those_of_samples(d: int) -> None:
    """Points drawn evenly from each body, by the body's own definition."""
    draw = np.random.default_rng(0)
    for name, population in populations(d).items():
        heights, across, masses = [], [], []
        for share, body in population.bodies:
            n = 1000 if len(population.bodies) > 10 else 20000
            t, side = _points_of(body, d, n, draw)
            heights.append(t)
            across.append(side)
            masses.append(np.full(n, share / n))
        t, side, mass = (np.concatenate(rows) for rows in (heights, across, masses))
        assert mass.sum() == pytest.approx(1)
        assert (t**2 + side**2).max() <= 1 + 1e-9, name
        h, moments = np.clip(t, 0, None), population.moments
        assert moments.mean(moments.outputs) == pytest.approx(mass @ h, rel=0.03)
        gap = mass @ h**2 - (mass @ h) ** 2 - mass @ (side**2 * (t > 0)) / (d - 1)
        assert moments.gap == pytest.approx(gap, rel=0.1, abs=0.002)


def _points_of(body: Body, d: int, n: int, draw: np.random.Generator) -> tuple[Any, Any]:
    """Heights, and lengths of the part across the axis, of points evenly spread in a body: by rejection."""
    found: list[tuple[float, float]] = []
    widest = float(body.section(np.linspace(body.low, body.high, 2001)).max())
    while len(found) < n:
        t = draw.uniform(body.low, body.high, 4 * n)
        side = widest * draw.uniform(0, 1, 4 * n) ** (1 / (d - 1))  # of a ball in d − 1 dimensions
        found += list(zip(*(rows[side <= body.section(t)] for rows in (t, side)), strict=True))
    points = np.array(found[:n])
    return points[:, 0], points[:, 1]


def test_a_disc_has_the_roughness_known_in_closed_form() -> None:
    moments = populations(2)["uniform in a ball"].moments
    assert moments.roughness == pytest.approx((2 / (3 * math.pi)) ** 2, rel=1e-6)
    assert moments.at_plane == pytest.approx(1 / math.pi, rel=1e-6)


def test_the_largest_outputs_matter_least_for_gaussian_importance() -> None:
    moments = populations(3)["uniform in a ball"].moments
    warm, cold = (moments.gaussian_roughness(temperature) for temperature in (1e6, 1e-3))
    assert warm == pytest.approx((moments.roughness, 1.0), rel=1e-5)
    assert cold[0] < 0.1 * moments.roughness
    assert cold[1] == pytest.approx(0.5, abs=0.1)  # those behind the plane
