"""The command line as a person uses it, through real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from kontrast.cli.study import show_findings
from kontrast.study import StudySpec, Thresholds, find
from tests.report.studies import study

TINY = ["--data", "digits", "--samples", "6", "--d-out", "3", "--widths", "8,32", "--seeds", "2", "--steps", "12"]


def kontrast(*arguments: object, cwd: Path | None = None, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kontrast", *map(str, arguments)]
    return subprocess.run(command, check=False, cwd=cwd, capture_output=True, text=True, timeout=300, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study") / "tiny"
    done = kontrast("study", *TINY, "-o", folder)
    assert done.returncode == 0, done.stderr
    assert f"report: {folder / 'report.html'}" in done.stdout
    return folder


def test_help_does_not_load_torch() -> None:
    program = (
        "import sys, kontrast.cli as c\ntry: c.app(['--help'])\nexcept SystemExit: pass\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip().endswith("False")
    assert "study" in done.stdout


def test_no_command_is_a_question_for_help() -> None:
    done = kontrast()
    assert done.returncode == 0
    assert "study" in done.stdout


def test_version() -> None:
    assert re.fullmatch(r"kontrast \d+\.\d+\.\d+\n", kontrast("--version").stdout)


def test_help_states_the_librarys_own_defaults() -> None:
    help_text = " ".join(kontrast("study", "--help", env={**os.environ, "COLUMNS": "200"}).stdout.split())
    spec = StudySpec()
    told = {
        "--data": spec.data,
        "--split": spec.split,
        "--samples": spec.n_samples,
        "--positives": spec.n_positives,
        "--negatives": spec.negatives,
        "--link": spec.link,
        "--temperature": f"{spec.temperature:g}",
        "--delta": spec.delta,
        "--activation": spec.activation,
        "--depth": spec.depth,
        "--parametrization": spec.parametrization,
        "--d-out": spec.d_out,
        "--widths": ",".join(map(str, spec.widths)),
        "--seeds": spec.n_seeds,
        "--steps": spec.n_steps,
        "--pca-learning-rate": f"{spec.pca_learning_rate:g}",
        "--tolerance": Thresholds().tolerance,
        "--pca-tolerance": Thresholds().pca_tolerance,
        "--probe-margin": Thresholds().probe_margin,
        "--device": spec.device,
        "--dtype": spec.dtype,
    }
    for option, default in told.items():
        assert re.search(rf"{option} \S+ [^\[]*\[default: \(?{re.escape(str(default))}\)?\]", help_text), option


def test_a_study_prints_its_tables_and_verdicts(finished: Path) -> None:
    again = kontrast("study", *TINY, "-o", finished)
    assert again.returncode == 0
    words = ("cosine similarity", "dot similarity", "NTK drift", "cosine: ", "dot: ")
    for word in (*words, "orthonormal output layer", "orthonormal: ", "linear probes", "pixel-pca", "verdict: "):
        assert word in again.stdout
    assert max(cell_len(line) for line in again.stdout.splitlines() if "report:" not in line) <= 80
    assert "…" not in again.stdout  # nothing is cut off
    page = (finished / "report.html").read_text()
    assert "<svg" in page


def test_json_is_the_only_thing_on_standard_output(finished: Path) -> None:
    for command in (("study", *TINY, "-o", finished), ("report", finished)):
        content = json.loads(kontrast(*command, "--json").stdout)
        assert set(content["similarities"]) == {"cosine", "dot"}
        assert content["report"] == str(finished / "report.html")
        assert content["spec"]["widths"] == [8, 32]
        assert content["pca"]["widths"] == [8, 32]
        assert 0 < content["probes"]["means"]["pixels"][0] <= 1
        assert content["verdict"]


def test_thresholds_are_options_of_study_and_report(finished: Path) -> None:
    options = ("--tolerance", "0.3", "--pca-tolerance", "0.999", "--probe-margin", "0.5")
    for command in (("study", *TINY, "-o", finished), ("report", finished)):
        content = json.loads(kontrast(*command, *options, "--json").stdout)
        assert content["thresholds"] == {"tolerance": 0.3, "pca_tolerance": 0.999, "probe_margin": 0.5}
        assert content["pca"]["verdict"] == "pca"
        page = (finished / "report.html").read_text()
        assert "a PCA tolerance of 0.999" in page
    assert json.loads(kontrast("report", finished, "--json").stdout)["pca"]["verdict"] != "pca"


def test_label_curves_are_a_table_and_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    findings = find(study(label_curves=True))
    show_findings(findings, Path("report.html"), as_json=False)
    shown = capsys.readouterr().out
    assert "kernel ridge regression from n labels, width 256, measured/predicted" in shown
    assert findings.labels is not None
    assert f"labels: {findings.labels.sentence}" in " ".join(shown.split())
    [row] = [line for line in shown.splitlines() if line.startswith(" ntk ")]
    errors, predicted = (findings.labels.means[name]["ntk"] for name in ("label_error", "label_error_predicted"))
    assert row.split()[1:4] == [f"{errors[i]:.2f}/{predicted[i]:.2f}" for i in (0, 2, 5)]
    assert max(cell_len(line) for line in shown.splitlines()) <= 80
    assert "…" not in shown
    show_findings(find(study()), Path("report.html"), as_json=False)
    assert "kernel ridge" not in capsys.readouterr().out


def test_data_without_labels_is_studied_without_probes(bad_files: Path, tmp_path: Path) -> None:
    done = kontrast("study", "--data", bad_files / "unlabelled.npy", *TINY[2:], "-o", tmp_path / "s")
    assert done.returncode == 0, done.stderr
    assert "no downstream probes, the data has no labels" in " ".join(done.stdout.split())
    assert "No downstream probes: the data has no labels" in (tmp_path / "s" / "report.html").read_text()


def test_report_rebuilds_the_same_page_from_the_cells_alone(finished: Path) -> None:
    before = (finished / "report.html").read_bytes()
    result = (finished / "result.nc").read_bytes()
    (finished / "report.html").unlink()
    (finished / "result.nc").unlink()
    assert kontrast("report", finished).returncode == 0
    assert (finished / "report.html").read_bytes() == before
    assert kontrast("study", *TINY, "-o", finished).returncode == 0
    assert (finished / "result.nc").read_bytes() == result


def test_resume_takes_its_options_from_the_folder(finished: Path) -> None:
    victim = next((finished / "cells").glob("*.sha256"))
    victim.unlink()
    done = kontrast("study", "--resume", finished)
    assert done.returncode == 0, done.stderr
    assert victim.exists()
    refused = kontrast("study", "--resume", finished, "--steps", "3")
    assert refused.returncode == 2
    assert "--resume takes every option from its folder" in refused.stderr


def test_the_default_folder_carries_data_and_hash(tmp_path: Path) -> None:
    done = kontrast("study", *TINY, "--similarity", "cosine", "--json", cwd=tmp_path)
    assert re.fullmatch(r"kontrast-studies/digits-[0-9a-f]{8}/report.html", json.loads(done.stdout)["report"])


BAD = [
    (["study", "--data", "mnist6k"], "mnist5k"),
    (["study", "--data", "missing.npz"], "missing.npz"),
    (["study", "--data", "corrupt.npz"], "corrupt.npz"),
    (["study", "--data", "nan.npy"], "nan.npy"),
    (["study", "--data", "inf.npy"], "inf.npy"),
    (["study", "--data", "cube.npy"], "cube.npy"),
    (["study", "--data", "words.npy"], "words.npy"),
    (["study", "--data", "digits", "--samples", "5000"], "at most 1797"),
    (["study", *TINY, "--learning-rate", "0"], "positive number, got 0"),
    (["study", *TINY, "--learning-rate", "-1"], "positive number, got -1"),
    (["study", *TINY, "--learning-rate", "fast"], "--learning-rate takes a number"),
    (["study", *TINY, "--learning-rate", "0.1,0.2,0.3"], "one learning rate for each"),
    (["study", *TINY, "--samples", "abc"], "'--samples'"),
    (["study", *TINY, "--steps", "1.5"], "'--steps'"),
    (["study", *TINY, "--negatives", "²"], "whole number or 'all', got '²'"),
    (["study", *TINY, "--widths", "99999999999"], "GiB"),
    (["study", *TINY, "--depth", "99999999999"], "at most"),
    (["study", *TINY, "--device", "meta"], "device must look like"),
    (["study", *TINY, "-o", "x" * 400], "choose another folder"),
    (["study", "--data", "huge.npy", *TINY[2:]], "scale them"),
    (["study", "--nope"], "--nope"),
    (["studdy"], "study"),
    (["report"], "kontrast report --help"),
    (["study", *TINY, "--temperature", "0"], "temperature must be a positive number"),
    (["study", *TINY, "--delta", "-0.1"], "delta must be a positive number"),
    (["study", *TINY, "--widths", "8,x"], "--widths takes whole numbers"),
    (["study", *TINY, "--widths", "2", "--parametrization", "orthogonal"], "width 2 < 3"),
    (["study", *TINY, "--workers", "0"], "--workers must be at least 1"),
    (["study", *TINY, "--tolerance", "2"], "tolerance must lie between 0 and 1"),
    (["study", *TINY, "--pca-tolerance", "0"], "pca_tolerance must lie between 0 and 1"),
    (["study", *TINY, "--probe-margin", "-1"], "probe_margin must be at least 0"),
    (["report", "mine", "--probe-margin", "7"], "probe_margin must be at least 0"),
    (["study", *TINY, "--pca-learning-rate", "0"], "pca_learning_rate must be a positive number"),
    (["study", *TINY, "--probe-samples", "5000"], "has 1797 samples, 898 to train and to test on"),
    (["study", "--data", "unlabelled.npy", *TINY[2:], "--probe-samples", "5"], "has no labels"),
    (["study", "--data", "unlabelled.npy", *TINY[2:], "--labels"], "has no labels; leave --labels out"),
    (["study", "--data", "constant.npy", *TINY[2:]], "is the same, so there is nothing to contrast"),
    (["study", *TINY, "--similarity", "l2"], "l2"),
    (["study", *TINY, "--view", "crop:2,1"], "crop"),
    (["study", *TINY, "-o", "mine"], "exists and holds no results"),
    (["report", "mine"], "holds no results"),
    (["report", "nowhere"], "holds no results"),
    (["study", "--resume", "nowhere"], "holds no results"),
]


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    (folder / "corrupt.npz").write_bytes(b"PK\x03\x04 not a zip")
    rows = np.ones((30, 4))
    for name, value in (("nan", np.nan), ("inf", np.inf)):
        rows[3, 2] = value
        np.save(folder / f"{name}.npy", rows)
    np.save(folder / "huge.npy", 1e120 * np.random.default_rng(0).random((30, 4)))
    np.save(folder / "unlabelled.npy", np.random.default_rng(0).random((30, 4)))
    np.save(folder / "constant.npy", np.full((30, 4, 4), 0.5))
    np.save(folder / "cube.npy", np.ones((3, 4, 5, 6, 7)))
    np.save(folder / "words.npy", np.array(["a", "b"]))
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("keep me")
    return folder


@pytest.mark.parametrize("arguments, message", BAD, ids=[" ".join(case[0][-3:]) for case in BAD])
def test_bad_input_is_one_line_and_exit_code_2(bad_files: Path, arguments: list[str], message: str) -> None:
    before = sorted(path.name for path in bad_files.rglob("*"))
    done = kontrast(*arguments, cwd=bad_files)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in bad_files.rglob("*")) == before


def test_debug_shows_the_traceback(bad_files: Path) -> None:
    done = kontrast("study", "--data", "missing.npz", "--debug", cwd=bad_files)
    assert "Traceback" in done.stderr
    assert "DataError" in done.stderr


def test_another_study_is_not_overwritten(finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    done = kontrast("study", *TINY, "--steps", "13", "-o", finished)
    assert done.returncode == 2
    assert "holds other results" in done.stderr
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


SLOWER = [*TINY[:-6], "--widths", "8,16,32,64", "--seeds", "6", "--steps", "400"]


def listen_to_ctrl_c() -> None:
    """A shell starts background jobs deaf to SIGINT, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(folder: Path, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kontrast", "study", *SLOWER, "-o", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def wait_for_a_cell(folder: Path, process: subprocess.Popen[str], more_than: int = 0) -> None:
    deadline = time.monotonic() + 180
    while len(list(folder.glob("cells/*.sha256"))) <= more_than:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no cell was finished"
        time.sleep(0.01)


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_says_how_to_resume(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    process = start(folder, process_group=0, preexec_fn=listen_to_ctrl_c)
    wait_for_a_cell(folder, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the parent and its workers
    out, err = process.communicate(timeout=90)
    assert process.returncode == 130, err
    assert f"kontrast study --resume {folder}" in err
    assert "Traceback" not in err
    assert out == ""
    assert not list(folder.rglob("*.partial"))
    assert kontrast("study", "--resume", folder).returncode == 0
