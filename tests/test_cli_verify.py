"""`kontrast verify`, and `kontrast report` of what it wrote, as a person uses them: through real processes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from kontrast.claims import Verdict, all_claims, registry
from kontrast.cli import app, main

CHEAP = ["A.lem11", "A.thm13", "A.eq8", "A.eq9"]  # in the order of the paper


def kontrast(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kontrast", *map(str, arguments)]
    return subprocess.run(command, check=False, cwd=cwd, capture_output=True, text=True, timeout=300)


def refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    """The one line of standard error with which the same in this process, which has torch already, ends."""
    monkeypatch.setattr(sys, "argv", ["kontrast", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capfd.readouterr()
    assert ended.value.code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def objects(lines: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines.splitlines()]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the cheap claims in it; no test may change it."""
    folder = tmp_path_factory.mktemp("claims") / "quick"
    done = kontrast("verify", *reversed(CHEAP), "--quick", "-o", folder)
    assert done.returncode == 0, done.stderr
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
    done = kontrast("verify", *CHEAP, "--quick", "-o", tmp_path / "f")
    assert done.returncode == 0
    assert max(cell_len(line) for line in done.stdout.splitlines() if "report:" not in line) <= 80
    assert "…" not in done.stdout  # nothing is cut off
    assert "4/4" in done.stderr
    assert "4/4" not in done.stdout
    assert f"report: {tmp_path / 'f' / 'report.html'}" in done.stdout


def test_a_claim_that_does_not_simply_hold_is_corrected_in_words(measured: Path) -> None:
    said = " ".join(kontrast("report", measured).stdout.split())
    for claim in all_claims():
        if claim.id in CHEAP and claim.recorded is Verdict.HOLDS:
            assert said.count(claim.id) == 1
        elif claim.id in CHEAP:
            assert f"{claim.id} {claim.corrected}" in said


def test_json_is_one_object_a_line_and_nothing_else(measured: Path) -> None:
    done = kontrast("verify", *CHEAP, "--quick", "--json", "-o", measured)
    assert done.returncode == 0
    assert done.stderr == ""  # nothing was left to measure
    found = objects(done.stdout)
    assert [it["id"] for it in found] == CHEAP
    assert {"title", "source", "verdict", "recorded", "measured", "expected", "setting", "seconds"} <= found[0].keys()


def test_the_second_run_measures_nothing_and_changes_nothing(measured: Path) -> None:
    before = content(measured)
    assert kontrast("verify", "A.eq9", "A.eq8", "--quick", "-o", measured).returncode == 0
    assert content(measured) == before


def test_a_verdict_other_than_the_recorded_one_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [claim] = (claim for claim in all_claims() if claim.id == "A.eq8")
    monkeypatch.setitem(registry._CLAIMS, "A.eq8", dataclasses.replace(claim, recorded=Verdict.REFUTED))
    done = CliRunner().invoke(app, ["verify", "A.eq8", "--quick", "-o", str(tmp_path / "f")])
    assert done.exit_code == 1
    assert "holds (recorded: refuted)" in " ".join(done.stdout.split())
    assert "not as recorded: A.eq8" in done.stdout


def test_help_does_not_load_torch() -> None:
    program = "import sys, kontrast.cli as c\ntry: c.app(['verify', '--help'])\nexcept SystemExit: pass\n"
    program += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip().endswith("False")
    assert "--quick" in done.stdout


def test_the_list_measures_nothing(tmp_path: Path) -> None:
    done = kontrast("verify", "--list", cwd=tmp_path)
    assert done.returncode == 0
    assert max(cell_len(line) for line in done.stdout.splitlines()) <= 80
    shown = objects(kontrast("verify", "--list", "--json", cwd=tmp_path).stdout)
    assert [it["id"] for it in shown] == [claim.id for claim in all_claims()]
    assert all(f" {it['id']} " in done.stdout for it in shown)
    assert shown[0].keys() == {"id", "title", "source", "recorded", "printed", "corrected"}
    assert not list(tmp_path.iterdir())


BAD = [
    (["A.eq88"], "no claim is called 'A.eq88'; did you mean A.eq8?"),
    (["a.thm13"], "did you mean A.thm13?"),
    (["A.eq8", "--device", "cuda:77"], "device 'cuda:77' was asked for"),
    (["A.eq8", "--device", "tpu"], "device must look like"),
    (["A.eq8", "--seeds", "0"], "seeds must be at least 1, got 0"),
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
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep me")
    before = content(tmp_path)
    assert message in refused(["verify", *arguments], monkeypatch, capfd)
    assert content(tmp_path) == before


def test_data_that_a_claim_cannot_use_leaves_it_undecided(tmp_path: Path) -> None:
    np.save(tmp_path / "few.npy", np.random.default_rng(0).random((12, 4)))
    done = kontrast("verify", "A.eq8", "--quick", "--data", "few.npy", cwd=tmp_path)
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "A.eq8: warning: not measured: this claim needs 20 samples and 'few.npy' has 12" in said
    assert "undecided (recorded: holds)" in said
    assert "not as recorded: A.eq8" in said
    assert "Traceback" not in done.stderr


def test_report_rebuilds_every_file_from_the_cells_alone(copy: Path) -> None:
    before = content(copy)
    for name in before:
        if name.endswith((".html", ".md", ".svg")):
            (copy / name).unlink()
    shutil.rmtree(copy / "figures")
    done = kontrast("report", copy)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"report: {copy / 'report.html'}" in done.stdout
    assert content(copy) == before
    page = (copy / "report.html").read_text()
    assert f"kontrast verify {' '.join(reversed(CHEAP))} --quick -o" in page
    assert "kontrast report" not in page


def test_report_prints_the_json_of_verify(measured: Path) -> None:
    there = kontrast("verify", *CHEAP, "--quick", "--json", "-o", measured)
    assert kontrast("report", measured, "--json").stdout == there.stdout


def test_each_claim_keeps_the_command_that_measured_it(copy: Path) -> None:
    assert kontrast("verify", "A.eq8", "A.eq10", "--quick", "-o", copy).returncode == 0
    page = (copy / "report.html").read_text()
    assert f"kontrast verify {' '.join(reversed(CHEAP))} --quick -o" in page
    assert f"kontrast verify A.eq8 A.eq10 --quick -o {copy}" in page


@pytest.mark.parametrize("option", ["--tolerance", "--pca-tolerance", "--probe-margin"])
def test_thresholds_of_studies_are_refused_for_claims(
    option: str, measured: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = content(measured)
    said = refused(["report", str(measured), option, "0.1"], monkeypatch, capfd)
    assert said == f"error: {option}: for studies alone, and {measured} holds claims; leave it out\n"
    assert content(measured) == before


def test_a_folder_of_other_code_is_reported_with_warnings(copy: Path) -> None:
    cells = copy / "cells"
    (cells / "A.gone.nc").write_bytes((cells / "A.eq8.nc").read_bytes())
    (cells / "A.gone.nc.sha256").write_text((cells / "A.eq8.nc.sha256").read_text())
    (cells / "A.eq9.nc").write_bytes(b"damaged")
    rewrite_spec(copy, code="0123456789abcdef")
    done = kontrast("report", copy, "--json")
    assert done.returncode == 0
    assert [it["id"] for it in objects(done.stdout)] == ["A.lem11", "A.thm13", "A.eq8"]
    gone, damaged, other = done.stderr.splitlines()
    assert gone == "warning: A.gone is left out: this kontrast has no such claim"
    assert damaged.startswith("warning: A.eq9 is left out: its file is damaged; run the same `kontrast verify` again")
    assert other.startswith("warning: measured by other code")
    again = kontrast("verify", "A.eq8", "--quick", "-o", copy)
    assert again.returncode == 2
    assert "holds other results (code: 0123456789abcdef there" in again.stderr


def test_a_folder_of_another_format_or_none_is_refused(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rewrite_spec(copy, format=99)
    assert "written by another kontrast (format 99" in refused(["report", str(copy)], monkeypatch, capfd)
    (copy / "spec.json").write_text("{}")
    said = refused(["report", str(copy)], monkeypatch, capfd)
    assert "run `kontrast study|verify` again in another folder" in said
    (copy / "spec.json").unlink()
    assert "that `kontrast study|verify` printed" in refused(["report", str(copy)], monkeypatch, capfd)


def test_studies_and_claims_do_not_mix(
    measured: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = content(measured)
    resumed = refused(["study", "--resume", str(measured)], monkeypatch, capfd)
    assert "holds claims, and no study; see `kontrast verify --help`" in resumed
    written = refused(["study", "--data", "digits", "-o", str(measured)], monkeypatch, capfd)
    assert "holds other results (of another command)" in written
    assert content(measured) == before


def test_a_study_needs_no_claim_to_be_importable() -> None:
    program = "import sys; sys.modules['kontrast.claims'] = None; import kontrast.report, kontrast.study, kontrast.cli"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def listen_to_ctrl_c() -> None:
    """A shell starts background jobs deaf to SIGINT, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize("workers, sign", [(1, ".lock"), (2, "cells/*.sha256")])
def test_ctrl_c_stops_cleanly_and_the_same_command_goes_on(tmp_path: Path, workers: int, sign: str) -> None:
    """In this process before the first claim is stored, and with workers after it."""
    folder = tmp_path / "f"
    options = ("--quick", "-o", str(folder), "--workers", str(workers))
    command = [sys.executable, "-m", "kontrast", "verify", "A.fig3", "A.forever", *options]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        preexec_fn=listen_to_ctrl_c,  # noqa: PLW1509  (it takes no lock that another thread could hold)
    )
    deadline = time.monotonic() + 120
    while not list(folder.glob(sign)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.01)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the parent and its workers
    out, err = process.communicate(timeout=90)
    assert process.returncode == 130, err
    assert f"stopped; finished claims are kept in {folder}: run the same command to go on" in err
    assert "Traceback" not in err
    assert out == ""
    assert not list(folder.rglob("*.partial"))
    kept = {path.name: path.read_bytes() for path in folder.glob("cells/*")}
    assert bool(kept) == (workers == 2)
    done = [name.removesuffix(".nc") for name in kept if name.endswith(".nc")]
    resumed = kontrast("verify", *done, "A.lem11", *options)
    assert resumed.returncode == 0, resumed.stderr
    assert kept.items() <= {path.name: path.read_bytes() for path in folder.glob("cells/*")}.items()
