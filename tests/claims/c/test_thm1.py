"""Claim C.thm1 is measured otherwise once roughness, flow or gap are broken; Newton finds all rest points."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kontrast.claims import Setting
from kontrast.claims.c import thm1
from kontrast.claims.c.filters import push_and_follow, starts_of
from kontrast.patterns import MixtureCovariance, one_layer
from tests.claims.breaks import Break, times
from tests.claims.sections import Sections, each_of


def the_largest_itself(real: Any) -> Any:
    """λ in place of the gap below it."""
    return lambda A, w: float(w @ A @ w)


@pytest.fixture(scope="module")
def sections() -> Sections:
    """One seed is enough to tell what is broken from what is not."""
    names = ["_points", "_along_noise", "_of_sampled_models", "_panels"]
    return Sections("C.thm1", thm1, names, Setting(scale="quick", n_seeds=1))


@each_of(
    [
        (MixtureCovariance, "_roughness_matrix", times(-1.0), "_points"),
        (MixtureCovariance, "roughness", times(0.5), "_points"),
        (one_layer, "_tangent", times(-1.0), "_points"),
        (thm1, "gap_at", the_largest_itself, "_along_noise"),
    ]
)
def test_a_broken_implementation_changes_the_verdict(
    where: Any, name: str, broken: Break, rest_on_it: list[str], sections: Sections
) -> None:
    sections.assert_noticed(where, name, broken, *rest_on_it)


def test_newton_finds_saddles_as_well_as_maxima() -> None:
    """A linear filter: every eigenvector of the covariance is at rest, ±, and its margin is the gap to the top."""
    means = torch.diag(torch.tensor([1.0, 2.0, 3.0])).double()
    field = MixtureCovariance(means, torch.full((3,), 1 / 3, dtype=torch.float64), 0.5, activation="linear")
    w, margins, worst = thm1.rest_points(field, starts_of(60, 3))
    values = torch.linalg.eigvalsh(field.matrix(w[0]))
    expected = sorted([float(values[2] - values[1]), float(values[1] - values[2]), float(values[0] - values[2])] * 2)
    torch.testing.assert_close(torch.tensor(sorted(margins.tolist())), torch.tensor(expected), rtol=1e-5, atol=1e-7)
    returned = push_and_follow(field, w, margins, worst)
    assert ((returned < 0.5) == (margins > 0)).all()
    assert ((returned > 2) == (margins < 0)).all()
