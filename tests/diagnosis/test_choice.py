"""Which checkpoint: what each criterion takes, how good that was, and dimensions that are learned one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis.strategies import floats, integers, lists

from kontrast.diagnosis.choice import choose
from kontrast.diagnosis.collapse import learned_at, steps_of


def trajectory(accuracy: list[float] | None = None, **numbers: list[float]) -> xr.Dataset:
    """A result with these numbers by checkpoint, the start first."""
    n = len(next(iter(numbers.values())))
    labels = ["start", *(f"epoch {k}" for k in range(1, n))]
    found = {
        name: (("checkpoint", "layer", "bound"), np.array([[[value, math.nan, math.nan]] for value in values]))
        for name, values in numbers.items()
    }
    if accuracy is not None:
        found["checkpoint_accuracy"] = (("checkpoint", "checkpoint_split"), np.array([[a, a] for a in accuracy]))
    return xr.Dataset(found, coords={"checkpoint": labels, "layer": ["embedding"], "bound": ["value", "low", "high"]})


def test_each_criterion_takes_its_own_best() -> None:
    result = trajectory(
        [0.9, 0.5, 0.6, 0.8, 0.7, 0.65],
        lidar=[99, 1, 2, 3, 9, 4],
        rankme=[99, 2, 8, 3, 4, 5],
        alpha_req=[1.0, 3.0, 2.0, 1.2, 0.7, 0.0],
    )
    found = choose(result, "embedding")
    assert found.chosen.name == "lidar"
    by_name = {it.name: it for it in (found.chosen, *found.others)}
    assert {name: it.checkpoint for name, it in by_name.items()} == {
        "lidar": "epoch 4", "rankme": "epoch 2", "alpha_req": "epoch 3", "last": "epoch 5",
    }  # fmt: skip
    assert found.best == "epoch 3"  # not the start, though it scores more
    assert found.best_accuracy == pytest.approx(0.8)
    assert by_name["lidar"].regret == pytest.approx(0.1)
    assert by_name["alpha_req"].regret == 0
    assert by_name["last"].correlation == pytest.approx(0.7, abs=0.2)


@given(values=lists(floats(0, 100), min_size=3, max_size=8, unique=True), seed=integers(0, 99))
def test_the_start_is_never_chosen_and_the_regret_is_what_was_lost(values: list[float], seed: int) -> None:
    accuracy = np.random.default_rng(seed).random(len(values)).tolist()
    found = choose(trajectory(accuracy, lidar=values), "embedding")
    at = 1 + int(np.argmax(values[1:]))
    assert found.chosen.checkpoint == f"epoch {at}"
    assert found.chosen.accuracy == accuracy[at]
    assert found.chosen.regret == pytest.approx(max(accuracy[1:]) - accuracy[at])
    rising = choose(trajectory(sorted(accuracy), lidar=sorted(values)), "embedding")
    assert rising.chosen.regret == 0
    if len(values) > 4:
        assert rising.chosen.correlation == pytest.approx(1)


def test_without_labels_a_choice_is_not_judged() -> None:
    found = choose(trajectory(lidar=[0, 1, 2]), "embedding")
    assert (found.chosen.checkpoint, found.best) == ("epoch 2", None)
    assert math.isnan(found.chosen.accuracy)
    assert math.isnan(found.best_accuracy)


def test_a_number_that_is_missing_is_no_criterion() -> None:
    found = choose(trajectory(lidar=[math.nan] * 4, rankme=[1, math.nan, 5, 2]), "embedding")
    assert found.chosen.name == "rankme"
    assert found.chosen.checkpoint == "epoch 2"
    assert choose(trajectory(lidar=[1, 2]), "embedding") is None  # one trained checkpoint is no choice
    assert choose(xr.Dataset(), "embedding") is None


# --- dimensions -----------------------------------------------------------------------------------------------------


def spectra(*rows: list[float]) -> xr.Dataset:
    return xr.Dataset(
        {"singular_values": (("checkpoint", "layer", "component"), np.sqrt(np.array(rows))[:, None])},
        coords={"checkpoint": [f"c{k}" for k in range(len(rows))], "layer": ["embedding"]},
    )


def test_dimensions_are_learned_when_they_are_half_way_up() -> None:
    result = spectra([0.01, 0.01, 0.01], [1.0, 0.01, 0.01], [1.0, 0.05, 0.01], [1.0, 1.0, 0.01], [1.0, 1.0, 0.02])
    assert learned_at(result, "embedding") == [1, 3, None]  # the last has only doubled
    assert list(steps_of(result, "embedding")) == [("c1", 1), ("c3", 1)]


def test_what_was_there_or_never_came_is_not_learned() -> None:
    assert learned_at(spectra([1.0, 0.5], [2.0, 0.6]), "embedding") == [None, None]
    assert learned_at(spectra([0.0, 0.0], [1.0, 1e-9]), "embedding") == [1]
    assert learned_at(spectra([1.0, 1.0], [0.0, 0.0]), "embedding") == []
    assert learned_at(xr.Dataset(), "embedding") == []
