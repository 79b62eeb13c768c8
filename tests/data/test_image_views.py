"""Where pixels go, and what they become. Crops and flips are tested in test_views.py."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kontrast.data import Affine, Brightness, Contrast, Gray
from kontrast.data.image_views import IMAGES_AT_ONCE, _moved
from kontrast.errors import InputError
from tests.cases import DTYPES, TOLERANCE, generator, randn

relaxed = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**32)
image_shapes = st.tuples(st.integers(0, 5), st.sampled_from([1, 3]), st.integers(1, 9), st.integers(1, 9))
strengths = st.floats(0, 1)


def moved(x: torch.Tensor, *, degrees: float = 0, shift: tuple[float, float] = (0, 0), factor: float = 1):
    """One map for all images; the shift in pixels, right and down."""
    n, (height, width) = len(x), x.shape[2:]
    full = torch.full((n,), 1.0, dtype=torch.float64)
    shifts = torch.tensor([[shift[0] / width, shift[1] / height]], dtype=torch.float64).expand(n, 2)
    return _moved(x, degrees=degrees * full, shifts=shifts, factors=factor * full)


def places(height: int, width: int) -> torch.Tensor:
    """(1, 2, h, w): each pixel's place right of and below the centre, in pixels."""
    down, across = (torch.arange(size, dtype=torch.float64) - (size - 1) / 2 for size in (height, width))
    return torch.stack([across.expand(height, width), down[:, None].expand(height, width)])[None]


@pytest.mark.parametrize("dtype, atol", [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("turns", [-1, 1, 2, 3, 4])
@pytest.mark.parametrize("side", [1, 6, 7, 28])
def test_quarter_turns_are_exact(dtype, atol, turns, side):
    x = torch.rand(2, 3, side, side, generator=generator(), dtype=dtype)
    torch.testing.assert_close(moved(x, degrees=90 * turns), x.rot90(turns, (2, 3)), rtol=0, atol=atol)


@pytest.mark.parametrize("right, down", [(0, 0), (2, 0), (0, -1), (-3, 2), (9, 0), (0, -7)])
def test_a_shift_by_whole_pixels_is_a_roll_with_zeros(right, down):
    x = randn(2, 1, 7, 9)
    expected = torch.zeros_like(x)
    for row in range(7):
        for column in range(9):
            if 0 <= row - down < 7 and 0 <= column - right < 9:
                expected[:, :, row, column] = x[:, :, row - down, column - right]
    torch.testing.assert_close(moved(x, shift=(right, down)), expected, rtol=0, atol=1e-12)


def test_a_factor_enlarges_about_the_center():
    x = torch.zeros(1, 1, 9, 13, dtype=torch.float64)
    x[0, 0, 4, 6] = 1.0  # the centre stays where it is
    x[0, 0, 4, 8] = 1.0
    doubled, halved = moved(x, factor=2.0)[0, 0, 4], moved(x, factor=0.5)[0, 0, 4]
    near = {"rel": 0, "abs": 1e-14}
    assert doubled.tolist() == pytest.approx([0, 0, 0, 0, 0, 0.5, 1, 0.5, 0, 0.5, 1, 0.5, 0], **near)
    assert halved.tolist() == pytest.approx([0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0], **near)


@relaxed
@given(
    size=st.tuples(st.integers(2, 14), st.integers(2, 14)),
    degrees=st.floats(-180, 180),
    shift=st.tuples(st.floats(-3, 3), st.floats(-3, 3)),
    factor=st.floats(0.3, 3.0),
)
def test_a_pixel_shows_the_place_that_the_map_brings_there(size, degrees, shift, factor):
    """Images of any shape whose values are their pixels' places: the view shows where each of its pixels was.

    In complex numbers, right + i·up, the map is z ↦ s·exp(iθ)·z + t.
    """
    here = places(*size)
    inside = torch.ones_like(here[:, :1])
    seen = moved(torch.cat([here, inside], dim=1), degrees=degrees, shift=shift, factor=factor)
    z = torch.complex(here[0, 0], -here[0, 1])
    was = (z - complex(shift[0], -shift[1])) / cmath.rect(factor, math.radians(degrees))
    whole = (was.real.abs() <= (size[1] - 1) / 2) & (was.imag.abs() <= (size[0] - 1) / 2)
    torch.testing.assert_close(seen[0, 0][whole], was.real[whole], rtol=0, atol=1e-11)
    torch.testing.assert_close(seen[0, 1][whole], -was.imag[whole], rtol=0, atol=1e-11)
    outside = (was.real.abs() > (size[1] + 1) / 2) | (was.imag.abs() > (size[0] + 1) / 2)
    assert (seen[0, 2][outside] == 0).all()


def test_a_turn_of_an_oblong_image_keeps_distances():
    height, width = 20, 60
    seen = moved(places(height, width), degrees=37.0)[0]
    right_step, down_step = seen[:, 10, 31] - seen[:, 10, 30], seen[:, 11, 30] - seen[:, 10, 30]
    for step in (right_step, down_step):
        assert step.norm() == pytest.approx(1.0, abs=1e-12)
    assert right_step.dot(down_step) == pytest.approx(0.0, abs=1e-12)


def test_affine_maps_cover_their_ranges_evenly():
    n, side = 4000, 9
    seen = Affine(rotation=20, shift=0.1, scale=0.3)(places(side, side).expand(n, 2, side, side), generator())
    center, step = seen[:, :, 4, 4], seen[:, :, 4, 5] - seen[:, :, 4, 4]  # -R^T t / s, and R^T (1, 0) / s
    angle, factor = torch.atan2(step[:, 1], step[:, 0]), 1 / step.norm(dim=1)
    cos, sin = angle.cos(), angle.sin()
    right = -factor * (cos * center[:, 0] + sin * center[:, 1])
    down = -factor * (cos * center[:, 1] - sin * center[:, 0])
    fifths = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
    for values, middle, reach in ((angle.rad2deg(), 0, 20), (factor, 1, 0.3), (right, 0, 0.9), (down, 0, 0.9)):
        at = ((values - middle) / reach).quantile(fifths)
        torch.testing.assert_close(at, 2 * fifths - 1, rtol=0, atol=0.06)
    drawn = torch.stack([angle, factor, right, down])
    assert (torch.corrcoef(drawn) - torch.eye(4)).abs().max() < 5 / math.sqrt(n)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_large_batch_is_moved_image_by_image(dtype):
    n = 2 * IMAGES_AT_ONCE + 3
    x = torch.rand(n, 1, 5, 6, generator=generator(), dtype=dtype)
    u = torch.rand(n, 4, generator=generator(1), dtype=torch.float64)
    maps = {"degrees": 360 * u[:, 0], "shifts": u[:, 1:3] - 0.5, "factors": 0.5 + u[:, 3]}
    whole = _moved(x, **maps)
    for image in (0, IMAGES_AT_ONCE - 1, IMAGES_AT_ONCE, n - 1):
        one = slice(image, image + 1)
        alone = _moved(x[one], **{name: values[one] for name, values in maps.items()})
        torch.testing.assert_close(whole[one], alone, **TOLERANCE[dtype])


@relaxed
@given(shape=image_shapes, dtype=st.sampled_from(DTYPES), seed=seeds)
def test_no_strength_is_the_identity(shape, dtype, seed):
    x = randn(*shape, dtype=dtype)
    for view in (Brightness(0), Contrast(0), Gray(0)):
        assert torch.equal(view(x, generator(seed)), x)
    atol = 1e-12 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(Affine(0, 0, 0)(x, generator(seed)), x, rtol=0, atol=atol)


def test_affine_in_float32_is_affine_in_float64():
    x = torch.rand(20, 3, 28, 28, generator=generator(), dtype=torch.float64)
    single = Affine()(x.float(), generator(1))
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), Affine()(x, generator(1)), rtol=0, atol=2e-5)


@relaxed
@given(shape=image_shapes, strength=strengths, seed=seeds)
def test_brightness_is_one_factor_an_image(shape, strength, seed):
    x = 0.5 + torch.rand(shape, generator=generator(), dtype=torch.float64)
    factors = (Brightness(strength)(x, generator(seed)) / x).flatten(1)
    assert ((factors >= 1 - strength - 1e-12) & (factors <= 1 + strength + 1e-12)).all()
    torch.testing.assert_close(factors, factors[:, :1].expand_as(factors), rtol=0, atol=1e-14)


@relaxed
@given(shape=image_shapes, strength=strengths, seed=seeds)
def test_contrast_keeps_the_mean_gray_and_stretches_around_it(shape, strength, seed):
    x = torch.rand(shape, generator=generator(), dtype=torch.float64)
    weights = torch.tensor([0.299, 0.587, 0.114] if shape[1] == 3 else [1.0], dtype=torch.float64)
    mean = torch.einsum("nchw,c->n", x, weights)[:, None, None, None] / (shape[2] * shape[3])
    u = torch.rand(shape[0], generator=generator(seed), dtype=torch.float64)[:, None, None, None]
    expected = mean + (x - mean) * (1 + strength * (2 * u - 1))
    seen = Contrast(strength)(x, generator(seed))
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-12)


def test_contrast_of_any_number_of_channels():
    x = randn(4, 5, 3, 3)
    seen = Contrast(0.9)(x, generator(1))
    torch.testing.assert_close(seen.mean(dim=(1, 2, 3)), x.mean(dim=(1, 2, 3)), **TOLERANCE[torch.float64])


@pytest.mark.parametrize("view", [Brightness(0.3), Contrast(0.3)])
def test_strengths_cover_their_range_evenly(view):
    x = torch.tensor([-1.0, 1.0], dtype=torch.float64).expand(4000, 1, 1, 2)
    factors = view(x, generator())[:, 0, 0, 1]
    fifths = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
    torch.testing.assert_close(factors.quantile(fifths), 0.7 + 0.6 * fifths, rtol=0, atol=0.02)


@relaxed
@given(shape=image_shapes, probability=strengths, seed=seeds)
def test_a_gray_image_has_equal_channels_and_keeps_its_luminance(shape, probability, seed):
    x = torch.rand(shape, generator=generator(), dtype=torch.float64)
    seen = Gray(probability)(x, generator(seed))
    if shape[1] == 1:
        assert torch.equal(seen, x)
        return
    luminance = torch.einsum("nchw,c->nhw", x, torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64))
    for image, sample, light in zip(seen, x, luminance, strict=True):
        if not torch.equal(image, sample):
            assert torch.equal(image[0], image[1])
            assert torch.equal(image[0], image[2])
            torch.testing.assert_close(image[0], light, rtol=0, atol=1e-14)


def test_gray_comes_as_often_as_asked():
    x = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1).expand(4000, 3, 1, 1)
    gray = Gray(0.2)(x, generator())[:, 1, 0, 0] > 0
    assert abs(float(gray.double().mean()) - 0.2) < 5 * math.sqrt(0.16 / 4000)
    assert (Gray(1.0)(x, generator())[:, 0] == Gray(1.0)(x, generator())[:, 2]).all()


def test_gray_refuses_channels_that_are_no_colors():
    with pytest.raises(InputError, match=r"3 channels \(red, green, blue\) or 1, got 4 channels; leave gray out"):
        Gray()(randn(2, 4, 3, 3), generator())


@pytest.mark.parametrize("view", [Affine, Brightness, Contrast, Gray])
def test_what_is_no_number_is_refused(view):
    with pytest.raises(InputError, match=r"must be a number of at least 0 and at most .*, got 'much'; write "):
        view("much")


def test_gradients_pass_through_views_of_images():
    x = randn(2, 3, 4, 5).requires_grad_()
    for view in (Affine(), Brightness(), Contrast(), Gray(0.5)):
        assert torch.autograd.gradcheck(lambda x, view=view: view(x, generator(2)), x)
