from __future__ import annotations

import dataclasses
import json
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
from kontrast.runs import generator_for
from kontrast.study import REPRESENTATIONS, LabelFindings, StudySpec, find, measure_cell, prepare, run_study
from kontrast.study.cell import Cell
from kontrast.study.labels import (
    DRAWS,
    LABELED,
    QUANTITIES,
    RIDGE,
    SHARE,
    compare_curves,
    label_counts,
    label_curves,
    label_problem,
    label_samples,
    no_curves,
)
from kontrast.study.probes import probe_split
from tests.report.studies import study

NAMES = [quantity.name for quantity in QUANTITIES]


def blobs(n: int, *, apart: float = 2.0, d: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(n) % 3
    corners = apart * torch.eye(3, d, dtype=torch.float64)
    noise = torch.randn(n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return corners[y] + noise, y


def curves(embeddings: dict[str, object], *, n: int = 90, seed: int = 0) -> xr.Dataset:
    x, y = blobs(n)
    return label_curves(Cell(StudySpec(), 64, seed, Dataset(x, y, "blobs"), torch.arange(9), None, None, embeddings))


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
        (torch.arange(50), "has labels of 50 classes, and fewer than 4 samples per class among 50"),
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
    train, test = probe_split(y, 45, contrasted=torch.arange(9), generator=generator_for(0, 0, 2))
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
    assert np.isnan(found.sel(representation="dot")[NAMES].to_dataarray()).all()


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
    assert np.isnan(none[NAMES].to_dataarray()).all()
    xr.testing.assert_identical(some.coords.to_dataset(), none.coords.to_dataset())


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    x, y = blobs(60, d=5)
    path = tmp_path_factory.mktemp("data") / "blobs.npz"
    np.savez(path, x=x.numpy(), y=y.numpy())
    small = StudySpec(data=str(path), n_samples=6, d_out=2, widths=(8, 16), n_seeds=2, n_steps=5, label_curves=True)
    return prepare(small)


def test_the_widest_cell_has_curves_and_the_others_have_none(spec: StudySpec) -> None:
    wide, narrow = measure_cell(spec, 16, 0), measure_cell(spec, 8, 0)
    assert wide.representation.values.tolist() == list(REPRESENTATIONS)
    assert np.isfinite(wide[NAMES].to_dataarray()).all()
    assert np.isnan(narrow[NAMES].to_dataarray()).all()
    plain = measure_cell(dataclasses.replace(spec, label_curves=False), 16, 0)
    assert not set(NAMES) & set(plain.data_vars)
    others = [*NAMES, "label_dimension", "label_samples", "representation", "n_labels"]
    xr.testing.assert_identical(plain, wide.drop_vars(others))
    sizes = dict(zip(wide.representation.values.tolist(), wide.label_dimension.values.tolist(), strict=True))
    assert (sizes["cosine"], sizes["pca"], sizes["pixels"], sizes["ntk"]) == (2, spec.pca_d_out, 5, 0)


def test_single_precision_and_other_networks_have_curves_too(spec: StudySpec) -> None:
    double = measure_cell(spec, 16, 0)
    single = measure_cell(dataclasses.replace(spec, dtype="float32"), 16, 0)
    np.testing.assert_allclose(single.label_error, double.label_error, rtol=1e-2)
    other = measure_cell(dataclasses.replace(spec, parametrization="standard", n_probe_samples=0), 16, 0)
    assert other.representation.values.tolist() == ["cosine", "dot", "random", "pixels", "pixel-pca", "ntk"]
    assert np.isfinite(other.label_error).all()


def test_a_study_with_labels_resumes_and_is_consolidated(spec: StudySpec, tmp_path: Path) -> None:
    result = run_study(spec, tmp_path)
    (tmp_path / f"cells/{spec.cells[0]}.nc").unlink()
    xr.testing.assert_identical(run_study(spec, tmp_path), result)
    assert result.label_error.dims == ("width", "seed", "representation", "n_labels")
    found = find(result).labels
    assert found is not None
    assert found.n_samples == 60
    assert set(found.means["label_error"]) == set(REPRESENTATIONS)


def test_labels_need_labels(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, np.random.default_rng(0).random((40, 3)))
    asked = StudySpec(data=str(path), n_samples=6, widths=(8,), label_curves=True)
    with pytest.raises(InputError, match=r"label_curves needs labels but .* has no labels; leave label_curves out"):
        prepare(asked)
    assert prepare(dataclasses.replace(asked, label_curves=False)).label_curves is False


COUNTS = (10, 100, 1000)


def made(
    accuracies: dict[str, list[float]],
    *,
    off: float = 0.0,
    spectrum_off: float = 0.0,
    n_seeds: int = 2,
) -> xr.Dataset:
    """Accuracies at width 64; errors are 1 − accuracy; predictions are off by a share; at width 32 nothing."""
    wide = np.array(list(accuracies.values()))  # (representation, n)
    seeds = np.stack([wide + 0.01 * s - 0.005 * (n_seeds - 1) for s in range(n_seeds)])
    arrays = {
        "label_error": 1 - seeds,
        "label_error_predicted": (1 - seeds) * (1 + off),
        "label_error_spectrum": (1 - seeds) * (1 - spectrum_off),
        "label_accuracy": seeds,
        "label_accuracy_predicted": seeds + off / 2,
    }
    dims = ("width", "seed", "representation", "n_labels")
    return xr.Dataset(
        {name: (dims, np.stack([np.full_like(arrays[name], np.nan), arrays[name]])) for name in NAMES}
        | {"label_samples": (dims[:2], np.full((2, n_seeds), 1500))},
        coords={"width": [32, 64], "representation": list(accuracies), "n_labels": list(COUNTS)},
    )


def found(accuracies: dict[str, list[float]], **options: float) -> LabelFindings:
    return compare_curves(made(accuracies, **options))


def test_the_representation_that_reaches_the_level_first_is_best() -> None:
    labels = found({"pixels": [0.2, 0.5, 0.9], "ntk": [0.2, 0.7, 0.8], "cosine": [0.1, 0.2, 0.3]})
    assert labels.level == pytest.approx(SHARE * 0.9)
    assert labels.best == "ntk"
    level = SHARE * 0.9
    assert labels.needed["ntk"] == pytest.approx(10 * 10 ** ((level - 0.2) / 0.5))
    assert labels.needed["pixels"] == pytest.approx(100 * 10 ** ((level - 0.5) / 0.4))
    assert math.isnan(labels.needed["cosine"])
    assert labels.sentence.startswith(
        "fewest labels are needed by ntk: about 72 for an accuracy of 63%, pixels about 210"
    )
    assert (labels.width, labels.n_seeds, labels.n_samples, labels.n_labels) == (64, 2, 1500, COUNTS)


def test_the_first_size_may_be_enough() -> None:
    labels = found({"pixels": [0.8, 0.85, 0.9]})
    assert labels.needed["pixels"] == 10
    assert "the others more than were tried" in labels.sentence


def test_means_are_over_the_seeds() -> None:
    labels = found({"pixels": [0.2, 0.5, 0.9]}, n_seeds=3)
    assert labels.means["label_accuracy"]["pixels"] == pytest.approx((0.2, 0.5, 0.9))
    assert labels.means["label_error"]["pixels"] == pytest.approx((0.8, 0.5, 0.1))


def test_gaps_are_the_largest_and_are_told() -> None:
    labels = found({"pixels": [0.2, 0.5, 0.9]}, off=0.04, spectrum_off=0.11)
    assert labels.gap == pytest.approx(0.04)
    assert labels.spectrum_gap == pytest.approx(0.11)
    assert labels.accuracy_gap == pytest.approx(0.02)
    assert labels.sentence.endswith("within 4% of the measured ones (paper D's one κ: within 11%)")
    assert labels.predicted_needed["pixels"] < labels.needed["pixels"]


def test_a_diverged_run_is_no_candidate() -> None:
    nothing = [math.nan] * 3
    labels = found({"dot": nothing, "pixels": [0.2, 0.5, 0.9]})
    assert labels.best == "pixels"
    assert math.isnan(labels.needed["dot"])
    assert labels.gap == pytest.approx(0)
    none = found({"dot": nothing})
    assert none.best is None
    assert "every embedding diverged" in none.sentence


def test_a_run_that_diverged_in_one_seed_is_no_candidate() -> None:
    """Its mean over the other seeds would be of an easier question."""
    result = made({"dot": [0.7, 0.8, 0.99], "pixels": [0.2, 0.5, 0.9]}, n_seeds=3)
    for name in NAMES:
        result[name][{"width": -1, "seed": 1, "representation": 0}] = math.nan
    labels = compare_curves(result)
    for curves in labels.means.values():
        assert all(math.isnan(value) for value in curves["dot"])
    assert labels.level == pytest.approx(SHARE * 0.9)
    assert labels.best == "pixels"
    assert math.isnan(labels.needed["dot"])
    assert math.isnan(labels.predicted_needed["dot"])


def test_findings_hold_them_where_they_were_asked_for() -> None:
    plain, asked = find(study()), find(study(label_curves=True))
    assert plain.labels is None
    assert plain.as_dict()["labels"] is None
    assert asked.labels is not None
    assert asked.labels.sentence in asked.summary
    content = json.loads(json.dumps(asked.as_dict()))["labels"]
    assert content["best"] == asked.labels.best
    assert content["means"]["label_error"]["dot"] == [None] * 6  # it diverged
    assert content["n_labels"] == [10, 20, 50, 100, 200, 400]
    assert plain.verdict == asked.verdict
