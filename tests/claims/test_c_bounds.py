"""Paper C's Theorems 2 and 3: the populations are what they are called, and broken code is noticed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kontrast.claims.c import bounds
from kontrast.patterns import bounds as one_layer
from tests.claims.breaks import Break, assert_noticed, each_of, times, with_keyword


@pytest.mark.parametrize("d", [2, 3, 8])
def test_the_moments_of_populations_are_those_of_samples(d: int) -> None:
    """Points drawn evenly from each body, by the body's own definition."""
    draw = np.random.default_rng(0)
    for name, population in bounds.populations(d).items():
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


def _points_of(body: bounds.Body, d: int, n: int, draw: np.random.Generator) -> tuple[Any, Any]:
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
    moments = bounds.populations(2)["uniform in a ball"].moments
    assert moments.roughness == pytest.approx((2 / (3 * math.pi)) ** 2, rel=1e-6)
    assert moments.at_plane == pytest.approx(1 / math.pi, rel=1e-6)


def test_the_largest_outputs_matter_least_for_gaussian_importance() -> None:
    moments = bounds.populations(3)["uniform in a ball"].moments
    warm, cold = (moments.gaussian_roughness(temperature) for temperature in (1e6, 1e-3))
    assert warm == pytest.approx((moments.roughness, 1.0), rel=1e-5)
    assert cold[0] < 0.1 * moments.roughness
    assert cold[1] == pytest.approx(0.5, abs=0.1)  # those behind the plane


def test_obtuse_patterns_are_obtuse_and_as_far_off_as_they_should_be() -> None:
    U = bounds._patterns("categorical, obtuse", 0.1, torch.Generator().manual_seed(0))
    off = U @ U.mT - torch.eye(len(U), dtype=U.dtype)
    assert float(torch.linalg.matrix_norm(off, 2)) == pytest.approx(0.1)
    assert float(off.abs().diagonal().max()) < 1e-12
    assert float((off - torch.diag(off.diagonal())).sum(1).max()) == pytest.approx(-0.1)


def promising_more(real: Any) -> Any:
    """γ a quarter of what it is."""

    def wrapped(*args: Any, **options: Any) -> Any:
        promise = real(*args, **options)
        return dataclasses.replace(promise, gamma=promise.gamma / 4)

    return wrapped


def slower_iteration(real: Any) -> Any:
    """Power iteration with A + 0.3 I, which is not the one the promise is about."""
    return lambda matrix, promise, **options: real(_lifted(matrix), promise, **options)


def _lifted(matrix: Any) -> Any:
    def lifted(w: Tensor) -> Tensor:
        return torch.as_tensor(matrix(w) + 0.3 * torch.eye(len(w), dtype=w.dtype))

    return lifted


def at_the_center(real: Any) -> Any:
    """L, κ and ω of the start alone, in the place of those of B_γ."""
    return lambda self, w, radius: real(self, w, 1e-3 * radius)


def smaller(real: Any) -> Any:
    """Volumes e times too small."""
    return lambda d: real(d) - 1.0


BROKEN: list[tuple[str, Any, str, Break]] = [
    ("C.thm2", bounds, "roughness_bound", with_keyword(form="printed")),
    ("C.thm2", bounds, "_by_differences", times(1.1)),
    ("C.thm2", one_layer, "_log_volume", smaller),
    ("C.thm3", bounds, "guarantee", promising_more),
    ("C.thm3", bounds, "check_guarantee", slower_iteration),
    ("C.thm3", one_layer._Draws, "points", at_the_center),
]


@each_of(BROKEN)
def test_a_broken_implementation_changes_the_verdict(
    claim_id: str, where: Any, name: str, broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_noticed(claim_id, where, name, broken, monkeypatch, n_seeds=1)
