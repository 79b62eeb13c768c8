"""Curves beyond the labels there are: at n leave-one-out, beyond it the truth of problems whose spectrum is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers
from torch import Tensor

from kontrast.errors import InputError
from kontrast.learnability import (
    CalibratedCurve,
    Spectrum,
    calibrated_curve,
    left_out,
    predict_learning,
)
from tests.cases import generator, randn

seeds = integers(0, 2**16)


class Known:
    """Gaussian features of variances i^−decay, and 16 targets with powers i^−falloff in them, with noise."""

    def __init__(self, decay: float, falloff: float, *, features: int = 2000, noise: float = 0.0) -> None:
        place = torch.arange(1, features + 1, dtype=torch.float64)
        self.values, self.noise = place**-decay, noise
        self.powers = place**-falloff / (place**-falloff).sum()

    def drawn(self, n: int, seed: int) -> tuple[Tensor, Tensor]:
        """The kernel and the targets of n samples."""
        z = randn(n, len(self.values), seed=seed)
        x, signs = z * self.values.sqrt(), randn(len(self.values), 16, seed=seed + 1).sign()
        return x @ x.mT, (z * self.powers.sqrt()) @ signs + self.noise**0.5 * randn(n, 16, seed=seed + 2)

    def error(self, n: int, ridge: float) -> float:
        """The expected error with n labels, as a share of the targets' variance."""
        spectrum = Spectrum(self.values, size=math.inf)
        found = predict_learning(spectrum, self.powers, n, ridge=ridge, noise_variance=self.noise)
        return float(found.test_error) / (1 + self.noise)

    def curve(self, n: int, ridge: float, seed: int, rank: float | None = math.inf) -> CalibratedCurve:
        return calibrated_curve(*self.drawn(n, 10 * seed), ridge=ridge, rank=rank, generator=generator(seed))

    def ratios(self, n: int, ridge: float, factor: int, rank: float | None = math.inf) -> np.ndarray:
        """Predicted over true errors with factor · n labels, of 6 training sets."""
        curves = [self.curve(n, ridge, seed, rank) for seed in range(6)]
        return np.array([curve.error(factor * n).value for curve in curves]) / self.error(factor * n, ridge)


@pytest.mark.parametrize(
    "decay, falloff, noise, ridge",
    [(2.0, 1.5, 0.0, 0.1), (2.0, 1.5, 0.2, 0.1), (1.5, 1.5, 0.2, 0.1), (1.5, 1.3, 0.2, 1.0)],
)
def test_power_laws_are_continued(decay: float, falloff: float, noise: float, ridge: float) -> None:
    """From 200 to 800 labels within 6 % in the mean over training sets, and 12 % for most of them."""
    problem = Known(decay, falloff, noise=noise)
    assert problem.error(800, ridge) < 0.85 * problem.error(200, ridge)
    found = problem.ratios(200, ridge, 4)
    assert found.mean() == pytest.approx(1, abs=0.06)
    assert np.median(abs(found - 1)) < 0.12


def test_the_floor_beyond_the_features_is_foreseen() -> None:
    """30 features and noise: from 200 to 1600 labels within 3 %, where a line through the errors falls below it."""
    problem = Known(0.2, 1.0, features=30, noise=0.5)
    assert problem.ratios(200, 0.01, 8, rank=None).mean() == pytest.approx(1, abs=0.03)  # K tells its own rank
    curve = problem.curve(200, 0.01, 0, rank=None)
    assert curve.rank == 30
    assert line(curve, 1600) < 0.7 * problem.error(1600, 0.01)


def line(curve: CalibratedCurve, n: int) -> float:
    """The power law through the two largest sizes."""
    slope = math.log(curve.errors[-1] / curve.errors[-2]) / math.log(2)
    return float(curve.errors[-1] * (n / curve.n_samples) ** slope)


def test_a_peak_at_as_many_labels_as_features_is_foreseen() -> None:
    """300 noisy labels and 400 features: the error rises, and falls again; roughly right where a line is not at all."""
    problem, ridge = Known(0.5, 1.5, features=400, noise=0.3), 1.0
    truth = [problem.error(n, ridge) for n in (150, 300, 400, 600, 1200)]
    assert truth[0] < truth[1] < truth[2] > truth[3] > truth[4]
    assert problem.ratios(300, ridge, 2, rank=400).mean() == pytest.approx(1, abs=0.25)
    curve = problem.curve(300, ridge, seed=0, rank=400)
    assert curve.error(400).value > curve.error(600).value
    assert line(curve, 600) > 1.4 * truth[3]
    blind = problem.curve(300, 0.1, seed=0)
    assert blind.reach == 300
    assert "the error rises with the labels" in blind.why
    with pytest.raises(InputError, match="pass it as rank, or raise the ridge, got 600"):
        blind.error(600)


def test_intervals_hold_the_error() -> None:
    problem, hits = Known(1.5, 1.5, noise=0.2), []
    for seed in range(12):
        curve = problem.curve(120, 0.1, seed)
        for n in (120, 240, 480, 960):
            if n <= curve.reach:
                hits.append(curve.error(n).low <= problem.error(n, 0.1) <= curve.error(n).high)
    assert np.mean(hits) >= 0.9
    assert len(hits) >= 36


@given(seed=seeds, ridge=floats(1e-3, 10), n=integers(40, 70))
@settings(max_examples=15)
def test_at_n_it_is_leave_one_out(seed: int, ridge: float, n: int) -> None:
    K, y = Known(1.5, 1.5, features=100).drawn(n, seed)
    curve = calibrated_curve(K, y, ridge=ridge, generator=generator(seed))
    assert curve.error(n).value == pytest.approx(left_out(K, y, ridge=ridge).error.value, rel=1e-12)
    assert curve.kappa(n) == pytest.approx(left_out(K, y, ridge=ridge).kappa, rel=1e-12)
    for size, error in zip(curve.sizes[1:], curve.errors[1:], strict=True):
        if size == int(size):
            assert curve.error(int(size)).value == pytest.approx(error, rel=1e-12)
    if curve.reach > n:  # without a step at n
        assert curve.error(n + 1).value == pytest.approx(curve.error(n).value, rel=0.1)
        assert curve.kappa(n + 1) <= curve.kappa(n) * (1 + 1e-9)


@given(seed=seeds, scale=floats(1e-6, 1e6))
@settings(max_examples=10)
def test_kernels_and_targets_have_no_unit(seed: int, scale: float) -> None:
    K, y = Known(1.5, 1.5, features=100).drawn(48, seed)
    one = calibrated_curve(K, y, ridge=0.1, rank=100, generator=generator(1))
    other = calibrated_curve(scale * K, 3 * y + 1, ridge=0.1 * scale, rank=100, generator=generator(1))
    assert other.reach == one.reach
    assert other.error(one.reach).value == pytest.approx(one.error(one.reach).value, rel=1e-6)
    assert other.kappa(one.reach) == pytest.approx(scale * one.kappa(one.reach), rel=1e-6)


def three_classes(n: int = 160, seed: int = 0) -> tuple[Tensor, Tensor]:
    labels = torch.randint(3, (n,), generator=generator(seed))
    x = 0.9 * randn(3, 6, seed=7)[labels] + randn(n, 6, seed=seed + 1)
    return torch.exp(-torch.cdist(x, x).square() / 12), labels


def test_classes_have_accuracies_and_errors_of_their_own() -> None:
    K, labels = three_classes()
    curve = calibrated_curve(K, labels, ridge=0.05, generator=generator(0))
    now = curve.accuracy(160)
    assert now is not None
    assert now.value == pytest.approx(curve.left_out.accuracy.value)
    later = curve.accuracy(min(640, curve.reach))
    assert later.low < later.value <= later.high
    assert later.value >= now.value
    measured = []
    for seed in range(4):  # 160 of them are labelled, the others are tested
        K, labels = three_classes(1000, seed=10 + seed)
        y = torch.nn.functional.one_hot(labels).double()
        weights = torch.linalg.solve(K[:160, :160] + 0.05 * torch.eye(160, dtype=K.dtype), y[:160] - y[:160].mean(0))
        outputs = K[160:, :160] @ weights + y[:160].mean(0)
        measured.append(float((outputs.argmax(1) == labels[160:]).double().mean()))
    assert now.value == pytest.approx(np.mean(measured), abs=0.08)
    for n in (80, 160, curve.reach):
        weights = curve.left_out.variance.numpy()
        assert curve.error_by_target(n) @ weights / weights.sum() == pytest.approx(curve.error(n).value)
    np.testing.assert_allclose(curve.error_by_target(160), curve.left_out.error_by_target)


def test_labels_needed_are_where_the_curve_crosses() -> None:
    problem = Known(2.0, 1.5)
    curve = problem.curve(200, 0.1, 3)
    for error in (1.3 * curve.errors[-1], 0.8 * curve.errors[-1]):
        found = curve.samples_needed(float(error))
        assert found.n_samples is not None
        assert curve.error(found.n_samples).value <= error < curve.error(found.n_samples - 1).value
        assert found.low is not None
        assert found.low <= found.n_samples <= (found.high or math.inf)
        assert f"about {found.n_samples} labels" in found.sentence
    needed = curve.samples_needed(0.8 * float(curve.errors[-1])).n_samples
    true = next(n for n in range(200, 4000, 5) if problem.error(n, 0.1) <= 0.8 * problem.error(200, 0.1))
    assert needed == pytest.approx(true, rel=0.3)
    never = curve.samples_needed(1e-4)
    assert never.n_samples is None
    assert f"no number of labels up to {curve.reach} brings the error down to 0.0001" in never.sentence
    assert never.sentence.endswith(curve.why)
    easy = curve.samples_needed(0.99)
    assert easy.n_samples == curve.least
    assert "at most 25 of the 200 labels" in easy.sentence


def test_order_seeds_and_number_types() -> None:
    K, labels = three_classes()
    order = labels.argsort()
    one, two, other = (
        calibrated_curve(K, labels, ridge=0.05, rank=math.inf, generator=generator(seed)).errors for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, two)
    assert (other != one).any()
    by_class = calibrated_curve(K[order][:, order], labels[order], ridge=0.05, generator=generator(1))
    np.testing.assert_allclose(by_class.errors, one, rtol=0.1)  # though the labels are in order
    single = calibrated_curve(K.float(), labels, ridge=0.05, rank=math.inf, generator=generator(1))
    np.testing.assert_allclose(single.errors, one, rtol=1e-3)


def test_the_reach_is_16_times_the_labels_at_most_and_less_where_the_interval_is_wide() -> None:
    steep, calm = Known(1.5, 2.0), Known(2.0, 1.5)
    curves = [*(steep.curve(200, 0.1, seed) for seed in range(4)), calm.curve(200, 0.1, 0)]
    assert curves[-1].reach == 3200
    assert min(curve.reach for curve in curves) < 3200
    for curve in curves:
        assert curve.error(curve.reach).high <= (2 + 1e-9) * curve.error(curve.reach).value
        assert ("16 times the labels" if curve.reach == 3200 else "wider than a factor of 2") in curve.why
        with pytest.raises(InputError, match=f"n_samples must be at most {curve.reach}, as "):
            curve.error(curve.reach + 1)


def test_without_a_ridge_the_labels_are_fewer_than_the_features() -> None:
    problem = Known(0.5, 1.5, features=100, noise=0.1)
    curve = problem.curve(60, 0.0, 0, rank=100)
    assert curve.reach < 100
    if curve.reach == 99:
        assert "pass one" in curve.why


K0, Y0 = Known(1.5, 1.5, features=100).drawn(48, 0)
BAD = {
    "few": ({"K": K0[:39, :39], "targets": Y0[:39]}, "needs 40 labelled samples, got 39; left_out tells"),
    "rank": ({"rank": 0}, "rank must be a whole number"),
    "draws": ({"n_draws": 0}, "n_draws"),
    "generator": ({"generator": None}, "generator"),
    "ridge": ({"ridge": -1.0}, "ridge"),
    "constant": ({"targets": torch.ones(48)}, "nothing to learn"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name: str) -> None:
    changed, text = BAD[name]
    call = {"K": K0, "targets": Y0, "ridge": 0.1, "generator": generator(0), **changed}
    with pytest.raises(InputError, match=text):
        calibrated_curve(call.pop("K"), call.pop("targets"), **call)


def test_bad_questions_are_refused() -> None:
    curve = calibrated_curve(K0, Y0, ridge=0.1, generator=generator(0))
    for ask in (curve.error, curve.kappa, curve.accuracy, curve.error_by_target):
        for n in (5, 2.5, 10**6):
            with pytest.raises(InputError, match="n_samples must be"):
                ask(n)
    for error in (0, 1.5, "small", math.nan):
        with pytest.raises(InputError, match="error must be a share"):
            curve.samples_needed(error)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    K, labels = three_classes()
    here = calibrated_curve(K, labels, ridge=0.05, generator=generator(0))
    there = calibrated_curve(K.cuda(), labels.cuda(), ridge=0.05, generator=generator(0))
    np.testing.assert_allclose(there.errors, here.errors, rtol=1e-8)
    assert there.accuracy(300).value == pytest.approx(here.accuracy(300).value)
