"""What scikit-learn asks of an estimator, and of a transformer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from kontrast.data import GaussianNoise
from kontrast.estimators import ContrastivePCA, DeepLinearSSL, Fourier, KernelLearnability, Patches, SpectralContrastive
from tests.estimators.made_data import rows

CHECKED = [  # one of each way to fit
    ContrastivePCA(2),
    ContrastivePCA(2, width=16),
    ContrastivePCA(2, n_landmarks=8),
    SpectralContrastive(2, width=16),
    SpectralContrastive(2, width=16, standardize=True),
    SpectralContrastive(2, width=math.inf, n_landmarks=16),
    DeepLinearSSL(2),
    DeepLinearSSL(2, time=0.1),
]
ESTIMATORS = [
    *CHECKED,
    ContrastivePCA(2, width=64, features="fourier"),
    SpectralContrastive(2, width=64, features="fourier"),
    DeepLinearSSL(1, center=False),
]


@parametrize_with_checks([*CHECKED, KernelLearnability("linear", max_samples=20)])
def test_the_checks_of_scikit_learn(estimator: object, check: object) -> None:
    check(estimator)


@pytest.mark.parametrize(
    "estimator",
    [
        *ESTIMATORS,
        KernelLearnability("nngp", depth=2, activation="tanh", relative_ridge=0.1, max_samples=9, random_state=3),
        KernelLearnability("linear", features=torch.nn.Linear(3, 4), dtype="float32"),
        ContrastivePCA(3, width=9, features=Fourier(2.0), views=GaussianNoise(0.2), n_positives=2, negatives=4),
        SpectralContrastive(3, features=Patches(size=3), image_shape=(8, 8), power=1, random_state=7),
        SpectralContrastive(3, features=torch.nn.Linear(3, 4)),
        DeepLinearSSL(3, time=2, depth=4, flow="polar", width=9, contrastive=False, n_positives=2, dtype="float32"),
    ],
)
def test_clones_have_the_same_parameters(estimator: object) -> None:
    copy = clone(estimator)
    ours, theirs = estimator.get_params(), copy.get_params()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if isinstance(value, torch.nn.Module):
            assert torch.equal(value.weight, theirs[name].weight)
        else:
            assert theirs[name] == value
    assert not hasattr(copy, "n_features_in_")


def test_parameters_are_set_by_name() -> None:
    model = ContrastivePCA().set_params(n_components=2, width=16, similarity="dot")
    assert (model.n_components, model.width, model.similarity) == (2, 16, "dot")
    with pytest.raises(ValueError, match="Invalid parameter 'temperature'"):
        model.set_params(temperature=1)
    assert ContrastivePCA(2).fit(rows()).transform(rows()).shape == (40, 2)


@pytest.mark.parametrize("estimator", [ContrastivePCA(4), DeepLinearSSL(4), SpectralContrastive(4, width=64)])
def test_a_pipeline_learns_the_clusters(estimator: object) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=120)
    x = 3 * rng.normal(size=(3, 6))[labels] + rng.normal(size=(120, 6))
    pipeline = make_pipeline(StandardScaler(), estimator, StandardScaler(), LogisticRegression())
    pipeline.fit(x[:80], labels[:80])
    assert pipeline.score(x[80:], labels[80:]) > 0.8


def test_a_grid_search_over_numpy_numbers() -> None:
    """`np.arange` gives numpy integers, which are whole numbers too."""
    labels = np.arange(60) % 2
    x = rows(60) + labels[:, None]
    pipeline = make_pipeline(SpectralContrastive(2, width=16, n_views=2), LogisticRegression())
    grid = {
        "spectralcontrastive__n_components": np.array([1, 2]),
        "spectralcontrastive__width": np.array([8, 16]),
        "spectralcontrastive__n_views": np.array([2, 3]),
    }
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(x, labels)
    assert np.isfinite(search.best_score_)


@pytest.mark.parametrize("name", ["n_components", "width", "depth", "n_positives", "negatives", "n_landmarks"])
def test_numpy_integers_count_as_whole_numbers(name: str) -> None:
    options = {"n_components": 2, "width": math.inf if name == "n_landmarks" else 8, name: np.int64(2)}
    found = ContrastivePCA(**options).fit(rows()).transform(rows())
    expected = ContrastivePCA(**{**options, name: 2}).fit(rows()).transform(rows())
    np.testing.assert_array_equal(found, expected)


def test_numpy_numbers_of_components_by_lanczos_too() -> None:
    assert ContrastivePCA(np.int64(2)).fit(rows(510)).eigenvalues_.shape == (2,)


@pytest.mark.parametrize("estimator", [ContrastivePCA(2), DeepLinearSSL(2), SpectralContrastive(2, width=16)])
def test_outputs_are_named_and_may_be_data_frames(estimator: object) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows(), columns=list("abcdef"))
    model = clone(estimator).set_output(transform="pandas").fit(frame)
    prefix = type(estimator).__name__.lower()
    assert list(model.get_feature_names_out()) == [f"{prefix}0", f"{prefix}1"]
    assert list(model.feature_names_in_) == list("abcdef")
    out = model.transform(frame)
    assert list(out.columns) == [f"{prefix}0", f"{prefix}1"]
    expected = clone(estimator).fit(rows()).transform(rows())
    np.testing.assert_allclose(out.to_numpy(), expected, rtol=0, atol=1e-9)  # in another order in memory
    with pytest.raises(ValueError, match="feature names should match"):
        model.transform(frame[list("bacdef")])


@pytest.mark.parametrize("estimator", [ContrastivePCA(2), DeepLinearSSL(2), SpectralContrastive(2, width=16)])
def test_names_of_outputs_without_data_frames(estimator: object) -> None:
    with pytest.raises(NotFittedError):
        clone(estimator).get_feature_names_out()
    assert len(clone(estimator).fit(rows()).get_feature_names_out()) == 2


def test_fit_transform_is_fit_and_transform_and_labels_are_ignored() -> None:
    x = rows()
    for estimator in ESTIMATORS:
        one = clone(estimator).fit_transform(x, np.arange(40))
        np.testing.assert_array_equal(one, clone(estimator).fit(x).transform(x))


@pytest.mark.parametrize("estimator", [ContrastivePCA(2), DeepLinearSSL(2), SpectralContrastive(2, width=16)])
def test_unfitted_models_say_so(estimator: object) -> None:
    with pytest.raises(NotFittedError, match="not fitted yet"):
        clone(estimator).transform(rows())
