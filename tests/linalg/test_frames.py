from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers

from kontrast import linalg
from kontrast.errors import InputError
from tests.cases import DTYPES, generator, randn

SIZES = {"n": integers(1, 30), "k": integers(1, 30), "seed": integers(0, 2**16)}


@given(**SIZES)
def test_retractions_and_random_frames_are_orthonormal(n: int, k: int, seed: int) -> None:
    n, k = max(n, k), min(n, k)
    for frame in (
        linalg.random_frame(n, k, generator=generator(seed)),
        linalg.qr_retraction(randn(n, k, seed=seed)),
        linalg.polar_retraction(randn(n, k, seed=seed)),
    ):
        assert frame.shape == (n, k)
        assert linalg.orthonormality_error(frame) < 1e-12


@given(**SIZES)
def test_retractions_fix_frames_and_keep_the_span(n: int, k: int, seed: int) -> None:
    n, k = max(n, k), min(n, k)
    frame, matrix = linalg.random_frame(n, k, generator=generator(seed)), randn(n, k, seed=seed + 1)
    for retract in (linalg.qr_retraction, linalg.polar_retraction):
        for signed in (frame, -frame):  # Householder's own QR would map one of them to the other
            torch.testing.assert_close(retract(signed), signed, rtol=0, atol=1e-12)
        q = retract(matrix)
        torch.testing.assert_close(q @ (q.mT @ matrix), matrix, rtol=1e-9, atol=1e-9)


@given(seed=integers(0, 2**16))
def test_polar_is_nearest_of_the_two(seed: int) -> None:
    matrix = randn(7, 3, seed=seed)
    distance = [(r(matrix) - matrix).norm() for r in (linalg.polar_retraction, linalg.qr_retraction)]
    assert distance[0] <= distance[1] + 1e-12


@given(seed=integers(0, 2**16))
def test_tangent_is_horizontal_and_a_projection(seed: int) -> None:
    W, G = linalg.random_frame(9, 4, generator=generator(seed)), randn(9, 4, seed=seed + 1)
    tangent = linalg.grassmann_tangent(W, G)
    assert (W.mT @ tangent).abs().max() < 1e-12
    torch.testing.assert_close(linalg.grassmann_tangent(W, tangent), tangent, rtol=0, atol=1e-12)


@given(seed=integers(0, 2**16))
def test_tangent_equals_pymanopt(seed: int) -> None:
    manifolds = pytest.importorskip("pymanopt.manifolds")
    W, G = linalg.random_frame(9, 4, generator=generator(seed)), randn(9, 4, seed=seed + 1)
    theirs = manifolds.Grassmann(9, 4).projection(W.numpy(), G.numpy())
    np.testing.assert_allclose(linalg.grassmann_tangent(W, G).numpy(), theirs, atol=1e-12)


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


@pytest.mark.parametrize("dtype", DTYPES)
def test_number_type_is_kept(dtype: torch.dtype) -> None:
    assert linalg.random_frame(5, 2, generator=generator(), dtype=dtype).dtype == dtype
    assert linalg.qr_retraction(randn(5, 2, dtype=dtype)).dtype == dtype


def test_a_wide_matrix_is_refused_with_the_fix() -> None:
    with pytest.raises(InputError, match=r"2 x 3; raise the width to 3"):
        linalg.random_frame(2, 3, generator=generator())
