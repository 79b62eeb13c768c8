"""Kernels of samples: by their entries, with the diagonal they say, and as what they are the limit or product of."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers, sampled_from
from torch import nn

from kontrast.errors import InputError
from kontrast.kernels import (
    CosineKernel,
    FeatureKernel,
    GaussianKernel,
    InfiniteNetwork,
    NetworkKernel,
    TangentKernel,
    empirical_ntk_trace,
)
from kontrast.nets import MLP, FourierFeatures, NetworkFeatures, ScaledFeatures
from tests.cases import DTYPES, generator, randn
from tests.reference.regression import kernel_by_entries

KERNELS = [
    TangentKernel(InfiniteNetwork(depth=2, bias_std=0.3)),
    TangentKernel(InfiniteNetwork(activation="erf")),
    FeatureKernel(lambda x: torch.tanh(x.flatten(1))[:, :3]),
    NetworkKernel(InfiniteNetwork(depth=2, activation="erf")),
    GaussianKernel(2.0),
    CosineKernel(NetworkKernel(InfiniteNetwork()), 1e-3),
    CosineKernel(TangentKernel(InfiniteNetwork()), 0.1),
]


@given(seed=integers(0, 2**10), kernel=sampled_from(KERNELS))
def test_kernels_are_symmetric_and_have_the_diagonal_they_say(seed: int, kernel: TangentKernel) -> None:
    x, y = randn(6, 5, seed=seed), randn(4, 5, seed=seed + 1)
    K = kernel(x)
    torch.testing.assert_close(K, K.mT, rtol=0, atol=1e-12)
    torch.testing.assert_close(K.diagonal(), kernel.diagonal(x), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(kernel(x, y), kernel(torch.cat([x, y]))[:6, 6:], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(kernel(x.view(6, 1, 1, 5)), K)


def test_kernels_by_their_definitions() -> None:
    x, y = randn(5, 3), randn(4, 3, seed=1)
    gaussian = [[math.exp(-float((a - b).square().sum()) / (2 * 1.5**2)) for b in y] for a in x]
    torch.testing.assert_close(
        GaussianKernel(1.5)(x, y), torch.tensor(gaussian, dtype=torch.float64), rtol=1e-10, atol=0
    )
    plain, delta = NetworkKernel(InfiniteNetwork()), 0.3
    K = plain(x, y)
    cosine = [
        [
            float(K[i, j])
            / (
                (math.sqrt(float(plain.diagonal(a[None]))) + delta)
                * (math.sqrt(float(plain.diagonal(b[None]))) + delta)
            )
            for j, b in enumerate(y)
        ]
        for i, a in enumerate(x)
    ]
    torch.testing.assert_close(
        CosineKernel(plain, delta)(x, y), torch.tensor(cosine, dtype=torch.float64), rtol=1e-12, atol=0
    )
    blank = torch.zeros(2, 3, dtype=torch.float64)
    assert torch.equal(CosineKernel(plain, delta)(blank, y), torch.zeros(2, 4).double())


@pytest.mark.parametrize(
    ("kernel", "draw"),
    [
        (
            NetworkKernel(InfiniteNetwork(depth=2)),
            lambda g: NetworkFeatures.draw(4, 500, depth=2, activation="relu", generator=g),
        ),
        (GaussianKernel(1.5), lambda g: FourierFeatures.draw(4, 500, length_scale=1.5, generator=g)),
    ],
)
@pytest.mark.parametrize("delta", [None, 0.1])
def test_kernels_are_the_limits_of_the_scaled_features(kernel: object, draw: object, delta: float | None) -> None:
    """Monte Carlo: the mean of ΦΦ^T over draws, within 5 standard errors of it."""
    x = randn(5, 4)
    limit = (kernel if delta is None else CosineKernel(kernel, delta))(x)
    products = []
    for seed in range(20):
        phi = ScaledFeatures(draw(generator(seed)), delta)(x)
        products.append(phi @ phi.mT)
    drawn = torch.stack(products)
    error = drawn.std(0) / math.sqrt(20)
    bias = 2 / 500  # the cosine of finitely many features is biased by some 1/M
    assert ((drawn.mean(0) - limit).abs() <= 5 * error + bias * limit.abs().max() + 1e-9).all()


def test_the_tangent_kernel_is_that_of_a_wide_network() -> None:
    x, y = randn(4, 3), randn(5, 3, seed=1)
    net = MLP(3, 20_000, 1, generator=generator(), dtype=torch.float64)
    exact = TangentKernel(InfiniteNetwork())(x, y)
    torch.testing.assert_close(empirical_ntk_trace(net, x, y), exact, rtol=0, atol=0.05 * float(exact.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_of_features_by_its_entries_and_without_gradients(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    frozen = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Unflatten(1, (2, 2))).to(dtype)
    x, y = randn(5, 3, dtype=dtype), randn(2, 3, seed=1, dtype=dtype)
    K = FeatureKernel(frozen)(x, y)
    assert K.dtype == dtype
    assert not K.requires_grad
    entries = kernel_by_entries(lambda a, b: float((frozen(a[None]) * frozen(b[None])).sum().detach()), x, y)
    torch.testing.assert_close(K.double(), entries, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize(
    "features, given_back",
    [
        (lambda x: x.numpy(), "got ndarray"),
        (lambda x: x[:, 0], r"got torch.float64 \(5,\)"),
        (lambda x: x[1:], r"got torch.float64 \(4, 3\)"),
        (lambda x: x.long(), r"got torch.int64 \(5, 3\)"),
    ],
)
def test_features_that_are_no_matrix_of_floats_are_refused(features, given_back: str) -> None:
    with pytest.raises(InputError, match=rf"features must return \(5, M\) floats for 5 samples, {given_back}"):
        FeatureKernel(features)(randn(5, 3))


def test_numpy_features_are_refused_for_the_diagonal_too() -> None:
    with pytest.raises(InputError, match="features must return"):
        FeatureKernel(lambda x: np.zeros((len(x), 2))).diagonal(randn(5, 3))  # type: ignore[arg-type,return-value]
