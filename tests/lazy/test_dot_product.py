"""The closed form of the dot product under a fixed kernel, against the descent and the flow that it replaces."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from

from kontrast.data import Pairs, pair_matrix
from kontrast.dynamics import contrastive_problem, fixed_kernel_descent, fixed_kernel_flow
from kontrast.errors import InputError, KontrastError
from kontrast.lazy import dot_product_descent, dot_product_flow
from kontrast.losses import ContrastiveLoss, Dot, Linear
from tests.cases import TOLERANCE, randn

LOSS = ContrastiveLoss(Dot(), Linear())


def a_problem(seed: int, m: int = 6, z: int = 2) -> tuple[Pairs, torch.Tensor]:
    pairs = Pairs(
        randn(m, 3, seed=seed),
        torch.tensor([0, 1]),
        torch.tensor([[2], [3]]),
        torch.tensor([[1, 4], [0, 5]]),
    )
    return pairs, randn(m, z, seed=seed + 1)


def a_kernel(m: int, z: int, full: bool, seed: int) -> torch.Tensor:
    """Positive semi-definite, of either shape, small enough for the growth to stay moderate."""
    if not full:
        A = randn(m, m, seed=seed)
        return A @ A.mT / m
    A = randn(m * z, m * z, seed=seed)
    return (A @ A.mT / (m * z)).view(m, z, m, z).permute(0, 2, 1, 3)


@settings(max_examples=12)
@given(seed=integers(0, 2**16), full=sampled_from([False, True]))
def test_it_is_descent_with_a_fixed_kernel(seed: int, full: bool) -> None:
    pairs, start = a_problem(seed)
    kernel, steps = a_kernel(6, 2, full, seed), [0, 1, 7, 20]
    run = fixed_kernel_descent(
        kernel,
        start,
        contrastive_problem(pairs, LOSS).objective,
        learning_rate=0.05,
        n_steps=20,
        record_at=steps,
        keep_outputs=True,
    )
    found = dot_product_descent(kernel, start, pair_matrix(pairs), learning_rate=0.05, steps=steps)
    torch.testing.assert_close(found, run.outputs, **TOLERANCE[torch.float64])


@pytest.mark.parametrize("full, dense", [(False, True), (True, False)])
def test_it_is_the_flow(full: bool, dense: bool) -> None:
    pairs, start = a_problem(3)
    kernel, S = a_kernel(6, 2, full, 4), pair_matrix(pairs)
    times = [0.1, 1.0, 2.0]
    flow = fixed_kernel_flow(kernel, start, contrastive_problem(pairs, LOSS).objective, times=times, tolerance=1e-12)
    found = dot_product_flow(kernel, start, S.to_dense() if dense else S, times=times)
    torch.testing.assert_close(found, flow, rtol=1e-9, atol=1e-10)


def test_times_come_in_any_order_and_time_zero_is_the_start() -> None:
    pairs, start = a_problem(5)
    later, now = dot_product_flow(a_kernel(6, 2, True, 1), start, pair_matrix(pairs), times=[1.0, 0.0])
    torch.testing.assert_close(now, start)
    assert not torch.allclose(later, start)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": torch.eye(5, dtype=torch.float64)}, r"kernel must be \(6, 6\) or \(6, 6, 2, 2\)"),
        (
            {"S": torch.eye(5, dtype=torch.float64)},
            r"S must have shape \(6, 6\), got \(5, 5\); one row per row of outputs",
        ),
        ({"steps": [-1]}, "every one of steps must be a whole number of at least 0, got -1"),
        ({"steps": []}, "steps is empty; pass at least one"),
        ({"steps": [1.5]}, "every one of steps must be a whole number of at least 0, got 1.5"),
        ({"S": torch.ones(6, 6, dtype=torch.float64).triu()}, "S must be symmetric"),
        ({"S": torch.eye(6)}, "S must be torch.float64 like outputs, got torch.float32"),
        ({"kernel": torch.full((6, 6), torch.nan, dtype=torch.float64)}, "kernel holds NaN"),
        ({"outputs": torch.ones(6, dtype=torch.float64)}, r"outputs must have shape \(m, z\), got \(6,\)"),
        ({"learning_rate": 0.0}, "learning_rate must be a positive number"),
    ],
)
def test_bad_input_is_refused(change: dict[str, object], message: str) -> None:
    pairs, start = a_problem(0)
    given_: dict[str, object] = {
        "kernel": a_kernel(6, 2, False, 0),
        "outputs": start,
        "S": pair_matrix(pairs),
        "learning_rate": 0.1,
        "steps": [1],
    }
    with pytest.raises(InputError, match=message):
        dot_product_descent(**(given_ | change))  # type: ignore[arg-type]


def test_an_overflow_is_an_error_and_not_a_number() -> None:
    pairs, start = a_problem(0)
    with pytest.raises(KontrastError, match=r"the outputs overflow, .*; ask for earlier times"):
        dot_product_flow(a_kernel(6, 2, True, 0), start, pair_matrix(pairs), times=[1e6])
    with pytest.raises(InputError, match="times must be finite numbers"):
        dot_product_flow(a_kernel(6, 2, True, 0), start, pair_matrix(pairs), times=[math.nan])
