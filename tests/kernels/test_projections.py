from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers, sampled_from
from torch import Tensor

from kontrast.kernels import projections
from kontrast.kernels.projections import CountSketch, random_directions, rotated
from tests.cases import DTYPES, TOLERANCE, randn

seeds = integers(0, 2**16)


def sketch_of(n_buckets: int, n_numbers: int, seed: int, like: Tensor, few: int) -> CountSketch:
    """With a bucket for every number in up to `few` blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(projections, "FEW_BLOCKS", few)
        return CountSketch(n_buckets, n_numbers, seed=seed, like=like)


def as_matrix(sketch: CountSketch, n_numbers: int) -> Tensor:
    """(numbers, buckets): what it does to each number alone, by its place."""
    places = torch.arange(n_numbers)[:, None]
    out = torch.zeros(n_numbers, sketch.n_buckets, dtype=torch.float64)
    sketch.scatter(torch.ones(n_numbers, 1, dtype=torch.float64), places, out)
    return out


@pytest.mark.parametrize("few", [0, 64])
@given(seed=seeds, n_buckets=sampled_from([1, 3, 32, 100, 4096, 5000]), n_numbers=integers(1, 12_000))
def test_every_number_is_in_one_bucket_with_a_sign(few: int, seed: int, n_buckets: int, n_numbers: int) -> None:
    S = as_matrix(sketch_of(n_buckets, n_numbers, seed, torch.zeros(1, dtype=torch.float64), few), n_numbers)
    assert torch.equal(S.abs().sum(1), torch.ones(n_numbers, dtype=torch.float64))
    assert set(S.unique().tolist()) <= {-1.0, 0.0, 1.0}


@pytest.mark.parametrize("few", [0, 64])
@pytest.mark.parametrize("dtype", DTYPES)
@given(
    seed=seeds,
    n_buckets=sampled_from([1, 32, 100, 4096, 5000]),
    cuts=sampled_from([(0, 9000), (0, 1, 9000), (0, 4095, 4097, 8999, 9000), (0, 100, 5000, 9000)]),
    numbers=sampled_from([1, 10_000, 10**7]),
)
def test_slices_of_any_size_add_up_to_the_sketch_of_the_whole(
    dtype: torch.dtype, few: int, seed: int, n_buckets: int, cuts: tuple[int, ...], numbers: int
) -> None:
    values = randn(3, cuts[-1], seed=seed, dtype=dtype)
    sketch = sketch_of(n_buckets, cuts[-1], seed, values, few)
    out = values.new_zeros(3, n_buckets)
    for start, stop in itertools.pairwise(cuts):
        sketch.add(values[:, start:stop], start, out, numbers=numbers)
    expected = values.double() @ as_matrix(sketch, cuts[-1])
    tolerance = TOLERANCE[dtype]["rtol"] * float(values.norm(dim=1).max())
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("few", [0, 64])
def test_inner_products_are_unbiased(few: int) -> None:
    n_buckets, n_numbers, n_seeds = 16, 10_000, 400
    # The worst for numbers that share a shift and a sign: all alike, in three blocks, and a few that stand out.
    a, b = torch.ones(2, n_numbers, dtype=torch.float64)
    b[::n_buckets] = -3
    products = []
    for seed in range(n_seeds):
        sketch, out = sketch_of(n_buckets, n_numbers, seed, a, few), a.new_zeros(2, n_buckets)
        sketch.add(torch.stack([a, b]), 0, out, numbers=10**7)
        products.append(out[0] @ out[1])
    found = torch.stack(products)
    error = float(found.std()) / n_seeds**0.5
    assert abs(float(found.mean()) - float(a @ b)) < 4 * error
    assert error < 0.05 * float(a.norm() * b.norm())
    if few:  # the variance of independent buckets and signs
        squares = (a @ a) * (b @ b) + (a @ b) ** 2 - 2 * (a * b).square().sum()
        assert float(found.var()) == pytest.approx(float(squares) / n_buckets, rel=0.3)


@given(seed=seeds, d=integers(1, 300))
def test_a_rotation_keeps_inner_products_and_spreads_every_number(seed: int, d: int) -> None:
    x = randn(4, d, seed=seed)
    turned = rotated(x, seed)
    torch.testing.assert_close(turned @ turned.mT, x @ x.mT, rtol=1e-11, atol=1e-11)
    assert float(rotated(torch.eye(d, dtype=torch.float64), seed).abs().max()) <= (2 / d) ** 0.5 + 1e-12


@given(seed=seeds, c=integers(1, 40), share=integers(1, 40))
def test_directions_are_orthogonal_and_as_long_as_the_root_of_the_outputs(seed: int, c: int, share: int) -> None:
    q = min(c, share)
    V = random_directions(c, q, seed)
    torch.testing.assert_close(V @ V.mT, c * torch.eye(q, dtype=torch.float64), rtol=0, atol=1e-10)


def test_directions_favour_no_output() -> None:
    c, n_seeds = 5, 4000
    second = sum(V.mT @ V for V in (random_directions(c, 2, seed) for seed in range(n_seeds))) / (2 * n_seeds)
    torch.testing.assert_close(second, torch.eye(c, dtype=torch.float64), rtol=0, atol=0.06)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_buckets", [1, 32, 100, 128, 4096, 5000])
def test_a_gpu_folds_as_the_cpu_does(n_buckets: int, dtype: torch.dtype) -> None:
    cuts = [0, 7, 4096, 5001, 60_000, 60_001]
    values, far = randn(3, cuts[-1], seed=1, dtype=dtype), 3 * 2**31  # places beyond 32 bits
    sketch, on_gpu = (CountSketch(n_buckets, far + cuts[-1], seed=5, like=like) for like in (values, values.cuda()))
    for start, before in itertools.product(cuts[:-1], (0, far)):
        out = randn(3, 2 * n_buckets, seed=2, dtype=dtype)[:, :n_buckets]
        expected, found = out.clone(), out.cuda()
        some = values[:, start : start + 20_000]
        sketch.add(some, before + start, expected, numbers=10**6)
        on_gpu.add(some.cuda(), before + start, found, numbers=10**6)
        # One bucket is the sum of 20,000 numbers.
        torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=20_000 * torch.finfo(dtype).eps)
