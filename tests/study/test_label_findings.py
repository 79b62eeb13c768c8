from __future__ import annotations

import json
import math

import numpy as np
import pytest
import xarray as xr

from kontrast.study import LABEL_MEASURES, LabelFindings, find
from kontrast.study import SHARE as LABEL_SHARE
from kontrast.study.label_findings import find_labels
from tests.report.studies import study

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
        {name: (dims, np.stack([np.full_like(arrays[name], np.nan), arrays[name]])) for name in LABEL_MEASURES}
        | {"label_samples": (dims[:2], np.full((2, n_seeds), 1500))},
        coords={"width": [32, 64], "representation": list(accuracies), "n_labels": list(COUNTS)},
    )


def found(accuracies: dict[str, list[float]], **options: float) -> LabelFindings:
    return find_labels(made(accuracies, **options))


def test_the_representation_that_reaches_the_level_first_is_best() -> None:
    labels = found({"pixels": [0.2, 0.5, 0.9], "ntk": [0.2, 0.7, 0.8], "cosine": [0.1, 0.2, 0.3]})
    assert labels.level == pytest.approx(LABEL_SHARE * 0.9)
    assert labels.best == "ntk"
    level = LABEL_SHARE * 0.9
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
    assert "the others more than there are" in labels.sentence


def test_means_are_over_the_seeds() -> None:
    labels = found({"pixels": [0.2, 0.5, 0.9]}, n_seeds=3)
    assert labels.accuracies["pixels"] == pytest.approx((0.2, 0.5, 0.9))
    assert labels.errors["pixels"] == pytest.approx((0.8, 0.5, 0.1))


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
    for name in LABEL_MEASURES:
        result[name][{"width": -1, "seed": 1, "representation": 0}] = math.nan
    labels = find_labels(result)
    for curves in (labels.errors, labels.predicted_errors, labels.spectrum_errors, labels.accuracies):
        assert all(math.isnan(value) for value in curves["dot"])
    assert labels.level == pytest.approx(LABEL_SHARE * 0.9)
    assert labels.best == "pixels"
    assert math.isnan(labels.needed["dot"])
    assert math.isnan(labels.predicted_needed["dot"])


def test_findings_hold_them_where_they_were_asked_for() -> None:
    plain, asked = find(study()), find(study(label_curves=True))
    assert plain.labels is None
    assert plain.as_dict()["labels"] is None
    assert asked.labels is not None
    assert asked.labels.sentence in asked.verdict
    content = json.loads(json.dumps(asked.as_dict()))["labels"]
    assert content["best"] == asked.labels.best
    assert content["errors"]["dot"] == [None] * 6  # it diverged
    assert content["n_labels"] == [10, 20, 50, 100, 200, 400]
    assert plain.headline == asked.headline
