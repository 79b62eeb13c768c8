"""Inputs and targets of the claims on Theorem 2.1 are what they are called."""

from __future__ import annotations

import pytest
import torch

from kontrast.claims import Setting
from kontrast.claims.d import networks
from kontrast.kernels import infinite_ntk


@pytest.mark.parametrize("centered", [True, False])
def test_inputs_lie_on_the_unit_sphere(centered: bool) -> None:
    points = networks.sample(Setting(scale="quick"), 12, centered=centered)
    assert points.x.shape == (12, networks.D)
    for x in (points.x, points.new):
        assert torch.allclose(x.norm(dim=1), torch.ones(len(x), dtype=x.dtype))
    assert bool((points.x @ points.x.mT > 0).all()) is not centered  # images of digits share a direction


def test_hard_targets_are_what_the_kernel_learns_last() -> None:
    x = networks.sample(Setting(scale="quick"), 12).x
    K = infinite_ntk(x, activation="tanh")

    def energy(target: str) -> float:
        Y = networks.targets_of(networks.Network("tanh", target=target), x, d_out=2)  # type: ignore[arg-type]
        return float((Y * (K @ Y)).sum() / Y.square().sum())

    assert energy("hard") < 2 * float(torch.linalg.eigvalsh(K)[0]) < energy("easy")
