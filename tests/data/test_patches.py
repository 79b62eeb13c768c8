"""Patches are squares of the images, drawn evenly over places, never flat where that is asked for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers
from torch import Tensor

from kontrast.data import Dataset, draw_patches
from kontrast.errors import InputError
from tests.cases import DTYPES, generator, randn


def numbered(*shape: int) -> Tensor:
    """Images whose every value says where it stands."""
    return torch.arange(math.prod(shape), dtype=torch.float64).view(shape)


@given(
    n=integers(1, 4), c=integers(1, 3), h=integers(2, 7), w=integers(2, 7), size=integers(1, 7), seed=integers(0, 2**16)
)
def test_every_row_is_a_square_of_an_image(n: int, c: int, h: int, w: int, size: int, seed: int) -> None:
    x, size = numbered(n, c, h, w), min(size, h, w)
    patches = draw_patches(x, size, 20, generator=generator(seed))
    assert patches.shape == (20, c * size * size)
    for patch in patches.view(20, c, size, size):
        image, place = divmod(int(patch[0, 0, 0]), c * h * w)  # its first value says where it was cut
        top, left = divmod(place, w)
        assert torch.equal(patch, x[image, :, top : top + size, left : left + size])


def test_all_images_and_places_come_equally_often() -> None:
    x, n = numbered(3, 4, 5), 20_000
    corners, counts = draw_patches(x, 2, n, generator=generator())[:, 0].unique(return_counts=True)
    expected = x[:, :3, :4].flatten()
    assert torch.equal(corners, expected)
    surprise = (counts - n / len(expected)).square().sum() / (n / len(expected))  # χ² with 35 degrees of freedom
    assert 10 < surprise < 75


def test_flat_patches_are_skipped_and_no_others() -> None:
    x = torch.zeros(50, 1, 9, 9, dtype=torch.float64)
    x[:, :, :3, :3] = randn(50, 1, 3, 3)
    least = 0.3
    patches = draw_patches(x, 3, 200, generator=generator(), min_std=least)
    assert patches.std(1, correction=0).min() >= least
    # what is kept is what all draws hold, in their order
    plain = draw_patches(x, 3, 200, generator=generator())
    lively = plain[plain.std(1, correction=0) >= least]
    assert 0 < len(lively) < 200
    assert torch.equal(patches[: len(lively)], lively)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_seed_gives_the_same_patches_in_every_form(dtype: torch.dtype) -> None:
    x = randn(6, 1, 8, 8).to(dtype)
    patches = draw_patches(x, 3, 10, generator=generator(5))
    assert patches.dtype == dtype
    assert torch.equal(patches, draw_patches(x[:, 0], 3, 10, generator=generator(5)))
    assert torch.equal(patches, draw_patches(Dataset(x, None, "noise"), 3, 10, generator=generator(5)))
    assert torch.equal(patches.double(), draw_patches(x.double(), 3, 10, generator=generator(5)))
    assert not torch.equal(patches, draw_patches(x, 3, 10, generator=generator(6)))


IMAGES = torch.ones(4, 1, 6, 5)


@pytest.mark.parametrize(
    "changes, said",
    [
        (
            {"images": torch.ones(4, 30)},
            r"images \(n, h, w\) or \(n, c, h, w\), got samples of shape \(4, 30\).*image_shape",
        ),
        ({"images": Dataset(torch.ones(4, 30), None, "rows")}, "image_shape"),
        ({"images": torch.ones(0, 1, 6, 6)}, r"got samples of shape \(0, 1, 6, 6\)"),
        ({"images": IMAGES.numpy()}, "images must be a tensor of floating-point numbers, got ndarray; pass"),
        ({"images": "mnist5k"}, "images must be a tensor of floating-point numbers, got str; pass"),
        ({"images": IMAGES.to(torch.uint8)}, r"got torch\.uint8"),
        ({"images": IMAGES * math.nan}, "NaN or infinite"),
        ({"size": 6}, "patches of side 6 do not fit in images 6×5; take a smaller size"),
        ({"size": 0}, "size must be a whole number of at least 1"),
        ({"size": 2.5}, "size must be a whole number"),
        ({"n_patches": 0}, "n_patches must be a whole number"),
        ({"min_std": -1.0}, "min_std must be a finite number of at least 0"),
        ({"min_std": math.nan}, "min_std must be a finite number of at least 0"),
        ({"min_std": 0.1}, r"only 0 of 700 random patches have a deviation of at least 0\.1, and 7 were asked for"),
        ({"generator": 3}, r"generator must be a torch\.Generator, got int"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], said: str) -> None:
    options: dict[str, Any] = {"images": IMAGES, "size": 2, "n_patches": 7, "generator": generator()}
    with pytest.raises(InputError, match=said):
        draw_patches(**(options | changes))


def test_numpy_counts_are_taken() -> None:
    assert draw_patches(IMAGES, np.int64(2), np.int32(3), generator=generator()).shape == (3, 4)
