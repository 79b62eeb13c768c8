from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kontrast.data import (
    Affine,
    Brightness,
    Compose,
    Contrast,
    Dataset,
    GaussianNoise,
    Gray,
    HorizontalFlip,
    Masking,
    Mixup,
    RandomResizedCrop,
    RelativeNoise,
    default_view,
    parse_view,
)
from kontrast.errors import InputError
from tests.cases import DTYPES, TOLERANCE, generator, randn
from tests.reference import crop as reference

relaxed = settings(deadline=None, max_examples=25)
NAMES = ["affine", "brightness", "contrast", "crop", "flip", "gray", "mask", "mixup", "noise"]
seeds = st.integers(0, 2**32)
image_shapes = st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9))


@st.composite
def ranges(draw: st.DrawFn, low: float, high: float) -> tuple[float, float]:
    return tuple(sorted([draw(st.floats(low, high)), draw(st.floats(low, high))]))


crops = st.builds(RandomResizedCrop, ranges(0.05, 1.0), ranges(0.2, 5.0))
flips = st.builds(HorizontalFlip, st.floats(0, 1))
newer = st.one_of(
    st.builds(Affine, st.floats(0, 180), st.floats(0, 1), st.floats(0, 0.99)),
    *(st.builds(view, st.floats(0, 1)) for view in (Brightness, Contrast, Gray, Masking)),
    st.builds(Mixup, st.floats(0, 0.5)),
)


def views(largest_std: float) -> st.SearchStrategy:
    return composed(st.one_of(crops, flips, st.builds(GaussianNoise, st.floats(0, largest_std)), newer))


def composed(single: st.SearchStrategy) -> st.SearchStrategy:
    return st.one_of(single, st.builds(Compose, st.lists(single, min_size=1, max_size=4).map(tuple)))


@relaxed
@given(
    view=views(10.0), shape=image_shapes.filter(lambda shape: shape[1] != 2), dtype=st.sampled_from(DTYPES), seed=seeds
)
def test_a_view_keeps_shape_and_type_and_depends_on_the_seed_alone(view, shape, dtype, seed):
    x = randn(*shape, dtype=dtype)
    before = x.clone()
    seen = view(x, generator(seed))
    assert seen.shape == x.shape
    assert seen.dtype == dtype
    assert torch.equal(seen, view(x, generator(seed)))
    assert torch.equal(x, before)


@relaxed
@given(
    shape=image_shapes.filter(lambda shape: shape[0] > 0), area=ranges(0.05, 1.0), ratio=ranges(0.2, 5.0), seed=seeds
)
def test_a_crop_is_the_slow_crop(shape, area, ratio, seed):
    x = randn(*shape)
    u = torch.rand(len(x), 4, generator=generator(seed), dtype=torch.float64)
    seen = RandomResizedCrop(area, ratio)(x, generator(seed))
    torch.testing.assert_close(seen, reference.crop(x, area, ratio, u), rtol=0, atol=1e-12)


@relaxed
@given(area=ranges(0.2, 1.0), seed=seeds, slopes=st.tuples(st.floats(-3, 3), st.floats(-3, 3)))
def test_a_crop_of_a_ramp_is_the_ramp_at_the_sampled_places(area, seed, slopes):
    height, width = 7, 10
    rows, columns = torch.arange(7, dtype=torch.float64), torch.arange(10, dtype=torch.float64)
    ramp = 0.3 + slopes[0] * rows[:, None] + slopes[1] * columns
    seen = RandomResizedCrop(area)(ramp[None, None], generator(seed))[0, 0]
    u = torch.rand(1, 4, generator=generator(seed), dtype=torch.float64)[0].tolist()
    left, top, box_width, box_height = reference.box(height, width, area, (1.0, 1.0), u)
    at_rows = torch.tensor(reference.sources(top, box_height, height), dtype=torch.float64)
    at_columns = torch.tensor(reference.sources(left, box_width, width), dtype=torch.float64)
    expected = 0.3 + slopes[0] * at_rows[:, None] + slopes[1] * at_columns
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype, atol", [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("shape", [(4, 1, 28, 28), (2, 3, 31, 64), (2, 1, 1, 1), (1, 1, 224, 224)])
def test_a_crop_of_the_whole_area_is_the_identity(dtype, atol, shape):
    x = torch.rand(shape, generator=generator(), dtype=dtype)
    torch.testing.assert_close(RandomResizedCrop(area=(1.0, 1.0))(x, generator()), x, rtol=0, atol=atol)


def test_a_large_batch_is_cropped_image_by_image_with_its_own_box():
    x = torch.rand(1, 1, 6, 6, generator=generator(), dtype=torch.float64).expand(2500, 1, 6, 6)
    u = torch.rand(2500, 4, generator=generator(1), dtype=torch.float64)
    seen = RandomResizedCrop()(x, generator(1))
    for image in (0, 1023, 1024, 2499):
        expected = reference.crop(x[:1], (0.5, 1.0), (1.0, 1.0), u[image : image + 1])
        torch.testing.assert_close(seen[image : image + 1], expected, rtol=0, atol=1e-12)
    assert len(seen.flatten(1).unique(dim=0)) == 2500


def test_the_area_of_crops_is_uniform():
    steps = torch.arange(32, dtype=torch.float64).expand(4000, 1, 32, 32)  # a ramp's slope is the box's width
    seen = RandomResizedCrop(area=(0.3, 0.9))(steps, generator())
    share = (seen[:, 0, 0, 20] - seen[:, 0, 0, 10]).div(10).square()
    quantiles = share.quantile(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64))
    torch.testing.assert_close(quantiles, torch.linspace(0.3, 0.9, 5, dtype=torch.float64), rtol=0, atol=0.015)


def test_gradients_pass_through_a_crop():
    x = randn(2, 1, 4, 4).requires_grad_()
    view = RandomResizedCrop()
    assert torch.autograd.gradcheck(lambda x: view(x, generator(2)), x)


@relaxed
@given(shape=image_shapes, seed=seeds)
def test_a_certain_flip_is_an_involution_and_an_impossible_one_the_identity(shape, seed):
    x = randn(*shape)
    once = HorizontalFlip(1.0)(x, generator(seed))
    assert torch.equal(once, x.flip(-1))
    assert torch.equal(HorizontalFlip(1.0)(once, generator(seed + 1)), x)
    assert torch.equal(HorizontalFlip(0.0)(x, generator(seed)), x)


def test_flips_come_as_often_as_asked():
    x = torch.tensor([0.0, 1.0]).expand(4000, 1, 1, 2)
    flipped = HorizontalFlip(0.3)(x, generator())[:, 0, 0, 0]
    assert set(flipped.unique().tolist()) == {0.0, 1.0}
    assert abs(float(flipped.mean()) - 0.3) < 5 * math.sqrt(0.21 / 4000)


@pytest.mark.parametrize("shape", [(500, 80), (100, 1, 20, 20)])
def test_noise_has_the_standard_deviation_asked_for(shape):
    x = randn(*shape, seed=1)
    noise = GaussianNoise(0.25)(x, generator()) - x
    n = noise.numel()
    assert abs(float(noise.std()) / 0.25 - 1) < 5 / math.sqrt(2 * n)
    assert abs(float(noise.mean())) < 0.25 * 5 / math.sqrt(n)
    assert torch.equal(GaussianNoise(0)(x, generator()), x)


def test_a_composition_applies_its_views_in_order():
    x = randn(3, 1, 5, 5)
    crop, flip, noise = RandomResizedCrop(), HorizontalFlip(), GaussianNoise()
    g = generator(4)
    expected = noise(flip(crop(x, g), g), g)
    assert torch.equal(Compose((crop, flip, noise))(x, generator(4)), expected)
    assert torch.equal(Compose((Compose((crop, flip)), noise))(x, generator(4)), expected)
    assert Compose((Compose((crop, flip)), noise)) == Compose((crop, flip, noise))


@relaxed
@given(view=views(1e300))
def test_the_text_of_a_view_reads_back_as_the_view(view):
    same = view.views[0] if isinstance(view, Compose) and len(view.views) == 1 else view
    assert parse_view(str(view)) == same
    assert str(parse_view(str(view))) == str(view)


@pytest.mark.parametrize(
    "text, view",
    [
        ("crop", RandomResizedCrop()),
        ("crop:0.5,1.0", RandomResizedCrop()),
        ("crop:0.8,1", RandomResizedCrop((0.8, 1.0))),
        ("crop:0.5,1.0,0.75,1.25", RandomResizedCrop((0.5, 1.0), (0.75, 1.25))),
        ("flip", HorizontalFlip()),
        ("flip:0.25", HorizontalFlip(0.25)),
        ("noise", GaussianNoise()),
        ("noise:1e-3", GaussianNoise(0.001)),
        ("relative-noise", RelativeNoise(0.1)),
        ("relative-noise:0.5", RelativeNoise(0.5)),
        ("affine", Affine(15, 0.05, 0.2)),
        ("affine:30,0,0.2", Affine(30, 0.0, 0.2)),
        ("brightness", Brightness(0.4)),
        ("contrast:0.1", Contrast(0.1)),
        ("gray", Gray(0.2)),
        ("mask:0.5", Masking(0.5)),
        ("mask", Masking(0.25)),
        ("mixup", Mixup(0.2)),
        ("crop:0.4,1+gray", Compose((RandomResizedCrop((0.4, 1.0)), Gray()))),
        ("crop+flip+noise:0.05", Compose((RandomResizedCrop(), HorizontalFlip(), GaussianNoise(0.05)))),
        (" crop + flip ", Compose((RandomResizedCrop(), HorizontalFlip()))),
    ],
)
def test_texts_of_views(text, view):
    assert parse_view(text) == view


@pytest.mark.parametrize(
    "part", ["", "blur", "crop:", "crop:0.5", "crop:a,b", "flip:1,2", "noise:x", "CROP", "crop:1;2"]
)
def test_a_text_that_is_no_view_is_refused(part):
    for text in (part, f"crop+{part}"):
        with pytest.raises(InputError) as caught:
            parse_view(text)
        message = str(caught.value)
        assert f"cannot read {part!r} in the view {text!r}" in message
        assert "crop:0.5,1.0" in message
        assert "affine, brightness, contrast, crop, flip, gray, mask, mixup, noise and relative-noise" in message
        assert "\n" not in message


@pytest.mark.parametrize(
    "text, hint",
    [
        ("grey", "did you mean gray?"),
        ("CROP", "did you mean crop?"),
        ("crop+brigthness:0.2", "did you mean brightness?"),
        ("xyz", "no view has this name"),
        ("affine:15", "affine takes 0 or 3 numbers, not 1"),
        ("crop:1,2,3", "crop takes 0, 2 or 4 numbers, not 3"),
        ("mixup:a", "numbers separated by commas follow the colon"),
    ],
)
def test_a_text_that_is_no_view_is_told_why(text, hint):
    with pytest.raises(InputError) as caught:
        parse_view(text)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    "text, given_text, fix",
    [
        ("crop:0,1", "(0.0, 1.0)", "0 < low <= high <= 1"),
        ("crop:0.9,0.5", "(0.9, 0.5)", "low <= high"),
        ("crop:0.5,1.5", "(0.5, 1.5)", "<= 1"),
        ("crop:nan,1", "(nan, 1.0)", "0 < low"),
        ("crop:0.5,1,2,inf", "(2.0, inf)", "ratio must be two numbers (low, high) with 0 < low <= high,"),
        ("flip:1.5", "1.5", "at least 0 and at most 1"),
        ("flip:nan", "nan", "write flip:0.5"),
        ("noise:-1", "-1.0", "at least 0"),
        ("noise:inf", "inf", "at least 0"),
        ("relative-noise:-1", "-1.0", "share must be a finite number of at least 0"),
        ("affine:181,0,0", "181.0", "rotation must be a number of at least 0 and at most 180"),
        ("affine:-1,0,0", "-1.0", "rotation must be a number of at least 0 and at most 180"),
        ("affine:1,1.5,0", "1.5", "shift must be a number of at least 0 and at most 1,"),
        ("affine:1,0,1", "1.0", "scale must be a number of at least 0 and at most 0.99"),
        ("brightness:2", "2.0", "write brightness:0.4"),
        ("contrast:nan", "nan", "write contrast:0.4"),
        ("gray:-0.1", "-0.1", "write gray:0.2"),
        ("mask:1.1", "1.1", "write mask:0.25"),
        ("mixup:0.6", "0.6", "share must be a number of at least 0 and at most 0.5"),
    ],
)
def test_impossible_numbers_are_refused(text, given_text, fix):
    with pytest.raises(InputError) as caught:
        parse_view(text)
    assert str(caught.value).startswith(f"{text!r} is not a view: ")
    assert f"got {given_text}" in str(caught.value)
    assert fix in str(caught.value)


@pytest.mark.parametrize("bounds", [0.5, (0.5,), ("0.5", "1"), (True, True), None])
def test_the_bounds_of_a_crop_are_two_numbers(bounds):
    for name in ("area", "ratio"):
        with pytest.raises(InputError, match=rf"{name} must be two numbers \(low, high\)"):
            RandomResizedCrop(**{name: bounds})


@pytest.mark.parametrize("name", ["crop", "flip", "affine", "brightness", "contrast", "gray"])
def test_views_of_images_refuse_rows(name):
    view = parse_view(name)
    with pytest.raises(InputError, match=rf"view {name} needs images.*got shape \(4, 9\); use a noise view"):
        view(randn(4, 9), generator())


@pytest.mark.parametrize("name", NAMES)
def test_views_refuse_integers(name):
    view = parse_view(name)
    with pytest.raises(
        InputError, match=r"floating-point numbers, got torch.uint8 .*; convert the samples with x.float\(\)"
    ):
        view(torch.zeros(2, 1, 3, 3, dtype=torch.uint8), generator())


def test_an_empty_composition_is_refused():
    with pytest.raises(InputError, match="at least one view, got none; write crop"):
        Compose(())


def test_the_default_view_fits_the_data():
    assert default_view(Dataset(randn(2, 1, 3, 3), None, "images")) == RandomResizedCrop((0.5, 1.0))
    assert default_view(Dataset(randn(2, 3), None, "rows")) == GaussianNoise(0.1)


def test_crops_agree_with_interpolation_of_the_left_half():
    """The box that is the left half, resized to full width, is what torch's own interpolation makes of it."""
    x = randn(1, 2, 8, 8)
    half = F.interpolate(x, size=(8, 16), mode="bilinear", align_corners=False)[..., 1:7]  # clear of all borders
    u = torch.tensor([[0.5, 1.0, 0.0, 0.0]], dtype=torch.float64)
    slow = reference.crop(x, (0.0, 1.0), (0.25, 0.5), u)
    assert reference.box(8, 8, (0.0, 1.0), (0.25, 0.5), [0.5, 1.0, 0.0, 0.0]) == (0.0, 0.0, 4.0, 8.0)
    torch.testing.assert_close(slow[..., 1:7], half, **TOLERANCE[torch.float64])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_floats_stay_half_floats(name, dtype):
    x = torch.rand(5, 3, 6, 6, generator=generator()).to(dtype)
    seen = parse_view(name)(x, generator())
    assert seen.dtype == dtype
    assert seen.isfinite().all()


def test_noise_crops_and_flips_are_those_of_the_first_release():
    """Stored claims and studies were drawn with these numbers."""
    first_release = """
        1.903486182915831 2.4946349409261255 3.0985862618015023 3.647684485121568
        5.048294305360503 5.591736885909548 6.257554898220472 6.800128562670345
        8.693854122162106 9.669485404095166 10.643108204881425 11.65011258858403
        11.548178360753743 12.772833256102587 13.581335365456457 14.348411749510344
    """
    x = torch.arange(16, dtype=torch.float64).view(2, 1, 2, 4)
    seen = parse_view("crop:0.3,0.9,0.5,2+flip+noise")(x, generator(7))
    expected = torch.tensor([float(word) for word in first_release.split()], dtype=torch.float64)
    torch.testing.assert_close(seen.flatten(), expected, rtol=0, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("text", [*NAMES, "crop+flip+noise", "+".join(NAMES)])
def test_a_seed_gives_the_same_view_on_a_gpu(text):
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    x = randn(8, 3, 12, 12)
    view = parse_view(text)
    seen = view(x.cuda(), generator(1))
    assert seen.device.type == "cuda"
    torch.testing.assert_close(seen.cpu(), view(x, generator(1)), **TOLERANCE[torch.float64])
