"""From numbers to words: which rule decides, when it is sure, and what the answers on collapse and gain are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis.strategies import floats, just, one_of

from kontrast.diagnosis.rules import RULES, Numbers, Regime, collapse_in, pays, regime_of, worst_collapse
from kontrast.diagnosis.settings import Limits
from kontrast.errors import InputError
from kontrast.linalg import Estimate

LIMITS = Limits()
NONE = math.nan


def numbers(**given: Any) -> Numbers:
    """Numbers of a model that learns, but for those given; a tuple is value, low, high."""
    known = {"movement": 2.0, "slope_left": 0.0, "gap": (0.9, 0.8, 1.0), "sine": 0.9, "loss_given": True} | given
    made = {name: _estimate(value) for name, value in known.items() if name != "loss_given"}
    return Numbers(**made, loss_given=known["loss_given"])


def _estimate(value: Any) -> Estimate:
    return Estimate(*value) if isinstance(value, tuple) else Estimate(value, NONE, NONE)


@pytest.mark.parametrize(
    "given, regime, sure",
    [
        ({}, Regime.LEARNING, True),
        ({"gap": (0.3, 0.2, 0.4)}, Regime.LEARNING, False),
        ({"gap": NONE}, Regime.LEARNING, False),
        ({"movement": NONE}, Regime.UNKNOWN, True),
        ({"movement": 0.01}, Regime.UNDERTRAINED, True),
        ({"movement": 0.04}, Regime.UNDERTRAINED, False),
        ({"movement": 0.0, "sine": 0.0, "gap": (0.0, 0.0, 0.0)}, Regime.UNDERTRAINED, True),
        ({"slope_left": 0.8}, Regime.UNDERTRAINED, True),
        ({"slope_left": 0.6}, Regime.UNDERTRAINED, False),
        ({"slope_left": 0.9, "loss_given": False}, Regime.UNDERTRAINED, False),
        ({"slope_left": 0.4}, Regime.LEARNING, True),
        ({"slope_left": NONE}, Regime.LEARNING, True),
        ({"gap": (0.1, 0.05, 0.15)}, Regime.KERNEL, True),
        ({"gap": (0.2, 0.1, 0.3)}, Regime.KERNEL, False),
        ({"sine": 0.05}, Regime.PCA, True),
        ({"sine": 0.15}, Regime.PCA, False),
        ({"sine": NONE}, Regime.LEARNING, True),
        # In this order: a PCA of random features is a kernel machine as well, and its loss may still fall.
        ({"sine": 0.05, "gap": (0.01, 0.0, 0.02)}, Regime.PCA, True),
        ({"sine": 0.05, "slope_left": 0.9}, Regime.PCA, True),
        ({"slope_left": 0.9, "gap": (0.01, 0.0, 0.02)}, Regime.UNDERTRAINED, True),
    ],
)
def test_the_first_rule_that_holds_decides(given: dict[str, Any], regime: Regime, sure: bool) -> None:
    found = regime_of(numbers(**given), LIMITS)
    assert (found.regime, found.sure) == (regime, sure)
    assert "{" not in found.reason


def test_every_regime_has_a_rule_and_the_last_always_holds() -> None:
    assert {rule.regime for rule in RULES} == set(Regime)
    order = [rule.regime for rule in RULES]
    assert order.index(Regime.PCA) < order.index(Regime.KERNEL)
    assert RULES[-1].holds(numbers(), LIMITS)


any_number = one_of(floats(0, 10), just(NONE), just(math.inf))


@given(movement=any_number, slope=any_number, gap=any_number, sine=any_number)
def test_any_numbers_have_a_regime(movement: float, slope: float, gap: float, sine: float) -> None:
    found = regime_of(numbers(movement=movement, slope_left=slope, gap=gap, sine=sine), LIMITS)
    assert (found.regime is Regime.UNKNOWN) == math.isnan(movement)
    if found.regime is Regime.KERNEL:
        assert gap <= LIMITS.gap < sine or math.isnan(sine)


def test_limits_move_the_words() -> None:
    it = numbers(gap=(0.3, 0.28, 0.32), sine=0.3)
    assert regime_of(it, LIMITS).regime is Regime.LEARNING
    assert regime_of(it, Limits(gap=0.35)).regime is Regime.KERNEL
    assert regime_of(it, Limits(gap=0.35, pca=0.4)).regime is Regime.PCA
    assert "at most 0.35" in regime_of(it, Limits(gap=0.35)).reason
    assert regime_of(numbers(movement=0.2), Limits(moved=0.3)).regime is Regime.UNDERTRAINED
    for bad in ({"gap": -1}, {"moved": 1.0}, {"pca": "x"}, {"margin": NONE}):
        with pytest.raises(InputError, match=f"{next(iter(bad))} must be at least 0 and below 1"):
            Limits(**bad)


# --- collapse -------------------------------------------------------------------------------------------------------


def looked_at(**layers: tuple[list[float], list[float], list[float]]) -> xr.Dataset:
    """A result of 100 samples: spread, centred rank and participation ratio by layer of 32, at start and end."""
    names = ("spread", "centered_rank", "participation_ratio")
    table = np.array(list(layers.values()), dtype=float)  # (layer, number, checkpoint)
    found = {
        name: (
            ("checkpoint", "layer", "bound"),
            np.stack([table[:, k].T, *[np.full_like(table[:, k].T, NONE)] * 2], axis=2),
        )
        for k, name in enumerate(names)
    }
    return xr.Dataset(
        {**found, "layer_dimension": ("layer", [32] * len(layers))},
        coords={"checkpoint": ["start", "end"], "layer": list(layers), "bound": ["value", "low", "high"]},
        attrs={"n_samples": 100, "features": "backbone"},
    )


FINE = ([0.9, 0.8], [20, 15], [10, 8])
FEW = ([0.9, 0.8], [20, 2], [10, 1.5])
ONE = ([0.9, 0.8], [20, 15], [10, 1.05])
POINT = ([0.9, 1e-4], [20, 15], [10, 8])


@pytest.mark.parametrize(
    "numbers, expected",
    [
        (FINE, "none"),
        (FEW, "dimensional"),
        (ONE, "dimensional"),
        (POINT, "complete"),
        (([0.005, 0.004], [20, 15], [10, 8]), "none"),  # a deep start has little spread too
        (([0.005, 0.001], [20, 15], [10, 8]), "complete"),
        (([0.0, 0.0], [NONE, NONE], [NONE, NONE]), "complete"),
        (([0.9, 0.8], [3.0, 2.0], [2.5, 1.5]), "none"),  # few directions at the start as well
        (([NONE, NONE], [NONE, NONE], [NONE, NONE]), "none"),
    ],
)
def test_a_layer_has_collapsed_beside_its_start(numbers: Any, expected: str) -> None:
    assert collapse_in(looked_at(embedding=numbers), "embedding") == expected


@pytest.mark.parametrize(
    "layers, expected",
    [
        ({"backbone": FINE, "embedding": FINE}, ("none", "")),
        ({"backbone": FINE, "embedding": FEW}, ("dimensional", "embedding")),
        ({"backbone": POINT, "embedding": FEW}, ("complete", "backbone")),
        ({"backbone": FEW, "embedding": POINT}, ("complete", "embedding")),
        ({"backbone": FEW, "embedding": FEW}, ("dimensional", "backbone")),
        ({"head.0": POINT, "backbone": FINE, "embedding": FINE}, ("none", "")),  # layers in between are not judged
    ],
)
def test_the_worst_of_features_and_embedding_counts(layers: Any, expected: Any) -> None:
    assert worst_collapse(looked_at(**layers)) == expected


def test_one_checkpoint_without_numbers_has_not_collapsed() -> None:
    assert collapse_in(xr.Dataset(), "embedding") == "none"
    assert worst_collapse(xr.Dataset()) == ("none", "")


# --- does it pay ----------------------------------------------------------------------------------------------------


def scored(tasks: tuple[str, ...] = ("linear", "knn"), **by_name: list[float]) -> xr.Dataset:
    table = np.array([[values] * len(tasks) for values in by_name.values()], dtype=float)
    names = [name.replace("_", " ") for name in by_name]
    return xr.Dataset(
        {"score": (("embedding", "task", "split"), table)}, coords={"embedding": names, "task": list(tasks)}
    )


TRAINED = [0.80, 0.81, 0.79, 0.80]


@pytest.mark.parametrize(
    "others, answer, hardest",
    [
        ({"start": [0.60, 0.61, 0.60, 0.60], "spectral": [0.70, 0.71, 0.69, 0.70]}, "yes", "spectral"),
        ({"start": [0.60, 0.61, 0.60, 0.60], "spectral": [0.80, 0.81, 0.79, 0.80]}, "no", "spectral"),
        ({"start": [0.90, 0.90, 0.90, 0.90], "spectral": [0.70, 0.71, 0.69, 0.70]}, "no", "start"),
        ({"start": [0.60, 0.61, 0.60, 0.60], "spectral": [0.60, 0.95, 0.50, 0.80]}, "unsure", "spectral"),
        ({"start": [0.795, 0.805, 0.785, 0.795]}, "no", "start"),  # sure, but within the margin
        ({"start": [0.60, 0.95, 0.50, 1.00], "spectral": [0.60] * 4}, "unsure", "start"),  # level, but who knows
        ({"start": [0.60, 0.60, 0.60, 0.60], "raw_input": [0.99, 0.99, 0.99, 0.99]}, "yes", "start"),
        ({"start": [0.60, 0.60, 0.60, 0.60], "spectral": [NONE] * 4}, "yes", "start"),
        ({}, "unsure", None),
    ],
)
def test_training_pays_where_it_surely_beats_all(others: Any, answer: str, hardest: str | None) -> None:
    found, gain = pays(scored(trained=TRAINED, **others), LIMITS)
    assert found == answer
    assert (gain and gain.over) == hardest


def test_the_margin_is_the_users() -> None:
    result = scored(trained=TRAINED, start=[0.77, 0.78, 0.76, 0.77])
    assert pays(result, LIMITS)[0] == "yes"
    assert pays(result, Limits(margin=0.05))[0] == "no"


def test_without_labels_training_can_only_have_lost() -> None:
    tasks = ("dichotomies", "agreement")
    assert pays(scored(tasks, trained=TRAINED, start=[0.6] * 4), LIMITS)[0] == "unsure"
    assert pays(scored(tasks, trained=[0.6, 0.61, 0.6, 0.59], start=TRAINED), LIMITS)[0] == "no"
    assert pays(scored(tasks, trained=[0.6, 0.95, 0.6, 0.59], start=TRAINED), LIMITS)[0] == "unsure"
    mixed = scored(tasks, trained=TRAINED, start=[0.6] * 4)
    mixed.score.loc[{"embedding": "start", "task": "agreement"}] = 0.99
    assert pays(mixed, LIMITS)[0] == "unsure"
    assert pays(xr.Dataset(), LIMITS) == ("unsure", None)
