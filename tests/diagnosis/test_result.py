"""A diagnosis in words, as a table, as JSON and as a dataset that says the same when it is read back."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import kontrast as kt
from kontrast.diagnosis import Diagnosis
from kontrast.diagnosis.collapse import LIDAR
from kontrast.diagnosis.metrics import SPECTRAL_METRICS
from kontrast.diagnosis.quantities import Quantity, estimate_in
from kontrast.diagnosis.settings import Limits
from kontrast.diagnosis.tables import QUESTIONS
from kontrast.linalg import Estimate
from tests.cases import randn
from tests.diagnosis.subjects import mlp, moved, normed, quick, state_of

pytestmark = pytest.mark.usefixtures("few_features")

Y = torch.arange(48) % 3
X = randn(48, 6, seed=1) + 2 * randn(3, 6, seed=2)[Y]
SETTING = {"data": X, "n_samples": 48}
NET = mlp()
START, END = state_of(NET), moved(NET, 0.3)


def several() -> list[Diagnosis]:
    """One of each kind: with labels and checkpoints, without, collapsed, with BatchNorm."""
    nothing = {name: 0 * value for name, value in START.items()}
    module = normed()
    return [
        quick(NET, [START, moved(NET, 0.1), END], **SETTING, labels=Y, control=True, loss="nt_xent"),
        quick(NET, START, END, **SETTING),
        quick(NET, START, nothing, **SETTING, labels=Y),
        quick(module, state_of(module), moved(module, 0.3), **SETTING, control=True),
    ]


@pytest.fixture(scope="module")
def made() -> list[Diagnosis]:
    from kontrast.diagnosis import embeddings

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embeddings, "FEATURES", 32)
        return several()


def no_constant(text: str) -> None:
    raise AssertionError(f"JSON holds {text}")


def test_as_dict_is_json_without_nan(made: list[Diagnosis]) -> None:
    for d in made:
        text = json.dumps(d.as_dict(), allow_nan=False, ensure_ascii=False)
        read = json.loads(text, parse_constant=no_constant)
        assert read["verdict"] == d.verdict
        assert read["exit_code"] == d.exit_code
        assert {row["question"] for row in read["numbers"]} <= set(QUESTIONS)
        assert any(row["value"] is not None for row in read["numbers"])


@pytest.mark.parametrize("through_a_file", [False, True])
def test_a_stored_diagnosis_says_the_same(made: list[Diagnosis], through_a_file: bool, tmp_path: Path) -> None:
    for k, d in enumerate(made):
        stored = d.to_dataset()
        if through_a_file:
            stored.to_netcdf(tmp_path / f"{k}.nc", engine="scipy")
            stored = xr.load_dataset(tmp_path / f"{k}.nc", engine="scipy")
        again = Diagnosis(stored)
        assert str(again) == str(d)
        assert again.as_dict() == d.as_dict()
        assert again.table_text() == d.table_text()
        assert again.missing == d.missing
        assert again.notes == d.notes


def test_the_dataset_is_a_copy(made: list[Diagnosis]) -> None:
    before = made[0].verdict
    stored = made[0].to_dataset()
    stored.attrs["features"] = "nothing"
    del stored["score"]
    assert Diagnosis(made[0].result).verdict == before


def test_print_says_the_verdict_its_reasons_and_what_to_try(made: list[Diagnosis]) -> None:
    for d in made:
        lines = str(d).splitlines()
        assert lines[0] == d.verdict
        assert lines[2] == "because"
        assert f"  {d.reasons[0]}" in lines
        assert all(f"  {line}" in lines for line in d.advice)
        assert all(f"note: {note}" in lines for note in d.notes)
        assert repr(d) == f"Diagnosis({d.verdict})"
        assert "nan" not in str(d)
        assert "None" not in str(d)
        assert d.verdict.count(".") < 8
    assert "(lazy control " in str(made[0])
    assert "the best checkpoint without labels is " in str(made[0])
    assert "leave-one-out squared error with the 48 labels there are" in str(made[0])


def test_the_table_has_every_convention_side_by_side(made: list[Diagnosis]) -> None:
    for d in made:
        names = {row.name for row in d.table}
        assert names >= {*SPECTRAL_METRICS, LIDAR.name, "drift", "linearization_error", "movement"}
        for row in d.table:
            assert row.definition
            assert row.n > 0
            if math.isfinite(row.low) and math.isfinite(row.high):
                assert row.low <= row.value <= row.high, row
        text = d.table_text()
        assert all(words in text for words in QUESTIONS.values() if words)
    drift = next(row for row in made[0].table if row.name == "drift")
    assert (drift.n, drift.d) == (8, 3)  # over n_points samples
    assert next(row for row in made[0].table if row.name == "movement").n == 48


@pytest.mark.parametrize(
    "quantity, estimate, written",
    [
        (Quantity("x", "x", "x"), Estimate(1.2345, 1.0, 1.5), "1.23 [1, 1.5]"),
        (Quantity("x", "x", "x", percent=True), Estimate(0.1234, math.nan, math.nan), "12.3 %"),
        (Quantity("x", "x", "x", percent=True), Estimate(0.5, 0.4, 0.6), "50 % [40, 60]"),
        (Quantity("x", "x", "x"), Estimate(math.nan, math.nan, math.nan), "–"),
        (Quantity("x", "x", "x"), Estimate(math.inf, math.nan, math.nan), "–"),
        (Quantity("x", "x", "x"), Estimate(-1e-17, math.nan, math.nan), "0"),
    ],
)
def test_numbers_are_written_with_their_intervals(quantity: Quantity, estimate: Estimate, written: str) -> None:
    assert quantity.write(estimate) == written


def test_exit_codes() -> None:
    nothing = {name: 0 * value for name, value in START.items()}
    assert quick(NET, START, nothing, **SETTING).exit_code == 3
    assert quick(NET, START, START, **SETTING, labels=Y).exit_code == 4
    assert quick(NET, START, nothing, **SETTING, labels=Y).exit_code == 3  # collapse is the graver
    # A start that is worthless, and a trained model that holds the classes.
    X_wide = torch.cat([10 * randn(48, 5, seed=3), torch.nn.functional.one_hot(Y, 3).double()], 1)
    module = torch.nn.Linear(8, 3, bias=False).double()
    start, end = (torch.zeros(3, 8, dtype=torch.float64) for _ in range(2))
    start[:, :3], end[:, 5:] = randn(3, 3, seed=4), torch.eye(3)
    d = quick(module, {"weight": start}, {"weight": end}, data=X_wide, labels=Y, n_samples=48, n_splits=10)
    assert d.collapse == "none"
    assert d.buys["start"].difference.low > 0.2
    assert float(d.result.score.sel(embedding="trained", task="linear").mean()) == 1.0


def test_other_limits_are_other_words_for_the_same_numbers(made: list[Diagnosis]) -> None:
    d = made[1]
    strict = d.judged_by(Limits(moved=0.9))
    assert strict.regime == "undertrained"
    assert strict.result is d.result
    assert d.regime != "undertrained" or "the loss still falls" in d.decided.reason
    assert Diagnosis(d.to_dataset(), Limits(moved=0.9)).verdict == strict.verdict


def test_numbers_by_name(made: list[Diagnosis]) -> None:
    d = made[0]
    found = d.number("rankme", checkpoint="end", layer="embedding") if "end" in d.result.checkpoint else None
    labels = [str(label) for label in d.result.checkpoint.values]
    found = d.number("rankme", checkpoint=labels[-1], layer="embedding")
    assert found.low < found.value < found.high
    assert found == estimate_in(d.result, "rankme", checkpoint=labels[-1], layer="embedding")
    for unknown in (d.number("nothing"), d.number("rankme", checkpoint="epoch 99", layer="embedding")):
        assert math.isnan(unknown.value)


def test_metrics_of_the_result_are_the_functions(made: list[Diagnosis]) -> None:
    z = torch.func.functional_call(NET, END, (X,)).detach()
    for name, value in kt.diagnosis.metrics.metrics_of(z).items():
        found = made[1].number(name, checkpoint="end", layer="embedding").value
        assert found == pytest.approx(value, rel=1e-9, nan_ok=True)


def test_labels_needed_are_curves_of_the_trained_model_and_its_start(made: list[Diagnosis]) -> None:
    needed = made[0].labels
    assert needed is not None
    assert needed.n_labelled == 48
    for name in ("trained", "start"):
        values = [it.value for it in needed.errors[name] if math.isfinite(it.value)]
        assert len(values) >= 2
        assert min(values) >= 0
        for level, count in needed.needed[name].items():
            assert (count is None) == bool(needed.why[name][level]) or count is None or count > 0
            assert level in needed.why[name]
    assert made[1].labels is None
    assert made[1].missing["label_error"] == "there are no labels"


def test_labels_needed_of_clear_classes_are_fewer_than_of_noise() -> None:
    x = 6 * randn(3, 6, seed=2)[Y] + 0.3 * randn(48, 6, seed=5)
    shuffled = Y[torch.randperm(48, generator=torch.Generator().manual_seed(0))]
    clear, noise = (quick(NET, START, START, data=x, labels=y, n_samples=48).labels for y in (Y, shuffled))
    at = clear.n_labels.index(48)
    assert clear.errors["trained"][at].value < 0.3 < noise.errors["trained"][at].value
    assert clear.needed["trained"][0.5] is not None
    assert noise.needed["trained"][0.1] is None
    assert clear.errors["trained"][at] == clear.errors["start"][at]  # the same weights
    assert np.isfinite(clear.errors["trained"][at].low)


def test_a_result_of_a_monitor_alone_needs_no_more_than_it_has() -> None:
    d = quick(NET, START, END, **SETTING)
    names: list[Any] = ["rankme", "centered_rank", "spread", "participation_ratio", "layer_dimension"]
    few = d.to_dataset()[names].assign_attrs(d.result.attrs | {"kind": "monitor"})
    monitor = Diagnosis(few)
    assert monitor.collapse == "none"
    assert monitor.verdict.startswith("seen from start to end")
    assert json.dumps(monitor.as_dict(), allow_nan=False)
    assert monitor.exit_code == 0
