from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis.strategies import booleans, integers, lists, sampled_from
from scipy import sparse
from torch import Tensor

from kontrast import linalg
from kontrast.errors import ConvergenceError, InputError, KontrastError
from tests.cases import DTYPES, generator, randn
from tests.reference import spectra

N = 80  # above the 4·(k + k) + 20 basis vectors for k ≤ 3, so that functions are iterated and not made dense
LEVELS = [-2.0, -1.0, -0.5, 0.0, 0.3, 0.7, 1.0]


def symmetric(eigenvalues: Tensor, seed: int = 0) -> Tensor:
    Q = linalg.random_frame(len(eigenvalues), len(eigenvalues), generator=generator(seed))
    matrix = (Q * eigenvalues.double()) @ Q.mT
    return (matrix + matrix.mT) / 2


def kernel(n: int, rank: int, seed: int, decay: float = 1.0) -> Tensor:
    features = randn(n, rank, seed=seed) * decay ** torch.arange(rank)
    return features @ features.mT / rank


def as_function(matrix: Tensor):
    return lambda block: matrix @ block


def assert_eigenpairs(pairs: linalg.Eigenpairs, A: Tensor, values: Tensor, *, K: Tensor | None = None, atol: float):
    """Right values, (K-)orthonormal vectors that satisfy A v = λ v, signs fixed, and residuals that are true."""
    scale = float(values.abs().max().clamp(min=1e-300))
    k = len(pairs.values)
    assert pairs.vectors.shape == (len(A), k)
    torch.testing.assert_close(pairs.values.double(), values[:k], rtol=0, atol=atol * scale)
    assert (pairs.values.diff() <= 0).all()
    V, singular = pairs.vectors.double(), K is not None
    K = torch.eye(len(A), dtype=torch.float64) if K is None else K.double()
    torch.testing.assert_close(V.mT @ K @ V, torch.eye(k, dtype=torch.float64), rtol=0, atol=100 * atol)
    error = A.double() @ V - V * pairs.values.double()
    # A quadratic form sees the part of the error in K's null space through rounding: √eps of it.
    floor = 1e-7 * error.norm(dim=0) if singular else 0.0
    assert ((error * (K @ error)).sum(0).clamp(min=0).sqrt() <= 100 * atol * scale + floor).all()
    assert (pairs.vectors.amax(0) >= -(1 - 1e-3) * pairs.vectors.amin(0)).all()


@settings(max_examples=15)
@given(levels=lists(sampled_from(LEVELS), min_size=1, max_size=25), data=integers(0, 2**16), k=integers(1, 25))
def test_small_matrices_with_any_multiplicities(levels: list[float], data: int, k: int) -> None:
    """n = 1, k = n, zero matrices, one repeated value: all the same code and all right."""
    values = torch.tensor(levels, dtype=torch.float64).sort(descending=True).values
    A = symmetric(values, data)
    for operator in (A, as_function(A)):
        pairs = linalg.top_eigenpairs(operator, min(k, len(levels)), n=len(levels))
        assert_eigenpairs(pairs, A, values, atol=1e-12)


@settings(max_examples=15)
@given(levels=lists(sampled_from(LEVELS), min_size=1, max_size=7), seed=integers(0, 2**16), k=integers(1, 3))
def test_lanczos_finds_every_copy_of_a_repeated_eigenvalue(levels: list[float], seed: int, k: int) -> None:
    """Spectra of few values, each many times: low rank, the zero matrix, the identity, negative definite ones."""
    pick = torch.randint(len(levels), (N,), generator=generator(seed))
    values = torch.tensor(levels, dtype=torch.float64)[pick].sort(descending=True).values
    A = symmetric(values, seed)
    assert_eigenpairs(linalg.top_eigenpairs(as_function(A), k, n=N), A, values, atol=1e-10)


@settings(max_examples=6)
@given(seed=integers(0, 2**16), k=integers(1, 7), copies=integers(1, 9))
def test_lanczos_restarts_on_a_slow_spectrum(seed: int, k: int, copies: int) -> None:
    """Evenly spaced eigenvalues below `copies` equal ones: no gap to help, many restarts."""
    values = torch.linspace(1, -1, 200, dtype=torch.float64)
    values[:copies] = 1.0
    A = symmetric(values, seed)
    assert_eigenpairs(linalg.top_eigenpairs(as_function(A), k, n=200), A, values, atol=1e-10)


@settings(max_examples=5)
@given(seed=integers(0, 2**16), k=integers(1, 5), dense=booleans())
def test_float32_within_its_rounding(seed: int, k: int, dense: bool) -> None:
    values = 0.9 ** torch.arange(200, dtype=torch.float64)
    A = symmetric(values, seed).float()
    pairs = linalg.top_eigenpairs(A if dense else as_function(A), k, n=200, dtype=torch.float32)
    assert pairs.values.dtype == pairs.vectors.dtype == pairs.residuals.dtype == torch.float32
    assert_eigenpairs(pairs, A, values, atol=5e-6)


def test_a_large_matrix_is_iterated_and_agrees_with_the_dense_result() -> None:
    x = randn(1200, 5)
    A = torch.exp(-torch.cdist(x, x).square() / 5)
    pairs = linalg.top_eigenpairs(A, 6)
    assert_eigenpairs(pairs, A, torch.linalg.eigvalsh(A).flip(0), atol=1e-11)
    assert 0 < pairs.residuals.max() <= 1e-10


@pytest.mark.parametrize("negative", [False, True])
def test_residuals_are_measured_relative_to_the_operator_not_the_eigenvalue(negative: bool) -> None:
    """Of values near 1e-6 beside one of size 1e6, what counts is 1e6."""
    values = torch.linspace(1e-6, 1e-7, N, dtype=torch.float64)
    values[-1] = -1e6 if negative else 1e6
    A = symmetric(values)
    pairs = linalg.top_eigenpairs(as_function(A), 2, n=N)
    error = (A @ pairs.vectors - pairs.vectors * pairs.values).norm(dim=0) / 1e6
    assert (pairs.residuals >= 0.5 * error).all()  # the size seen so far is never above the true one
    assert (pairs.residuals <= 1e-10).all()


# --------------------------------------------------------------------------------------------------- in a metric


@given(seed=integers(0, 2**16), n=integers(1, 30), rank=integers(1, 30), k=integers(1, 6))
def test_dense_pairs_in_a_metric(seed: int, n: int, rank: int, k: int) -> None:
    rank = min(n, rank)
    K, S = kernel(n, rank, seed), symmetric(randn(n, seed=seed + 1), seed + 2)
    assume(torch.linalg.eigvalsh(K)[-rank] > 1e-6)  # a square Gaussian matrix may be nearly singular
    A, k = S @ K, min(k, rank)
    pairs = linalg.top_eigenpairs(A, k, metric=K)
    values = spectra.eigenvalues_in_metric(A, K, rank=rank)
    assert_eigenpairs(pairs, A, values, K=K, atol=1e-9)


@pytest.mark.parametrize("form", ["gaussian", "low rank", "indefinite low rank", "negative", "identity", "zero"])
@pytest.mark.parametrize("rank", [300, 60, 4])
def test_lanczos_in_a_metric_agrees_with_dense(form: str, rank: int) -> None:
    """K regular and singular, S with and without a kernel, wanted values positive, zero and negative."""
    n, k = 200, 4
    K = kernel(n, rank, seed=1)
    S = {
        "gaussian": symmetric(randn(n, seed=2)),
        "low rank": kernel(n, 2, seed=3),
        "indefinite low rank": kernel(n, 2, seed=3) - kernel(n, 3, seed=4),
        "negative": -torch.eye(n, dtype=torch.float64) - kernel(n, n, seed=5),
        "identity": torch.eye(n, dtype=torch.float64),
        "zero": torch.zeros(n, n, dtype=torch.float64),
    }[form]
    if form == "negative":  # few, spread values: the small end of a kernel's own spectrum takes thousands of steps
        K = kernel(n, min(rank, 6), seed=1)
    A, values = S @ K, spectra.eigenvalues_in_metric(S @ K, K, rank=int(torch.linalg.matrix_rank(K, hermitian=True)))
    pairs = linalg.top_eigenpairs(lambda v: S @ (K @ v), k, metric=as_function(K), n=n)
    assert_eigenpairs(pairs, A, values, K=K, atol=1e-8)
    dense = linalg.top_eigenpairs(A, k, metric=K)
    assert_eigenpairs(dense, A, values, K=K, atol=1e-8)


@settings(max_examples=8)
@given(seed=integers(0, 2**16), decay=sampled_from([0.5, 0.8, 0.95]), k=integers(1, 3))
def test_an_ill_conditioned_metric_costs_no_digits(seed: int, decay: float, k: int) -> None:
    """Eigenvalues of K down to 1e-16 and below, as smooth kernels have."""
    K, S = kernel(120, 120, seed, decay), symmetric(randn(120, seed=seed + 1), seed)
    A = S @ K
    root = torch.linalg.eigh(K)
    half = root.eigenvectors * root.eigenvalues.clamp(min=0).sqrt() @ root.eigenvectors.mT
    values = torch.linalg.eigvalsh(half @ S @ half).flip(0)
    for pairs in (
        linalg.top_eigenpairs(A, k, metric=K),
        linalg.top_eigenpairs(lambda v: S @ (K @ v), k, metric=as_function(K), n=120),
    ):
        torch.testing.assert_close(pairs.values, values[:k], rtol=0, atol=1e-9 * float(values.abs().max()))
        assert pairs.residuals.max() <= 1e-8


def test_a_metric_in_float32() -> None:
    K, S = kernel(200, 40, 1).float(), symmetric(randn(200, seed=2)).float()
    values = spectra.eigenvalues_in_metric(S.double() @ K.double(), K.double(), rank=40)
    for pairs in (
        linalg.top_eigenpairs(S @ K, 3, metric=K),
        linalg.top_eigenpairs(lambda v: S @ (K @ v), 3, metric=as_function(K), n=200, dtype=torch.float32),
    ):
        torch.testing.assert_close(pairs.values.double(), values[:3], rtol=1e-4, atol=0)


def test_the_identity_as_metric_changes_nothing() -> None:
    A, eye = symmetric(randn(50, seed=3)), torch.eye(50, dtype=torch.float64)
    one, two = linalg.top_eigenpairs(A, 4), linalg.top_eigenpairs(A, 4, metric=eye)
    torch.testing.assert_close(one.values, two.values, rtol=0, atol=1e-12)
    torch.testing.assert_close(one.vectors, two.vectors, rtol=0, atol=1e-10)


# ------------------------------------------------------------------------------------------- signs, seeds, kinds


@settings(max_examples=8)
@given(seed=integers(0, 2**16))
def test_signs_do_not_depend_on_the_route_or_on_ties(seed: int) -> None:
    A = symmetric(0.8 ** torch.arange(N), seed)
    routes = [A, as_function(A), as_function(A)]
    one, two, three = (linalg.top_eigenpairs(r, 3, n=N, generator=generator(i)) for i, r in enumerate(routes))
    torch.testing.assert_close(one.vectors, two.vectors, rtol=0, atol=1e-8)
    torch.testing.assert_close(two.vectors, three.vectors, rtol=0, atol=1e-8)


def test_of_tied_entries_the_first_decides() -> None:
    column = torch.tensor([0.1, -0.7, 0.7 + 1e-12], dtype=torch.float64)[:, None]
    expected = torch.tensor([-0.1, 0.7, -0.7], dtype=torch.float64)[:, None]
    torch.testing.assert_close(linalg.fix_signs(column), expected)
    torch.testing.assert_close(linalg.fix_signs(-column), expected)


def test_numbers_and_number_types_of_every_kind() -> None:
    A = symmetric(randn(N, seed=1))
    expected = linalg.top_eigenpairs(as_function(A.float()), 2, n=N, dtype=torch.float32)
    n, k, device = np.int64(N), torch.tensor(2), torch.device("cpu")
    found = linalg.top_eigenpairs(
        as_function(A.float()), k, n=n, dtype="float32", device=device, max_steps=np.int16(500)
    )
    assert torch.equal(found.vectors, expected.vectors)
    assert torch.equal(linalg.largest_eigenpairs(A, np.uint8(2))[0], linalg.largest_eigenpairs(A, 2)[0])


def test_the_same_seed_gives_the_same_bits() -> None:
    A = symmetric(randn(N, seed=1))
    one, two = (linalg.top_eigenpairs(as_function(A), 2, n=N) for _ in range(2))
    assert torch.equal(one.vectors, two.vectors)


class Multiplying:
    """An object with a shape and `@`, as a matrix-free kernel is."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.shape, self.dtype, self.device = matrix, matrix.shape, matrix.dtype, matrix.device

    def __matmul__(self, block: Tensor) -> Tensor:
        return self.matrix @ block


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind_of_operator_gives_the_same_pairs(dtype: torch.dtype, tmp_path: Path) -> None:
    A = symmetric(0.7 ** torch.arange(N)).to(dtype)
    np.save(tmp_path / "kernel.npy", A.numpy())
    mapped = np.load(tmp_path / "kernel.npy", mmap_mode="r")
    expected = linalg.top_eigenpairs(A, 3)
    linear = sparse.linalg.aslinearoperator(A.numpy())
    for operator in (Multiplying(A), A.numpy(), mapped, sparse.csr_array(A.numpy()), linear, A.to_sparse()):
        pairs = linalg.top_eigenpairs(operator, 3)
        assert pairs.values.dtype == dtype
        torch.testing.assert_close(
            pairs.values, expected.values, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-10
        )


def test_a_large_memory_map_is_iterated(tmp_path: Path) -> None:
    x = randn(1100, 3)
    A = torch.exp(-torch.cdist(x, x)).float()
    np.save(tmp_path / "kernel.npy", A.numpy())
    pairs = linalg.top_eigenpairs(np.load(tmp_path / "kernel.npy", mmap_mode="r"), 2)
    torch.testing.assert_close(pairs.values.double(), torch.linalg.eigvalsh(A.double()).flip(0)[:2], rtol=1e-5, atol=0)


# ------------------------------------------------------------------------------------------------ norms and ends


@settings(max_examples=8)
@given(seed=integers(0, 2**16), flip=booleans(), n=sampled_from([1, 5, 80]))
def test_norm_and_extremes_see_both_ends(seed: int, flip: bool, n: int) -> None:
    values = (-1 if flip else 1) * torch.linspace(-3, 1, n, dtype=torch.float64)
    A = symmetric(values, seed)
    for operator in (A, as_function(A)):
        norm, ends = linalg.spectral_norm(operator, n=n), linalg.extreme_eigenvalues(operator, n=n)
        assert norm.value == pytest.approx(3, rel=1e-10)
        assert norm.residual <= 1e-10
        assert ends.largest == pytest.approx(float(values.max()), abs=1e-9)
        assert ends.smallest == pytest.approx(float(values.min()), abs=1e-9)
        assert 0 < ends.error < 1e-9


def test_a_norm_reached_at_both_ends_at_once_converges() -> None:
    A = symmetric(torch.tensor([1.0, -1.0] * (N // 2)) * torch.linspace(1, 0.1, N // 2).repeat_interleave(2))
    assert linalg.spectral_norm(as_function(A), n=N).value == pytest.approx(1, rel=1e-9)


# -------------------------------------------------------------------------------------------------------- errors


def test_an_unconverged_result_is_never_returned() -> None:
    A = symmetric(torch.linspace(1, 0.9, 300))
    with pytest.raises(ConvergenceError, match=r"relative residual .* not 1e-10; pass tolerance=.*max_steps"):
        linalg.top_eigenpairs(as_function(A), 1, n=300, max_steps=3)
    assert issubclass(ConvergenceError, KontrastError)


def test_vectors_where_the_metric_is_zero_to_rounding_are_not_passed_off_as_orthonormal() -> None:
    """The largest eigenvalues of a negative operator are those that K hardly sees."""
    K, S = kernel(300, 300, 0, decay=0.5), -kernel(300, 300, 1)
    with pytest.raises(ConvergenceError, match=r"orthonormal to \S+ only.*ask for fewer than k=6 pairs"):
        linalg.top_eigenpairs(lambda v: S @ (K @ v), 6, metric=as_function(K), n=300)


def test_the_tolerance_that_the_error_names_is_enough() -> None:
    A = symmetric(torch.linspace(1, 0.9, 300))
    with pytest.raises(ConvergenceError) as error:
        linalg.top_eigenpairs(as_function(A), 1, n=300, max_steps=3)
    named = float(str(error.value).split("pass tolerance=")[1].split(",")[0])
    assert linalg.top_eigenpairs(as_function(A), 1, n=300, max_steps=3, tolerance=named).residuals <= named


EYE = torch.eye(3, dtype=torch.float64)
LOPSIDED = randn(N, N)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: linalg.top_eigenpairs(EYE, 0), r"k must be a whole number of at least 1, got 0"),
        (lambda: linalg.top_eigenpairs(EYE, 4), r"at most 3, got 4"),
        (lambda: linalg.top_eigenpairs(EYE, 1.5), r"k must be .* got 1.5"),
        (lambda: linalg.top_eigenpairs(EYE, True), r"k must be .* got True"),
        (lambda: linalg.largest_eigenpairs(EYE, True), r"k must be .* got True"),
        (lambda: linalg.top_eigenpairs(as_function(EYE), 1, n=3.0), r"n must be a whole number .* got 3.0"),
        (
            lambda: linalg.top_eigenpairs(as_function(LOPSIDED), 1, n=N, max_steps=0),
            r"max_steps must be a whole number",
        ),
        (
            lambda: linalg.top_eigenpairs(as_function(EYE), 1, n=3, dtype="half"),
            r"dtype must be one of float32, float64",
        ),
        (lambda: linalg.top_eigenpairs(as_function(EYE), 1, n=3, device="tpu"), r"device must look like"),
        (lambda: linalg.top_eigenpairs(as_function(LOPSIDED), 1, n=N, generator=3), r"must be a torch.Generator"),
        (lambda: linalg.top_eigenpairs(EYE[:2], 1), r"square and not empty, got shape \(2, 3\)"),
        (lambda: linalg.top_eigenpairs(EYE, 1, n=5), r"n=5 does not fit operator of shape \(3, 3\)"),
        (lambda: linalg.top_eigenpairs(EYE.int(), 1), r"float32 or float64, got torch.int32; convert .*double"),
        (lambda: linalg.top_eigenpairs(lambda v: v, 1), r"does not know its size; pass n="),
        (lambda: linalg.top_eigenpairs(EYE / 0, 1), r"operator holds NaN or infinite"),
        (lambda: linalg.top_eigenpairs(lambda v: v / 0, 1, n=N), r"returned NaN or infinite"),
        (lambda: linalg.top_eigenpairs(lambda v: v[:1], 1, n=N), r"given \(80, 2\) it returned \(1, 2\)"),
        (lambda: linalg.top_eigenpairs(EYE.triu() + EYE.roll(1, 0), 1), r"must be symmetric, but entries differ"),
        (lambda: linalg.top_eigenpairs(as_function(LOPSIDED), 1, n=N), r"operator is not symmetric: u\^T A v"),
        (lambda: linalg.top_eigenpairs(LOPSIDED.numpy(), 1), r"operator must be symmetric"),
        (
            lambda: linalg.top_eigenpairs(EYE, 1, tolerance=0.0),
            r"tolerance must be a number above 0 and below 1, got 0.0; leave it out for 1e-10",
        ),
        (lambda: linalg.top_eigenpairs(EYE, 1, metric=EYE.float()), r"share number type and device"),
        (lambda: linalg.top_eigenpairs(EYE, 1, metric=-EYE), r"positive semidefinite, but has the eigenvalue -1"),
        (lambda: linalg.top_eigenpairs(EYE, 2, metric=torch.diag(EYE[0])), r"k=2 pairs, but the metric has rank 1"),
        (
            lambda: linalg.top_eigenpairs(lambda v: v, 3, metric=as_function(kernel(N, 2, 0)), n=N),
            r"k=3 pairs, but the metric has rank 2; ask for at most 2",
        ),
        (
            lambda: linalg.top_eigenpairs(LOPSIDED, 1, metric=kernel(N, N, 0)),
            r"not self-adjoint in the metric: metric @ operator differs",
        ),
        (
            lambda: linalg.top_eigenpairs(as_function(LOPSIDED), 1, metric=as_function(kernel(N, N, 0)), n=N),
            r"operator is not self-adjoint in the metric: u\^T",
        ),
        (lambda: linalg.top_eigenpairs(lambda v: v, 20_000, n=40_000), r"overflows above n = 30000; ask for at most"),
    ],
)
def test_what_cannot_work_is_refused_with_the_fix(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


@given(levels=lists(sampled_from(LEVELS), min_size=1, max_size=30), seed=integers(0, 2**16), k=integers(1, 30))
def test_largest_eigenpairs_of_any_part_of_a_spectrum(levels: list[float], seed: int, k: int) -> None:
    """By LAPACK's subset or whole; repeated values, negative ones, and all there are where k is more."""
    values = torch.tensor(levels, dtype=torch.float64).sort(descending=True).values
    A = symmetric(values, seed)
    kept, k_found = A.clone(), min(k, len(levels))
    found, vectors = linalg.largest_eigenpairs(A, k)
    assert torch.equal(A, kept)
    torch.testing.assert_close(found, values[:k], rtol=0, atol=1e-12)
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(k_found).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(A @ vectors, vectors * found, rtol=0, atol=1e-12)


def test_largest_eigenpairs_are_of_the_symmetric_part() -> None:
    A = randn(12, 12)
    found, _ = linalg.largest_eigenpairs(A, 3)
    torch.testing.assert_close(found, torch.linalg.eigvalsh((A + A.mT) / 2).flip(0)[:3], rtol=0, atol=1e-12)


def test_largest_eigenpairs_of_a_large_matrix_come_from_lanczos(monkeypatch: pytest.MonkeyPatch) -> None:
    A = symmetric(0.9 ** torch.arange(300).double())
    whole = linalg.largest_eigenpairs(A, 4)
    calls, iterate = [], linalg.eigen.top_eigenpairs
    monkeypatch.setattr(linalg.eigen, "top_eigenpairs", lambda *args: calls.append(args) or iterate(*args))
    for name in ("DENSE_BELOW", "DIRECT_BELOW"):
        monkeypatch.setattr(linalg.eigen, name, 200)
    found, vectors = linalg.largest_eigenpairs(A, 4)
    assert len(calls) == 1
    torch.testing.assert_close(found, whole[0], rtol=0, atol=1e-9)
    assert float(linalg.subspace_sines(vectors, whole[1]).max()) < 1e-7


@pytest.mark.parametrize("n", [100, 400])
def test_rounded_kernels_have_null_eigenvalues_below_the_rounding_and_not_far_below(n: int) -> None:
    """Entries just above 1, which float32 rounds the most for their size: 0.13 to 0.14 of it for ten seeds."""
    x = 1 + 0.03 * randn(n, 5)
    x = x / x.norm(dim=1, keepdim=True) * 1.02**0.5
    rounded = (x @ x.mT).float()
    bound = linalg.eigenvalue_rounding(rounded.double(), torch.finfo(torch.float32).eps)
    null = torch.linalg.eigvalsh(rounded.double())[:-5].abs()
    assert 0.11 * bound < float(null.max()) < 0.9 * bound


@given(seed=integers(0, 2**16), n=integers(1, 40), scale=sampled_from([1e-100, 1.0, 1e100]))
def test_rounding_grows_with_the_root_of_the_rows_and_is_never_below_that_of_the_decomposition(
    seed: int, n: int, scale: float
) -> None:
    K = scale * kernel(n, 3, seed)
    double, single = (torch.finfo(dtype).eps for dtype in DTYPES)
    largest, trace = float(K.diagonal().max()), float(K.trace())
    assert linalg.eigenvalue_rounding(K, single) == pytest.approx(4 * n**0.5 * single * largest, rel=1e-12, abs=0)
    decomposed = max(4 * n**0.5 * double * largest, 16 * double * trace)
    assert linalg.eigenvalue_rounding(K, double) == pytest.approx(decomposed, rel=1e-12, abs=0)
    assert linalg.eigenvalue_rounding(-K, double) == linalg.eigenvalue_rounding(K, double)
    assert (torch.linalg.eigvalsh(K)[:-3].abs() <= decomposed).all()


@pytest.mark.gpu
def test_a_gpu_gives_the_same_pairs() -> None:
    A = symmetric(0.9 ** torch.arange(300))
    K, S = kernel(300, 50, 1), symmetric(randn(300, seed=2))
    here = linalg.top_eigenpairs(as_function(A), 3, n=300)
    there = linalg.top_eigenpairs(as_function(A.cuda()), 3, n=300, device="cuda")
    assert there.vectors.device.type == "cuda"
    torch.testing.assert_close(there.vectors.cpu(), here.vectors, rtol=0, atol=1e-8)
    one = linalg.top_eigenpairs(S @ K, 3, metric=K)
    two = linalg.top_eigenpairs(as_function((S @ K).cuda()), 3, metric=K.cuda(), n=300, device="cuda")
    torch.testing.assert_close(two.values.cpu(), one.values, rtol=1e-8, atol=0)
