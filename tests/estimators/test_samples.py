"""Every kind of array that people have, and what comes back."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone

from kontrast.data import Affine
from kontrast.errors import InputError
from kontrast.estimators import ContrastivePCA, Patches, SpectralContrastive
from tests.estimators.made_data import as_tensor, pictures, rows

MODELS = [
    ContrastivePCA(2),
    ContrastivePCA(2, n_landmarks=10),
    ContrastivePCA(2, width=16),
    SpectralContrastive(2, width=16, n_views=2),
    SpectralContrastive(2, width=math.inf, n_views=2),
]


def embed(model: object, x: object) -> object:
    return clone(model).fit(x).transform(x)


def assert_same(found: object, expected: np.ndarray, atol: float = 1e-9) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("model", MODELS)
def test_rows_in_every_container(model: object, tmp_path: Path) -> None:
    x = rows()
    expected = embed(model, x)
    assert (type(expected), expected.dtype, expected.shape) == (np.ndarray, np.float64, (40, 2))
    assert_same(embed(model, x.tolist()), expected)
    assert_same(embed(model, np.asfortranarray(x)), expected)
    np.save(tmp_path / "x.npy", x)
    assert_same(embed(model, np.load(tmp_path / "x.npy", mmap_mode="r")), expected)
    found = embed(model, as_tensor(x))
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.float64
    assert_same(found, expected)
    assert_same(embed(model, as_tensor(x).requires_grad_()), expected)


@pytest.mark.parametrize("image", [False, True])
def test_numbers_of_another_byte_order(image: bool) -> None:
    """As old .npy and FITS files hold them."""
    x = pictures() if image else rows()
    model = ContrastivePCA(2, width=16, views="noise:0.1")
    assert_same(embed(model, x.astype(">f8")), embed(model, x))


@pytest.mark.parametrize("model", MODELS)
def test_number_types(model: object) -> None:
    x = np.round(rows() * 10) / 10
    expected = embed(model, x)
    for given, back in (
        (x.astype(np.float32), np.float32),
        (as_tensor(x.astype(np.float32)), np.float32),
        (as_tensor(x).half(), np.float32),
    ):
        found = np.asarray(embed(model, given))
        assert found.dtype == back
        assert found.shape == (40, 2)
        assert np.isfinite(found).all()
    whole = np.round(x * 10).astype(np.int64)
    assert embed(model, whole).dtype == np.float64
    assert_same(embed(model, whole), embed(model, whole.astype(np.float64)))
    again = embed(clone(model).set_params(dtype="float64"), x.astype(np.float32))
    assert again.dtype == np.float64
    assert_same(again, embed(model, x.astype(np.float32).astype(np.float64)))
    assert embed(clone(model).set_params(dtype="float32"), x).dtype == np.float32
    assert expected.dtype == np.float64


def test_float32_is_near_float64() -> None:
    """The same views and features, drawn in float64; eigenvectors with a gap."""
    x = rows()
    model = ContrastivePCA(1, width=16).fit_pairs(x, x)
    single = ContrastivePCA(1, width=16).fit_pairs(x.astype(np.float32), x.astype(np.float32))
    assert_same(single.transform(x), model.transform(x), 2e-5)
    views = [x, x + 0.1]
    model = SpectralContrastive(1, width=8, ridge=1e-2).fit_views(views)
    single = SpectralContrastive(1, width=8, ridge=1e-2).fit_views([view.astype(np.float32) for view in views])
    assert_same(single.eigenvalues_, model.eigenvalues_, 2e-5)


def test_a_float32_model_keeps_its_type_for_float64_samples() -> None:
    """The features are float32, so more digits would be made up."""
    x = rows()
    model = ContrastivePCA(2, width=16).fit(x.astype(np.float32))
    assert model.transform(x).dtype == np.float32
    assert_same(model.transform(x), model.transform(x.astype(np.float32)), 1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_images_in_every_shape(model: object, tmp_path: Path) -> None:
    x = pictures()
    model = clone(model).set_params(views="affine:10,0.1,0.1")
    expected = embed(model, x)
    assert_same(embed(model, x[..., None]), expected)
    assert_same(embed(model, x[:, None]), expected)
    assert_same(embed(model, as_tensor(x)), expected)
    assert_same(embed(model, as_tensor(x[:, None])), expected)
    shaped = clone(model).set_params(image_shape=(8, 8))
    assert_same(embed(shaped, x.reshape(24, 64)), expected)
    assert_same(embed(shaped, x.reshape(24, 64).tolist()), expected)
    assert_same(embed(shaped, as_tensor(x.reshape(24, 64))), expected)
    assert_same(embed(shaped, x), expected)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert isinstance(mapped, np.memmap)
    assert_same(embed(model, mapped), expected)
    assert clone(model).fit(x).n_features_in_ == 64


@pytest.mark.parametrize("width", [16, math.inf])
def test_colors_first_and_last_are_the_same(width: float) -> None:
    x = pictures(channels=3)
    model = ContrastivePCA(2, width=width, views="affine:10,0.1,0.1")
    expected = embed(model, x)
    first = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    assert_same(embed(model, first), expected)
    assert_same(embed(model, as_tensor(first)), expected)
    assert_same(embed(clone(model).set_params(image_shape=(3, 8, 8)), first.reshape(24, -1)), expected)


@pytest.mark.parametrize("model", MODELS)
def test_bytes_are_pixels(model: object) -> None:
    raw = np.round(pictures() * 255).astype(np.uint8)
    scaled = (raw / 255).astype(np.float32)
    for given, floats in ((raw, scaled), (raw.reshape(24, 64), scaled.reshape(24, 64))):
        found = embed(model, given)
        assert found.dtype == np.float32
        assert_same(found, embed(model, floats), 1e-5)
        assert_same(embed(model, as_tensor(given)), found, 1e-5)


def test_auto_views_are_affine_for_images_and_noise_for_rows() -> None:
    x = pictures()
    auto, affine = ContrastivePCA(2, width=16), ContrastivePCA(2, width=16, views=Affine())
    np.testing.assert_array_equal(embed(auto, x), embed(affine, x))
    flat = x.reshape(24, 64)
    np.testing.assert_array_equal(embed(auto, flat), embed(ContrastivePCA(2, width=16, views="noise:0.1"), flat))


@pytest.mark.parametrize("model", MODELS)
def test_a_seed_is_a_seed(model: object) -> None:
    x = rows()
    first = embed(model, x)
    np.testing.assert_array_equal(embed(model, x), first)
    np.testing.assert_array_equal(embed(clone(model).set_params(random_state=None), x), first)
    np.testing.assert_array_equal(embed(clone(model).set_params(random_state=np.int64(0)), x), first)
    assert not np.allclose(embed(clone(model).set_params(random_state=1), x), first, rtol=0, atol=1e-6)
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    np.testing.assert_array_equal(embed(model, x), first)


def test_a_random_state_moves_on_and_two_alike_give_the_same() -> None:
    x = rows()
    model = ContrastivePCA(2, width=16, random_state=np.random.RandomState(3))
    first, second = (model.fit(x).transform(x) for _ in range(2))
    assert not np.allclose(first, second)
    again = ContrastivePCA(2, width=16, random_state=np.random.RandomState(3)).fit(x).transform(x)
    np.testing.assert_array_equal(again, first)


def test_global_random_numbers_are_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    embed(ContrastivePCA(2, width=16), rows())
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("model", MODELS)
def test_samples_are_not_changed_and_rows_are_embedded_one_by_one(model: object) -> None:
    x = rows()
    kept = x.copy()
    fitted = clone(model).fit(x)
    whole = fitted.transform(x)
    np.testing.assert_array_equal(x, kept)
    assert_same(np.concatenate([fitted.transform(x[:1]), fitted.transform(x[1:])]), whole, 1e-10)


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("kind", [ContrastivePCA, SpectralContrastive])
def test_patches_of_images(kind: type, two_sided: bool) -> None:
    x = pictures()
    model = kind(2, width=8, features=Patches(grid=2, two_sided=two_sided)).fit(x)
    assert model.components_.shape == (2, 8 * 4 * (2 if two_sided else 1))
    out = model.transform(x)
    assert np.isfinite(out).all()
    shaped, flat = clone(model).set_params(image_shape=(8, 8)), x.reshape(24, 64)
    assert_same(shaped.fit(flat).transform(flat), out)
    assert_same(model.transform(x[:3]), out[:3])


def test_patches_of_color_images_in_bytes() -> None:
    raw = np.round(pictures(channels=3) * 255).astype(np.uint8)
    model = SpectralContrastive(2, width=8, features="patches", n_views=2).fit(raw)
    assert model.features_.features.image_shape == (3, 8, 8)
    assert model.transform(raw).dtype == np.float32


@pytest.mark.parametrize("kind", [ContrastivePCA, SpectralContrastive])
def test_images_of_the_wrong_shape_for_patches(kind: type) -> None:
    x = pictures()
    with pytest.raises(InputError, match=r"patches are cut from images \(n, c, h, w\).*image_shape"):
        kind(2, width=8, features="patches").fit(rows())
    with pytest.raises(InputError, match=r"grid must be .* at most 1 for images 2×2 and patches of side 2"):
        kind(2, width=8, features="patches").fit(x[:, :2, :2])
    model = kind(2, width=8, features=Patches(grid=2)).fit(x)
    with pytest.raises(InputError, match=r"cut from images \(1, 8, 8\), got samples of shape \(64,\).*image_shape"):
        model.transform(x.reshape(24, 64))
    with pytest.raises(InputError, match=r"images of shape \(1, 4, 16\), but .* is expecting \(1, 8, 8\)"):
        model.transform(x.reshape(24, 4, 16))
    with pytest.raises(InputError, match=r"X has 72 features, but .* is expecting 64"):
        model.transform(pictures(h=9))
    flat = np.linspace(0, 1, 24)[:, None, None].repeat(8, 1).repeat(8, 2)  # each image of one gray of its own
    with pytest.raises(InputError, match=r"random patches are not constant.*images that are not constant"):
        kind(2, width=8, features="patches").fit(flat)
