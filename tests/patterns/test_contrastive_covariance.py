"""The contrastive covariance of paper C, (3): the double loop, for every kind of α; its laws; and Lemma 2's limit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import booleans, floats, integers, sampled_from
from torch import Tensor

from kontrast.errors import InputError
from kontrast.patterns import (
    GaussianImportance,
    ImportanceRule,
    ImportanceWeights,
    InfoNCEImportance,
    PairLaplacian,
    SpectralImportance,
    TripletImportance,
    UniformImportance,
    adjusted_covariance,
    contrastive_covariance,
    gaussian_features,
    pair_laplacian,
)
from kontrast.patterns.contrastive_covariance import COPIES
from tests.cases import DTYPES, TOLERANCE, generator, randn
from tests.reference import one_layer_covariance as reference

SIZES = {"n": integers(2, 9), "seed": integers(0, 2**16)}
KINDS = ["uniform", "dense", "symmetric", "sparse", "csr", "features", "gaussian", "info_nce", "triplet", "spectral"]
RULES: dict[str, ImportanceRule] = {
    "gaussian": GaussianImportance(0.8),
    "info_nce": InfoNCEImportance(0.6, 0.4),
    "triplet": TripletImportance(0.5),
    "spectral": SpectralImportance(),
}


def relative(found: Tensor, expected: Tensor, scale: Tensor | None = None) -> float:
    return float((found - expected).abs().max() / (expected if scale is None else scale).abs().max().clamp_min(1e-300))


def some_weights(n: int, seed: int, kind: str = "dense") -> Tensor:
    """Random weights of 0 or more, about half of them 0 for sparse kinds; with a diagonal."""
    alpha = torch.rand(n, n, generator=generator(seed), dtype=torch.float64)
    if kind == "symmetric":
        return (alpha + alpha.mT) / 2
    return alpha if kind == "dense" else alpha * (alpha > 0.5)


def as_csr(alpha: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the layout a beta
        return alpha.to_sparse_csr()


def case(kind: str, n: int, seed: int, *, memory: float | None = None) -> tuple[PairLaplacian, Tensor, Tensor]:
    """The Laplacian of some α, and that α and its β as full matrices."""
    f, view = randn(n, 2, seed=seed + 10), randn(n, 2, seed=seed + 11)
    if kind == "spectral":
        f, view = torch.nn.functional.normalize(f, dim=1), torch.nn.functional.normalize(view, dim=1)
    if kind == "uniform":
        alpha = torch.ones(n, n).to(f) - torch.eye(n).to(f)
        return pair_laplacian("uniform", f), alpha, alpha.sum(1)
    if kind == "features":
        phi = randn(n, 3, seed=seed).abs()
        alpha = (phi @ phi.mT).fill_diagonal_(0)
        return PairLaplacian.of_features(phi), alpha, alpha.sum(1)
    if kind in RULES:
        weights = RULES[kind](f, view)
        return pair_laplacian(RULES[kind], f, view, memory=memory), weights.alpha, weights.positive
    alpha = some_weights(n, seed, kind)
    given = {"sparse": alpha.to_sparse, "csr": lambda: as_csr(alpha)}.get(kind, lambda: alpha)()
    return pair_laplacian(given, f), alpha, alpha.sum(1)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(**SIZES, views=booleans())
def test_it_is_the_double_loop(kind: str, n: int, seed: int, views: bool) -> None:
    a, b = randn(n, 3, seed=seed), randn(n, 2, seed=seed + 1)
    a_view, b_view = (randn(n, 3, seed=seed + 2), randn(n, 2, seed=seed + 3)) if views else (a, b)
    laplacian, alpha, pull = case(kind, n, seed)
    found = contrastive_covariance(
        a,
        b,
        positives=a_view if views else None,
        positives_b=b_view if views else None,
        importance=laplacian,
    )
    expected = reference.contrastive_covariance(a, b, alpha, a_view, b_view, pull)
    # Relative to what is summed: of few samples the two terms may cancel.
    terms = reference.contrastive_covariance(a, b, alpha.abs(), a, b) + alpha.abs().mean()
    assert relative(found, expected, terms) < 1e-12


@settings(max_examples=12)
@given(**SIZES, kind=sampled_from(KINDS))
def test_the_laplacian_is_what_it_is_called(n: int, seed: int, kind: str) -> None:
    laplacian, alpha, pull = case(kind, n, seed)
    symmetric = (alpha + alpha.mT) / 2
    L = symmetric.sum(1).diag() - symmetric
    assert laplacian.n == n
    torch.testing.assert_close(laplacian.product(torch.eye(n).to(L)), L, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(laplacian.degrees, symmetric.sum(1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(laplacian.positive, pull, rtol=1e-12, atol=1e-12)


@given(**SIZES, kind=sampled_from(list(RULES)), height=integers(1, 4))
def test_streaming_changes_nothing(n: int, seed: int, kind: str, height: int) -> None:
    held, _, _ = case(kind, n, seed)
    streamed, _, _ = case(kind, n, seed, memory=height * COPIES * 8 * n)
    b = randn(n, 2, seed=seed)
    torch.testing.assert_close(streamed.product(b), held.product(b), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(streamed.degrees, held.degrees, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(streamed.positive, held.positive, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("rule", [GaussianImportance(), InfoNCEImportance()], ids=repr)
def test_streaming_never_asks_for_more_rows_than_fit(rule: ImportanceRule, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = type(rule).rows

    def counted(self: Any, outputs: Tensor, positives: Tensor | None = None, rows: slice = slice(None)) -> Tensor:
        block = real(self, outputs, positives, rows)
        asked.append(len(block))
        return block

    monkeypatch.setattr(type(rule), "rows", counted)
    seen: list[tuple[int, int]] = []
    contrastive_covariance(
        randn(40, 3),
        importance=rule,
        memory=7 * COPIES * 8 * 40,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert max(asked) == 7
    assert sum(asked) == 2 * 40  # once for the degrees, once for the product
    assert seen[-1] == (40, 40)


@given(**SIZES, kind=sampled_from(KINDS))
def test_it_is_bilinear_and_blind_to_shifts(n: int, seed: int, kind: str) -> None:
    a, b, u, v = (randn(n, 3, seed=seed), randn(n, 2, seed=seed + 1), randn(3, 1, seed=seed), randn(2, 1, seed=seed))
    views = {"positives": randn(n, 3, seed=seed + 2), "positives_b": randn(n, 2, seed=seed + 3)}
    laplacian, _, _ = case(kind, n, seed)
    C = contrastive_covariance(a, b, **views, importance=laplacian)
    projected = contrastive_covariance(
        a @ u, b @ v, positives=views["positives"] @ u, positives_b=views["positives_b"] @ v, importance=laplacian
    )
    torch.testing.assert_close(projected, u.mT @ C @ v, rtol=1e-11, atol=1e-11)
    shifted = contrastive_covariance(
        a + 1e3,
        b - 1e3,
        positives=views["positives"] + 1e3,
        positives_b=views["positives_b"] - 1e3,
        importance=laplacian,
    )
    torch.testing.assert_close(shifted, C, rtol=1e-11, atol=1e-10)
    swapped = contrastive_covariance(
        b, a, positives=views["positives_b"], positives_b=views["positives"], importance=laplacian
    )
    torch.testing.assert_close(swapped, C.mT, rtol=1e-11, atol=1e-12)


@given(**SIZES, kind=sampled_from([kind for kind in KINDS if kind != "spectral"]))
def test_without_views_it_is_positive_semi_definite(n: int, seed: int, kind: str) -> None:
    laplacian, _, _ = case(kind, n, seed)
    C = contrastive_covariance(randn(n, 4, seed=seed), importance=laplacian)
    assert torch.equal(C, C.mT)
    assert float(torch.linalg.eigvalsh(C)[0]) > -1e-13


@given(**SIZES, dtype=sampled_from(DTYPES))
def test_uniform_is_the_covariance(n: int, seed: int, dtype: torch.dtype) -> None:
    a = randn(n, 3, seed=seed, dtype=dtype)
    found = contrastive_covariance(a)
    assert found.dtype == dtype
    torch.testing.assert_close(found, torch.cov(a.mT, correction=0), **TOLERANCE[dtype])
    torch.testing.assert_close(contrastive_covariance(a, importance=UniformImportance()), found, rtol=0, atol=0)


def test_constant_data_has_covariance_zero() -> None:
    for importance in ("uniform", GaussianImportance(0.5), some_weights(6, 0)):
        C = contrastive_covariance(torch.full((6, 2), 3.7).double(), importance=importance)
        assert torch.equal(C, torch.zeros(2, 2).double())


def test_a_rule_looks_at_a_and_its_positives() -> None:
    a, view = randn(6, 2, seed=1), randn(6, 2, seed=2)
    weights = InfoNCEImportance(0.5, 1.0)(a, view)
    for importance in (weights, weights.alpha, pair_laplacian(weights)):
        torch.testing.assert_close(
            contrastive_covariance(a, positives=view, importance=InfoNCEImportance(0.5, 1.0)),
            contrastive_covariance(a, positives=view, importance=importance),
            rtol=1e-12,
            atol=1e-14,
        )


def test_gradients_flow_into_the_functions_but_not_into_alpha() -> None:
    a = randn(5, 2).requires_grad_()
    for memory in (None, 2 * COPIES * 8 * 5):  # held and streamed
        (found,) = torch.autograd.grad(
            torch.trace(contrastive_covariance(a, importance=InfoNCEImportance(), memory=memory)), a
        )
        weights = InfoNCEImportance()(a)
        (expected,) = torch.autograd.grad(torch.trace(contrastive_covariance(a, importance=weights.alpha)), a)
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)


def test_a_sparse_alpha_of_many_samples_stays_sparse() -> None:
    n = 60_000  # dense it would take 28.8 GB
    i = torch.arange(n)
    alpha = torch.sparse_coo_tensor(torch.stack([i, (i + 1) % n]), torch.ones(n).double(), (n, n))
    a = randn(n, 1)
    C = contrastive_covariance(a, importance=alpha)
    torch.testing.assert_close(C, (a - a.roll(-1, 0)).square().sum().reshape(1, 1) / (2 * n**2), rtol=1e-10, atol=0)


@given(n=integers(2, 9), seed=integers(0, 2**16), m=integers(1, 4), dtype=sampled_from(DTYPES))
def test_kernel_structure_gives_adjusted_variances(n: int, seed: int, m: int, dtype: torch.dtype) -> None:
    """Lemma 2 without augmentation is an identity at any n; a component that is 0 everywhere counts nothing."""
    a, phi = randn(n, 3, seed=seed, dtype=dtype), randn(n, m, seed=seed + 1, dtype=dtype).relu()
    found = adjusted_covariance(a, phi)
    assert found.dtype == dtype
    torch.testing.assert_close(found, reference.adjusted_covariance(a, phi), **TOLERANCE[dtype])
    torch.testing.assert_close(found, contrastive_covariance(a, importance=phi @ phi.mT), **TOLERANCE[dtype])


@settings(max_examples=12)
@given(n=integers(1, 6), seed=integers(0, 2**16), z=integers(1, 3), order=integers(0, 6), tau=floats(0.5, 4))
def test_gaussian_features_are_those_of_the_kernel_and_know_their_error(
    n: int, seed: int, z: int, order: int, tau: float
) -> None:
    y = randn(n, z, seed=seed)
    kernel = torch.exp(-(y[:, None] - y[None, :]).square().sum(2) / (2 * tau))
    made = gaussian_features(y, temperature=tau, order=order)
    missing = (kernel - made.values @ made.values.mT).abs()
    assert bool((made.values >= 0).all())
    assert float(missing.max()) == pytest.approx(made.error, rel=1e-8, abs=1e-13)
    above = y - y.min(0).values
    full = gaussian_features(y, temperature=tau, order=25)
    torch.testing.assert_close(full.values[:, : made.values.shape[1]], made.values, rtol=1e-10, atol=1e-14)
    if float(above.square().sum(1).max()) / tau < 5:
        torch.testing.assert_close(full.values @ full.values.mT, kernel, rtol=1e-8, atol=1e-9)


def test_gaussian_features_of_one_output_are_those_of_corollary_2() -> None:
    h = torch.tensor([[0.0], [0.5], [2.0]]).double()
    tau, k = 0.7, torch.arange(5).double()
    expected = torch.exp(-h.square() / (2 * tau)) * h**k / torch.sqrt(tau**k * torch.exp(torch.lgamma(k + 1)))
    found = gaussian_features(h, temperature=tau, order=4, lower=0.0)
    torch.testing.assert_close(found.values, expected, rtol=1e-13, atol=0)
    assert torch.equal(found.lower, torch.zeros(1).double())


A = randn(4, 2)
LAPLACIAN = pair_laplacian("uniform", A)
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: contrastive_covariance(A.numpy()), "a must be a tensor of floating-point numbers"),
    (lambda: contrastive_covariance("a"), "a must be a tensor of floating-point numbers"),
    (lambda: contrastive_covariance(A.long()), "a must be a tensor of floating-point numbers"),
    (lambda: contrastive_covariance(A[0]), r"a must have shape \(n, d\), got \(2,\)"),
    (lambda: contrastive_covariance(A[:1]), "at least 2 samples"),
    (lambda: contrastive_covariance(A, A[:3]), "a and b must have one length, got 4 and 3"),
    (lambda: contrastive_covariance(A, A.float()), "b must be torch.float64 on cpu like a"),
    (lambda: contrastive_covariance(A / 0), "a holds NaN"),
    (lambda: contrastive_covariance(A, positives=A[:3]), r"positives must have shape \(4, 2\), got \(3, 2\)"),
    (lambda: contrastive_covariance(A, positives=A[:, :1]), r"positives must have shape \(4, 2\), got \(4, 1\)"),
    (lambda: contrastive_covariance(A, A, positives=A), "both have other views"),
    (lambda: contrastive_covariance(A, A, positives_b=A), "both have other views"),
    (lambda: contrastive_covariance(A, importance=-torch.ones(4, 4).double()), "must not be negative"),
    (lambda: contrastive_covariance(A, importance=torch.full((4, 4), torch.nan).double()), "NaN or infinite"),
    (lambda: contrastive_covariance(A, importance=torch.ones(3, 3).double()), r"shape \(4, 4\)"),
    (lambda: contrastive_covariance(A, importance=torch.ones(4, 3).double()), r"shape \(4, 4\)"),
    (lambda: contrastive_covariance(A, importance=-torch.eye(4).double().to_sparse()), "must not be negative"),
    (lambda: contrastive_covariance(A, importance="softmax"), "importance must be one of"),
    (lambda: contrastive_covariance(A, importance=np.ones((4, 4))), "importance must be a name"),
    (lambda: contrastive_covariance(A[:3], importance=LAPLACIAN), "pairs of 4 samples"),
    (lambda: contrastive_covariance(A, importance=GaussianImportance(), memory=3.0), "memory is too small"),
    (lambda: LAPLACIAN.product(A[:3]), r"tensor \(4, k\)"),
    (lambda: LAPLACIAN.product(A.float()), "torch.float64 tensor"),
    (lambda: LAPLACIAN.product(A.numpy()), r"tensor \(4, k\)"),
    (lambda: pair_laplacian(GaussianImportance()), "computes α from outputs, and none were given"),
    (lambda: pair_laplacian("uniform", A[:1]), "at least 2 samples, got 1"),
    (lambda: pair_laplacian("uniform", A.numpy()), "got ndarray"),
    (lambda: pair_laplacian(GaussianImportance(), A.numpy()), "got ndarray"),
    (lambda: pair_laplacian(torch.ones(4, 4).double(), A.numpy()), "got ndarray"),
    (
        lambda: pair_laplacian(ImportanceWeights(torch.ones(4, 4), torch.ones(3))),
        r"alpha must have shape \(3, 3\), got \(4, 4\)",
    ),
    (lambda: ImportanceWeights(np.ones((4, 4)), torch.ones(4)), "alpha must be Tensor, got ndarray"),
    (lambda: ImportanceWeights(torch.ones(4, 4), 2.0), "positive must be Tensor, got float"),
    (lambda: pair_laplacian(ImportanceWeights(torch.full((4, 4), torch.nan), torch.ones(4))), "NaN or infinite"),
    (lambda: pair_laplacian(GaussianImportance(), torch.tensor(1.0)), r"outputs must have shape \(n, z\)"),
    (lambda: pair_laplacian(GaussianImportance(), A.long()), "outputs must be a tensor of floating-point numbers"),
    (lambda: PairLaplacian.of_features(-torch.ones(4, 1)), "not negative"),
    (lambda: PairLaplacian.of_features(torch.ones(4)), r"features must have shape \(n, m\)"),
    (lambda: PairLaplacian.of_features(np.ones((4, 1))), "features must be a tensor of floating-point numbers"),
    (lambda: adjusted_covariance(A, torch.ones(3, 1)), r"features must have shape \(4, m\), got \(3, 1\)"),
    (lambda: gaussian_features(A, temperature=0.0, order=2), "temperature must be a positive"),
    (lambda: gaussian_features(A, temperature=1.0, order=-1), "order must be a whole number"),
    (lambda: gaussian_features(A, temperature=1.0, order=2, lower=9.0), "lower must be a number of at most -2.18"),
    (lambda: gaussian_features(A, temperature=1.0, order=2, lower="0"), "lower must be"),
    (lambda: gaussian_features(randn(4, 30), temperature=1.0, order=20), "monomials up to degree 20"),
    (lambda: gaussian_features(A.numpy(), temperature=1.0, order=2), "y must be"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[f"{k}" for k in range(len(REFUSED))])
def test_bad_input_is_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()
