"""`kontrast verify`, and `kontrast report` of what it wrote, as a person uses them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from kontrast.claims import PAPERS, Verdict, all_claims, registry
from tests.cli.running import Kontrast, content, in_a_process, in_this_process, stopped_by_ctrl_c

CHEAP = ["A.lem11", "A.thm13", "A.eq8", "A.eq9"]  # in the order of the paper


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the cheap claims in it; no test may change it."""
    folder = tmp_path_factory.mktemp("claims") / "quick"
    assert in_this_process(("verify", *reversed(CHEAP), "--quick", "-o", folder, "--workers", 1)) == 0
    return folder


@pytest.fixture
def copy(measured: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(measured, tmp_path / "copy"))


def rewrite_spec(folder: Path, **changes: object) -> None:
    """As if another kontrast had written the folder."""
    path = folder / "spec.json"
    spec = {**json.loads(path.read_text())["spec"], **changes}
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"sha256": digest, "spec": spec}))


def test_words_fit_80_columns_and_the_bar_is_on_standard_error(tmp_path: Path) -> None:
    done = in_a_process("verify", *CHEAP, "--quick", "--workers", 1, "-o", tmp_path / "f")
    assert done.code == 0
    assert max(cell_len(line) for line in done.out.splitlines() if "report:" not in line) <= 80
    assert "…" not in done.out  # nothing is cut off
    assert "4/4" in done.err
    assert "4/4" not in done.out
    assert f"report: {tmp_path / 'f' / 'report.html'}" in done.out


def test_a_claim_that_does_not_simply_hold_is_corrected_in_words(kontrast: Kontrast, measured: Path) -> None:
    said = " ".join(kontrast("report", measured).out.split())
    for claim in all_claims():
        if claim.id in CHEAP and claim.recorded is Verdict.HOLDS:
            assert said.count(claim.id) == 1
        elif claim.id in CHEAP:
            assert f"{claim.id} {claim.corrected}" in said


def test_json_is_one_object_a_line_and_nothing_else(kontrast: Kontrast, measured: Path) -> None:
    done = kontrast("verify", *CHEAP, "--quick", "--json", "-o", measured)
    assert done.code == 0
    assert done.err == ""  # nothing was left to measure
    found = done.lines
    assert [it["id"] for it in found] == CHEAP
    assert {"title", "source", "verdict", "recorded", "measured", "expected", "setting", "seconds"} <= found[0].keys()


def test_the_second_run_measures_nothing_and_changes_nothing(kontrast: Kontrast, measured: Path) -> None:
    before = content(measured)
    assert kontrast("verify", "A.eq9", "A.eq8", "--quick", "-o", measured).code == 0
    assert content(measured) == before


def test_a_verdict_other_than_the_recorded_one_is_exit_code_1(
    kontrast: Kontrast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [claim] = (claim for claim in all_claims() if claim.id == "A.eq8")
    monkeypatch.setitem(registry._CLAIMS, "A.eq8", dataclasses.replace(claim, recorded=Verdict.REFUTED))
    done = kontrast("verify", "A.eq8", "--quick", "-o", tmp_path / "f")
    assert done.code == 1
    assert "holds (recorded: refuted)" in done.words
    assert "not as recorded: A.eq8" in done.out


def test_the_list_measures_nothing(kontrast: Kontrast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = kontrast("verify", "--list")
    assert done.code == 0
    assert max(cell_len(line) for line in done.out.splitlines()) <= 80
    shown = kontrast("verify", "--list", "--json").lines
    assert [it["id"] for it in shown] == [claim.id for claim in all_claims()]
    assert all(f" {it['id']} " in done.out for it in shown)
    assert "…" not in done.out  # nothing is cut off
    assert shown[0].keys() == {"id", "title", "source", "recorded", "printed", "corrected", "file"}
    assert not list(tmp_path.iterdir())


def test_the_list_names_each_paper_once_and_the_file_of_each_claim(kontrast: Kontrast) -> None:
    said = kontrast("verify", "--list").words
    for letter, paper in PAPERS.items():
        assert said.count(f"Paper {letter}. {paper.authors}: {paper.title}") == 1
        assert said.count(paper.link) == 1 or not paper.link
    for it in kontrast("verify", "--list", "--json").lines:
        assert (Path(registry.__file__).parents[1] / it["file"]).is_file()
    only = kontrast("verify", "--list", "C").words
    assert "Yuandong Tian" in only
    assert "Brandon McKinzie" not in only


BAD = [
    (["A.eq88"], "no claim is called 'A.eq88'; did you mean A.eq8?"),
    (["a.thm13"], "did you mean A.thm13?"),
    (["A.eq8", "--device", "cuda:77"], "device 'cuda:77' was asked for"),
    (["A.eq8", "--device", "tpu"], "--device must look like"),
    (["A.eq8", "--seeds", "0"], "seeds must be a whole number of at least 1, got 0"),
    (["A.eq8", "--workers", "0"], "--workers must be at least 1, got 0"),
    (["A.eq8", "--data", "mnist6k"], "mnist5k"),
    (["A.eq8", "--data", "missing.npz"], "missing.npz"),
    (["A.eq8", "--quick", "-o", "notes"], "exists and holds no results"),
]


@pytest.mark.parametrize("arguments, message", BAD, ids=[" ".join(case[0]) for case in BAD])
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    kontrast: Kontrast,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep me")
    before = content(tmp_path)
    assert message in kontrast("verify", *arguments).refused
    assert content(tmp_path) == before


def test_data_that_a_claim_cannot_use_leaves_it_undecided(
    kontrast: Kontrast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "few.npy", np.random.default_rng(0).random((12, 4)))
    done = kontrast("verify", "A.eq8", "--quick", "--data", "few.npy")
    assert done.code == 1
    said = " ".join(done.out.split())
    assert "A.eq8: warning: not measured: this claim needs 20 samples and 'few.npy' has 12" in said
    assert "undecided (recorded: holds)" in said
    assert "not as recorded: A.eq8" in said
    assert "Traceback" not in done.err


def test_report_rebuilds_every_file_from_the_cells_alone(kontrast: Kontrast, copy: Path) -> None:
    before = content(copy)
    for name in before:
        if name.endswith((".html", ".md", ".svg")):
            (copy / name).unlink()
    shutil.rmtree(copy / "figures")
    done = kontrast("report", copy)
    assert done.code == 0, done.err
    assert done.err == ""
    assert f"report: {copy / 'report.html'}" in done.out
    assert content(copy) == before
    page = (copy / "report.html").read_text()
    assert f"kontrast verify {' '.join(reversed(CHEAP))} --quick -o" in page
    assert "kontrast report" not in page


def test_report_prints_the_json_of_verify(kontrast: Kontrast, measured: Path) -> None:
    there = kontrast("verify", *CHEAP, "--quick", "--json", "-o", measured)
    assert kontrast("report", measured, "--json").out == there.out


def test_each_claim_keeps_the_command_that_measured_it(kontrast: Kontrast, copy: Path) -> None:
    assert kontrast("verify", "A.eq8", "A.eq10", "--quick", "--workers", 1, "-o", copy).code == 0
    page = (copy / "report.html").read_text()
    assert f"kontrast verify {' '.join(reversed(CHEAP))} --quick -o" in page
    assert f"kontrast verify A.eq8 A.eq10 --quick --workers 1 -o {copy}" in page


@pytest.mark.parametrize("option", ["--tolerance", "--pca-tolerance", "--probe-margin"])
def test_thresholds_of_studies_are_refused_for_claims(kontrast: Kontrast, option: str, measured: Path) -> None:
    before = content(measured)
    said = kontrast("report", measured, option, "0.1").refused
    assert said == f"error: {option}: for studies alone, and {measured} holds claims; leave it out"
    assert content(measured) == before


def test_a_folder_of_other_code_is_reported_with_warnings(kontrast: Kontrast, copy: Path) -> None:
    cells = copy / "cells"
    (cells / "A.gone.nc").write_bytes((cells / "A.eq8.nc").read_bytes())
    (cells / "A.gone.nc.sha256").write_text((cells / "A.eq8.nc.sha256").read_text())
    (cells / "A.eq9.nc").write_bytes(b"damaged")
    rewrite_spec(copy, code="0123456789abcdef")
    done = kontrast("report", copy, "--json")
    assert done.code == 0
    assert [it["id"] for it in done.lines] == ["A.lem11", "A.thm13", "A.eq8"]
    gone, damaged, other = done.err.splitlines()
    assert gone == "warning: A.gone is left out: this kontrast has no such claim"
    assert damaged.startswith("warning: A.eq9 is left out: its file is damaged; run the same `kontrast verify` again")
    assert other.startswith("warning: measured by other code")
    again = kontrast("verify", "A.eq8", "--quick", "-o", copy)
    assert again.code == 2
    assert "holds other results (code: 0123456789abcdef there" in again.err


def test_a_folder_of_another_format_or_none_is_refused(kontrast: Kontrast, copy: Path) -> None:
    rewrite_spec(copy, format=99)
    assert "written by another version of kontrast (format 99" in kontrast("report", str(copy)).refused
    (copy / "spec.json").write_text("{}")
    said = kontrast("report", str(copy)).refused
    assert "run `kontrast study|verify` again" in said
    (copy / "spec.json").unlink()
    assert "that `kontrast study|verify` printed" in kontrast("report", str(copy)).refused


def test_studies_and_claims_do_not_mix(kontrast: Kontrast, measured: Path) -> None:
    before = content(measured)
    resumed = kontrast("study", "--resume", str(measured)).refused
    assert "holds claims, and no study; run the study in another folder" in resumed
    written = kontrast("study", "--data", "digits", "-o", str(measured)).refused
    assert "holds other results (of another command)" in written
    assert content(measured) == before


def test_a_study_needs_no_claim_to_be_importable() -> None:
    program = "import sys; sys.modules['kontrast.claims'] = None; import kontrast.report, kontrast.study, kontrast.cli"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("workers, sign", [(1, ".lock"), (2, "cells/*.sha256")])
def test_ctrl_c_stops_cleanly_and_the_same_command_goes_on(
    kontrast: Kontrast, tmp_path: Path, workers: int, sign: str
) -> None:
    """In this process before the first claim is stored, and with workers as soon as it is: the other takes long."""
    folder = tmp_path / "f"
    options = ("--quick", "-o", folder, "--workers", workers)

    def begun() -> bool:
        time.sleep(0.2)  # into the work
        return bool(list(folder.glob(sign)))

    ended = stopped_by_ctrl_c("verify", "A.lem11", "A.forever", *options, when=begun)
    assert ended.code == 130, ended.err
    assert f"stopped; finished claims are kept in {folder}: run the same command to go on" in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""
    assert not list(folder.rglob("*.partial"))
    kept = {path.name: path.read_bytes() for path in folder.glob("cells/*")}
    assert bool(kept) == (workers == 2)
    resumed = kontrast("verify", "A.lem11", *options[:-1], 1)
    assert resumed.code == 0, resumed.err
    assert kept.items() <= {path.name: path.read_bytes() for path in folder.glob("cells/*")}.items()
