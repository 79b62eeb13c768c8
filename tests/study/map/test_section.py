"""A small real map: deterministic, the same for seeds together and alone, with every loss, and splits that hold."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis.strategies import integers

from kontrast.data import Dataset, load
from kontrast.dynamics import Ending
from kontrast.losses import VIEW_LOSSES, view_loss_from
from kontrast.runs import generator_for
from kontrast.study import StudySpec, prepare
from kontrast.study.draws import load_samples
from kontrast.study.map import BASELINES, QUANTITIES, measure
from kontrast.study.map import baselines as baselines_module
from kontrast.study.map import section as section_module
from kontrast.study.map.measures import Probes
from kontrast.study.map.networks import draw_network
from kontrast.study.map.section import ENDINGS
from kontrast.study.map.split import MOST, Samples, split_for
from kontrast.study.probes import input_embeddings
from tests.cases import randn

TINY = StudySpec(
    data="digits",
    n_samples=8,
    widths=(8, 16),
    n_seeds=2,
    d_out=3,
    max_steps=8,
    batch_size=8,
    map_samples=100,
    rates=(1e-6, 0.3, 3.0),
    losses=("nt_xent", "dot"),
)
DIGITS = load("digits", dtype=torch.float64)


@functools.cache
def prepared(**fields: Any) -> StudySpec:
    return prepare(dataclasses.replace(TINY, **fields))


@functools.cache
def measured(seed: int = 0, **fields: Any) -> xr.Dataset:
    [found] = measure(prepared(**fields), 8, [seed])
    return found


# Splits


@settings(max_examples=15)
@given(seed=integers(0, 2**16))
def test_a_split_is_disjoint_and_keeps_the_shares_of_the_classes(seed: int) -> None:
    spec = dataclasses.replace(TINY, map_samples=None)
    split = split_for(spec, DIGITS, seed)
    parts = [set(part.tolist()) for part in (split.contrasted, split.validation, split.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == len(DIGITS)
    assert (len(split.test), len(split.validation)) == (len(DIGITS) // 5, len(DIGITS) // 10)
    assert set(split.taught.tolist()) <= parts[0]  # probes learn from contrasted samples, never from held-out ones
    assert DIGITS.y is not None
    held = torch.cat([split.validation, split.test])
    counts = torch.bincount(DIGITS.y[held], minlength=10)
    shares = torch.bincount(DIGITS.y, minlength=10) * len(held) / len(DIGITS)
    assert (counts - shares).abs().max() < 1  # off by less than one sample
    fewer = split_for(dataclasses.replace(TINY, map_samples=50), DIGITS, seed)
    assert torch.equal(fewer.contrasted, split.contrasted[:50])
    assert torch.equal(fewer.taught, fewer.contrasted)  # nor from any that the map leaves out
    assert torch.equal(fewer.test, split.test)
    assert not torch.equal(split_for(spec, DIGITS, seed + 1).test, split.test)


def test_large_data_hold_out_no_more_than_they_need() -> None:
    data = Dataset(torch.zeros(20_000, 1), torch.arange(20_000) % 4, "many")
    split = split_for(TINY, data, 0)
    assert (len(split.test), len(split.validation)) == (MOST["test"], MOST["validation"])
    whole = split_for(dataclasses.replace(TINY, map_samples=None), data, 0)
    assert torch.equal(whole.taught, whole.contrasted[: MOST["taught"]])


def test_probes_are_taught_chosen_and_tested_on_their_own_samples() -> None:
    spec = prepared()
    samples, split = Samples.of(spec, DIGITS), split_for(spec, DIGITS, 0)
    probes = Probes.of(samples, split)
    assert DIGITS.y is not None
    for name in ("taught", "validation", "test"):
        rows = getattr(split, name)
        torch.testing.assert_close(getattr(probes, name), DIGITS.x[rows].float())
        assert torch.equal(getattr(probes, f"{name}_labels"), DIGITS.y[rows])


def test_labels_of_test_samples_change_test_scores_alone() -> None:
    n = 60
    x, y = randn(n, 4, seed=1), torch.arange(n) % 2
    x[:, 0] += 6 * y
    make = functools.partial(Probes, x[:20], y[:20], x[20:40], y[20:40], x[40:])
    right, wrong = (make(labels).scores(lambda rows: rows) for labels in (y[40:], 1 - y[40:]))
    assert right == (1.0, 1.0, 1.0)
    assert wrong == (0.0, 0.0, 1.0)
    assert all(map(math.isnan, make(y[40:]).scores(lambda rows: rows * math.nan)))


def test_in_units_of_the_critical_rate_mup_is_ntk_under_a_loss_of_cosines_and_not_under_another() -> None:
    """f of "mup" is that of "ntk" over √width: cosines do not see that, and the unit of rates takes it out."""
    for loss, same in (("nt_xent", True), ("vicreg", False)):
        ntk, mup = (
            measured(losses=(loss,), rates=(0.3, 3.0), parametrization=name, full_batch=False).map_gap.values
            for name in ("ntk", "mup")
        )
        assert np.allclose(ntk, mup, rtol=1e-3) == same


# Baselines


def test_baselines_are_those_of_the_input_and_chance_and_the_start() -> None:
    found = measured()
    assert list(found.baseline.values) == list(BASELINES)
    scores = found.map_baseline.sel(probe="linear")
    spec = prepared()
    split = split_for(spec, DIGITS, 0)
    assert DIGITS.y is not None
    guess = torch.mode(DIGITS.y[split.taught]).values
    assert float(scores.sel(baseline="chance")) == pytest.approx(float((DIGITS.y[split.test] == guess).double().mean()))
    assert float(scores.sel(baseline="raw")) > 0.8  # digits are easy with all 64 pixels
    assert float(scores.sel(baseline="raw")) > float(scores.sel(baseline="pca")) > 0.3
    # The start is the same network as the one trained at a rate of almost zero.
    still = found.sel(panel="nt_xent").isel(rate=0)
    assert float(still.map_accuracy) == pytest.approx(float(scores.sel(baseline="start")), abs=0.006)


def test_a_closed_form_with_more_dimensions_than_features_is_left_out() -> None:
    found = measured(d_out=12, losses=("nt_xent",), rates=(0.3,))  # of 8 features
    scores = found.map_baseline.sel(probe="linear")
    assert np.isnan(scores.sel(baseline="contrastive-pca"))
    assert np.isfinite(scores.sel(baseline=["start", "pca", "raw", "chance"])).all()


def test_closed_forms_see_contrasted_samples_alone() -> None:
    """Whatever the other samples are, the scores stay; PCA of the input is the one fitted by hand."""
    spec = prepared()
    samples, split = Samples.of(spec, DIGITS), split_for(spec, DIGITS, 0)
    start = section_module._Start.draw(spec, DIGITS, samples, 8, 0)
    x = randn(*samples.x.shape, seed=1, dtype=torch.float32)
    x[split.contrasted] = samples.x[split.contrasted]
    right, other = (
        baselines_module.scores(spec, part, split.contrasted, start.ground, 0)
        for part in (samples, dataclasses.replace(samples, x=x))
    )
    assert other == right
    by_hand = input_embeddings(samples.x[split.contrasted].flatten(1), spec.d_out)["pixel-pca"]
    assert right["pca"] == Probes.of(samples, split).scores(lambda rows: by_hand(rows.flatten(1)))


# Measures


@pytest.mark.parametrize("loss", ["nt_xent", "supcon"])
def test_the_watched_loss_is_that_of_validation_samples(loss: str) -> None:
    spec = prepared(losses=(loss,))
    samples, rows = Samples.of(spec, DIGITS), split_for(spec, DIGITS, 0).validation[: section_module.WATCHED]
    with torch.no_grad():
        first, second = draw_network(spec, DIGITS, 8, 0)(samples.views(rows, generator_for(0, 0, 6))).chunk(2)
    assert DIGITS.y is not None
    expected = view_loss_from(loss)(first, second, DIGITS.y[rows])
    watched = measured(losses=(loss,), rates=(0.01,)).map_loss.isel(panel=0, rate=0)
    assert float(watched[0]) == pytest.approx(float(expected), rel=1e-5)


def test_a_map_is_the_same_bit_for_bit() -> None:
    baselines_module._of_input.cache_clear()
    [again] = measure(prepared(), 8, [0])
    xr.testing.assert_identical(again, measured())


def test_seeds_together_are_the_seeds_alone() -> None:
    """As on a GPU, where all seeds of a width are one stack: the same numbers to rounding, and the same endings."""
    together = measure(prepared(), 8, [0, 1])
    for seed, found in enumerate(together):
        alone = measured(seed)
        assert set(found) == set(alone)
        for name in alone:
            accuracy = name in ("map_accuracy", "map_knn", "map_validation", "map_twin_accuracy", "map_twin_knn")
            np.testing.assert_allclose(
                found[name], alone[name], rtol=2e-2, atol=0.02 if accuracy else 2e-4, err_msg=str(name)
            )
        np.testing.assert_array_equal(found.map_ending, alone.map_ending)
        np.testing.assert_array_equal(found.map_baseline, alone.map_baseline)
    assert not np.allclose(together[0].map_loss, together[1].map_loss, equal_nan=True)


@pytest.mark.parametrize("loss", VIEW_LOSSES)
def test_every_loss_has_finite_numbers(loss: str) -> None:
    found = measured(losses=(loss,), rates=(0.01,)).isel(panel=0, rate=0)
    for quantity in QUANTITIES:
        value = float(found[quantity.name])
        assert math.isfinite(value), quantity.name
    assert float(found.map_gap) >= 0
    assert 0 <= float(found.map_pca_first) <= 1
    assert 1 <= float(found.map_rank) <= 3.01
    assert 0 <= float(found.map_spread) <= 1
    assert -1 <= float(found.map_alignment) <= 1 + 1e-6
    assert float(found.map_unit) > 0
    assert float(found.map_learning_rate) == pytest.approx(0.01 * float(found.map_unit))
    steps = found.map_checkpoint.values
    assert (steps[0], steps[-1]) == (0, 8)
    for curve in (found.map_loss, found.map_twin_loss, found.map_gap_curve):  # as long as the run was
        np.testing.assert_array_equal(np.isfinite(curve.values), steps <= int(found.map_stopped_at))
    np.testing.assert_allclose(found.map_loss[0], found.map_twin_loss[0], rtol=1e-5)


def test_at_a_tiny_rate_the_twin_is_the_network_and_at_a_large_one_it_is_not() -> None:
    gaps = measured().map_gap.sel(panel="nt_xent").values
    assert gaps[0] < 1e-5
    assert gaps[1:].min() > 0.1
    still = measured().sel(panel="nt_xent").isel(rate=0)
    assert float(still.map_drift) < 1e-4
    assert float(still.map_alignment) == pytest.approx(1, abs=1e-6)
    assert float(still.map_rank) == pytest.approx(float(still.map_first_rank), rel=1e-3)


def test_divergence_of_the_dot_product_is_recorded_and_has_no_numbers() -> None:
    found = measured(losses=("dot",), rates=(1e-6, 1e3)).isel(panel=0)
    assert ENDINGS[int(found.map_ending[1])] is Ending.DIVERGED
    assert ENDINGS[int(found.map_ending[0])] is not Ending.DIVERGED
    assert 0 < int(found.map_stopped_at[1]) < 8
    for quantity in QUANTITIES:
        assert math.isnan(float(found[quantity.name][1])), quantity.name
        assert math.isfinite(float(found[quantity.name][0])), quantity.name
    at = found.map_checkpoint.values > float(found.map_stopped_at[1])
    assert np.isnan(found.map_loss[1].values[at]).all()
    assert at.any()


def test_without_labels_there_are_regimes_and_no_accuracies() -> None:
    found = measured(n_probe_samples=0, losses=("nt_xent",), rates=(0.3,)).isel(panel=0, rate=0)
    assert "map_baseline" not in found
    assert math.isnan(float(found.map_accuracy))
    assert math.isfinite(float(found.map_gap))


def test_without_losses_nothing_is_measured() -> None:
    assert [len(found) for found in measure(prepared(losses=()), 8, [0, 1])] == [0, 0]


# Units of rates


@pytest.mark.parametrize("loss", ["nt_xent", "supcon", "dot"])
def test_the_unit_of_adam_is_the_rate_of_a_first_step_as_long_as_descents(loss: str) -> None:
    descent, adam = (measured(losses=(loss,), optimizer=name).map_unit.item() for name in ("sgd", "adam"))
    spec = prepared(losses=(loss,))
    dataset = load_samples(spec)
    samples = Samples.of(spec, dataset)
    net, split = draw_network(spec, dataset, 8, 0), split_for(spec, dataset, 0)
    views = samples.views(split.contrasted[:250], generator_for(0, 0, 3)).chunk(2)
    batch, labels = [view[:64] for view in views], dataset.y[split.contrasted[:64]]
    loss_of_views = view_loss_from(loss)
    gradients = torch.autograd.grad(loss_of_views(*(net(view) for view in batch), labels), list(net.parameters()))
    entries = torch.cat([g.flatten() for g in gradients])
    signs = (entries.abs() > 1e-6).double().sum() ** 0.5  # of units that no sample reaches the gradient is 0
    assert adam * signs == pytest.approx(descent * float(entries.norm()), rel=0.02)
