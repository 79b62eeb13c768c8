from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import booleans, integers

from kontrast.kernels.contraction import _add_outer, _add_outers
from kontrast.kernels.products import add_product, in_pieces, product
from tests.cases import DTYPES, randn


@pytest.mark.parametrize("dtype", DTYPES)
@given(n=integers(1, 5), m=integers(1, 5), k=integers(1, 60), n_pieces=integers(1, 60))
def test_a_product_in_pieces_is_the_product(n: int, m: int, k: int, n_pieces: int, dtype: torch.dtype) -> None:
    a, b = randn(n, k, seed=1, dtype=dtype), randn(m, 2 * k, seed=2, dtype=dtype)[:, ::2]
    found = in_pieces(a, b, min(n_pieces, k))
    torch.testing.assert_close(found, a @ b.mT, rtol=0, atol=400 * torch.finfo(dtype).eps)


def test_small_terms_are_not_lost_on_top_of_a_large_number() -> None:
    k = 200_000
    a, out = torch.full((16, k), 2**-15.0), torch.full((16, 16), 8.0)
    add_product(a, a, out)
    assert float((out - 8 - k * 2**-30).abs().max()) < 1e-6


@given(q=integers(1, 4), T=integers(1, 5), positions_last=booleans(), first=booleans())
def test_outer_products_of_all_outputs_at_once(q: int, T: int, positions_last: bool, first: bool) -> None:
    r, o, i = 3, 4, 2
    B = randn(q, r, o, T, seed=1).mT if positions_last else randn(q, r, T, o, seed=1)
    H, before = randn(r, T, i, seed=2), randn(r, q, o, i, seed=3)
    expected, found = before.clone(), before.clone()
    for k in range(q):
        _add_outer(B[k, :, None].mT, H[:, None], expected[:, k, None], first=first)
    _add_outers(B, H, found, first=first)
    torch.testing.assert_close(found, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("n, m, k", [(64, 64, 100_003), (33, 200, 5000), (256, 256, 40_000), (512, 512, 70_001)])
def test_long_products_on_a_gpu_have_the_accuracy_of_float32(n: int, m: int, k: int) -> None:
    a, b = (randn(rows, k, seed=seed, dtype=torch.float32).cuda() for seed, rows in ((1, n), (2, m)))
    size = a.double().norm(dim=1)[:, None] * b.double().norm(dim=1)
    total = torch.ones(n, m, device="cuda")
    add_product(a, b, total)
    for found, sum_ in ((product(a, b), 0), (total, 1), (product(a, a), None)):
        right = a.double() @ (a if sum_ is None else b).double().mT
        scale = a.double().norm(dim=1)[:, None] * a.double().norm(dim=1) if sum_ is None else size
        # Sums of squares, on the diagonal of the last, lose most where tensor cores truncate.
        assert float(((found.double() - (sum_ or 0) - right) / scale).abs().max()) < 4e-6
