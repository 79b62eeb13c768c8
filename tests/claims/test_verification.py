"""A verification resumes, never mixes in results of other code or data, and tells everything in JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from kontrast.claims import (
    Claim,
    Evidence,
    Setting,
    Verdict,
    registry,
    stored_records,
    verification,
    verification_name,
    verification_spec,
    verify,
)
from kontrast.claims.evidence import judged, printed, shown
from kontrast.errors import InputError, StoreError
from kontrast.linalg import Estimate

QUICK = Setting(scale="quick")
Calls = list[str]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """A registry of three cheap claims; the list gathers which were measured."""
    seen: Calls = []

    def make(claim_id: str, value: float) -> Claim:
        def measure(setting: Setting) -> Evidence:
            seen.append(claim_id)
            if value > 5:
                raise KeyboardInterrupt
            number = Estimate(value, value - 0.25, value + 0.25)
            return judged(printed("x", number, "small", high=1), *shown(nan=math.nan))

        return Claim(claim_id, "Paper X", f"title {claim_id}", "printed", None, Verdict.HOLDS, measure)

    claims = {c.id: c for c in (make("X.one", 0.5), make("X.two", 2.0), make("X.stops", 9.0))}
    monkeypatch.setattr(registry, "_CLAIMS", claims)
    return seen


def test_what_is_stored_is_not_measured_again(calls: Calls, tmp_path: Path) -> None:
    started: list[tuple[list[str], list[str]]] = []
    first = verify(["X.one"], QUICK, tmp_path, on_start=lambda done, missing: started.append((done, missing)))
    again = verify(["X.one", "X.two"], QUICK, tmp_path, on_start=lambda done, missing: started.append((done, missing)))
    assert calls == ["X.one", "X.two"]
    assert started == [([], ["X.one"]), (["X.one"], ["X.two"])]
    assert first[0].as_dict() == again[0].as_dict()
    assert [record.claim.id for record in stored_records(tmp_path)] == ["X.one", "X.two"]


def test_an_interruption_keeps_what_was_finished(calls: Calls, tmp_path: Path) -> None:
    from kontrast.runs import Interrupted

    with pytest.raises(Interrupted):
        verify(["X.one", "X.stops"], QUICK, tmp_path)
    assert [record.claim.id for record in stored_records(tmp_path)] == ["X.one"]


def test_a_damaged_claim_is_measured_again(calls: Calls, tmp_path: Path) -> None:
    verify(["X.one"], QUICK, tmp_path)
    (tmp_path / "cells" / "X.one.nc").write_bytes(b"damaged")
    verify(["X.one"], QUICK, tmp_path)
    assert calls == ["X.one", "X.one"]


def test_another_setting_or_other_code_has_another_folder(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify(["X.one"], QUICK, tmp_path)
    with pytest.raises(StoreError, match=r"holds other results \(n_seeds: None there, 3 here"):
        verify(["X.one"], Setting(scale="quick", n_seeds=3), tmp_path)
    name = verification_name(verification_spec(QUICK))
    assert name.startswith("quick-")
    assert name != verification_name(verification_spec(Setting(scale="quick", data=("moons",))))
    monkeypatch.setattr(verification, "_code_digest", lambda: "another")
    assert name != verification_name(verification_spec(QUICK))


def test_json_says_all(calls: Calls, tmp_path: Path) -> None:
    holds, refuted = (record.as_dict() for record in verify(["X.one", "X.two"], QUICK, tmp_path))
    assert json.loads(json.dumps(holds, allow_nan=False)) == holds
    assert holds["verdict"] == "holds"
    assert refuted["verdict"] == "refuted"
    assert refuted["recorded"] == "holds"
    assert holds["measured"] == {"x": 0.5, "x_low": 0.25, "x_high": 0.75, "nan": None}
    criterion = {"low": None, "high": 1, "statement": "small", "holds": True, "sure": True}
    assert holds["expected"] == {"printed": {"x": criterion}}
    assert {"id", "title", "source", "file", "verdict", "measured", "expected", "setting", "seconds"} <= holds.keys()


def test_processes_give_the_same_numbers(tmp_path: Path) -> None:
    here = verify(["A.eq8", "A.eq9"], QUICK, tmp_path / "here")
    there = verify(["A.eq8", "A.eq9"], QUICK, tmp_path / "there", workers=2)
    for a, b in zip(here, there, strict=True):
        assert a.evidence.measured == b.evidence.measured


def test_a_claim_that_the_data_cannot_answer_is_undecided_and_says_why(tmp_path: Path) -> None:
    np.savez(tmp_path / "unlabelled.npz", x=np.random.default_rng(0).random((40, 6, 6)))
    setting = Setting(scale="quick", data=(str(tmp_path / "unlabelled.npz"),))
    fig5, eq8 = sorted(verify(["A.fig5", "A.eq8"], setting, tmp_path / "out"), key=lambda record: record.claim.id)[::-1]
    assert fig5.verdict is Verdict.UNDECIDED
    assert not fig5.as_recorded
    (warning,) = fig5.evidence.warnings
    assert warning.startswith("not measured: this claim needs 800 samples with labels and ")
    assert warning.endswith("unlabelled.npz' has 40 without labels; choose another data set")
    assert eq8.verdict is Verdict.HOLDS


@pytest.mark.parametrize(("value", "word"), [(0.0, "zero"), (0.5, "the same")])
def test_constant_images_are_refused_before_any_work(value: float, word: str, calls: Calls, tmp_path: Path) -> None:
    np.savez(tmp_path / "constant.npz", x=np.full((40, 6, 6), value))
    setting = Setting(scale="quick", data=(str(tmp_path / "constant.npz"),))
    with pytest.raises(InputError, match=f"every sample of .*constant.npz' is {word}, so there is nothing to contrast"):
        verify(["X.one"], setting, tmp_path / "out")
    assert calls == []


def test_a_zero_eigengap_is_recorded_as_a_warning(tmp_path: Path) -> None:
    """Images of one bright row: the features have rank one, and the tenth eigenvalue of C is zero like the eleventh."""
    x = np.zeros((60, 6, 6))
    x[:, 2, 3] = np.random.default_rng(0).random(60)
    np.savez(tmp_path / "line.npz", x=x.reshape(60, 36))
    setting = Setting(scale="quick", data=(str(tmp_path / "line.npz"),), n_seeds=1)
    (record,) = verify(["A.lem17"], setting, tmp_path / "out")
    assert any("eigengap" in warning for warning in record.evidence.warnings), record.evidence.warnings
