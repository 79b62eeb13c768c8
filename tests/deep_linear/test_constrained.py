"""Prop. 2 and 3 of paper B: the closed forms are kept and attained, are never beaten, and are what descent finds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from

from kontrast.deep_linear import constrained_descent, constrained_optimum, scaled_loss
from kontrast.deep_linear.constrained import ConstrainedOptimum
from kontrast.dynamics import Trajectory
from kontrast.errors import InputError
from kontrast.linalg import frobenius_ball, operator_ball, orthonormality_error, random_frame
from tests.cases import DTYPES, generator, randn
from tests.reference.ssl import trace_loss

CONSTRAINTS = ["scaled", "operator", "product", "orthonormal", "frobenius"]
D = 5


def a_matrix(n_negative: int, seed: int, d: int = D) -> torch.Tensor:
    """Eigenvalues of size 0.3 to 1.3, some of them negative."""
    values = 0.3 + torch.rand(d, generator=generator(seed), dtype=torch.float64)
    values[:n_negative] *= -1
    Q = random_frame(d, d, generator=generator(seed + 1))
    return Q @ torch.diag(values) @ Q.mT


def norm(W: torch.Tensor) -> float:
    return float(torch.linalg.matrix_norm(W, ord=2))


def loss_of(W1: torch.Tensor, W2: torch.Tensor, C: torch.Tensor, constraint: str) -> float:
    loss = trace_loss(W1, W2, C)
    return float(scaled_loss(torch.tensor(loss, dtype=torch.float64), W1, W2)) if constraint == "scaled" else loss


def feasible(W1: torch.Tensor, W2: torch.Tensor, constraint: str, c1: float = 1.0, c2: float = 1.0) -> bool:
    slack = 1 + 1e-12
    if constraint == "operator":
        return norm(W1) <= c1 * slack and norm(W2) <= c2 * slack
    if constraint == "product":
        return norm(W2.mT @ W1) <= slack
    if constraint == "orthonormal":
        return orthonormality_error(W1) < 1e-12 and orthonormality_error(W2) < 1e-12
    if constraint == "frobenius":
        return float(W1.norm()) <= c1 * slack and float(W2.norm()) <= c2 * slack
    return norm(W1) > 0 and norm(W2) > 0


def random_weights(constraint: str, h: int, z: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Some weights that keep the constraint."""
    W1, W2 = randn(h, D, seed=seed), randn(h, z, seed=seed + 1)
    if constraint == "operator":
        return operator_ball(W1), operator_ball(W2)
    if constraint == "frobenius":
        return frobenius_ball(W1), frobenius_ball(W2)
    if constraint == "product":
        return W1 / norm(W2.mT @ W1), W2
    if constraint == "orthonormal":
        return tuple(random_frame(h, n, generator=generator(seed + i)) for i, n in enumerate((D, z)))  # type: ignore[return-value]
    return W1, W2


@given(
    n_negative=integers(1, D),
    z=integers(1, D),
    h=integers(1, 2 * D + 1),
    constraint=sampled_from(CONSTRAINTS),
    seed=integers(0, 2**16),
)
def test_the_weights_keep_the_constraint_and_attain_the_value(
    n_negative: int, z: int, h: int, constraint: str, seed: int
) -> None:
    h = max(h, D) if constraint == "orthonormal" else h
    C = a_matrix(n_negative, seed)
    best = constrained_optimum(C, z, width=h, constraint=constraint)  # type: ignore[arg-type]
    assert best.W1.shape == (h, D)
    assert best.W2.shape == (h, z)
    assert feasible(best.W1, best.W2, constraint)
    assert loss_of(best.W1, best.W2, C, constraint) == pytest.approx(best.value, rel=1e-10, abs=1e-12)
    assert int(torch.linalg.matrix_rank(best.W2.mT @ best.W1)) == best.rank
    for i in range(5):
        others = random_weights(constraint, h, z, seed + 10 * i)
        assert loss_of(*others, C, constraint) >= best.value - 1e-10
        # … and nothing beside it is better: the optimum, moved a little and put back under the constraint.
        assert _moved(best, constraint, C, seed + i) >= best.value - 1e-9


def _moved(best: ConstrainedOptimum, constraint: str, C: torch.Tensor, seed: int) -> float:
    W1, W2 = (W + 0.1 * randn(*W.shape, seed=seed + i) for i, W in enumerate((best.W1, best.W2)))
    if constraint == "orthonormal":
        W1, W2 = (torch.linalg.svd(W, full_matrices=False) for W in (W1, W2))  # type: ignore[assignment]
        W1, W2 = (svd.U @ svd.Vh for svd in (W1, W2))  # type: ignore[attr-defined]
    elif constraint == "product":
        W1 = W1 / max(1.0, norm(W2.mT @ W1))
    elif constraint != "scaled":
        ball = operator_ball if constraint == "operator" else frobenius_ball
        W1, W2 = ball(W1), ball(W2)
    return loss_of(W1, W2, C, constraint)


@given(n_negative=integers(1, D), z=integers(1, D), seed=integers(0, 2**16))
def test_wide_networks_have_one_optimum_for_four_problems(n_negative: int, z: int, seed: int) -> None:
    C, k = a_matrix(n_negative, seed), min(z, n_negative)
    expected = float(torch.linalg.eigvalsh(C)[:k].sum())
    for constraint in CONSTRAINTS[:4]:
        best = constrained_optimum(C, z, width=D + z - k, constraint=constraint)  # type: ignore[arg-type]
        assert best.value == pytest.approx(expected, rel=1e-12)
        assert (best.rank, best.note) == (k, "")
    collapsed = constrained_optimum(C, z, width=D, constraint="frobenius")
    assert collapsed.rank == 1
    assert collapsed.value == pytest.approx(float(torch.linalg.eigvalsh(C)[0]))


@given(n_negative=integers(0, D - 1), z=integers(1, D), h=integers(D, 2 * D), seed=integers(0, 2**16))
def test_narrow_orthonormal_networks_keep_directions_by_force(n_negative: int, z: int, h: int, seed: int) -> None:
    C, k = a_matrix(n_negative, seed), min(z, n_negative)
    best = constrained_optimum(C, z, width=h, constraint="orthonormal")
    free = constrained_optimum(C, z, width=h, constraint="operator")
    forced = max(0, z + D - h - k)
    assert best.value - free.value == pytest.approx(float(torch.linalg.eigvalsh(C)[k : k + forced].sum()), abs=1e-12)
    assert best.rank == k + forced
    if forced:
        assert f"{forced} directions" in best.note
        assert f"d + z - k = {D + z - k}" in best.note
        told = re.search(r"the loss is (\S+) above that of problems 1 to 3", best.note)
        assert told is not None
        assert float(told[1]) == pytest.approx(best.value - free.value, rel=1e-5)
    else:
        assert best.value == pytest.approx(free.value, abs=1e-12)


@given(h=integers(1, 3), c1=floats(0.1, 3), c2=floats(0.1, 3))
def test_width_and_bounds_in_closed_form(h: int, c1: float, c2: float) -> None:
    C = torch.diag(torch.tensor([2.0, -1.0, -3.0, -2.0], dtype=torch.float64))
    best = constrained_optimum(C, 3, width=h, constraint="operator", bounds=(c1, c2))
    assert best.value == pytest.approx(-sum([3, 2, 1][:h]) * c1**2 * c2**2)
    assert feasible(best.W1, best.W2, "operator", c1, c2)
    assert ("limits the rank" in best.note) == (h < 3)
    collapsed = constrained_optimum(C, 3, width=h, constraint="frobenius", bounds=(c1, c2))
    assert collapsed.value == pytest.approx(-3 * c1**2 * c2**2)
    assert feasible(collapsed.W1, collapsed.W2, "frobenius", c1, c2)
    assert trace_loss(collapsed.W1, collapsed.W2, C) == pytest.approx(collapsed.value)


@pytest.mark.parametrize("constraint", ["operator", "product", "frobenius"])
def test_without_negative_eigenvalues_the_outputs_are_zero(constraint: str) -> None:
    best = constrained_optimum(a_matrix(0, 0), 2, width=4, constraint=constraint)  # type: ignore[arg-type]
    assert (best.value, best.rank) == (0, 0)
    assert float((best.W2.mT @ best.W1).norm()) == 0
    assert "no negative eigenvalue" in best.note


@pytest.mark.parametrize("dtype", DTYPES)
def test_number_types_are_kept_and_rounding_is_no_negative_eigenvalue(dtype: torch.dtype) -> None:
    X = randn(2, 5, dtype=dtype)
    best = constrained_optimum(X.mT @ X, 3, width=9, constraint="operator")
    assert best.W1.dtype == best.W2.dtype == dtype
    assert best.rank == 0
    assert constrained_optimum(-X.mT @ X, 3, width=9, constraint="operator").rank == 2


def descend(constraint: str, C: torch.Tensor, z: int, h: int, seed: int, **options: object) -> Trajectory:
    rate, n_steps = (0.05, 800) if constraint == "scaled" else (0.2, 300)
    return constrained_descent(
        C,
        z,
        width=h,
        constraint=constraint,  # type: ignore[arg-type]
        learning_rate=rate,
        n_steps=n_steps,
        generator=generator(seed),
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize(("n_negative", "z", "seed"), [(1, 3, 0), (3, 2, 2)])
def test_descent_reaches_the_closed_form(constraint: str, n_negative: int, z: int, seed: int) -> None:
    C, h = a_matrix(n_negative, seed), D + z
    best = constrained_optimum(C, z, width=h, constraint=constraint)  # type: ignore[arg-type]
    run = descend(constraint, C, z, h, seed)
    assert run.losses.min() >= best.value * (1 + 1e-9)
    assert float(run.losses[-1]) == pytest.approx(best.value, rel=1e-3)
    W1, W2 = (run.final_parameters.get(name) for name in ("W1", "W2"))
    if constraint == "product":
        W1, W2 = run.final_parameters["W"], torch.eye(z, dtype=torch.float64)
    assert W1 is not None
    assert W2 is not None
    assert feasible(W1, W2, constraint)
    assert loss_of(W1, W2, C, constraint) == pytest.approx(float(run.losses[-1]), rel=1e-9)
    assert int((torch.linalg.svdvals(run.final_outputs) > 0.1).sum()) == best.rank


@pytest.mark.parametrize("seed", range(2))
def test_at_width_d_orthonormal_descent_is_worse_by_what_the_closed_form_says(seed: int) -> None:
    C, z = a_matrix(1, seed), 2
    best = constrained_optimum(C, z, width=D, constraint="orthonormal")
    assert best.value > 1.05 * constrained_optimum(C, z, width=D, constraint="operator").value
    for width, value in ((D, best.value), (D + 1, float(torch.linalg.eigvalsh(C)[0]))):
        assert float(descend("orthonormal", C, z, width, seed).losses[-1]) == pytest.approx(value, rel=1e-3)


def test_descent_within_other_bounds_and_at_a_width_below_z() -> None:
    C = a_matrix(3, 4)
    for constraint in ("operator", "frobenius"):
        best = constrained_optimum(C, 2, width=8, constraint=constraint, bounds=(0.5, 2.0))  # type: ignore[arg-type]
        run = descend(constraint, C, 2, 8, 0, bounds=(0.5, 2.0))
        assert float(run.losses[-1]) == pytest.approx(best.value, rel=1e-3)
        assert feasible(run.final_parameters["W1"], run.final_parameters["W2"], constraint, 0.5, 2.0)
    narrow = descend("product", C, 3, 2, 0)
    best = constrained_optimum(C, 3, width=2, constraint="product")
    assert float(narrow.losses[-1]) == pytest.approx(best.value, rel=1e-3)
    assert int(torch.linalg.matrix_rank(narrow.final_parameters["W"])) == 2


def test_the_start_keeps_the_constraint_and_the_record_is_kept() -> None:
    C = a_matrix(2, 0)
    for constraint in ("operator", "orthonormal", "frobenius"):
        run = descend(constraint, C, 2, 7, 0, record_at=[0, 10])
        assert run.steps == (0, 10)
        assert run.parameters is not None
        assert run.outputs is not None
        for k, step in enumerate(run.steps):
            W1, W2 = run.parameters["W1"][k], run.parameters["W2"][k]
            assert feasible(W1, W2, constraint)
            assert trace_loss(W1, W2, C) == pytest.approx(float(run.losses[step]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"C": randn(3, 3)}, "C must be symmetric"),
        ({"C": torch.full((3, 3), math.nan)}, "NaN"),
        ({"n_outputs": 4}, "n_outputs must be from 1 to the 3 dimensions of C, got 4"),
        ({"n_outputs": 0}, "n_outputs must be a whole number"),
        ({"width": 0}, "width must be a whole number"),
        ({"width": 2}, "at width h = 2; pass a width of at least 3"),
        (
            {"constraint": "ortho"},
            "constraint must be one of scaled, operator, product, orthonormal, frobenius, got 'ortho'",
        ),
        ({"bounds": (1.0, 0.0), "constraint": "operator"}, r"bounds\[1\] must be a positive number"),
        ({"bounds": (1.0, 2.0)}, "bounds are for operator and frobenius"),
        ({"bounds": (1.0,)}, "bounds must be two numbers"),
        ({"bounds": 2.0, "constraint": "operator"}, r"bounds must be two numbers.*got 2.0; pass a pair such as"),
        ({"bounds": ("1", "2"), "constraint": "operator"}, r"bounds\[0\] must be a positive number"),
        ({"bounds": (1e200, 1e200), "constraint": "operator"}, r"bounds \(1e\+200, 1e\+200\) .* beyond the range"),
        ({"bounds": (1e-200, 1e-200), "constraint": "frobenius"}, "take bounds closer to 1"),
        (
            {"bounds": (1e40, 1.0), "constraint": "operator", "C": -torch.eye(3)},
            "the range of torch.float32 or float64",
        ),
        ({"bounds": (1e100, 1.0), "constraint": "operator", "C": -1e200 * torch.eye(3).double()}, "or divide C"),
        ({"C": -1e308 * torch.eye(3).double()}, r"C with entries up to 1e\+308"),
        ({"constraint": "scaled", "C": torch.eye(3).double()}, "no negative eigenvalue, which Prop. 3 assumes"),
    ],
)
def test_bad_input_is_refused(change: dict[str, object], message: str) -> None:
    arguments = {"C": -torch.eye(3).double(), "n_outputs": 2, "width": 5, "constraint": "orthonormal"} | change
    with pytest.raises(InputError, match=message):
        constrained_optimum(**arguments)  # type: ignore[arg-type]
    if "no negative" not in message:
        with pytest.raises(InputError, match=message):
            constrained_descent(**arguments, learning_rate=0.1, n_steps=5, generator=generator())  # type: ignore[arg-type]


def test_extreme_bounds_that_floats_hold_are_taken() -> None:
    best = constrained_optimum(-torch.eye(3).double(), 2, width=5, constraint="operator", bounds=[1e200, 1e-150])  # type: ignore[arg-type]
    assert best.value == pytest.approx(-2e100)


@pytest.mark.parametrize("given", [None, 0])
def test_what_is_no_generator_is_refused(given: object) -> None:
    options = {"width": 5, "constraint": "operator", "learning_rate": 0.1, "n_steps": 5, "generator": given}
    with pytest.raises(InputError, match=r"generator must be a torch.Generator, got .*; use torch.Generator\(\)"):
        constrained_descent(-torch.eye(3).double(), 2, **options)  # type: ignore[arg-type]


def test_it_is_symmetrized_only_when_asked() -> None:
    C = a_matrix(2, 0)
    skew = randn(D, D)
    best = constrained_optimum(C + skew - skew.mT, 2, width=7, constraint="product", symmetrize=True)
    assert best.value == pytest.approx(constrained_optimum(C, 2, width=7, constraint="product").value)


@pytest.mark.parametrize("whole", [np.int64, torch.tensor])
def test_any_whole_number_is_a_size(whole: Callable[[int], Any]) -> None:
    best = constrained_optimum(a_matrix(2, 0), whole(2), width=whole(D + 2), constraint="orthonormal")
    assert best.W2.shape == (D + 2, 2)
    for number in (True, 2.0, torch.tensor(True)):
        with pytest.raises(InputError, match="n_outputs must be a whole number of at least 1"):
            constrained_optimum(a_matrix(2, 0), number, width=D, constraint="operator")  # type: ignore[arg-type]
