from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from
from torch import Tensor

from kontrast import linalg
from kontrast.errors import InputError
from tests.cases import generator, randn
from tests.reference import spectra


def kernel(n: int, rank: int, seed: int) -> Tensor:
    features = randn(n, rank, seed=seed)
    return features @ features.mT + 0.3


def row(n: int, height: int, matrices: int) -> float:
    """The budget in which exactly `height` rows fit."""
    return 8 * n * (matrices + 2) * height


SIZES = {"seed": integers(0, 2**16), "n": integers(2, 30), "height": integers(1, 31)}


@given(**SIZES, dtype=sampled_from([torch.float32, torch.float64]), mapped=sampled_from([False, True]))
def test_strips_of_any_height_give_the_dense_result(
    seed: int, n: int, height: int, dtype: torch.dtype, mapped: bool
) -> None:
    A, B = kernel(n, 5, seed).to(dtype), kernel(n, 3, seed + 1).to(dtype)
    a, b = (A.numpy(), B.numpy()) if mapped else (A, B)
    two, one = {"memory": row(n, height, 2)}, {"memory": row(n, height, 1)}
    D, E = A.double(), B.double()
    assert linalg.cka(a, b, **two) == pytest.approx(spectra.cka(A, B), rel=1e-9)
    expected = float((D * E).sum() / (D.norm() * E.norm()))
    assert linalg.kernel_alignment(a, b, **two) == pytest.approx(expected, rel=1e-12)
    drift = linalg.kernel_drift(a, b, **two)
    assert drift.relative == pytest.approx(float((D - E).norm() / E.norm()), rel=1e-12)
    assert drift.largest == pytest.approx(float((D - E).abs().max()), rel=1e-12)
    assert linalg.participation_ratio(a, **one) == pytest.approx(float(D.trace() ** 2 / D.norm() ** 2), rel=1e-12)


def test_matrices_are_left_as_they_were(tmp_path: Path) -> None:
    """Strips are changed in place; the caller's matrices, in memory or on disk, must not be."""
    A, B = kernel(20, 4, 0), kernel(20, 4, 1)
    before = A.clone(), B.clone()
    np.save(tmp_path / "a.npy", A.numpy())
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r+")
    for first in (A, mapped, mapped[::1]):
        linalg.cka(first, B)
        linalg.kernel_drift(first, B)
    assert torch.equal(A, before[0])
    assert torch.equal(B, before[1])
    assert np.array_equal(mapped, before[0].numpy())


@given(seed=integers(0, 2**16), scale=floats(1e-3, 1e3), shift=floats(-5, 5))
def test_cka_is_blind_to_rotation_scale_and_shift_of_features(seed: int, scale: float, shift: float) -> None:
    X, Y = randn(25, 6, seed=seed), randn(25, 4, seed=seed + 1)
    Q = linalg.random_frame(6, 6, generator=generator(seed + 2))
    moved = scale * (X @ Q + shift)
    reference = linalg.cka(X @ X.mT, Y @ Y.mT)
    assert linalg.cka(moved @ moved.mT, Y @ Y.mT) == pytest.approx(reference, rel=1e-9)
    assert linalg.cka(X @ X.mT, moved @ moved.mT) == pytest.approx(1, rel=1e-9)
    assert 0 <= reference < 1
    assert linalg.cka(Y @ Y.mT, X @ X.mT) == pytest.approx(reference, rel=1e-12)


FORMS = ("kernel", "features")


def in_form(Z: Tensor, form: str) -> Tensor:
    return Z @ Z.mT if form == "kernel" else Z


@given(
    seed=integers(0, 2**16),
    n=integers(4, 20),
    d=integers(1, 25),
    height=integers(1, 20),
    dtype=sampled_from([torch.float32, torch.float64]),
    mapped=sampled_from([False, True]),
)
def test_cka_of_features_is_that_of_their_linear_kernels(
    seed: int, n: int, d: int, height: int, dtype: torch.dtype, mapped: bool
) -> None:
    """Features narrower than n, as wide, and wider, on either side, beside a kernel or beside features."""
    Z, Y = randn(n, d, seed=seed, dtype=dtype), randn(n, 3, seed=seed + 1, dtype=dtype)
    K, L = Z.double() @ Z.double().mT, Y.double() @ Y.double().mT
    expected = spectra.cka(K, L)
    z, y = (Z.numpy(), Y.numpy()) if mapped else (Z, Y)
    memory = row(max(n, d), height, 2)
    for a, b in ((z, y), (z, L), (K, y)):
        assert linalg.cka(a, b, memory=memory) == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert linalg.cka(b, a, memory=memory) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert linalg.cka(z, z) == pytest.approx(1, rel=1e-9)
    assert linalg.cka(z, K) == pytest.approx(1, rel=1e-9)


@given(
    seed=integers(0, 2**16),
    scale=floats(1e-3, 1e3),
    shift=floats(-5, 5),
    d=sampled_from([6, 40]),
    first=sampled_from(FORMS),
    second=sampled_from(FORMS),
)
def test_cka_of_features_is_blind_to_rotation_scale_shift_and_order(
    seed: int, scale: float, shift: float, d: int, first: str, second: str
) -> None:
    X, Y = randn(25, d, seed=seed), randn(25, 4, seed=seed + 1)
    reference = linalg.cka(in_form(X, first), in_form(Y, second))
    Q = linalg.random_frame(d, d, generator=generator(seed + 2))
    moved = scale * (X @ Q + shift * randn(d, seed=seed + 3))
    order = torch.randperm(25, generator=generator(seed))
    assert 0 <= reference < 1
    assert linalg.cka(in_form(moved, first), in_form(Y, second)) == pytest.approx(reference, rel=1e-8)
    assert linalg.cka(in_form(X[order], first), in_form(Y[order], second)) == pytest.approx(reference, rel=1e-9)
    assert linalg.cka(in_form(X, first), in_form(moved, second)) == pytest.approx(1, rel=1e-8)


def test_what_is_square_is_a_kernel_where_it_is_symmetric() -> None:
    Z, Y = randn(12, 12), randn(12, 3, seed=1)
    S = Z + Z.mT
    assert linalg.cka(Z, Y) == pytest.approx(spectra.cka(Z @ Z.mT, Y @ Y.mT), rel=1e-9)
    assert linalg.cka(S, Y) == pytest.approx(spectra.cka(S, Y @ Y.mT), rel=1e-9)
    assert linalg.cka(S @ S.mT, Y) == pytest.approx(spectra.cka(S @ S.mT, Y @ Y.mT), rel=1e-9)
    one_hot = torch.eye(12)
    assert linalg.cka(one_hot, Y) == pytest.approx(linalg.cka(one_hot @ one_hot.mT, Y), rel=1e-12)


def test_features_keep_their_digits_far_from_the_origin() -> None:
    """Entries 1e6 + O(1): products before the means are taken away would cancel twelve of sixteen digits."""
    Z, Y = randn(40, 3), randn(40, 30, seed=1)
    expected = spectra.cka(Z @ Z.mT, Y @ Y.mT)
    for wide in (Y, torch.cat([Y, torch.zeros(40, 20)], 1)):
        assert linalg.cka(Z + 1e6, wide - 1e6) == pytest.approx(expected, rel=1e-7)
    assert linalg.cka((Z + 100).float(), Y.float()) == pytest.approx(expected, rel=1e-4)


def test_many_points_meet_in_feature_space() -> None:
    """(n, n) would take 320 GB."""
    Z = randn(200_000, 4, dtype=torch.float32)
    assert linalg.cka(Z, Z[:, :2] + 3) == pytest.approx(1 / math.sqrt(2), abs=0.01)


def test_cka_keeps_its_digits_on_a_nearly_constant_kernel() -> None:
    """Entries 1 + O(1e-6): one-pass sums would cancel twelve of sixteen digits."""
    A, B = 1 + 1e-6 * kernel(40, 3, 0), 1 + 1e-6 * kernel(40, 5, 1)
    assert linalg.cka(A, B) == pytest.approx(spectra.cka(kernel(40, 3, 0), kernel(40, 5, 1)), rel=1e-8)


def test_uncentered_alignment_is_the_cosine_that_means_dominate() -> None:
    A, B = kernel(30, 5, 0) + 100, kernel(30, 5, 1) + 100
    assert linalg.kernel_alignment(A, B) > 0.98
    assert linalg.cka(A, B) < 0.6
    assert linalg.kernel_alignment(A, 3 * A) == pytest.approx(1, rel=1e-12)


@given(seed=integers(0, 2**16), step=floats(1e-6, 1))
def test_drift_is_zero_at_home_and_linear_in_the_step(seed: int, step: float) -> None:
    A, direction = randn(12, 7, seed=seed), randn(12, 7, seed=seed + 1)  # cross kernels are allowed
    still = linalg.kernel_drift(A, A)
    assert (still.relative, still.largest, still.alignment) == (0.0, 0.0, pytest.approx(1))
    drift = linalg.kernel_drift(A + step * direction, A)
    assert drift.relative == pytest.approx(step * float(direction.norm() / A.norm()), rel=1e-8)
    assert drift.largest == pytest.approx(step * float(direction.abs().max()), rel=1e-8)


# ----------------------------------------------------------------------------------------------- condition number


@pytest.mark.parametrize("n", [1, 30, 90])
def test_condition_number_with_and_without_ridge(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linalg.eigen, "DENSE_BELOW", 50)  # the largest by Lanczos
    values = torch.linspace(10, 1, n, dtype=torch.float64)
    Q = linalg.random_frame(n, n, generator=generator())
    K = (Q * values) @ Q.mT
    K = (K + K.mT) / 2
    for matrix in (K, K.numpy()):
        found = linalg.condition_number(matrix)
        assert found.value == pytest.approx(10 if n > 1 else 1, rel=1e-8)
        assert (found.largest, found.smallest) == pytest.approx((10, values[-1].item()), rel=1e-8)
        assert found.error < 1e-8
        assert linalg.condition_number(matrix, ridge=2.0).value == pytest.approx(4 if n > 1 else 1, rel=1e-8)


def test_a_singular_kernel_has_an_infinite_condition_number_until_a_ridge() -> None:
    K = randn(30, 3) @ randn(30, 3).mT
    assert linalg.condition_number(K).value == math.inf
    assert linalg.condition_number(K, ridge=1.0).value == pytest.approx(
        1 + float(torch.linalg.matrix_norm(K, 2)), rel=1e-9
    )


# --------------------------------------------------------------------------------------------------------- errors

K, ONES = kernel(5, 5, 0), torch.ones(5, 5, dtype=torch.float64)
BROKEN = K.clone()
BROKEN[3, 3] = math.nan
SKEW = K + torch.ones(5, 5).triu(1)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: linalg.cka(K, K[:4, :4]), r"A has 5 rows and B 4; compare kernels or features over the same points"),
        (lambda: linalg.cka(K[0], K), r"A must have shape \(n, d\), got \(5,\); .* features \(n, d\), such as A.flat"),
        (lambda: linalg.cka(K, K[:0]), r"B must have shape \(n, d\) with no size of 0, got \(0, 5\)"),
        (lambda: linalg.kernel_drift(K, K[:4]), r"K0 must have the shape of K, \(5, 5\), got \(4, 5\)"),
        (lambda: linalg.cka(K[:, :4], BROKEN[:, :4]), r"B holds NaN or infinite values in rows 0 to 4"),
        (lambda: linalg.cka(BROKEN[3:, :], K[:2]), r"A holds NaN or infinite"),
        (lambda: linalg.kernel_alignment(K, K[:, :4]), r"K2 must be a kernel \(n, n\).* pass Z @ Z.T"),
        (lambda: linalg.kernel_drift(K[0], K[0]), r"K must have shape \(n, m\), got \(5,\)"),
        (
            lambda: linalg.cka(K, K + 0.001 * ONES.triu(1)),
            r"B is square and nearly symmetric: .* by up to 0.001 .* kernel pass \(B \+ B.T\) / 2, for features B @ B",
        ),
        (lambda: linalg.cka(K, BROKEN), r"B holds NaN or infinite"),
        (lambda: linalg.kernel_alignment(BROKEN, K), r"K1 holds NaN or infinite values in rows 0 to 4"),
        (
            lambda: linalg.kernel_drift(K, BROKEN, memory=row(5, 1, 2)),
            r"K0 holds NaN or infinite values in rows 3 to 3",
        ),
        (lambda: linalg.cka(K, ONES), r"undefined: what is constant over its 5 points, a kernel or features, is zero"),
        (lambda: linalg.cka(K, 0.1 * ONES[:, :2]), r"constant over its 5 points"),
        (lambda: linalg.cka(K[:, :2], 0.1 * ONES[:, :2]), r"constant over its 5 points"),
        (lambda: linalg.cka(K, 0.1 * torch.ones(5, 9)), r"constant over its 5 points"),
        (lambda: linalg.cka(K, 0.1 * ONES), r"constant over its 5 points"),
        (lambda: linalg.kernel_alignment(K, 0 * K), r"undefined: a kernel of zeros has no direction"),
        (lambda: linalg.kernel_drift(K, 0 * K), r"K0 is zero everywhere"),
        (lambda: linalg.condition_number(K, ridge=-1.0), r"ridge must be a finite number of at least 0, got -1.0"),
        (lambda: linalg.condition_number(SKEW), r"K must be symmetric"),
    ],
)
def test_what_cannot_work_is_refused_with_the_fix(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_a_large_pair_is_never_copied_whole(tmp_path: Path) -> None:
    """Peak memory of the measures stays near the budget, far below one more matrix."""
    import tracemalloc

    n = 1500
    maps = []
    for name in "ab":
        mapped = np.lib.format.open_memmap(tmp_path / f"{name}.npy", mode="w+", dtype=np.float32, shape=(n, n))
        mapped[:] = 1.0
        mapped[np.arange(n), np.arange(n)] = np.arange(n) % 7 + 2.0
        maps.append(mapped)
    tracemalloc.start()  # sees numpy's copies of strips, which torch then shares
    linalg.cka(*maps, memory=2**21)
    linalg.kernel_drift(*maps, memory=2**21)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**22 < 8 * n * n / 4


def test_entries_beyond_squares_and_things_that_are_no_matrices() -> None:
    K = torch.eye(3, dtype=torch.float64) + 1
    with pytest.raises(InputError, match="too large to square"):
        linalg.kernel_alignment(1e200 * K, K)
    for measure in (linalg.kernel_alignment, linalg.cka, linalg.kernel_drift):
        with pytest.raises(InputError, match="must be a matrix, got list"):
            measure(K.tolist(), K)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"must be real, got torch.complex128"):
            measure(K.to(torch.complex128), K)
    with pytest.raises(InputError, match="must be a matrix, an object with shape and @, or a function, got list"):
        linalg.top_eigenpairs(K.tolist(), 1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="ridge must be a finite number of at least 0, got 'a'"):
        linalg.ridge_solve(K, K[:, 0], ridge="a")  # type: ignore[arg-type]
