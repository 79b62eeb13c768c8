from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator

from kontrast.data import load
from kontrast.errors import InputError
from kontrast.estimators import ContrastivePCA, KernelLearnability, LearningCurve
from kontrast.estimators.kernel_learnability import _accuracy, linear_kernel
from kontrast.kernels import GaussianKernel, NetworkKernel, TangentKernel, infinite_nngp, infinite_ntk
from kontrast.learnability import PointPrediction
from tests.estimators.made_data import pictures

Array = np.ndarray


def clusters(n: int = 240, d: int = 6, *, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    return 1.2 * rng.normal(size=(3, d))[y] + rng.normal(size=(n, d)), y


X, Y = clusters()
SIZES = [20, 60, 150]


@pytest.fixture(scope="module")
def fitted() -> KernelLearnability:
    return KernelLearnability("linear", relative_ridge=0.05).fit(X, Y)


@pytest.fixture(scope="module")
def measured(fitted: KernelLearnability) -> LearningCurve:
    return fitted.measure(SIZES, n_draws=60)


@pytest.mark.parametrize("by, rel", [("spectrum", 0.12), ("points", 0.05)])
def test_the_predicted_errors_are_the_measured_ones(
    by: Any, rel: float, fitted: KernelLearnability, measured: LearningCurve
) -> None:
    curve = fitted.learning_curve(SIZES, by=by)
    np.testing.assert_allclose(curve.test_error, measured.test_error, rtol=rel)
    np.testing.assert_allclose(curve.learnability, measured.learnability, atol=0.07)
    assert (np.diff(curve.kappa) < 0).all()
    assert curve.standard_error is None
    assert measured.kappa is None
    weights = np.bincount(Y) / len(Y) * (1 - np.bincount(Y) / len(Y))
    np.testing.assert_allclose((curve.test_error_by_target * weights).sum(1) / weights.sum(), curve.test_error)


def test_the_predicted_accuracies_are_the_measured_ones(fitted: KernelLearnability, measured: LearningCurve) -> None:
    curve = fitted.learning_curve(SIZES, by="points")
    assert curve.accuracy is not None
    assert measured.accuracy is not None
    np.testing.assert_allclose(curve.accuracy, measured.accuracy, atol=0.03)
    assert measured.accuracy[-1] > measured.accuracy[0] + 0.02
    assert fitted.learning_curve([6]).accuracy is None


def test_what_is_measured_is_kernel_ridge_regression(fitted: KernelLearnability) -> None:
    """The same draws by scikit-learn's own `KernelRidge`."""
    from sklearn.kernel_ridge import KernelRidge

    K = linear_kernel(torch.from_numpy(X)).numpy()
    targets = np.eye(3)[Y]
    generator, errors, hits = torch.Generator().manual_seed(0), [], []
    for _ in range(3):
        order = torch.randperm(240, generator=generator).numpy()
        seen, others = order[:40], order[40:]
        model = KernelRidge(alpha=0.05 * K.diagonal().mean(), kernel="precomputed")
        out = model.fit(K[np.ix_(seen, seen)], (targets - targets.mean(0))[seen]).predict(K[np.ix_(others, seen)])
        errors.append(((out + targets.mean(0) - targets[others]) ** 2).mean(0).sum() / targets.var(0).sum())
        hits.append(((out + targets.mean(0)).argmax(1) == Y[others]).mean())
    curve = fitted.measure([40], n_draws=3)
    assert curve.test_error[0] == pytest.approx(np.mean(errors))
    assert curve.standard_error[0] == pytest.approx(np.std(errors, ddof=1) / math.sqrt(3))
    assert curve.accuracy[0] == pytest.approx(np.mean(hits))
    assert math.isinf(fitted.measure([40], n_draws=1).standard_error[0])


def test_the_modes_hold_the_targets(fitted: KernelLearnability) -> None:
    assert fitted.power_.sum() == pytest.approx(1)
    variance = np.bincount(Y) / 240 * (1 - np.bincount(Y) / 240)
    np.testing.assert_allclose((fitted.coefficients_**2).sum(0), variance)
    assert fitted.eigenvalues_.shape == (240,)
    assert (fitted.eigenvalues_[7:] < 1e-12).all()  # six features and the intercept
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert (fitted.n_features_in_, fitted.n_samples_) == (6, 240)
    assert fitted.ridge_ == pytest.approx(0.05 * 12)  # 6 standardised features and a constant of the same weight


def test_samples_needed_is_where_the_curve_crosses(fitted: KernelLearnability) -> None:
    found = fitted.samples_needed(0.6)
    n = found.n_samples
    errors = fitted.learning_curve([n - 1, n]).test_error
    assert errors[1] <= 0.6 < errors[0]
    assert f"needs {n} of the 240 samples" in found.sentence
    never = fitted.samples_needed(0.01)
    assert never.n_samples is None
    assert "with 239 it is" in never.sentence


def test_a_target_is_learned_sooner_in_a_representation_made_for_it() -> None:
    def direction(x: torch.Tensor) -> torch.Tensor:
        return x[:, :1]

    target = X[:, 0] + 0.1 * X[:, 1]
    plain = KernelLearnability("linear").fit(X, target).samples_needed(0.05)
    made = KernelLearnability("linear", features=direction).fit(X, target).samples_needed(0.05)
    assert made.n_samples < plain.n_samples
    assert plain.n_samples <= 10


@pytest.mark.parametrize(
    "kernel, expected",
    [
        ("ntk", lambda x: infinite_ntk(x, depth=2)),
        ("nngp", lambda x: infinite_nngp(x, depth=2)),
    ],
)
def test_words_name_the_kernels_of_wide_networks(kernel: str, expected: Any) -> None:
    model = KernelLearnability(kernel, depth=2).fit(X, Y)
    values = torch.linalg.eigvalsh(expected(torch.from_numpy(X))).flip(0) / 240
    np.testing.assert_allclose(model.eigenvalues_[:20], values[:20], rtol=1e-9)


@pytest.mark.parametrize("kernel", [GaussianKernel(3.0), lambda x, y: x @ y.mT + 1, "ntk"])
def test_any_kernel_will_do(kernel: Any) -> None:
    from kontrast.kernels import InfiniteNetwork

    model = KernelLearnability(kernel).fit(X, Y)
    assert model.learning_curve([60]).test_error[0] < 1
    if kernel == "ntk":
        own = KernelLearnability(TangentKernel(InfiniteNetwork())).fit(X, Y)
        np.testing.assert_allclose(own.eigenvalues_, model.eigenvalues_, rtol=1e-6, atol=1e-12)
        other = KernelLearnability(NetworkKernel(InfiniteNetwork())).fit(X, Y)
        assert not np.allclose(other.eigenvalues_, model.eigenvalues_, rtol=1e-3)


def test_features_are_a_fitted_estimator_a_module_or_a_function() -> None:
    pca = PCA(3, whiten=True).fit(X)
    weight = torch.from_numpy(pca.components_ / np.sqrt(pca.explained_variance_)[:, None])
    module = torch.nn.Linear(6, 3, dtype=torch.float64)
    module.weight.data, module.bias.data = weight, -weight @ torch.from_numpy(pca.mean_)
    curves = [
        KernelLearnability("linear", features=features).fit(X, Y).learning_curve([20, 80]).test_error
        for features in (pca, FrozenEstimator(pca), module, module.forward)
    ]
    for curve in curves[1:]:
        np.testing.assert_allclose(curve, curves[0], rtol=1e-9)
    own = ContrastivePCA(3).fit(X)
    model = KernelLearnability("linear", features=own).fit(X, Y)
    as_rows = KernelLearnability("linear").fit(own.transform(X), Y)
    np.testing.assert_allclose(model.eigenvalues_, as_rows.eigenvalues_, rtol=1e-6, atol=1e-12)


def test_linear_features_have_no_unit_and_no_origin() -> None:
    scale, shift = 10.0 ** np.arange(-3, 3), np.arange(6)
    with_constant = np.c_[X * scale + shift, np.full(len(X), 7.0)]
    np.testing.assert_allclose(
        linear_kernel(torch.from_numpy(with_constant)), linear_kernel(torch.from_numpy(X)), atol=1e-9
    )


@pytest.mark.parametrize("y", [Y.astype(str), np.array(["a", "b", "c"], dtype=object)[Y], Y - 7, torch.from_numpy(Y)])
def test_classes_may_have_any_name(y: Any, fitted: KernelLearnability) -> None:
    model = KernelLearnability("linear", relative_ridge=0.05).fit(X, y)
    np.testing.assert_array_equal(model.learning_curve([20]).test_error, fitted.learning_curve([20]).test_error)
    assert len(model.classes_) == 3


def test_real_targets_have_errors_and_no_accuracy() -> None:
    targets = np.c_[np.sin(X[:, 0]), X[:, 1] ** 2]
    model = KernelLearnability().fit(X, targets)
    curve, seen = model.learning_curve([100], by="points"), model.measure([100], n_draws=30)
    assert curve.accuracy is None
    assert seen.accuracy is None
    assert seen.accuracy_standard_error is None
    assert model.classes_ is None
    np.testing.assert_allclose(curve.test_error_by_target, seen.test_error_by_target, rtol=0.15)
    one = KernelLearnability().fit(X, targets[:, 0])
    np.testing.assert_allclose(
        one.learning_curve([100]).test_error, model.learning_curve([100]).test_error_by_target[:, 0]
    )
    np.testing.assert_allclose(
        KernelLearnability().fit(X, 9 * targets[:, 0] + 3).learning_curve([50]).test_error,
        one.learning_curve([50]).test_error,
    )


def test_of_many_samples_some_are_drawn() -> None:
    model = KernelLearnability("linear", max_samples=50, random_state=3).fit(X, Y)
    assert model.n_samples_ == 50
    assert len(set(model.indices_.tolist())) == 50
    part = KernelLearnability("linear").fit(X[model.indices_], Y[model.indices_])
    np.testing.assert_allclose(part.learning_curve([20]).test_error, model.learning_curve([20]).test_error)
    other = KernelLearnability("linear", max_samples=50, random_state=4).fit(X, Y)
    assert other.indices_.tolist() != model.indices_.tolist()


def test_images_and_single_precision() -> None:
    images = pictures(60).astype(np.float32)
    y = images.argmax(2)[:, 0] > 3
    model = KernelLearnability(lambda x, y: x @ y.mT, image_shape=(8, 8)).fit(images.reshape(60, 64), y)
    double = KernelLearnability(lambda x, y: x @ y.mT).fit(images.astype(np.float64), y)
    assert model.sample_shape_ == (1, 8, 8)
    for by in ("spectrum", "points"):
        np.testing.assert_allclose(
            model.learning_curve([20], by=by).test_error, double.learning_curve([20], by=by).test_error, rtol=1e-3
        )
    np.testing.assert_allclose(model.measure([20]).test_error, double.measure([20]).test_error, rtol=1e-3)


def test_the_same_seed_gives_the_same_curves() -> None:
    one, two = (KernelLearnability(random_state=5).fit(X, Y) for _ in range(2))
    np.testing.assert_array_equal(one.measure([30]).test_error, two.measure([30]).test_error)
    np.testing.assert_array_equal(
        one.learning_curve([30], by="points").accuracy, two.learning_curve([30], by="points").accuracy
    )
    other = KernelLearnability(random_state=6).fit(X, Y)
    assert other.measure([30]).test_error != one.measure([30]).test_error


def test_leave_one_out_is_fitting_without_each_sample() -> None:
    from sklearn.kernel_ridge import KernelRidge

    x, y = X[:60], Y[:60]
    model = KernelLearnability("linear", relative_ridge=0.05).fit(x, y)
    found = model.leave_one_out()
    K, targets = linear_kernel(torch.from_numpy(x)).numpy(), np.eye(3)[y]
    outputs = np.empty((60, 3))
    for i in range(60):
        others = np.arange(60) != i
        center = targets[others].mean(0)
        fit = KernelRidge(alpha=model.ridge_, kernel="precomputed").fit(
            K[np.ix_(others, others)], targets[others] - center
        )
        outputs[i] = fit.predict(K[i, others][None])[0] + center
    np.testing.assert_allclose(found.outputs, outputs, atol=1e-10)
    squares = ((outputs - targets) ** 2).sum(1) / targets.var(0).sum()
    assert found.test_error.value == pytest.approx(squares.mean())
    assert found.standard_error == pytest.approx(squares.std(ddof=1) / math.sqrt(60))
    assert found.test_error.low < found.test_error.value < found.test_error.high
    assert found.accuracy.value == pytest.approx((outputs.argmax(1) == y).mean())
    np.testing.assert_allclose(found.test_error_by_target, ((outputs - targets) ** 2).mean(0) / targets.var(0))
    assert found.n_samples == 60


def test_the_curve_by_leave_one_out_tells_of_more_labels_than_there_are() -> None:
    """240 labelled samples tell the errors with 30, 240 and 480 of them, measured on others."""
    x, y = clusters(1400, seed=5)
    model = KernelLearnability("ntk", relative_ridge=0.05).fit(x[:240], y[:240])
    curve = model.learning_curve([30, 240, 480], by="leave-one-out")
    score = model.leave_one_out()
    assert curve.test_error[1] == pytest.approx(score.test_error.value, rel=1e-12)
    assert curve.accuracy[1] == pytest.approx(score.accuracy.value)
    truth = KernelLearnability("ntk", relative_ridge=0.05).fit(x, y).measure([30, 240, 480], n_draws=10)
    for k in range(3):
        assert curve.interval[k, 0] <= truth.test_error[k] <= curve.interval[k, 1]
        assert curve.accuracy_interval[k, 0] <= truth.accuracy[k] <= curve.accuracy_interval[k, 1]
    np.testing.assert_allclose(curve.test_error, truth.test_error, rtol=0.2)
    assert curve.learnability is None
    assert curve.test_error_by_target.shape == (3, 3)
    assert (np.diff(curve.kappa) < 0).all()
    assert model.learning_curve([50]).interval is None


def test_samples_needed_beyond_those_there_are() -> None:
    x, y = clusters(120, seed=5)
    model = KernelLearnability("ntk", relative_ridge=0.05).fit(x, y)
    error = model.leave_one_out().test_error.value
    found = model.samples_needed(0.9 * error, by="leave-one-out")
    assert found.n_samples > 120
    assert found.low < found.n_samples
    assert "and there are 120" in found.sentence
    assert "by='leave-one-out' looks further" in model.samples_needed(0.01).sentence
    assert model.samples_needed(0.01, by="leave-one-out").n_samples is None


def test_the_number_of_features_is_the_rank_of_a_linear_kernel() -> None:
    rng = np.random.default_rng(0)
    x = np.c_[rng.normal(size=(50, 80)), np.ones(50)]
    model = KernelLearnability("linear").fit(x, x[:, 0])
    assert model._beyond().rank == 81  # 80 that vary, and the intercept
    assert KernelLearnability("linear").fit(X, Y)._beyond().rank == 7
    assert math.isinf(KernelLearnability("ntk").fit(x, x[:, 0])._beyond().rank)


def test_curves_by_leave_one_out_have_seeds_and_are_forgotten_by_the_next_fit() -> None:
    one, two, other = (
        KernelLearnability(random_state=seed).fit(X, Y).learning_curve([60], by="leave-one-out").test_error
        for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(one, two)
    assert other != one
    model = KernelLearnability(random_state=5).fit(X[:100], Y[:100])
    model.learning_curve([60], by="leave-one-out")
    np.testing.assert_array_equal(model.fit(X, Y).learning_curve([60], by="leave-one-out").test_error, one)
    targets = np.c_[X[:, 0], X[:, 1] ** 2] + 100
    real = KernelLearnability().fit(X, targets)
    assert real.leave_one_out().accuracy is None
    assert real.learning_curve([60], by="leave-one-out").accuracy_interval is None
    np.testing.assert_allclose(real.leave_one_out().outputs.mean(0), targets.mean(0), atol=0.5)


REFUSED = [
    ({"kernel": "rbf"}, "kernel must be one of ntk, nngp, linear or a function"),
    ({"kernel": 3}, "kernel must be one of"),
    ({"relative_ridge": 0.0}, "relative_ridge must be a positive number"),
    ({"relative_ridge": "much"}, "relative_ridge must be a positive number"),
    ({"max_samples": 2}, "max_samples must be a whole number of at least 3"),
    ({"depth": 0}, "depth must be a whole number"),
    ({"kernel": "linear", "depth": 2}, "depth and activation belong to kernel='ntk'"),
    ({"activation": "swish"}, "swish"),
    ({"features": "random"}, "features must be None, a fitted estimator with `transform`"),
    ({"features": PCA(2)}, "features=PCA is not fitted; fit it first"),
    ({"kernel": lambda x, y: x @ y.mT[:, :9]}, r"must be finite floats \(240, 240\), got torch.float64 \(240, 9\)"),
    ({"kernel": lambda x, y: (x @ y.mT).long()}, r"must be finite floats \(240, 240\), got torch.int64"),
    ({"kernel": lambda x, y: x.numpy() @ y.numpy().T}, r"must be finite floats \(240, 240\), got ndarray"),
    ({"kernel": lambda x, y: x @ y.mT / 0}, "must be finite floats"),
    ({"kernel": lambda x, y: torch.arange(240.0)[:, None] + 0 * (x @ y.mT)}, "symmetric"),
    ({"kernel": lambda x, y: torch.eye(240) - 2 * x @ y.mT}, "zero at every sample|negative"),
    ({"kernel": lambda x, y: 0 * x @ y.mT}, "the kernel is zero at every sample"),
    ({"kernel": "linear", "features": lambda x: torch.ones(len(x), 2)}, "are the features all constant"),
    ({"features": lambda x: x / 0}, "the features hold NaN"),
    ({"features": lambda x: x[:5]}, "map a batch of 240 samples"),
    ({"random_state": "seed"}, "random_state|cannot be used"),
]


@pytest.mark.parametrize("options, message", REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KernelLearnability(**options).fit(X, Y)


@pytest.mark.parametrize(
    "y, message",
    [
        (None, "requires y to be passed"),
        (Y[:9], r"one for each of the 240 samples, got int64 \(9,\)"),
        (np.zeros((240, 2, 2)), "y must be class labels"),
        (np.zeros(240, dtype=int), "one class only"),
        (np.ones(240), "1 of y's targets are constant"),
        (np.where(np.arange(240) == 3, np.nan, 1.0 * Y), "y holds NaN"),
        (np.array([["a", "b"]] * 240), "real targets must be numbers"),
    ],
)
def test_bad_labels_are_refused(y: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        KernelLearnability().fit(X, y)


def test_a_class_that_was_not_drawn_is_told() -> None:
    y = Y.copy()
    y[7] = 9
    with pytest.raises(
        InputError, match="1 of 4 classes have no sample among the 20 that were drawn; raise max_samples"
    ):
        KernelLearnability("linear", max_samples=20, random_state=1).fit(X, y)


@pytest.mark.parametrize("sizes", [[240], [0], [2.5], [], "many", [True]])
def test_bad_sizes_are_refused(sizes: Any, fitted: KernelLearnability) -> None:
    for call in (fitted.learning_curve, fitted.measure):
        with pytest.raises(InputError, match="n_samples"):
            call(sizes)


def test_other_bad_calls(fitted: KernelLearnability) -> None:
    with pytest.raises(InputError, match="by must be one of spectrum, points, leave-one-out, got 'kappa'"):
        fitted.learning_curve([3], by="kappa")
    with pytest.raises(InputError, match="by must be one of spectrum, leave-one-out, got 'points'"):
        fitted.samples_needed(0.5, by="points")
    with pytest.raises(InputError, match="n_samples must be a whole number of at least 30"):
        fitted.learning_curve([20], by="leave-one-out")
    with pytest.raises(InputError, match="n_samples must be at most 3840, as 16 times"):
        fitted.learning_curve([240, 4000], by="leave-one-out")
    with pytest.raises(InputError, match="needs 40 labelled samples, got 30"):
        KernelLearnability().fit(X[:30], Y[:30]).learning_curve([30], by="leave-one-out")
    for error in (0, math.nan):
        with pytest.raises(InputError, match="error must be a share"):
            fitted.samples_needed(error, by="leave-one-out")
    with pytest.raises(InputError, match="n_draws must be a whole number"):
        fitted.measure([3], n_draws=0)
    for error in (0, 1.5, "small", math.nan):
        with pytest.raises(InputError, match="error must be a share"):
            fitted.samples_needed(error)
    for call in (
        lambda m: m.learning_curve([3]),
        lambda m: m.measure([3]),
        lambda m: m.samples_needed(),
        lambda m: m.leave_one_out(),
    ):
        with pytest.raises(NotFittedError):
            call(clone(fitted))


def test_a_fit_that_fails_leaves_the_model_as_it_was() -> None:
    model = KernelLearnability("linear").fit(X, Y)
    before = model.learning_curve([20]).test_error
    with pytest.raises(InputError):
        model.fit(X[:50], np.zeros(50, dtype=int))
    np.testing.assert_array_equal(model.learning_curve([20]).test_error, before)


def test_an_accuracy_is_that_of_gaussian_outputs() -> None:
    """Two classes apart by d with deviation s: the right one is larger with probability Φ(d/s√2)."""
    outputs = torch.tensor([[0.6, 0.0], [0.6, 0.0]], dtype=torch.float64)
    targets = torch.zeros_like(outputs)
    moments = torch.eye(2, dtype=torch.float64) + outputs[:, :, None] * outputs[:, None, :]
    found = PointPrediction(1, torch.ones(2), outputs, moments, targets)
    offset = torch.zeros(2, dtype=torch.float64)

    def accuracy(labels: list[int], offset: torch.Tensor) -> float:
        return _accuracy(found, torch.tensor(labels), offset, torch.Generator().manual_seed(0))

    assert accuracy([0, 1], offset) == pytest.approx(0.5)  # one is right whenever the other is wrong
    assert accuracy([0, 0], offset) == pytest.approx(0.5 * (1 + math.erf(0.6 / 2)), abs=0.08)
    assert accuracy([0, 0], torch.tensor([9.0, 0.0], dtype=torch.float64)) == 1.0


def test_more_moments_than_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch, fitted: Any) -> None:
    monkeypatch.setattr("kontrast.estimators.kernel_learnability.MOST_MOMENTS", 240 * 9 - 1)
    with pytest.raises(InputError, match="3 x 3 moments of 3 targets at 240 samples, which is too much"):
        fitted.learning_curve([20], by="points")
    assert fitted.learning_curve([20]).test_error.shape == (1,)


def test_a_bar_is_shown_on_standard_error_alone(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = pictures(12).reshape(12, -1), np.arange(12) % 2
    KernelLearnability(progress=True).fit(x, y).learning_curve([4], by="points")
    said = capsys.readouterr()
    assert "predicting" in said.err
    assert said.out == ""


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    data = load("digits", dtype=torch.float64)
    x, y = data.rows[:200], data.y[:200]
    here, there = KernelLearnability().fit(x, y), KernelLearnability().fit(x.cuda(), y.cuda())
    one, other = (model.learning_curve([20, 80], by="points") for model in (here, there))
    assert other.test_error == pytest.approx(one.test_error, rel=1e-6)
    assert there.measure([20], n_draws=3).test_error == pytest.approx(
        here.measure([20], n_draws=3).test_error, rel=1e-6
    )
