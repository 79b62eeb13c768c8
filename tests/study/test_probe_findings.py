from __future__ import annotations

import math

import numpy as np
import pytest
import xarray as xr

from kontrast.study import ProbeFindings, StudySpec
from kontrast.study.probe_findings import find_probes, without_probes

SPEC = StudySpec(n_probe_samples=100)


def probes(scores: dict[str, list[float]], *, narrow: float = 0.5) -> xr.Dataset:
    """Accuracies at width 128, one a seed; at width 64 everything is `narrow`."""
    wide = np.array(list(scores.values()))  # (embedding, seed)
    return xr.Dataset(
        {
            "probe_accuracy": (("embedding", "width", "seed"), np.stack([np.full_like(wide, narrow), wide], axis=1)),
            "probe_overlap": (("width", "seed"), np.zeros((2, wide.shape[1]), dtype=np.int32)),
        },
        coords={"embedding": list(scores), "width": [64, 128], "seed": range(wide.shape[1])},
    )


def found(margin: float = 0.02, **scores: list[float]) -> ProbeFindings:
    return find_probes(probes({name.replace("_", "-"): values for name, values in scores.items()}), SPEC, margin)


def test_training_buys_what_beats_every_closed_form() -> None:
    gain = found(trained=[0.9, 0.92, 0.91], cosine=[0.5] * 3, pixels=[0.85, 0.86, 0.85], pixel_pca=[0.7] * 3).gain
    assert gain is not None
    assert (gain.embedding, gain.baseline, gain.buys) == ("trained", "pixels", True)
    assert gain.mean == pytest.approx(np.mean([0.05, 0.06, 0.06]))
    assert gain.error == pytest.approx(np.std([0.05, 0.06, 0.06], ddof=1) / math.sqrt(3))
    assert gain.sentence.startswith("training buys 5.7% of test accuracy")
    assert "trained 91.0% against pixels 85.3% at width 128" in gain.sentence


@pytest.mark.parametrize("closed", ["pca", "random", "pixels", "pixel_pca", "chance"])
def test_one_closed_form_that_is_as_good_is_enough(closed: str) -> None:
    gain = found(trained=[0.9, 0.92], **{"pixels": [0.5, 0.5], closed: [0.9, 0.91]}).gain
    assert gain is not None
    assert not gain.buys
    assert gain.baseline == closed.replace("_", "-")
    assert "training buys no test accuracy" in gain.sentence


def test_the_margin_decides() -> None:
    scores = {"trained": [0.90, 0.90], "pixels": [0.85, 0.85]}
    assert found(0.04, **scores).gain.buys
    assert not found(0.06, **scores).gain.buys


def test_a_difference_within_its_error_is_not_bought() -> None:
    gain = found(trained=[0.95, 0.70, 0.80], pixels=[0.70, 0.75, 0.75]).gain
    assert gain is not None
    assert gain.mean > 0.02
    assert gain.error > gain.mean
    assert not gain.buys
    assert "is not known" in gain.sentence


def test_one_seed_cannot_tell_a_gain_from_chance() -> None:
    one = found(trained=[0.9], pixels=[0.5])
    assert one.gain is not None
    assert not one.gain.buys
    assert "one seed cannot tell it from chance" in one.gain.sentence
    assert math.isnan(one.deviations["trained"][1])


def test_a_diverged_run_is_no_candidate_and_no_mean() -> None:
    some = found(trained=[0.6, 0.6], dot=[0.99, math.nan], pixels=[0.5, 0.5])
    assert some.gain is not None
    assert some.gain.embedding == "trained"
    assert math.isnan(some.means["dot"][1])
    assert some.means["dot"][0] == 0.5
    assert found(dot=[math.nan, math.nan], pixels=[0.5, 0.5]).gain is None


def test_means_and_deviations_are_over_the_seeds() -> None:
    some = found(trained=[0.6, 0.8], pixels=[0.5, 0.5])
    assert some.means["trained"] == pytest.approx((0.5, 0.7))
    assert some.deviations["trained"] == pytest.approx((0.0, np.std([0.6, 0.8], ddof=1)))
    assert some.n_samples == 100


@pytest.mark.parametrize("n_classes, reason", [(0, "no labels"), (1, "all of one class"), (10, "switched off")])
def test_the_reason_for_no_probes_is_told(n_classes: int, reason: str) -> None:
    assert reason in without_probes(xr.Dataset({"n_classes": (("width", "seed"), [[n_classes]])}))
