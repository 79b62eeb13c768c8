from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, sampled_from
from torch import Tensor

from kontrast import linalg
from kontrast.errors import InputError
from kontrast.linalg import frames
from tests.cases import DTYPES, generator, randn

SIZES = {"n": integers(1, 30), "k": integers(1, 30), "seed": integers(0, 2**16)}


@given(**SIZES)
def test_retractions_and_random_frames_are_orthonormal(n: int, k: int, seed: int) -> None:
    n, k = max(n, k), min(n, k)
    for frame in (
        linalg.random_frame(n, k, generator=generator(seed)),
        linalg.qr_retraction(randn(n, k, seed=seed)),
        frames.polar_retraction(randn(n, k, seed=seed)),
    ):
        assert frame.shape == (n, k)
        assert linalg.orthonormality_error(frame) < 1e-12


@given(**SIZES)
def test_retractions_fix_frames_and_keep_the_span(n: int, k: int, seed: int) -> None:
    n, k = max(n, k), min(n, k)
    frame, matrix = linalg.random_frame(n, k, generator=generator(seed)), randn(n, k, seed=seed + 1)
    for retract in (linalg.qr_retraction, frames.polar_retraction):
        for signed in (frame, -frame):  # Householder's own QR would map one of them to the other
            torch.testing.assert_close(retract(signed), signed, rtol=0, atol=1e-12)
        q = retract(matrix)
        torch.testing.assert_close(q @ (q.mT @ matrix), matrix, rtol=1e-9, atol=1e-9)


@given(seed=integers(0, 2**16))
def test_polar_is_nearest_of_the_two(seed: int) -> None:
    matrix = randn(7, 3, seed=seed)
    distance = [(r(matrix) - matrix).norm() for r in (frames.polar_retraction, linalg.qr_retraction)]
    assert distance[0] <= distance[1] + 1e-12


@given(seed=integers(0, 2**16))
def test_tangent_is_horizontal_and_a_projection(seed: int) -> None:
    W, G = linalg.random_frame(9, 4, generator=generator(seed)), randn(9, 4, seed=seed + 1)
    tangent = frames.grassmann_tangent(W, G)
    assert (W.mT @ tangent).abs().max() < 1e-12
    torch.testing.assert_close(frames.grassmann_tangent(W, tangent), tangent, rtol=0, atol=1e-12)


@given(seed=integers(0, 2**16))
def test_tangent_equals_pymanopt(seed: int) -> None:
    manifolds = pytest.importorskip("pymanopt.manifolds")
    W, G = linalg.random_frame(9, 4, generator=generator(seed)), randn(9, 4, seed=seed + 1)
    theirs = manifolds.Grassmann(9, 4).projection(W.numpy(), G.numpy())
    np.testing.assert_allclose(frames.grassmann_tangent(W, G).numpy(), theirs, atol=1e-12)


@settings(max_examples=10)
@given(seed=integers(0, 2**16), rate=floats(1e-3, 0.4))
def test_grassmann_descent_finds_the_top_eigenspace_and_stays_orthonormal(seed: int, rate: float) -> None:
    """−Tr(W^T C W) with a gap: every step stays a frame to 1e-12 and never raises the loss."""
    Q = linalg.random_frame(8, 8, generator=generator(seed))
    C = Q @ torch.diag(torch.tensor([1.0, 0.9, 0.2, 0.1, 0, -0.1, -0.5, -1], dtype=torch.float64)) @ Q.mT
    W = linalg.random_frame(8, 2, generator=generator(seed + 1))
    losses = []
    for _ in range(200):
        losses.append(float(-torch.trace(W.mT @ C @ W)))
        W = linalg.grassmann_step(W, -2 * C @ W, learning_rate=rate)
        assert linalg.orthonormality_error(W) < 1e-12
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(losses))
    if rate > 0.1:
        assert losses[-1] == pytest.approx(-1.9, abs=1e-3)


def test_step_depends_on_the_span_only_up_to_rotation() -> None:
    W, C, R = (
        linalg.random_frame(8, 3, generator=generator(1)),
        randn(8, 8),
        linalg.random_frame(3, 3, generator=generator(2)),
    )
    C = C + C.mT
    one = linalg.grassmann_step(W, C @ W, learning_rate=0.1)
    two = linalg.grassmann_step(W @ R, C @ W @ R, learning_rate=0.1)
    torch.testing.assert_close(one @ one.mT, two @ two.mT, rtol=0, atol=1e-12)


STEPS = {"grassmann": linalg.grassmann_step, "polar": linalg.polar_step, "oja": linalg.cayley_step}


@given(**SIZES, step=sampled_from(sorted(STEPS)), rate=floats(1e-3, 10.0))
def test_steps_stay_orthonormal(n: int, k: int, seed: int, step: str, rate: float) -> None:
    n, k = max(n, k), min(n, k)
    W = linalg.random_frame(n, k, generator=generator(seed))
    for i in range(20):
        W = STEPS[step](W, randn(n, k, seed=seed + i), learning_rate=rate)
        assert linalg.orthonormality_error(W) < 1e-12


def directions(W: Tensor, G: Tensor) -> dict[str, Tensor]:
    """The left factor I − WW^T, and the Stiefel manifold's gradients in the Euclidean and the canonical metric."""
    return {
        "grassmann": G - W @ W.mT @ G,
        "polar": G - W @ (W.mT @ G + G.mT @ W) / 2,
        "oja": G - W @ G.mT @ W,
    }


@given(**SIZES, step=sampled_from(sorted(STEPS)))
def test_steps_are_those_of_their_flows_to_first_order(n: int, k: int, seed: int, step: str) -> None:
    n, k = max(n, k), min(n, k)
    W, G = linalg.random_frame(n, k, generator=generator(seed)), randn(n, k, seed=seed + 1)
    G = G / torch.linalg.matrix_norm(G, 2)
    for rate in (1e-2, 1e-4):
        moved = (W - STEPS[step](W, G, learning_rate=rate)) / rate
        assert float((moved - directions(W, G)[step]).norm()) < 4 * rate * k**0.5 + 1e-11


@given(n=integers(2, 12), k=integers(1, 12), seed=integers(0, 2**16), rate=floats(1e-3, 10.0))
def test_cayleys_step_is_its_formula_by_either_inverse(n: int, k: int, seed: int, rate: float) -> None:
    """2Z < M solves with a matrix of size 2Z, the others with one of size M."""
    n, k = max(n, k), min(n, k)
    W, G = linalg.random_frame(n, k, generator=generator(seed)), randn(n, k, seed=seed + 1)
    A, one = G @ W.mT - W @ G.mT, torch.eye(n, dtype=torch.float64)
    by_hand = torch.linalg.inv(one + rate / 2 * A) @ (one - rate / 2 * A) @ W
    torch.testing.assert_close(linalg.cayley_step(W, G, learning_rate=rate), by_hand, rtol=0, atol=1e-10)
    wider = [torch.cat([part, torch.zeros(2 * k + 1, k, dtype=torch.float64)]) for part in (W, G)]
    small = linalg.cayley_step(*wider, learning_rate=rate)  # rows that see no gradient do not matter
    torch.testing.assert_close(small[:n], by_hand, rtol=0, atol=1e-10)
    assert small[n:].abs().max() < 1e-12


@pytest.mark.parametrize("n, k", [(12, 2), (5, 3)])
def test_rounding_does_not_add_up_in_cayleys_step(n: int, k: int) -> None:
    W = linalg.random_frame(n, k, generator=generator(), dtype=torch.float32)
    C = randn(n, n, dtype=torch.float32)
    C = C + C.mT
    for _ in range(1000):
        W = linalg.cayley_step(W, 2 * C @ W, learning_rate=1e-2)
    assert linalg.orthonormality_error(W) < 1e-6


BALLS = {
    "operator": (linalg.operator_ball, lambda A: float(torch.linalg.matrix_norm(A, 2))),
    "frobenius": (linalg.frobenius_ball, lambda A: float(A.norm())),
}


@given(**SIZES, ball=sampled_from(sorted(BALLS)), radius=floats(0.1, 10.0))
def test_balls_are_projections(n: int, k: int, seed: int, ball: str, radius: float) -> None:
    project, size = BALLS[ball]
    matrix = randn(n, k, seed=seed)
    inside = project(matrix, radius)
    assert size(inside) <= radius * (1 + 1e-12)
    torch.testing.assert_close(project(inside, radius), inside, rtol=0, atol=1e-12)
    if size(matrix) <= radius:
        torch.testing.assert_close(inside, matrix, rtol=0, atol=1e-12)
    # The nearest: no point of the ball lies further that way, <A − PA, X − PA> <= 0 for all X in it.
    for i in range(5):
        other = randn(n, k, seed=seed + i + 1)
        other = other * (radius / size(other))
        assert float(((matrix - inside) * (other - inside)).sum()) <= 1e-9


@pytest.mark.parametrize("ball", sorted(BALLS))
def test_balls_leave_zero_alone(ball: str) -> None:
    assert not BALLS[ball][0](torch.zeros(3, 2, dtype=torch.float64)).any()


@pytest.mark.parametrize("step", sorted(STEPS))
def test_a_step_of_a_wide_matrix_is_refused(step: str) -> None:
    with pytest.raises(InputError, match=r"at least as many rows as columns, got 2 x 3; raise the width to 3"):
        STEPS[step](torch.eye(2, 3), torch.ones(2, 3), learning_rate=0.1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_number_type_is_kept(dtype: torch.dtype) -> None:
    assert linalg.random_frame(5, 2, generator=generator(), dtype=dtype).dtype == dtype
    assert linalg.qr_retraction(randn(5, 2, dtype=dtype)).dtype == dtype
    for step in STEPS.values():
        assert step(torch.eye(5, 2, dtype=dtype), randn(5, 2, dtype=dtype), learning_rate=0.1).dtype == dtype
    for project, _ in BALLS.values():
        assert project(randn(5, 2, dtype=dtype)).dtype == dtype


def test_a_wide_matrix_is_refused_with_the_fix() -> None:
    with pytest.raises(InputError, match=r"2 x 3; raise the width to 3"):
        linalg.random_frame(2, 3, generator=generator())


def test_a_frame_takes_whole_numbers_of_every_kind_and_no_bools() -> None:
    expected = linalg.random_frame(5, 2, generator=generator(), dtype=torch.float32)
    found = linalg.random_frame(np.int64(5), torch.tensor(2), generator=generator(), dtype="float32")
    assert torch.equal(found, expected)
    for sizes in ((True, 1), (5, np.True_), (5.0, 2), (5, 0)):
        with pytest.raises(InputError, match=r"n_(rows|columns) must be a whole number of at least 1"):
            linalg.random_frame(*sizes, generator=generator())
    with pytest.raises(InputError, match=r"generator must be a torch.Generator"):
        linalg.random_frame(5, 2, generator=None)
