"""A view that tells its numbers is the same view, and the numbers are those that made it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kontrast.data import (
    Affine,
    Brightness,
    Compose,
    GaussianNoise,
    Mixup,
    parse_view,
    view_parts,
    view_with_parameters,
)
from kontrast.errors import InputError
from tests.cases import DTYPES, generator, randn

PARTS = ["crop:0.2,0.9,0.5,2", "flip:0.3", "affine", "brightness", "contrast", "gray:0.5", "mixup", "noise", "mask"]
relaxed = settings(deadline=None, max_examples=25)


@relaxed
@given(
    parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=5),
    n=st.integers(0, 6),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
)
def test_telling_changes_neither_the_view_nor_what_is_drawn_next(parts, n, dtype, seed):
    view, x = parse_view("+".join(parts)), randn(n, 3, 5, 4, dtype=dtype)
    plain, telling = generator(seed), generator(seed)
    seen, told = view_with_parameters(view, x, telling)
    assert torch.equal(seen, view(x, plain))
    assert torch.equal(plain.get_state(), telling.get_state())
    assert all(number.shape == (n,) and number.dtype in (torch.float64, torch.bool) for number in told.values())


def test_numbers_are_called_by_part_and_number():
    told = view_with_parameters(parse_view("+".join(PARTS)), randn(4, 3, 5, 5), generator())[1]
    assert list(told) == [
        *("crop: area", "crop: log ratio", "crop: x", "crop: y"),
        "flip",
        *("affine: rotation", "affine: shift x", "affine: shift y", "affine: scale"),
        *("brightness", "contrast", "gray", "mixup"),
    ]


def test_two_parts_of_a_name_are_told_apart():
    view = parse_view("brightness:0.1+noise+brightness:0.9")
    assert list(view_parts(view)) == ["brightness", "noise", "brightness (2)"]
    told = view_with_parameters(view, randn(500, 1, 2, 2), generator())[1]
    assert list(told) == ["brightness", "brightness (2)"]
    assert float(told["brightness"].abs().max()) <= 0.1 < float(told["brightness (2)"].abs().max())


def test_the_numbers_are_those_that_made_the_view():
    x = 1 + torch.rand(50, 3, 6, 8, generator=generator(), dtype=torch.float64)
    seen, told = view_with_parameters(parse_view("brightness"), x, generator(1))
    torch.testing.assert_close(seen[:, 0, 0, 0] / x[:, 0, 0, 0], 1 + told["brightness"], rtol=0, atol=1e-14)
    seen, told = view_with_parameters(parse_view("flip"), x, generator(1))
    assert [torch.equal(a, b.flip(2)) for a, b in zip(seen, x, strict=True)] == told["flip"].tolist()
    seen, told = view_with_parameters(parse_view("gray:0.5"), x, generator(1))
    assert torch.equal((seen[:, 0] == seen[:, 1]).all(dim=(1, 2)), told["gray"])
    seen, told = view_with_parameters(Mixup(0.4), torch.eye(50, dtype=torch.float64), generator(1))
    torch.testing.assert_close(1 - seen.diagonal(), told["mixup"], rtol=0, atol=1e-14)


def test_a_box_of_a_ramp_shows_where_its_center_and_its_sides_are():
    height, width = 9, 12
    ramp = torch.stack(torch.meshgrid(torch.arange(9.0), torch.arange(12.0), indexing="ij")).double()
    view = parse_view("crop:0.2,0.6,0.5,1.5")
    seen, told = view_with_parameters(view, ramp.expand(300, 2, 9, 12), generator())
    down, right = seen[:, 0, 4, 5], seen[:, 1, 4, 5:7].mean(1)
    torch.testing.assert_close(down, (height * (told["crop: y"] + 1) - 1) / 2, rtol=0, atol=1e-12)
    torch.testing.assert_close(right, (width * (told["crop: x"] + 1) - 1) / 2, rtol=0, atol=1e-12)
    share = (seen[:, 0, 5, 5] - seen[:, 0, 4, 5]) * (seen[:, 1, 4, 6] - seen[:, 1, 4, 5])
    uncut = told["crop: area"] * told["crop: log ratio"].abs().exp() < 1
    assert uncut.sum() > 200
    torch.testing.assert_close(share[uncut], told["crop: area"][uncut], rtol=0, atol=1e-12)


def test_an_affine_map_is_told_in_degrees_sides_and_factors():
    side = torch.arange(9, dtype=torch.float64) - 4
    places = torch.stack([side.expand(9, 9), side[:, None].expand(9, 9)]).expand(200, 2, 9, 9)
    seen, told = view_with_parameters(Affine(20, 0.1, 0.3), places, generator())
    step = seen[:, :, 4, 5] - seen[:, :, 4, 4]
    torch.testing.assert_close(told["affine: rotation"], torch.atan2(step[:, 1], step[:, 0]).rad2deg())
    torch.testing.assert_close(told["affine: scale"], 1 / step.norm(dim=1))
    assert float(told["affine: shift x"].abs().max()) <= 0.1


class Doubled:
    def __call__(self, x, generator):
        return 2 * x


def test_a_users_function_tells_nothing_and_has_a_name():
    def blur(x, generator):
        return x + 1

    view = Compose((blur, Brightness(), Doubled(), GaussianNoise()))
    assert list(view_parts(view)) == ["blur", "brightness", "Doubled", "noise"]
    assert list(view_parts(lambda x, generator: x)) == ["view"]
    x = randn(3, 1, 2, 2)
    seen, told = view_with_parameters(view, x, generator())
    assert torch.equal(seen, view(x, generator()))
    assert list(told) == ["brightness"]


def test_bad_samples_are_refused_as_by_the_view_itself():
    with pytest.raises(InputError, match=r"the view flip needs images"):
        view_with_parameters(parse_view("flip"), randn(3, 4), generator())
    with pytest.raises(InputError, match=r"must keep number type and shape"):
        view_with_parameters(lambda x, generator: x[:1], randn(3, 4), generator())
    assert math.isnan(float(view_with_parameters(Mixup(), torch.full((1, 2), math.nan), generator())[0][0, 0]))
