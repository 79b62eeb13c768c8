"""Claims of paper B on collapse, constraints and the non-contrastive loss, each with the code it rests on broken."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from kontrast.claims import measure, select
from kontrast.claims.b import collapse, constraints, frobenius, interaction, non_contrastive
from kontrast.kernels import infinite_nngp
from kontrast.linalg import operator_ball
from kontrast.losses import LossValue, alignment_loss
from tests.claims.breaks import QUICK, Break, assert_noticed, each_of, times, with_keyword

SEEDS = {"B.prop1": 1, "B.lem1": 6, "B.prop2": 2, "B.prop3": 1, "B.nc": 1}  # as few as give the recorded verdict


@pytest.mark.parametrize("claim_id", SEEDS)
def test_few_seeds_give_the_recorded_verdict(claim_id: str) -> None:
    (claim,) = select([claim_id])
    record = measure(claim, dataclasses.replace(QUICK, n_seeds=SEEDS[claim_id]))
    assert record.verdict is claim.recorded, {name: str(x) for name, x in record.evidence.measured.items()}
    assert len(record.evidence.panels) >= 1


def twice_as_fast(real: Any) -> Any:
    """e^{−4Ct} in the place of e^{−2Ct}."""
    return lambda matrix, *args, **options: real(2 * matrix, *args, **options)


def without_repulsion(real: Any) -> Any:
    """Positives attract, and nothing repels."""
    return lambda a, b, **options: LossValue(alignment_loss(a, b[:, None]).total / len(a), {})


def of_the_last_layer(real: Any) -> Any:
    """The kernel ⟨φ(W₁x), φ(W₁x')⟩ of the proof."""
    return infinite_nngp


def lazy_first_layer(real: Any) -> Any:
    """A first layer whose part of the kernel falls with the width, as the proof has it."""

    def wrapped(net: Any, x: Any) -> Any:
        parts = real(net, x)
        return {**parts, "hidden.0": parts["hidden.0"] * net.width**-0.5}

    return wrapped


def coupled(real: Any) -> Any:
    """A kernel with a part between outputs that does not depend on the width."""

    def wrapped(net: Any, x: Any) -> Any:
        parts = real(net, x)
        return {**parts, "output": parts["output"] + 0.05}

    return wrapped


def off_by(factor: float) -> Break:
    """An optimum of another value."""
    return lambda real: lambda *a, **k: dataclasses.replace(real(*a, **k), value=factor * real(*a, **k).value)


def within_operator_norms(real: Any) -> Any:
    """The ball of Prop. 3 in the place of that of Prop. 2."""
    return operator_ball


def uncentered(real: Any) -> Any:
    """E[C] as printed."""
    return lambda x: -x.mT @ x


BROKEN: list[tuple[str, Any, str, Break]] = [
    ("B.prop1", collapse, "linear_collapse", twice_as_fast),
    ("B.prop1", collapse, "kernel_collapse", twice_as_fast),
    ("B.prop1", collapse, "info_nce", without_repulsion),
    ("B.lem1", interaction, "infinite_ntk", of_the_last_layer),
    ("B.lem1", interaction, "empirical_ntk_components", lazy_first_layer),
    ("B.lem1", interaction, "empirical_ntk_components", coupled),
    ("B.lem1", interaction, "empirical_ntk", times(1.001)),
    ("B.prop2", frobenius, "constrained_descent", with_keyword(constraint="operator")),
    ("B.prop2", frobenius, "constrained_optimum", off_by(0.99)),
    ("B.prop2", frobenius, "frobenius_ball", within_operator_norms),
    ("B.prop3", constraints, "constrained_descent", with_keyword(constraint="operator")),
    ("B.prop3", constraints, "constrained_optimum", with_keyword(width=9)),
    ("B.nc", non_contrastive, "data_matrix", times(-1)),
    ("B.nc", non_contrastive, "expected_data_matrix", uncentered),
    ("B.nc", non_contrastive, "deep_linear_flow", twice_as_fast),
]


@each_of(BROKEN)
def test_a_broken_implementation_changes_the_verdict(
    claim_id: str, where: Any, name: str, broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_noticed(claim_id, where, name, broken, monkeypatch, n_seeds=SEEDS[claim_id])


def test_runge_and_kutta_know_a_rotation() -> None:
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    start = torch.eye(2, dtype=torch.float64)
    end = collapse.runge_kutta(lambda state: turn @ state, start, [0.0, torch.pi / 2])[-1]
    torch.testing.assert_close(end, turn, atol=1e-7, rtol=0)


def test_every_claim_is_broken_twice() -> None:
    assert all(sum(claim_id == broken[0] for broken in BROKEN) >= 2 for claim_id in SEEDS)
