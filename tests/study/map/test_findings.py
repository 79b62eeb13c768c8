"""The map in words: the setting, the sentence for every regime, JSON, and a closed form that tests do not choose."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest

from kontrast.dynamics import Ending
from kontrast.study import Regime, Thresholds, find
from kontrast.study.map import CLOSED_FORMS, Estimate
from kontrast.study.map.borders import borders_of
from kontrast.study.map.findings import _setting, _verdict, as_dict
from kontrast.study.map.regimes import decided
from kontrast.study.spec import StudySpec
from tests.report.maps import map_study
from tests.study.map.cells import cell

SPEC, LIMITS = StudySpec(losses=("nt_xent",)), Thresholds()


def mapped(**fields):
    found = find(map_study(**fields)).map
    assert found is not None
    return found


# The best closed form


def test_the_best_closed_form_is_chosen_on_validation_samples_alone():
    result = map_study()
    chosen = find(result).map.best_closed_form
    assert set(chosen) == {32, 64, 128, 256, 512}
    assert set(chosen.values()) == {"spectral"}
    adversarial = result.copy(deep=True)
    for name in CLOSED_FORMS:  # on test samples the others are perfect, and the chosen one is hopeless
        adversarial.map_baseline.loc[{"baseline": name}] = 0.0 if name == "spectral" else 1.0
    found = find(adversarial).map
    assert found.best_closed_form == chosen
    assert found.setting.gains["closed form"].mean == pytest.approx(found.setting.numbers["map_accuracy"].mean)
    other = result.copy(deep=True)
    other.map_baseline_validation.loc[{"baseline": "pca", "width": 64}] = 0.99
    assert find(other).map.best_closed_form == {**chosen, 64: "pca"}


def test_a_closed_form_that_a_seed_does_not_have_is_not_chosen_and_one_with_all_dimensions_never():
    result = map_study()
    result.map_baseline_validation.loc[{"baseline": "spectral", "seed": 1}] = np.nan
    result.map_baseline_validation.loc[{"baseline": "raw"}] = 1.0
    assert set(find(result).map.best_closed_form.values()) == {"pca"}


@pytest.mark.parametrize(
    ("probe", "gains", "trained", "twin"),
    [("linear", "gains", "map_accuracy", "map_twin_accuracy"), ("knn", "knn_gains", "map_knn", "map_twin_knn")],
)
def test_gains_are_paired_differences_over_the_seeds(probe, gains, trained, twin):
    result = map_study()
    found = getattr(find(result).map.setting, gains)
    seen = result.sel(panel="nt_xent", width=512).isel(rate=4)
    others = {
        "start": seen.map_baseline.sel(baseline="start", probe=probe),
        "kernel": seen[twin],
        "closed form": seen.map_baseline.sel(baseline="spectral", probe=probe),
    }
    assert found.keys() == others.keys()
    for name, other in others.items():
        differences = (seen[trained] - other).values
        assert found[name].mean == pytest.approx(differences.mean())
        half = 4.302652729911275 * differences.std(ddof=1) / math.sqrt(3)  # Student's t with 2 degrees of freedom
        low, high = (pytest.approx(differences.mean() + sign * half) for sign in (-1, 1))
        assert (found[name].low, found[name].high) == (low, high)


# The setting


def test_the_setting_is_the_widest_network_at_its_best_validation_accuracy():
    result = map_study()
    found = find(result).map
    assert (found.setting.width, found.setting.loss) == (512, "nt_xent")
    assert found.setting.numbers["map_validation"].mean == max(
        it.numbers["map_validation"].mean
        for it in found.panel("nt_xent")
        if it.width == 512 and it.regime is not Regime.DIVERGED
    )
    result.map_accuracy.loc[{"width": 512}] = 0.1  # test samples have no say here either
    assert find(result).map.setting.rate == found.setting.rate
    result.map_validation[{"rate": 1}] = result.map_validation[{"rate": 1}] + 0.5
    assert find(result).map.setting.rate == 0.1


def test_a_rate_at_which_the_loss_still_falls_is_the_setting_only_where_none_settles():
    result = map_study()
    rates = [it.rate for it in find(result).map.panel("nt_xent") if it.width == 512]
    result.map_validation[{"rate": 0}] = 1.0
    assert find(result).map.setting.rate not in (rates[0], rates[-1])
    result.map_ending[:] = 1  # the steps end everywhere
    assert find(result).map.setting.rate == rates[0]
    assert find(result).map.setting.regime is Regime.UNDERTRAINED


def test_the_users_setting_is_the_nearest_cell_on_logarithmic_axes():
    cells = [cell(width=width, rate=rate) for width in (32, 128) for rate in (0.1, 1.0, 10.0)]
    for asked, place in (((60.0, 0.4), (32, 1.0)), ((70.0, 3.0), (128, 1.0)), ((9999.0, 99.0), (128, 10.0))):
        spec = StudySpec(losses=("nt_xent",), setting=asked)
        assert (_setting(spec, cells).width, _setting(spec, cells).rate) == place


def test_without_labels_it_is_the_highest_rate_that_does_not_diverge():
    found = mapped(labels=False)
    whole = [it for it in found.panel("nt_xent") if it.width == 512 and it.regime is not Regime.DIVERGED]
    assert found.setting == whole[-1]
    assert found.setting.gains == {}
    over = [decided(cell(endings=(Ending.DIVERGED,), rate=rate, validation=math.nan), LIMITS) for rate in (0.1, 1.0)]
    assert _setting(SPEC, over) is over[-1]


# The sentence

PLACE = "NT-Xent at width 64 and rate 1, after 100 steps"
SAYS = {
    Regime.LEARNING: ({}, "training learns features"),
    Regime.KERNEL: ({"gap": 0.1}, "the network is a kernel machine"),
    Regime.PCA: ({"pca_first": 0.05}, "the network is PCA of the features at its start"),
    Regime.COLLAPSED: ({"rank": 1.1}, "training collapses the embedding"),
    Regime.DIVERGED: ({"endings": (Ending.DIVERGED,) * 3}, "training diverges"),
    Regime.UNDERTRAINED: (
        {"endings": (Ending.STEP_LIMIT,) * 3},
        "undertrained: the loss still falls; raise max_steps",
    ),
}


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("regime", Regime)
def test_the_sentence_of_every_regime(regime, labels):
    fields, words = SAYS[regime]
    setting = decided(cell(**fields, labels=labels, error=0.001), LIMITS)
    assert setting.regime is regime
    said = _verdict(SPEC, setting, (), "spectral" if labels else None)
    gains = (
        ": +10.0 ± 0.1 points of test accuracy over its start, +5.0 ± 0.1 points over its kernel twin, "
        "+1.0 ± 0.1 points against spectral, the best closed form at the same width"
    )
    if not labels:
        words += " (not sure)" * (regime is Regime.LEARNING)  # no gain over the kernel twin is known
        assert said == f"{PLACE}: {words}; without labels to probe no gain can be told"
    elif regime in (Regime.DIVERGED, Regime.UNDERTRAINED):
        assert said == f"{PLACE}: {words}"
    else:
        assert said == f"{PLACE}: {words}{gains}"


def test_a_rate_at_which_the_loss_settles_is_advised_only_where_one_was_run():
    slow = decided(cell(endings=(Ending.STEP_LIMIT,) * 3), LIMITS)
    others = [
        dataclasses.replace(slow, rate=3.0, endings=(Ending.DIVERGED,) * 3),
        dataclasses.replace(slow, rate=10.0, endings=(Ending.SETTLED,) * 3),
        dataclasses.replace(slow, rate=2.0, size=128, endings=(Ending.SETTLED,) * 3),
    ]
    assert _verdict(SPEC, slow, (), None, others[:1]).endswith("the loss still falls; raise max_steps")
    assert _verdict(SPEC, slow, (), None, others[2:]).endswith("the loss still falls; raise max_steps")
    assert "the loss still falls; at rate 10 it settles" in _verdict(SPEC, slow, (), None, others)


def test_a_probe_that_has_not_moved_is_another_sentence():
    setting = decided(cell(gains={"start": 0.0}), LIMITS)
    assert _verdict(SPEC, setting, (), "pca").endswith(
        "after 100 steps: undertrained: the linear probe has not moved from its start"
    )


def test_a_setting_between_the_cells_is_named_beside_the_nearest_one():
    setting = decided(cell(), LIMITS)
    asked = dataclasses.replace(SPEC, setting=(70.0, 1.5))
    said = _verdict(asked, setting, (), "pca")
    assert said.startswith(f"{PLACE} (the cell nearest to width 70 and rate 1.5): ")
    assert _verdict(dataclasses.replace(SPEC, setting=(64.0, 1.0)), setting, (), "pca").startswith(f"{PLACE}: ")


def borders(exponent, scatter=0.0, widths=(32, 64, 128)):
    noise = np.random.default_rng(0)
    cells = [
        cell(width=width, rate=rate, gap=0.15 * rate / (0.025 * width**exponent) * np.exp(scatter * noise.normal()))
        for width in widths
        for rate in (0.03, 0.1, 0.3, 1.0, 3.0)
    ]
    return borders_of(cells, LIMITS, 100)


def test_it_says_where_a_kernel_would_do_the_same_and_where_features_move():
    learning, kernel = decided(cell(rate=1.0), LIMITS), decided(cell(rate=0.1, gap=0.1), LIMITS)
    # The border 0.025·width^0.5 is 0.2 at width 64, and reaches a rate of 1 at width 1,600.
    said = _verdict(SPEC, learning, borders(0.5), "pca")
    assert said.endswith(
        "; from width 1,600 on, or below a rate between 0.1 and 0.3, a kernel machine would do the same"
    )
    assert _verdict(SPEC, kernel, borders(0.5), "pca").endswith("; above a rate between 0.1 and 0.3 its features move")
    flat = _verdict(SPEC, learning, borders(0.0), "pca")  # no width makes it a kernel machine
    assert flat.endswith("same width; below a rate between 0.025 and 0.03, a kernel machine would do the same")
    scattered = _verdict(SPEC, learning, borders(0.5, 0.05, (32, 64, 128, 256, 512, 1024)), "pca")
    assert re.search(r"; from a width between [\d,]+ and [\d,]+ on, or below a rate between 0.1 and 0.3, ", scattered)
    steps = decided(cell(width=None, size=64, rate=1.0), LIMITS)
    said = _verdict(SPEC, steps, borders(0.5), "pca")
    assert said.startswith("NT-Xent at 64 steps and rate 1: ")
    assert said.endswith("; below a rate between 0.1 and 0.3, a kernel machine would do the same")  # steps are no width


def place(width=(5000, 2000, 9000), rate=(0.2, 0.1, 0.3)):
    return SimpleNamespace(
        loss="nt_xent", name="kernel", size_at=lambda rate_: Estimate(*width), rate_at=lambda size: Estimate(*rate)
    )


@pytest.mark.parametrize(
    ("border", "words"),
    [
        (place(), "; from a width between 2,000 and 9,000 on, or below a rate between 0.1 and 0.3, "),
        (place((5000, 5000, 5000), (0.2, 0.2, 0.2)), "; from width 5,000 on, or below rate 0.2, "),
        (place(width=(5000, 40, 9000)), "; from a width between 64 and 9,000 on, or below"),  # it learns at 64
        (place(width=(5000, 2000, 2e6)), "same width; below a rate between 0.1 and 0.3, "),  # no one will train that
        (place(width=(50, 10, 90)), "same width; below a rate between 0.1 and 0.3, "),
        (place(rate=(0.5, 0.3, 3.0)), "or below a rate between 0.3 and 1, "),
        (place(rate=(0.5, 0.0, math.inf)), "; from a width between 2,000 and 9,000 on, a kernel"),  # not known
        (place(rate=(2.0, 1.5, 3.0)), "; from a width between 2,000 and 9,000 on, a kernel"),
    ],
)
def test_a_place_is_named_with_its_interval_as_far_as_the_cell_allows(border, words):
    assert words in _verdict(SPEC, decided(cell(rate=1.0), LIMITS), (border,), "pca")


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        ((0.2, 0.05, 0.4), "same width; above a rate between 0.1 and 0.4 its features move"),
        ((0.2, 0.0, math.inf), "the best closed form at the same width"),
        ((0.05, 0.01, 0.4), "the best closed form at the same width"),
    ],
)
def test_features_move_above_the_rate_of_a_kernel_cell(rate, words):
    assert _verdict(SPEC, decided(cell(rate=0.1, gap=0.1), LIMITS), (place(rate=rate),), "pca").endswith(words)


# JSON


@pytest.mark.parametrize("labels", [True, False])
def test_json_holds_every_cell_border_and_baseline_with_its_interval(labels):
    findings = find(map_study(labels=labels))
    plain = json.loads(json.dumps(findings.as_dict(), allow_nan=False))
    assert plain["verdict"] == findings.map.verdict
    assert len(plain["map"]) == len(findings.map.cells) == 2 * 5 * 6
    for entry, it in zip(plain["map"], findings.map.cells, strict=True):
        assert (entry["loss"], entry["width"], entry["relative_rate"]) == (it.loss, it.width, it.rate)
        assert entry["learning_rate"] == pytest.approx(20 * it.rate)
        assert entry["regime"] == it.regime.name.lower()
        assert entry["sure"] is it.sure
        assert entry["reason"] == it.reason
        assert len(entry["endings"]) == 3
        assert set(entry["endings"]) <= {"settled", "step_limit", "diverged"}
        gap = entry["numbers"]["gap"]
        assert set(gap) == {"mean", "low", "high"}
        if entry["regime"] != "diverged":
            assert gap["low"] < gap["mean"] < gap["high"]
        assert (
            set(entry["knn_gains"]) == set(entry["gains"]) == ({"start", "kernel", "closed_form"} if labels else set())
        )
    regimes = {entry["regime"] for entry in plain["map"]}
    assert regimes == {"kernel", "pca", "learning", "undertrained", "collapsed", "diverged"}
    kernel = next(it for it in plain["borders"] if (it["loss"], it["name"]) == ("nt_xent", "kernel"))
    assert kernel["exponent"]["low"] < kernel["exponent"]["mean"] < kernel["exponent"]["high"]
    assert set(kernel["rates"]) <= {"32", "64", "128", "256", "512"}
    if not labels:
        assert plain["baselines"] == []
        return
    assert [table["width"] for table in plain["baselines"]] == [32, 64, 128, 256, 512]
    table = plain["baselines"][0]
    assert table["best_closed_form"] == "spectral"
    assert set(table["accuracy"]) == {"start", "spectral", "contrastive-pca", "pca", "raw", "chance"}
    assert set(table["accuracy"]["raw"]) == {"linear", "knn"}
    assert table["accuracy"]["raw"]["linear"]["mean"] == pytest.approx(0.88, abs=0.02)


def test_numbers_that_are_none_are_null_in_json_and_one_seed_has_no_interval():
    plain = find(map_study(n_seeds=1)).as_dict()
    gap = plain["map"][1]["numbers"]["gap"]
    assert gap["mean"] > 0
    assert gap["low"] is gap["high"] is None
    over = next(entry for entry in plain["map"] if entry["regime"] == "diverged")
    assert over["numbers"]["gap"] == {"mean": None, "low": None, "high": None}
    assert over["numbers"]["diverged_at"]["mean"] > 0


def test_a_panel_is_a_grid_of_its_cells():
    found = mapped()
    assert found.losses == ("nt_xent", "dot")
    assert found.axis == ("width", "M")
    grid = found.grid("dot")
    assert [next(iter(row.values())).rate for row in grid] == [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
    assert all(list(row) == [32, 64, 128, 256, 512] for row in grid)
    assert {id(it) for row in grid for it in row.values()} == {id(it) for it in found.panel("dot")}
    assert found.border("dot", "nonsense") is None
    plain = as_dict(mapped(has_width=False))
    assert {entry["width"] for entry in plain["map"]} == {None}
    assert mapped(has_width=False).axis == ("steps", "T")


def test_a_spec_without_losses_has_no_map():
    from tests.report.studies import study

    assert find(study()).map is None
