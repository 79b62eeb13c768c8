"""The data matrix of paper B, (5): the loss is its trace, streaming changes nothing, and the mean is the covariance."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import booleans, integers, sampled_from
from torch import Tensor

from kontrast.data import GaussianNoise, Pairs, make_pairs
from kontrast.deep_linear import data_matrix, expected_data_matrix, pair_weights
from kontrast.errors import InputError
from kontrast.losses import alignment_loss, contrastive_trace_loss
from kontrast.pca import contrastive_matrix
from tests.cases import DTYPES, TOLERANCE, generator, randn
from tests.reference import ssl as reference

SIZES = {
    "m": integers(1, 6),
    "n": integers(1, 5),
    "P": integers(1, 3),
    "Q": integers(0, 4),
    "seed": integers(0, 2**16),
    "shared": booleans(),
}


def random_pairs(
    *,
    m: int,
    n: int,
    P: int,
    Q: int,
    seed: int,
    shared: bool = False,
    weighted: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Pairs:
    """Indices drawn with repetition, so that pairs come twice and points are paired with themselves."""
    g = generator(seed)
    anchor, positive = torch.randint(0, m, (n,), generator=g), torch.randint(0, m, (n, P), generator=g)
    negative = torch.randint(0, m, (1 if shared else n, Q), generator=g)
    weight = torch.rand(n, Q, generator=g, dtype=torch.float64).to(dtype) if weighted else None
    return Pairs(randn(m, 3, seed=seed, dtype=dtype), anchor, positive, negative, weight)


def squares(x: Tensor) -> Tensor:
    return torch.cat([x, x.square()], dim=1)


@given(**SIZES, dtype=sampled_from(DTYPES), symmetric=booleans())
def test_the_loss_of_a_linear_map_is_a_trace(dtype: torch.dtype, symmetric: bool, **sizes: int) -> None:
    pairs = random_pairs(**sizes, dtype=dtype)
    weights = randn(2, 3, seed=sizes["seed"] + 1, dtype=dtype)
    C = data_matrix(pairs, symmetric=symmetric)
    assert C.dtype == dtype
    trace = torch.trace(weights @ C @ weights.mT)
    parts = pairs.split(pairs.x @ weights.mT)
    # Terms of order 10 may cancel in the sum.
    tolerance = {**TOLERANCE[dtype], "atol": 100 * TOLERANCE[dtype]["atol"]}
    torch.testing.assert_close(trace, contrastive_trace_loss(*parts).total, **tolerance)
    if sizes["Q"] == 0:
        torch.testing.assert_close(trace, alignment_loss(*parts[:2]).total, **tolerance)


@given(**SIZES, weighted=booleans(), symmetric=booleans(), batch_size=sampled_from([None, 1, 2, 100]))
def test_it_is_the_sum_over_pairs_for_any_batches(
    symmetric: bool, weighted: bool, batch_size: int | None, **sizes: int
) -> None:
    pairs = random_pairs(**sizes, weighted=weighted)
    expected = reference.data_matrix(pairs, squares(pairs.x))
    found = data_matrix(pairs, features=squares, symmetric=symmetric, batch_size=batch_size)
    torch.testing.assert_close(
        found, (expected + expected.mT) / 2 if symmetric else expected, **TOLERANCE[torch.float64]
    )
    if symmetric:
        assert torch.equal(found, found.mT)


@given(**SIZES, weighted=booleans(), dtype=sampled_from(DTYPES))
def test_the_pair_weights_serve_linear_and_kernel_models(weighted: bool, dtype: torch.dtype, **sizes: int) -> None:
    pairs = random_pairs(**sizes, weighted=weighted, dtype=dtype)
    S = pair_weights(pairs)
    assert S.is_sparse
    assert torch.equal(S.to_dense(), S.to_dense().mT)
    tolerance = {**TOLERANCE[dtype], "atol": 100 * TOLERANCE[dtype]["atol"]}
    torch.testing.assert_close(contrastive_matrix(pairs.x, S), data_matrix(pairs), **tolerance)
    if not weighted:
        U = randn(sizes["m"], 2, seed=sizes["seed"] + 2, dtype=dtype)
        loss = contrastive_trace_loss(*pairs.split(U)).total
        torch.testing.assert_close(torch.trace(U.mT @ (S @ U)), loss, **tolerance)


def test_streaming_never_asks_for_more_than_a_batch() -> None:
    pairs = make_pairs(randn(40, 3), views=GaussianNoise(0.1), negatives="all", generator=generator())
    asked: list[int] = []

    def features(x: Tensor) -> Tensor:
        asked.append(len(x))
        return x

    found = data_matrix(pairs, features=features, batch_size=7)
    assert max(asked) == 7
    torch.testing.assert_close(found, data_matrix(pairs), **TOLERANCE[torch.float64])


def test_images_are_rows_or_whatever_the_features_make_of_them() -> None:
    pairs = make_pairs(randn(5, 1, 2, 3), views=GaussianNoise(0.1), generator=generator())
    torch.testing.assert_close(data_matrix(pairs), data_matrix(pairs, features=lambda x: x.flatten(1)))
    assert data_matrix(pairs, features=lambda x: x.mean((2, 3))).shape == (1, 1)


def test_float32_batches_are_added_up_in_float64() -> None:
    """Equal terms 1/3 one by one: 20,000 additions in float32 are off by 1e-4, in float64 by nothing to float32."""
    n = 20_000
    zeros = torch.zeros(n, dtype=torch.int64)
    x = torch.full((1, 1), 3.0**-0.5, dtype=torch.float32)
    pairs = Pairs(x, zeros, zeros[:, None], torch.empty(n, 0, dtype=torch.int64))
    found = data_matrix(pairs, batch_size=10)
    assert float(found) == pytest.approx(-n * float(x.double().square()), rel=3e-7)


@given(n=integers(2, 7), seed=integers(0, 2**16), shrunk=booleans(), dtype=sampled_from(DTYPES))
def test_the_expectation_is_the_mean_over_all_negatives(n: int, seed: int, shrunk: bool, dtype: torch.dtype) -> None:
    x, A = randn(n, 3, seed=seed, dtype=dtype), randn(3, 3, seed=seed + 1, dtype=dtype)
    tolerance = {**TOLERANCE[dtype], "atol": 100 * TOLERANCE[dtype]["atol"]}
    mean = x @ A if shrunk else x
    C = reference.expected_data_matrix(x.double(), mean.double())
    found = expected_data_matrix(x, view_mean=(lambda rows: rows @ A) if shrunk else None)
    assert found.dtype == dtype
    torch.testing.assert_close(found, ((C + C.mT) / 2).to(dtype), **tolerance)
    if not shrunk:
        torch.testing.assert_close(found, -n * torch.cov(x.mT), **tolerance)
    alone = expected_data_matrix(x, view_mean=(lambda rows: rows @ A) if shrunk else None, contrastive=False)
    torch.testing.assert_close(alone, -(x.mT @ mean + mean.mT @ x) / 2, **tolerance)


@pytest.mark.parametrize("negatives", [1, 0])
def test_the_mean_of_many_draws_tends_to_the_expectation(negatives: int) -> None:
    x, g = randn(12, 3) + 1, generator(1)
    draws = torch.stack(
        [data_matrix(make_pairs(x, views=GaussianNoise(0.5), negatives=negatives, generator=g)) for _ in range(500)]
    )
    expected = expected_data_matrix(x, contrastive=negatives > 0)
    error = draws.std(0) / 500**0.5
    assert ((draws.mean(0) - expected).abs() < 4.5 * error).all()
    assert (expected.abs() > 6 * error).any()  # the errors are small enough to tell


def test_bad_input_is_refused() -> None:
    none = torch.empty(0, 1, dtype=torch.int64)
    one = torch.zeros(1, 1, dtype=torch.int64)
    pairs = Pairs(randn(3, 2), one[0], one, one)
    for broken, options, message in (
        (Pairs(randn(3, 2), none[:, 0], none, none), {}, "no anchors"),
        (
            Pairs(torch.ones(3, 2, dtype=torch.uint8), one[0], one, one),
            {},
            r"pairs.x must be a tensor of floating-point numbers, got torch.uint8 .*; use pairs.to",
        ),
        (Pairs(torch.full((1, 2), torch.nan), one[0], one, one), {}, "NaN"),
        (pairs, {"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        (pairs, {"features": lambda x: x[0]}, r"features must return floating-point rows \(3, d\)"),
        (pairs, {"features": lambda x: x.numpy()}, r"rows \(3, d\) for 3 points, got ndarray"),
        (pairs, {"features": "pixels"}, "features must be a function, got str; pass"),
        (randn(3, 2), {}, "pairs must be Pairs, got torch.float64 .*; make them with kontrast.data.make_pairs"),
        (randn(3, 2).numpy(), {}, "pairs must be Pairs, got ndarray"),
    ):
        with pytest.raises(InputError, match=message):
            data_matrix(broken, **options)
    with pytest.raises(InputError, match=r"pairs must be Pairs, got torch.float64"):
        pair_weights(randn(3, 2))


@pytest.mark.parametrize(
    ("x", "view_mean", "message"),
    [
        (randn(1, 3), None, "at least 2 rows, got 1"),
        (randn(4, 3).numpy(), None, r"x must be a tensor of floating-point numbers, got ndarray; use torch.as_tensor"),
        ([[1.0], [2.0]], None, "got list"),
        (torch.ones(4, 3, dtype=torch.int64), None, r"got torch.int64 \(4, 3\)"),
        (randn(4, 3), lambda x: x[:, :2], r"view_mean\(x\) must have shape \(4, 3\), got \(4, 2\)"),
        (randn(4, 3), lambda x: x.numpy(), r"view_mean\(x\) must be a tensor of floating-point numbers, got ndarray"),
        (randn(4, 3), "a", "view_mean must be a function, got str; pass"),
        (randn(4, 3) / 0, None, "NaN"),
    ],
)
def test_bad_samples_and_means_are_refused(x: Tensor, view_mean: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(InputError, match=message):
        expected_data_matrix(x, view_mean=view_mean)
