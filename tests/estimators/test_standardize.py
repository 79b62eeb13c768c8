"""`standardize=True`: a scaler before views and features, which fitted models and their files keep."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.preprocessing import StandardScaler

from kontrast.data import RelativeNoise
from kontrast.errors import DataError, InputError
from kontrast.estimators import ContrastivePCA, DeepLinearSSL, SpectralContrastive, load_model
from tests.estimators.made_data import as_tensor, pairs, pictures, row_views, rows
from tests.estimators.test_model_files import change_header, header_of

KINDS = [ContrastivePCA(2), ContrastivePCA(2, width=16), SpectralContrastive(2, width=16), DeepLinearSSL(2)]
UNITS = np.array([1e-3, 1, 10, 1e4, 0.5, 3])
ids = [str(kind)[:30] for kind in KINDS]


def table(x: np.ndarray) -> np.ndarray:
    """Columns of different units, not in the middle, and a constant one."""
    return np.hstack([(x + 4) * UNITS, np.full((*x.shape[:-1], 1), 7.0)])


def scaled(x: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """By scikit-learn, with the columns of x."""
    scaler = StandardScaler().fit(x)
    return [scaler.transform(one) for one in (x, *others)]


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS, ids=ids)
def test_it_is_a_scaler_before_views_and_features(kind: Any) -> None:
    x, new = table(rows()), table(rows(9, seed=5))
    model = clone(kind).set_params(standardize=True).fit(x)
    x_scaled, new_scaled = scaled(x, new)
    twin = clone(kind).fit(x_scaled)
    close(model.transform(x), twin.transform(x_scaled))
    close(model.transform(new), twin.transform(new_scaled))
    close(model.columns_.mean, x.mean(0))
    close(model.columns_.deviation, x.std(0))
    close(model.standardized(as_tensor(new)), new_scaled)


def test_without_it_samples_stay_and_a_second_fit_forgets_the_first() -> None:
    x = table(rows())
    model = SpectralContrastive(2, width=16, standardize=True).fit(x)
    model.set_params(standardize=False).fit(x)
    assert model.columns_ is None
    np.testing.assert_array_equal(model.transform(x), SpectralContrastive(2, width=16).fit(x).transform(x))
    assert model.standardized(given := as_tensor(x)) is given


def test_pairs_are_standardised_by_their_anchors() -> None:
    anchors, positives = (table(part) for part in pairs())
    negatives = np.stack([anchors[::-1], positives[::-1]], axis=1)
    model = ContrastivePCA(2, width=16, standardize=True).fit_pairs(anchors, positives, negatives)
    a, p, first, second = scaled(anchors, positives, negatives[:, 0], negatives[:, 1])
    twin = ContrastivePCA(2, width=16).fit_pairs(a, p, np.stack([first, second], axis=1))
    close(model.transform(anchors), twin.transform(a))


def test_views_are_standardised_by_the_first_and_batches_by_the_first_batch() -> None:
    views = [table(view) for view in row_views(3)]
    model = SpectralContrastive(2, width=16, standardize=True).fit_views(views)
    twin = SpectralContrastive(2, width=16).fit_views(scaled(*views))
    close(model.transform(views[0]), twin.transform(scaled(*views)[0]))
    batches = [[as_tensor(view[part]) for view in views] for part in (slice(0, 25), slice(25, 40))]
    model = SpectralContrastive(2, width=16, standardize=True).fit_loader(batches)
    close(model.columns_.mean, views[0][:25].mean(0))
    parts = scaled(views[0][:25], *views)[1:]
    again = [[as_tensor(view[part]) for view in parts] for part in (slice(0, 25), slice(25, 40))]
    close(model.transform(views[0]), SpectralContrastive(2, width=16).fit_loader(again).transform(parts[0]))


def test_a_small_deviation_beside_a_large_mean_survives_single_precision() -> None:
    x = rows()
    far = x + 1e8
    options = {"width": 16, "dtype": "float32"}
    model = SpectralContrastive(2, standardize=True, **options).fit(far)
    expected = SpectralContrastive(2, standardize=True, **options).fit(x).transform(x)
    np.testing.assert_allclose(model.transform(far), expected, rtol=0, atol=1e-3)
    assert model.transform(far).dtype == np.float32


def test_bytes_and_images_are_standardised_by_pixels() -> None:
    x = (255 * pictures()).astype(np.uint8)
    model = SpectralContrastive(2, width=16, standardize=True).fit(x)
    close(model.columns_.mean[0], (x / 255).mean(0))
    assert model.columns_.mean.shape == (1, 8, 8)
    flat = model.transform(x.reshape(len(x), -1))  # rows of that length are such images
    np.testing.assert_allclose(flat, model.transform(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS, ids=ids)
def test_a_file_keeps_the_columns(kind: Any, dtype: str, tmp_path: Path) -> None:
    x, new = table(rows()), table(rows(9, seed=5))
    model = clone(kind).set_params(standardize=True, dtype=dtype).fit(x)
    again = load_model(model.save(tmp_path / "model.npz"))
    assert again.get_params()["standardize"] is True
    for samples in (x, new):
        np.testing.assert_array_equal(again.transform(samples), model.transform(samples))
    torch.testing.assert_close(again.columns_.deviation, model.columns_.deviation, rtol=0, atol=0)
    twice = load_model(again.save(tmp_path / "model.npz"))
    np.testing.assert_array_equal(twice.transform(new), model.transform(new))


def test_files_from_before_and_files_that_lack_columns(tmp_path: Path) -> None:
    x = rows()
    model = SpectralContrastive(2, width=16).fit(x)
    path = model.save(tmp_path / "model.npz")
    parameters = header_of(path)["parameters"]
    assert parameters.pop("standardize") is False
    change_header(path, sign=True, parameters=parameters)
    np.testing.assert_array_equal(load_model(path).transform(x), model.transform(x))
    change_header(path, sign=True, parameters={**parameters, "standardize": True})
    with pytest.raises(DataError, match="makes no model"):
        load_model(path)


@pytest.mark.parametrize("kind", [ContrastivePCA(2), SpectralContrastive(2, width=16, n_views=2), DeepLinearSSL(2)])
def test_relative_noise_is_fitted_to_the_samples(kind: Any) -> None:
    """Where every column has deviation 1 it is plain noise; elsewhere it is noise that is scaled with the columns."""
    [x] = scaled(rows())
    plain = clone(kind).set_params(views="noise:0.2").fit(x).transform(x)
    close(clone(kind).set_params(views="relative-noise:0.2").fit(x).transform(x), plain)
    close(clone(kind).set_params(views=RelativeNoise(0.2)).fit(x).transform(x), plain)
    linear = DeepLinearSSL(1, views="relative-noise:0.2")
    for unit in (1e-4, 1e4):
        close(np.abs(linear.fit(unit * x).components_), np.abs(linear.fit(x).components_))


def test_landmarks_see_relative_noise_one_by_one() -> None:
    x = rows()
    model = ContrastivePCA(2, width=math.inf, n_landmarks=5, views="relative-noise:0.2").fit(x)
    assert np.isfinite(model.transform(x)).all()


@pytest.mark.parametrize("given", ["yes", 1, None])
def test_it_is_true_or_false(given: object) -> None:
    with pytest.raises(InputError, match=r"standardize must be bool, got .*; pass True or False"):
        ContrastivePCA(2, standardize=given).fit(rows())
    ContrastivePCA(2, standardize=np.True_).fit(rows())
