"""Every claim of paper B is measured otherwise once the code it rests on is broken."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from kontrast.claims import measure, select
from kontrast.claims.b import downstream, flows, limits
from kontrast.deep_linear import FlowLaw, flow_laws
from kontrast.deep_linear import flow as deep_linear
from kontrast.linalg import qr_retraction
from tests.claims.breaks import QUICK, Break, assert_noticed, each_of, scaled_rate, with_keyword


def another_law(**other: float) -> Break:
    """The equation with another coefficient."""
    return lambda real: lambda *a, **k: dataclasses.replace(real(*a, **k), **other)


def as_raw_qr(real: Any) -> Any:
    """The QR factor of the raw step in the place of a step on the manifold."""
    return {name: lambda W, G, *, learning_rate: qr_retraction(W - learning_rate * G) for name in real}


def always_corrected(real: Any) -> Any:
    """The equation (11) with its factor 2 where it was asked for without."""
    return lambda *args, **options: real(*args, **{**options, "printed": False})


def slowed(real: Any) -> Any:
    """Every step of (11) fifteen times as long."""
    return lambda C, start, *, n_steps, **options: [
        real(C, start, n_steps=n_steps, **options) for _ in range(15 if n_steps > 1 else 1)
    ]


def rotated_on_the_way(real: Any) -> Any:
    """A flow that does not end where it should: its first two rows are swapped."""

    def wrapped(values: Any, q: Any, times: Any, **options: Any) -> Any:
        out = real(values, q, times, **options)
        return torch.cat([out[:1, [-1, *range(1, out.shape[1] - 1), 0]], out[1:]])

    return wrapped


def without_the_clock(real: Any) -> Any:
    """The exact solution for z = 1 with τ = αt."""
    return lambda law, log_odds, times: law.alpha * times


BROKEN: list[tuple[str, Any, str, Break]] = [
    ("B.thm2", deep_linear, "flow_law", another_law(beta=2.05)),
    ("B.thm2", deep_linear, "STEPS", as_raw_qr),
    ("B.thm2", flows, "deep_linear_descent", always_corrected),
    ("B.fig3", flows, "deep_linear_descent", always_corrected),
    ("B.fig3", flows, "train_deep_linear", scaled_rate(2)),
    ("B.fig6", flows, "train_deep_linear", with_keyword(flow="grassmann")),
    ("B.fig6", deep_linear, "flow_law", another_law(beta=2)),
    ("B.thm3", flow_laws, "_clock", without_the_clock),
    ("B.thm3", deep_linear, "flow_law", another_law(beta=3)),
    ("B.conj2", limits, "LAW", lambda real: FlowLaw(beta=-2, gamma=2)),
    ("B.conj2", limits, "_followed", rotated_on_the_way),
    ("B.fig5", downstream, "train_deep_linear", scaled_rate(1e-3)),
    ("B.fig5", downstream, "deep_linear_descent", slowed),
]


def test_the_adversarial_cases_are_what_they_are_called() -> None:
    def drawn(**options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        cases, draw = limits.Cases(gap=0.05, **options), torch.Generator().manual_seed(0)
        gaps = torch.full((20, 1), 0.05, dtype=torch.float64)
        return cases._eigenvalues(6, 2, gaps, draw), torch.linalg.svdvals(cases._starts(6, 2, 20, draw))

    values, sizes = drawn()
    assert ((values[:, 2] - values[:, 1] - 0.05).abs() < 1e-12).all()
    assert (values[:, 1] <= -0.05).all()
    assert ((sizes > 0.04) & (sizes < 0.96)).all()
    assert (drawn(last=-1e-4)[0][:, 1] == -1e-4).all()
    assert (drawn(thin=1e-6)[1][:, -1] - 1e-6).abs().max() < 1e-12
    assert (drawn(unit=True)[1] - 1).abs().max() < 1e-12
    hidden = limits.Cases(gap=0.05, hidden=1e-6)._starts(6, 2, 20, torch.Generator().manual_seed(0))
    assert hidden[:, :2].abs().max() < 1e-6 < hidden[:, 2:].abs().max()


def test_a_case_that_overflows_has_no_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LAW", FlowLaw(beta=-40, gamma=2))
    assert np.isnan(limits.Cases(gap=0.5).distances(4, 2, 5, "overflow")).any()


@pytest.mark.parametrize("claim_id", ["B.fig3", "B.fig6", "B.thm3", "B.fig5"])
def test_one_seed_is_enough_to_tell_what_is_broken_from_what_is_not(claim_id: str) -> None:
    """The other two have one seed, or none, in their quick setting."""
    (claim,) = select([claim_id])
    assert measure(claim, dataclasses.replace(QUICK, n_seeds=1)).verdict is claim.recorded


@each_of(BROKEN)
def test_a_broken_implementation_changes_the_verdict(
    claim_id: str, where: Any, name: str, broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_noticed(claim_id, where, name, broken, monkeypatch, n_seeds=1)
