"""What a diagnosis says of pairs, the loss and the augmentation is what their own functions say of its embeddings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor

from kontrast.diagnosis import collapse, views_and_loss
from kontrast.diagnosis.causes import causes_in
from kontrast.diagnosis.metrics import alignment, effective_negatives, neighbor_agreement, uniformity
from kontrast.diagnosis.quantities import BOUNDS
from kontrast.losses import LossModule, nt_xent
from tests.cases import randn
from tests.diagnosis.subjects import drawn, mlp, moved, quick, squared_distance, state_of, subject_of

pytestmark = pytest.mark.usefixtures("few_features")

NET = mlp()
START, END = state_of(NET), moved(NET, 0.3)
SHARP = LossModule(nt_xent, temperature=0.2)


def measured(end: Any = END, **given: Any) -> tuple[xr.Dataset, dict[str, str], tuple[Tensor, Tensor]]:
    """The stored numbers, why some are missing, and the embeddings of the two views at the end."""
    subject = subject_of(NET, START, end, **given)
    seen = [collapse.look(subject, label, state) for label, state in subject.checkpoints]
    a, b = (subject.encoder.embed(subject.end, view) for view in subject.pair)
    found, missing = views_and_loss.measure(subject, seen)
    return found.assign_coords(bound=list(BOUNDS)), missing, (a, b)


def value(found: xr.Dataset, name: str, **at: str) -> float:
    return float(found[name].sel(bound="value", **at))


@pytest.mark.parametrize("given, temperature", [({}, 0.5), ({"loss": SHARP}, 0.2), ({"temperature": 0.05}, 0.05)])
def test_pairs_are_measured_at_the_temperature_of_the_loss(given: dict[str, Any], temperature: float) -> None:
    found, _, (a, b) = measured(**given)
    expected = {
        "alignment": alignment(a, b),
        "uniformity": uniformity((a, b)),
        "effective_negatives": effective_negatives(a, b, temperature),
        "neighbor_agreement": neighbor_agreement(torch.stack([a, b], 1)),
    }
    for name, number in expected.items():
        assert value(found, name, checkpoint="end") == pytest.approx(number, rel=1e-9), name
    assert 1 <= expected["effective_negatives"] <= 2 * 24 - 2


@pytest.mark.parametrize("loss", [SHARP, squared_distance])
def test_the_loss_lies_between_chance_and_equal_views(loss: Any) -> None:
    found, missing, (a, b) = measured(loss=loss)
    read = {name: value(found, name, checkpoint="end") for name in ("loss", "loss_at_chance", "loss_of_equal_views")}
    assert read["loss"] == pytest.approx(float(getattr(loss(a, b), "total", loss(a, b))), rel=1e-9)
    assert read["loss_of_equal_views"] == pytest.approx(float(getattr(loss(a, a), "total", loss(a, a))), rel=1e-9)
    assert read["loss_of_equal_views"] < read["loss"] < read["loss_at_chance"]
    share = (read["loss_at_chance"] - read["loss"]) / (read["loss_at_chance"] - read["loss_of_equal_views"])
    assert value(found, "loss_share", checkpoint="end") == pytest.approx(share)
    assert not any(name.startswith("loss at") for name in missing)


def test_every_pair_is_in_the_histogram() -> None:
    found, _, _ = measured()
    histogram = found.similarity_histogram
    counts = histogram.sum("bin")
    assert counts.sel(kind="positives").values.tolist() == [24, 24]
    negatives = counts.sel(kind="negatives").values
    assert (negatives == negatives[0]).all()
    assert negatives[0] >= 24 * 23
    assert histogram.bin.values[0] > -1
    assert histogram.bin.values[-1] < 1
    for kind, name in (("positives", "positive_similarity"), ("negatives", "negative_similarity")):
        here = histogram.sel(checkpoint="end", kind=kind)
        mean = float((here * histogram.bin).sum() / here.sum())
        width = float(np.diff(histogram.bin.values)[0])
        assert mean == pytest.approx(value(found, name, checkpoint="end"), abs=width)


def test_equal_views_are_told_and_blamed() -> None:
    x = randn(24, 6, seed=1)
    d = quick(NET, START, END, data=x, views=(x, x.clone()), loss=SHARP)
    assert d.number("view_distance").value == 0
    assert d.number("alignment", checkpoint="end").value == 0
    assert d.blamed == ("augmentation",)
    assert "augmentation" in d.verdict
    assert any("strengthen the augmentation" in line for line in d.advice)
    assert quick(NET, START, END, data=x, views=(x, x + 0.3 * randn(24, 6, seed=9)), loss=SHARP).blamed == ()


@pytest.mark.parametrize("temperature, word", [(20.0, "lower the temperature"), (0.001, "raise the temperature")])
def test_a_temperature_far_off_is_blamed_whether_read_or_given(temperature: float, word: str) -> None:
    x = randn(64, 6, seed=1)
    module = mlp(d_out=8)
    given = {"data": x, "views": "noise:0.2", "n_samples": 64}
    ends = (state_of(module), moved(module, 0.3))
    of_loss = quick(module, *ends, loss=LossModule(nt_xent, temperature=temperature), **given)
    by_name = quick(module, *ends, temperature=temperature, **given)
    for d in (of_loss, by_name):
        assert "temperature" in d.blamed
        assert any(word in line for line in d.advice)
        assert d.number("temperature").value == temperature
    assert "temperature" not in quick(module, *ends, **given).blamed


def test_a_loss_that_does_not_see_pairs_is_blamed_where_it_is_the_users() -> None:
    x = randn(64, 6, seed=1)
    shuffled = x[torch.randperm(64, generator=torch.Generator().manual_seed(0))]
    ends = (START, END)
    d = quick(NET, *ends, data=x, views=(x, shuffled + 0.01), loss=SHARP, n_samples=64)
    assert "loss" in d.blamed  # rows that are no pairs leave the loss at chance
    assert any("row by row" in line for line in d.advice)
    assert "loss" not in quick(NET, *ends, data=x, views=(x, shuffled + 0.01), n_samples=64).blamed
    assert (
        "loss"
        not in quick(NET, *ends, data=x, views=(x, x + 0.2 * randn(64, 6, seed=3)), loss=SHARP, n_samples=64).blamed
    )


def test_nothing_is_to_blame_in_a_result_without_numbers() -> None:
    assert causes_in(xr.Dataset(), collapsed=False) == ()


def test_parts_of_a_view_are_read_back_as_they_were_measured() -> None:
    x = torch.rand(80, 1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    module = drawn(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4)))
    d = quick(module, state_of(module), moved(module, 0.3), data=x, views="affine+noise:0.1", n_samples=80)
    parts = views_and_loss.augmentations_in(d.result)
    assert [it.name for it in parts] == [str(name) for name in d.result.part.values]
    assert len(parts) == 2
    for it in parts:
        assert it.change.value > 0
        assert set(it.invariance) == set(map(str, d.result.seen_by.values))
        for who, estimate in it.invariance.items():
            assert estimate == d.number("invariance", part=it.name, seen_by=who)
    assert any(it.leaks for it in parts)
    assert views_and_loss.augmentations_in(xr.Dataset()) == ()


def test_views_that_are_not_ours_have_no_parts() -> None:
    found, missing, _ = measured(views=lambda x: x + 0.1 * torch.randn_like(x))
    assert "not made of parts" in missing["invariance"]
    assert "invariance" not in found
    assert value(found, "view_distance") > 0


@pytest.mark.parametrize("scale", [1e-3, 7.0, 1e3])
def test_numbers_of_pairs_do_not_know_the_embeddings_length(scale: float) -> None:
    grown = {**END, "2.weight": scale * END["2.weight"], "2.bias": scale * END["2.bias"]}
    numbers = []
    for end in (END, grown):
        found, _, _ = measured(end)
        numbers.append(
            [value(found, it.name, checkpoint="end") for it in views_and_loss.OF_PAIRS if it.name in found]
            + [value(found, "view_distance_embedding")]
        )
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-6, nan_ok=True)
    assert not any(map(math.isnan, numbers[0]))
