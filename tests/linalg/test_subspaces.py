from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats, integers
from scipy.linalg import orthogonal_procrustes, subspace_angles

from kontrast.errors import InputError
from kontrast.linalg import best_rotation, orthonormality_error, random_frame, subspace_sines
from tests.cases import DTYPES, TOLERANCE, generator, randn

SIZES = {"n": integers(1, 20), "k": integers(1, 20), "seed": integers(0, 2**16)}


@given(**SIZES)
def test_sines_are_those_of_scipys_angles(n: int, k: int, seed: int) -> None:
    n, k = max(n, k), min(n, k)
    U, V = randn(n, k, seed=seed), randn(n, k, seed=seed + 1)
    theirs = np.sin(subspace_angles(U.numpy(), V.numpy()))
    # Where the spans share directions scipy takes some angles from cosines, and gives √eps for 0.
    np.testing.assert_allclose(subspace_sines(U, V).numpy(), theirs, rtol=1e-9, atol=5e-8)


@given(angle=floats(1e-12, 1.5), seed=integers(0, 2**16))
def test_small_angles_are_right(angle: float, seed: int) -> None:
    """A frame turned by a known angle in one of its directions; a cosine would lose angles below 1e-8."""
    Q = random_frame(9, 4, generator=generator(seed))
    U, away = Q[:, :3], Q[:, 3]
    V = U.clone()
    V[:, 1] = math.cos(angle) * U[:, 1] + math.sin(angle) * away
    sines = subspace_sines(U, V)
    assert float(sines[0]) == pytest.approx(math.sin(angle), rel=1e-9, abs=2e-15)
    assert float(sines[1]) < 1e-14


@given(seed=integers(0, 2**16), scale=floats(1e-150, 1e150))
def test_only_the_spans_count(seed: int, scale: float) -> None:
    U, V = randn(8, 3, seed=seed), randn(8, 3, seed=seed + 1)
    mixed = scale * V @ (randn(3, 3, seed=seed + 2) + 5 * torch.eye(3, dtype=torch.float64))
    R = random_frame(8, 8, generator=generator(seed))
    for sines in (subspace_sines(U, mixed), subspace_sines(V, U), subspace_sines(R @ U, R @ V)):
        torch.testing.assert_close(sines, subspace_sines(U, V), rtol=0, atol=1e-11)


def test_orthogonal_spans_and_one_span() -> None:
    axes = torch.eye(6, dtype=torch.float64)
    assert subspace_sines(axes[:, :3], axes[:, 3:]).tolist() == [1, 1, 1]
    assert subspace_sines(axes[:, :3], axes[:, [2, 0, 1]]).max() == 0
    assert subspace_sines(axes[:, :2], axes[:, 1:3]).tolist() == [1, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_sines_keep_the_number_type(dtype: torch.dtype) -> None:
    U, V = randn(9, 3), randn(9, 3, seed=1)
    sines = subspace_sines(U.to(dtype), V.to(dtype))
    assert sines.dtype == dtype
    torch.testing.assert_close(sines.double(), subspace_sines(U, V), **TOLERANCE[dtype])


@given(**SIZES)
def test_best_rotation_is_orthogonal_and_scipys(n: int, k: int, seed: int) -> None:
    n, k = max(n, k), min(n, k)
    A, B = randn(n, k, seed=seed), randn(n, k, seed=seed + 1)
    rotation = best_rotation(A, B)
    assert orthonormality_error(rotation) < 1e-12
    theirs = torch.from_numpy(orthogonal_procrustes(A.numpy(), B.numpy())[0])
    assert float((A @ rotation - B).norm()) == pytest.approx(float((A @ theirs - B).norm()), rel=1e-10, abs=1e-12)
    random = random_frame(k, k, generator=generator(seed))
    assert (A @ rotation - B).norm() <= (A @ random - B).norm() + 1e-12


@given(seed=integers(0, 2**16), scale=floats(1e-150, 1e150))
def test_best_rotation_finds_the_rotation(seed: int, scale: float) -> None:
    A, R = randn(9, 4, seed=seed), random_frame(4, 4, generator=generator(seed))
    torch.testing.assert_close(best_rotation(A, scale * (A @ R)), R, rtol=0, atol=1e-11)


@pytest.mark.parametrize("compare", [subspace_sines, best_rotation])
@pytest.mark.parametrize(
    "shapes", [((5, 2), (5, 3)), ((5, 2), (4, 2)), ((2, 3), (2, 3)), ((5,), (5,)), ((5, 0), (5, 0))]
)
def test_shapes_that_do_not_fit_are_refused(compare: object, shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(InputError, match=r"must have (the )?shape|at least as many rows as columns"):
        compare(*(torch.ones(shape) for shape in shapes))


@pytest.mark.parametrize("compare", [subspace_sines, best_rotation])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_refused_by_name(compare: object, value: float) -> None:
    bad = randn(5, 2)
    bad[3, 1] = value
    with pytest.raises(InputError, match=r"[VB] holds NaN"):
        compare(randn(5, 2), bad)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dependent_columns_are_refused(dtype: torch.dtype) -> None:
    U = randn(7, 3, dtype=dtype)
    with pytest.raises(InputError, match="3 columns of V span only 2"):
        subspace_sines(U, torch.stack([U[:, 0], U[:, 1], U[:, 0] + U[:, 1]], dim=1))
    with pytest.raises(InputError, match="3 columns of U span only 0"):
        subspace_sines(torch.zeros_like(U), U)
    stretched = U * torch.tensor([1.0, 1e-20, 1e15], dtype=dtype)  # badly scaled, but not dependent
    assert subspace_sines(stretched, U).max() < 100 * torch.finfo(dtype).eps


def test_whole_numbers_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"U must be a tensor of floating-point numbers, got torch.int64 \(3, 1\); use U.double"
    ):
        subspace_sines(torch.ones(3, 1, dtype=torch.int64), torch.ones(3, 1))
