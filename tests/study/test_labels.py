from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis.strategies import integers

from kontrast.data import Dataset
from kontrast.errors import InputError
from kontrast.estimators import KernelLearnability
from kontrast.study import LABEL_MEASURES, REPRESENTATIONS, StudySpec, find, measure, prepare, run_study
from kontrast.study.labels import (
    DRAWS,
    LABELED,
    RIDGE,
    label_counts,
    label_curves,
    label_problem,
    label_samples,
    no_curves,
)
from kontrast.study.probes import probe_split


def blobs(n: int, *, apart: float = 2.0, d: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(n) % 3
    corners = apart * torch.eye(3, d, dtype=torch.float64)
    noise = torch.randn(n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return corners[y] + noise, y


def curves(embeddings: dict[str, object], *, n: int = 90, seed: int = 0) -> xr.Dataset:
    x, y = blobs(n)
    return label_curves(
        embeddings,
        Dataset(x, y, "blobs"),
        contrasted=torch.arange(9),
        generator=torch.Generator().manual_seed(3),
        seed=seed,
        device=torch.device("cpu"),
        dtype=torch.float64,
    )


@given(n=integers(12, 10_000))
def test_sizes_are_round_and_leave_samples_to_test_on(n: int) -> None:
    M = label_samples(n)
    sizes = label_counts(M)
    assert M <= LABELED
    assert n - M <= 1 or M == LABELED
    assert sizes == tuple(sorted(set(sizes)))
    assert 2 <= len(sizes) <= 6
    assert 1 <= sizes[0] <= 10
    assert sizes[-1] == 2 * M // 3 < M
    assert all(str(size)[0] in "125" and set(str(size)[1:]) <= {"0"} for size in sizes[:-1])


def test_the_default_study_has_six_sizes() -> None:
    assert label_counts(label_samples(5000)) == (10, 20, 50, 100, 200, 400)


@pytest.mark.parametrize(
    "labels, problem",
    [
        (None, "has no labels"),
        (torch.zeros(50, dtype=torch.int64), "has labels of one class only"),
        (torch.arange(10) % 2, "has 10 samples, fewer than 12"),
        (torch.arange(50), "has labels of 50 classes, fewer than 4 samples of each among 50"),
        (torch.tensor([0] * 5000 + [1]), "has too few samples of a second class"),
        (torch.arange(50) % 2, ""),
    ],
)
def test_what_keeps_a_curve_from_being_drawn(labels: torch.Tensor | None, problem: str) -> None:
    assert label_problem(labels) == problem


def test_curves_are_those_of_the_estimator() -> None:
    found = curves({"trained": lambda x: x[:, :2], "dot": None, "pixels": lambda x: x})
    assert found.representation.values.tolist() == ["trained", "dot", "pixels", "ntk"]
    x, y = blobs(90)
    train, test = probe_split(y, 45, contrasted=torch.arange(9), generator=torch.Generator().manual_seed(3))
    chosen = torch.cat([train, test])
    sizes = label_counts(90)
    for name, kernel, z in (("trained", "linear", x[:, :2]), ("pixels", "linear", x), ("ntk", "ntk", x)):
        model = KernelLearnability(kernel, relative_ridge=RIDGE).fit(z[chosen], y[chosen])
        one, seen = model.measure(sizes, n_draws=DRAWS), found.sel(representation=name)
        points = model.learning_curve(sizes, by="points")
        np.testing.assert_array_equal(seen.label_error, one.test_error)
        np.testing.assert_array_equal(seen.label_accuracy, one.accuracy)
        np.testing.assert_array_equal(seen.label_error_predicted, points.test_error)
        np.testing.assert_array_equal(seen.label_accuracy_predicted, points.accuracy)
        np.testing.assert_array_equal(seen.label_error_spectrum, model.learning_curve(sizes).test_error)
    assert int(found.label_samples) == 90
    assert np.isnan(found.sel(representation="dot")[list(LABEL_MEASURES)].to_dataarray()).all()


def test_two_thirds_of_the_dimensions_know_less() -> None:
    found = curves({"trained": lambda x: x[:, :1], "pixels": lambda x: x}).isel(n_labels=-1)
    assert float(found.label_error.sel(representation="trained")) > float(
        found.label_error.sel(representation="pixels")
    )


@pytest.mark.parametrize("bad", [lambda x: x * math.inf, torch.ones_like])
def test_embeddings_without_a_kernel_have_no_curve(bad: object) -> None:
    found = curves({"cosine": bad})
    assert np.isnan(found.label_error.sel(representation="cosine")).all()
    assert np.isfinite(found.label_error.sel(representation="ntk")).all()


def test_the_arrays_without_numbers_have_the_same_shape() -> None:
    some, none = curves({"pixels": lambda x: x}, n=90), no_curves(["pixels"], 90)
    assert some.sizes == none.sizes
    assert set(some.data_vars) == set(none.data_vars)
    assert np.isnan(none[list(LABEL_MEASURES)].to_dataarray()).all()
    xr.testing.assert_identical(some.coords.to_dataset(), none.coords.to_dataset())


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    x, y = blobs(60, d=5)
    path = tmp_path_factory.mktemp("data") / "blobs.npz"
    np.savez(path, x=x.numpy(), y=y.numpy())
    small = StudySpec(data=str(path), n_samples=6, d_out=2, widths=(8, 16), n_seeds=2, n_steps=5, label_curves=True)
    return prepare(small)


def test_the_widest_cell_has_curves_and_the_others_have_none(spec: StudySpec) -> None:
    wide, narrow = measure(spec, 16, 0), measure(spec, 8, 0)
    assert wide.representation.values.tolist() == list(REPRESENTATIONS)
    assert np.isfinite(wide[list(LABEL_MEASURES)].to_dataarray()).all()
    assert np.isnan(narrow[list(LABEL_MEASURES)].to_dataarray()).all()
    plain = measure(dataclasses.replace(spec, label_curves=False), 16, 0)
    assert not set(LABEL_MEASURES) & set(plain.data_vars)
    xr.testing.assert_identical(plain, wide.drop_vars([*LABEL_MEASURES, "label_samples", "representation", "n_labels"]))


def test_single_precision_and_other_networks_have_curves_too(spec: StudySpec) -> None:
    double = measure(spec, 16, 0)
    single = measure(dataclasses.replace(spec, dtype="float32"), 16, 0)
    np.testing.assert_allclose(single.label_error, double.label_error, rtol=1e-2)
    other = measure(dataclasses.replace(spec, parametrization="standard", n_probe_samples=0), 16, 0)
    assert other.representation.values.tolist() == ["cosine", "dot", "random", "pixels", "pixel-pca", "ntk"]
    assert np.isfinite(other.label_error).all()


def test_a_study_with_labels_resumes_and_is_consolidated(spec: StudySpec, tmp_path: Path) -> None:
    """That processes give the same bytes is a test of `sweep.study`."""
    result = run_study(spec, tmp_path)
    (tmp_path / f"cells/{spec.cells[0]}.nc").unlink()
    xr.testing.assert_identical(run_study(spec, tmp_path), result)
    assert result.label_error.dims == ("width", "seed", "representation", "n_labels")
    found = find(result).labels
    assert found is not None
    assert found.n_samples == 60
    assert set(found.errors) == set(REPRESENTATIONS)


def test_labels_need_labels(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, np.random.default_rng(0).random((40, 3)))
    asked = StudySpec(data=str(path), n_samples=6, widths=(8,), label_curves=True)
    with pytest.raises(InputError, match=r"label_curves needs labels but .* has no labels; leave label_curves out"):
        prepare(asked)
    assert prepare(dataclasses.replace(asked, label_curves=False)).label_curves is False
