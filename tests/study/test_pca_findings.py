"""Verdicts of the orthonormal run are computed: each changes when the numbers behind it change."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis.strategies import floats, integers

from kontrast.study import PCA_MEASURES, PCAFindings, PCAVerdict, StudySpec, Thresholds
from kontrast.study.pca_findings import find_pca

SPEC = StudySpec(widths=(64, 128, 256, 512), n_seeds=3, n_steps=100)


def runs(
    *, start: float = 0.05, now: float = 0.01, frozen: float = 0.01, exponent: float = -1.0, gap: float = 0.05
) -> xr.Dataset:
    """Sines to PCA that are given at width 512, after 100 steps; that of C̃(0) follows a law in the width."""
    widths, steps = np.array(SPEC.widths, dtype=float), np.array(SPEC.record_steps)
    shape = (4, 3, len(steps))
    noise = np.exp(0.01 * np.random.default_rng(0).standard_normal(shape))
    law = (widths / 512)[:, None, None] ** exponent
    values = {name: np.ones(shape) for name in PCA_MEASURES}
    values |= {
        "pca_angle_start": np.minimum(start * law * noise, 1),
        "pca_angle_now": now * noise,
        "pca_angle_frozen": frozen * noise,
        "matrix_drift": 0.1 * law * noise,
        "pca_loss": -np.broadcast_to(np.linspace(0.1, 0.3, len(steps)), shape),
    }
    dims = ("width", "seed")
    return xr.Dataset(
        {name: ((*dims, "step"), value) for name, value in values.items()}
        | {
            "pca_diverged": (dims, np.zeros((4, 3), dtype=np.int32)),
            "pca_stopped_at": (dims, np.full((4, 3), 100, dtype=np.int32)),
            "pca_not_unique": (dims, np.zeros((4, 3), dtype=np.int32)),
            "eigengap_start": (dims, np.full((4, 3), gap)),
        },
        coords={"width": list(SPEC.widths), "seed": range(3), "step": steps},
    )


def judged(result: xr.Dataset, tolerance: float = 0.1) -> PCAFindings:
    return find_pca(result, SPEC, Thresholds(pca_tolerance=tolerance))


def test_a_small_sine_is_pca_from_the_width_that_reaches_it() -> None:
    found = judged(runs(start=0.04))
    assert found.verdict is PCAVerdict.PCA
    assert found.sentence.startswith("orthonormal: the sine to PCA of C̃(0) falls as M^-1.0")
    assert "within a sine of 0.04 (within 0.1 from width 256)" in found.sentence
    assert found.step == 100


@given(exponent=floats(-1.5, -0.3))
def test_exponents_are_those_of_the_data(exponent: float) -> None:
    found = judged(runs(start=0.02, exponent=exponent))
    assert found.exponents["pca_angle_start"].exponent == pytest.approx(exponent, abs=0.05)
    assert found.exponents["matrix_drift"].exponent == pytest.approx(exponent, abs=0.05)


def test_the_tolerance_decides() -> None:
    result = runs(start=0.05)
    assert judged(result, 0.06).verdict is PCAVerdict.PCA
    assert judged(result, 0.04).verdict is PCAVerdict.PCA_WHEN_WIDER


def test_a_falling_sine_says_which_width_would_do() -> None:
    found = judged(runs(start=0.2, exponent=-0.5))
    assert found.verdict is PCAVerdict.PCA_WHEN_WIDER
    assert "0.1 needs width about 2,000" in found.sentence


def test_a_twin_that_has_not_arrived_promises_nothing_about_wider_nets() -> None:
    found = judged(runs(start=0.5, now=0.5, frozen=0.5, exponent=-0.2))
    assert found.exponents["pca_angle_start"].high < 0
    assert found.verdict is PCAVerdict.NOT_CONVERGED


def test_pca_of_the_present_features_is_learning() -> None:
    found = judged(runs(start=0.9, now=0.02, exponent=0.1))
    assert found.verdict is PCAVerdict.PCA_OF_LEARNED_FEATURES
    assert "a sine of 0.91 from PCA of C̃(0) and 0.02 from PCA of C̃(t)" in found.sentence


@pytest.mark.parametrize(
    "frozen, gap, advice",
    [
        (0.9, 0.001, "the eigengap of 0.001 takes several times 500 steps; raise --steps, or lower --d-out"),
        (0.9, 0.5, "takes some 1 steps: they are too long, lower --pca-learning-rate"),
        (0.02, 0.001, "the features move faster than W can follow: lower --pca-learning-rate"),
    ],
)
def test_what_has_not_arrived_says_what_to_do(frozen: float, gap: float, advice: str) -> None:
    found = judged(runs(start=0.9, now=0.9, frozen=frozen, exponent=0.0, gap=gap))
    assert found.verdict is PCAVerdict.NOT_CONVERGED
    assert advice in found.sentence


def test_frozen_features_with_the_same_outputs_make_it_pca_underway() -> None:
    result = runs(start=0.9, now=0.9, frozen=0.9, exponent=0.0, gap=0.001)
    result["frozen_gap"] = result.frozen_gap * 0.02
    found = judged(result)
    assert found.verdict is PCAVerdict.PCA_UNDERWAY
    assert "within 2.00%, so what it does is PCA of C̃(0), not finished (sine 0.91)" in found.sentence
    assert "raise --steps, or lower --d-out" in found.sentence
    assert find_pca(result, SPEC, Thresholds(tolerance=0.01)).verdict is PCAVerdict.NOT_CONVERGED


def test_a_run_whose_loss_stands_still_says_nothing() -> None:
    """Where nothing moves, frozen features give the same outputs, and that is no PCA underway."""
    result = runs(start=0.9, now=0.9, frozen=0.9, exponent=0.0, gap=0.001)
    result["frozen_gap"] = result.frozen_gap * 0.02
    result["pca_loss"] = result.pca_loss * 0 - 0.3
    found = judged(result)
    assert found.verdict is PCAVerdict.STILL
    assert "its loss has changed by 0.00% since the first record, too little to judge; raise --steps" in found.sentence


@given(width=integers(0, 3), seed=integers(0, 2))
def test_one_diverged_run_is_never_averaged_away(width: int, seed: int) -> None:
    result = runs()
    result.pca_diverged[width, seed], result.pca_stopped_at[width, seed] = 1, 50
    for name in PCA_MEASURES:
        result[name][width, seed, result.step.values >= 50] = np.nan
    found = judged(result)
    assert found.verdict is PCAVerdict.DIVERGES
    assert "diverges in 1 of 12 runs" in found.sentence
    assert found.step is not None
    assert found.step <= 25
    assert all(np.isfinite(values).all() for values in found.means.values())


def test_without_an_eigengap_there_is_nothing_to_compare_with() -> None:
    result = runs(start=0.01)
    result.pca_not_unique[0, 1] = 1
    assert judged(result).verdict is PCAVerdict.PCA  # the widest network decides
    result.pca_not_unique[-1, 1] = 1
    found = judged(result)
    assert found.verdict is PCAVerdict.UNDEFINED
    assert "zero in 2 of 12 runs" in found.sentence
    result.pca_angle_start[:] = np.nan
    assert judged(result).verdict is PCAVerdict.UNDEFINED
    assert judged(result).means == {}
