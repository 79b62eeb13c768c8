"""Every claim of paper B, in a small setting, has its recorded verdict, and another once its code is broken."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from kontrast.claims import Record, Setting, b, measure_claim, select
from kontrast.deep_linear import FlowLaw, flow_laws, nonlinearity
from kontrast.deep_linear import orthogonal_flow as deep_linear
from kontrast.kernels import infinite_nngp
from kontrast.linalg import operator_ball, qr_retraction
from kontrast.losses import LossValue, alignment_loss
from kontrast.nets import MLP
from tests.cases import generator
from tests.claims.breaks import Break, each_of, scaled_rate, times, with_keyword


@dataclass(frozen=True)
class Small(Setting):
    """The quick setting made smaller.

    Attributes:
        instead: smaller values to pick, by the quick ones that they replace.
        constants: smaller values of constants in the claim's file.
    """

    scale: Any = "quick"
    n_seeds: int | None = 1
    instead: Mapping[Any, Any] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)

    def pick(self, *, quick: Any, full: Any, paper: Any = None) -> Any:
        return self.instead.get(quick, quick)


# As small as still gives the recorded verdict with some margin.
SMALL: dict[str, Small] = {
    "B.prop1": Small(instead={128: 64, 200: 100}, constants={"N": 60}),
    "B.lem1": Small(n_seeds=6, instead={(64, 256, 1024): (32, 128, 512)}),
    "B.prop2": Small(),
    "B.prop3": Small(instead={1000: 500, 2000: 500}, constants={"RATE": 0.2, "D": 4, "Z": 2, "MANY": 3, "ENOUGH": 5}),
    "B.ex1": Small(constants={"N": 60}),
    "B.thm1": Small(n_seeds=20),
    "B.fig2": Small(instead={40: 20}),
    "B.thm2": Small(
        instead={(1, 3): (1,), (4e-3, 2e-3, 1e-3): (1e-2, 5e-3, 2e-3)},  # B.fig6 has more layers
        constants={"FINEST": 2e-3, "MAX_STEPS": 4500},
    ),
    "B.fig3": Small(instead={1500: 1100}),
    "B.fig6": Small(instead={1200: 600}, constants={"DEPTHS": (1, 3)}),
    "B.thm3": Small(constants={"TIMES": tuple(np.geomspace(0.01, 30, 11))}),
    "B.conj2": Small(instead={240: 24, 0.01: 0.04}, constants={"SHAPES": ((6, 2),)}),
    "B.fig5": Small(constants={"TIMED_STEPS": 1000}),
    "B.nc": Small(constants={"N": 60, "RATE": 0.02}),
}


def in_small(claim_id: str, monkeypatch: pytest.MonkeyPatch) -> Record:
    """The claim, measured in its small setting."""
    (claim,) = select([claim_id])
    small = SMALL[claim_id]
    for name, value in small.constants.items():
        monkeypatch.setattr(getattr(b, claim_id.removeprefix("B.")), name, value)
    return measure_claim(claim, small)


def test_every_claim_has_a_small_setting() -> None:
    assert list(SMALL) == [claim.id for claim in select(["B"])]


@pytest.mark.parametrize("claim_id", SMALL)
def test_the_small_setting_gives_the_recorded_verdict(claim_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record = in_small(claim_id, monkeypatch)
    assert record.as_recorded, {name: str(x) for name, x in record.evidence.measured.items()}
    assert record.evidence.setting
    curves = [curve for panel in record.evidence.panels for curve in panel.curves]
    assert curves
    assert all(curve.x and len(curve.x) == len(curve.y) for curve in curves)


def twice_as_fast(real: Any) -> Any:
    """e^{−4Ct} instead of e^{−2Ct}."""
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
    """The ball of Prop. 3 instead of that of Prop. 2."""
    return operator_ball


def unscaled(real: Any) -> Any:
    """The loss as it was."""
    return lambda loss, *weights: loss


def negatives_for_positives(real: Any) -> Any:
    """Attraction and repulsion swapped."""
    return lambda anchor, positives, negatives: real(anchor, negatives, positives)


def of_equal_size(real: Any) -> Any:
    """A step that keeps the Frobenius norm, as in Prop. 2, and not orthonormality."""

    def step(W: torch.Tensor, G: torch.Tensor, *, learning_rate: float) -> torch.Tensor:
        moved = W - learning_rate * G
        return moved * (W.norm() / moved.norm())

    return step


def gaussian_layers(real: Any) -> Any:
    """Entries N(0, 1/fan-in) instead of orthonormal columns."""

    def net(d: int, width: int, z: int, seed: int, **options: Any) -> MLP:
        return MLP(d, width, z, activation="linear", parametrization="standard", generator=generator(seed)).double()

    return net


def tied_layers(real: Any) -> Any:
    """Orthonormal layers that are not independent: W₂ is a part of W₁."""

    def net(d: int, width: int, z: int, seed: int, **options: Any) -> MLP:
        made: MLP = real(d, width, z, seed, **options)
        with torch.no_grad():
            made.output.copy_(made.hidden[0][:, :z])
        return made

    return net


def twin_of_another_size(real: Any) -> Any:
    """Compared with nine tenths of the linear outputs."""
    return lambda outputs, linear: real(outputs, 0.9 * linear)


def without_constraint(real: Any) -> Any:
    """A plain step instead of the projected one."""
    return lambda W, G, *, learning_rate: W - learning_rate * G


def linear_from_elsewhere(real: Any) -> Any:
    """The linear network starts from other weights than the nonlinear ones."""
    return lambda d, width, z, seed, **options: real(
        d, width, z, seed + 100 * (options["activation"] == "linear"), **options
    )


def not_rotated(real: Any) -> Any:
    """The identity instead of the best rotation."""
    return lambda A, B: torch.eye(A.shape[1], dtype=A.dtype)


def another_law(**other: float) -> Break:
    """The equation with another coefficient."""
    return lambda real: lambda *a, **k: dataclasses.replace(real(*a, **k), **other)


def as_raw_qr(real: Any) -> Any:
    """The QR factor of the raw step instead of a step on the manifold."""
    return {name: lambda W, G, *, learning_rate: qr_retraction(W - learning_rate * G) for name in real}


def without_the_clock(real: Any) -> Any:
    """The exact solution for z = 1 with τ = αt."""
    return lambda law, log_odds, times: law.alpha * times


def rotated_on_the_way(real: Any) -> Any:
    """A flow that does not end where it should: its first and last rows are swapped in one case."""

    def wrapped(values: Any, q: Any, times: Any, **options: Any) -> Any:
        out = real(values, q, times, **options)
        return torch.cat([out[:1, [-1, *range(1, out.shape[1] - 1), 0]], out[1:]])

    return wrapped


def slowed(real: Any) -> Any:
    """Every step of (11) fifteen times as long."""
    return lambda C, start, *, n_steps, **options: [
        real(C, start, n_steps=n_steps, **options) for _ in range(15 if n_steps > 1 else 1)
    ]


def uncentered(real: Any) -> Any:
    """E[C] as printed."""
    return lambda x: -x.mT @ x


BROKEN: list[tuple[str, Any, str, Break]] = [
    ("B.prop1", b.prop1, "linear_collapse", twice_as_fast),
    ("B.prop1", b.prop1, "kernel_collapse", twice_as_fast),
    ("B.prop1", b.prop1, "info_nce", without_repulsion),
    ("B.lem1", b.lem1, "infinite_ntk", of_the_last_layer),
    ("B.lem1", b.lem1, "empirical_ntk_components", lazy_first_layer),
    ("B.lem1", b.lem1, "empirical_ntk_components", coupled),
    ("B.lem1", b.lem1, "empirical_ntk", times(1.001)),
    ("B.prop2", b.prop2, "constrained_descent", with_keyword(constraint="operator")),
    ("B.prop2", b.prop2, "constrained_optimum", off_by(0.99)),
    ("B.prop2", b.prop2, "frobenius_ball", within_operator_norms),
    ("B.prop3", b.prop3, "constrained_descent", with_keyword(constraint="operator")),
    ("B.prop3", b.prop3, "constrained_optimum", with_keyword(width=9)),
    ("B.ex1", b.ex1, "scaled_loss", unscaled),
    ("B.ex1", b.ex1, "contrastive_trace_loss", negatives_for_positives),
    ("B.ex1", b.ex1, "polar_step", of_equal_size),
    ("B.thm1", b.thm1, "orthogonal_net", gaussian_layers),
    ("B.thm1", b.thm1, "orthogonal_net", tied_layers),
    ("B.thm1", nonlinearity, "output_gap", twin_of_another_size),
    ("B.fig2", b.fig2, "polar_step", without_constraint),
    ("B.fig2", b.fig2, "orthogonal_net", linear_from_elsewhere),
    ("B.fig2", b.fig2, "best_rotation", not_rotated),
    ("B.thm2", deep_linear, "flow_law", another_law(beta=2.05)),
    ("B.thm2", deep_linear, "STEPS", as_raw_qr),
    ("B.thm2", b.thm2, "deep_linear_descent", with_keyword(printed=False)),
    ("B.fig3", b.fig3, "deep_linear_descent", with_keyword(printed=False)),
    ("B.fig3", b.fig3, "train_deep_linear", scaled_rate(2)),
    ("B.fig6", b.fig6, "train_deep_linear", with_keyword(flow="grassmann")),
    ("B.fig6", deep_linear, "flow_law", another_law(beta=2)),
    ("B.thm3", flow_laws, "_clock", without_the_clock),
    ("B.thm3", deep_linear, "flow_law", another_law(beta=3)),
    ("B.conj2", b.conj2, "LAW", lambda real: FlowLaw(beta=-2, gamma=2)),
    ("B.conj2", b.conj2, "_followed", rotated_on_the_way),
    ("B.fig5", b.fig5, "train_deep_linear", scaled_rate(1e-3)),
    ("B.fig5", b.fig5, "deep_linear_descent", slowed),
    ("B.nc", b.nc, "data_matrix", times(-1)),
    ("B.nc", b.nc, "expected_data_matrix", uncentered),
    ("B.nc", b.nc, "deep_linear_flow", twice_as_fast),
]


def test_every_claim_is_broken_twice() -> None:
    assert all(sum(claim_id == broken[0] for broken in BROKEN) >= 2 for claim_id in SMALL)


@each_of(BROKEN)
def test_a_broken_implementation_changes_the_verdict(
    claim_id: str, where: Any, name: str, broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, broken(getattr(where, name)))
    record = in_small(claim_id, monkeypatch)
    assert not record.as_recorded, {name: str(x) for name, x in record.evidence.measured.items()}
