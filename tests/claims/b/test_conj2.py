"""The random cases of Conjecture 2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kontrast.claims.b import conj2
from kontrast.deep_linear import FlowLaw


def test_the_adversarial_cases_are_what_they_are_called() -> None:
    def drawn(**options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        cases, draw = conj2.Cases(gap=0.05, **options), torch.Generator().manual_seed(0)
        gaps = torch.full((20, 1), 0.05, dtype=torch.float64)
        return cases._eigenvalues(6, 2, gaps, draw), torch.linalg.svdvals(cases._starts(6, 2, 20, draw))

    values, sizes = drawn()
    assert ((values[:, 2] - values[:, 1] - 0.05).abs() < 1e-12).all()
    assert (values[:, 1] <= -0.05).all()
    assert ((sizes > 0.04) & (sizes < 0.96)).all()
    assert (drawn(last=-1e-4)[0][:, 1] == -1e-4).all()
    assert (drawn(thin=1e-6)[1][:, -1] - 1e-6).abs().max() < 1e-12
    assert (drawn(unit=True)[1] - 1).abs().max() < 1e-12
    hidden = conj2.Cases(gap=0.05, hidden=1e-6)._starts(6, 2, 20, torch.Generator().manual_seed(0))
    assert hidden[:, :2].abs().max() < 1e-6 < hidden[:, 2:].abs().max()


def test_a_case_that_overflows_has_no_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conj2, "LAW", FlowLaw(beta=-40, gamma=2))
    assert np.isnan(conj2.Cases(gap=0.5).distances(4, 2, 5, "overflow")).any()
