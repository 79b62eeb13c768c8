"""The integrator and the step counter that paper B's claims rest on."""

from __future__ import annotations

import math

import torch

from kontrast.claims.b.problems import first_within, runge_kutta


def test_runge_kutta_integrates_a_rotation() -> None:
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    start = torch.eye(2, dtype=torch.float64)
    end = runge_kutta(lambda state: turn @ state, start, [0.0, torch.pi / 2])[-1]
    torch.testing.assert_close(end, turn, atol=1e-7, rtol=0)


def test_the_first_step_within_a_share_of_the_least_loss() -> None:
    losses = torch.tensor([0.0, -1.0, -1.9, -2.0])
    assert first_within(losses, -2.0, 0.05) == 2
    assert math.isnan(first_within(losses, -4.0, 0.05))
