"""Means and deviations of columns, and samples standardised by them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kontrast.data import Columns, Dataset
from kontrast.errors import InputError
from tests.cases import DTYPES, TOLERANCE, randn

relaxed = settings(deadline=None, max_examples=25)
UNITS = torch.tensor([1e-8, 1.0, 1e3, 1e9], dtype=torch.float64)  # of columns, as tables have them
MEANS = torch.tensor([3.0, 0.0, -7.0, 1e6], dtype=torch.float64)  # in these units


def table(n: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return ((randn(n, 4, seed=seed) + MEANS) * UNITS).to(dtype)


@relaxed
@given(n=st.integers(2, 60), batch=st.integers(1, 60), seed=st.integers(0, 2**32))
def test_columns_are_those_of_numpy_however_samples_are_batched(n, batch, seed):
    x = table(n, seed=seed)
    columns = Columns.of(torch.split(x, batch))
    np.testing.assert_allclose(columns.mean, x.numpy().mean(0), rtol=1e-12, atol=1e-12 * float(UNITS[1]))
    np.testing.assert_allclose(columns.deviation, x.numpy().std(0), rtol=1e-7)  # the last column's mean has 6 digits


@relaxed
@given(n=st.integers(2, 60), seed=st.integers(0, 2**32))
def test_standardised_columns_have_mean_0_and_deviation_1(n, seed):
    again = Columns.of([Columns.of([x := table(n, seed=seed)]).standardize(x)])
    torch.testing.assert_close(again.mean, torch.zeros(4).double(), rtol=0, atol=1e-8)
    torch.testing.assert_close(again.deviation, torch.ones(4).double(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_constant_column_is_only_centred(dtype):
    x = torch.stack([torch.arange(7), torch.full((7,), 0.1), torch.zeros(7)], dim=1).to(dtype)
    columns = Columns.of(torch.split(x, 2))
    assert columns.deviation[1:].tolist() == [0, 0]
    assert columns.scale.tolist() == [2, 1, 1]
    seen = columns.standardize(x)
    assert seen.dtype == dtype
    torch.testing.assert_close(seen[:, 0], torch.arange(-3, 4) / torch.tensor(2.0, dtype=dtype), **TOLERANCE[dtype])
    torch.testing.assert_close(seen[:, 1:], torch.zeros(7, 2, dtype=dtype), rtol=0, atol=1e-12)


def test_single_precision_is_standardised_in_double():
    """Of 16,777,216 and its next two neighbours float32 holds the numbers, but no squares and no mean."""
    x = torch.tensor([[2.0**24], [2.0**24 + 2], [2.0**24 + 4]])
    seen = Columns.of([x]).standardize(x)
    torch.testing.assert_close(seen[:, 0], torch.tensor([-1.0, 0.0, 1.0]) * 1.5**0.5)


def test_images_are_standardised_by_pixels_and_rows_of_them_alike():
    x = randn(9, 2, 3, 4) * 5 + 2
    columns = Columns.of([x])
    assert columns.mean.shape == (2, 3, 4)
    assert torch.equal(columns.standardize(x.flatten(1)), columns.standardize(x).flatten(1))


def test_numbers_that_cannot_be_squared_are_refused():
    with pytest.raises(InputError, match=r"values up to 1e\+200, too large to square; scale them"):
        Columns.of([torch.tensor([[1e200], [-1e199]], dtype=torch.float64)])


def test_a_data_set_is_standardised_as_a_whole():
    x, y = table(5000), torch.arange(5000) % 3  # more than are held in float64 at once
    seen = Dataset(x, y, "mine").standardized()
    torch.testing.assert_close(seen.x, (x - x.mean(0)) / x.std(0, correction=0), rtol=0, atol=1e-8)
    assert torch.equal(seen.y, y)
    assert seen.name == "mine"


@pytest.mark.parametrize(
    "x, name, is_table",
    [(randn(3, 2), "mine.csv", True), (randn(3, 2), "moons", False), (randn(3, 1, 2, 2), "i", False)],
)
def test_tables_are_rows_of_ones_own(x, name, is_table):
    assert Dataset(x, None, name).is_table == is_table
