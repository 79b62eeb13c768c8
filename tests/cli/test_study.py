"""`kontrast study` and `kontrast report` of what it wrote, as a person uses them."""

from __future__ import annotations

import json
import multiprocessing
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from kontrast.cli.study import show_findings
from kontrast.runs.store import from_bytes
from kontrast.study import Findings, StudySpec, find, prepare, run_study
from tests.cli.running import Ended, Kontrast, content, in_a_process, start, stopped_by_ctrl_c, wait_for
from tests.report.studies import study

TINY_MAP = ["--rates", "0.3,3", "--max-steps", "8", "--batch-size", "8"]
TINY = ["--data", "digits", "--samples", "6", "--d-out", "3", *TINY_MAP]
TINY += ["--widths", "8,32", "--seeds", "2", "--steps", "12"]


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study") / "tiny"


@pytest.fixture(scope="module")
def first(chosen: Path) -> Ended:
    """What the command says that computes the study in `finished`."""
    done = in_a_process("study", *TINY, "-o", chosen, "--workers", 1)
    assert done.code == 0, done.err
    assert f"report: {chosen / 'report.html'}" in done.out
    return done


@pytest.fixture(scope="module")
def finished(chosen: Path, first: Ended) -> Path:
    return chosen


def stored(folder: Path) -> Findings:
    """What the library finds in the result of a folder."""
    return find(from_bytes((folder / "result.nc").read_bytes()))


def test_no_command_is_a_question_for_help(kontrast: Kontrast) -> None:
    done = kontrast()
    assert done.code == 0
    assert "study" in done.out


def test_version(kontrast: Kontrast) -> None:
    assert re.fullmatch(r"kontrast \d+\.\d+\.\d+\n", kontrast("--version").out)


def test_a_study_prints_its_tables_and_verdicts(first: Ended, finished: Path) -> None:
    words = ("nt_xent: what training does", "dot: what training does", "rate: learning rate / critical rate")
    baselines = ("test accuracy in % at width 32", "its kernel twin", "the best closed form", "raw input")
    full_batch = ("full batch, cosine: ", "full batch, dot: ", "full batch, orthonormal: ")
    for word in (*words, *baselines, *full_batch, "verdict: NT-Xent at width 32"):
        assert word in first.words
    assert "cosine similarity" not in first.out  # the tables of the sections below are on the page
    assert max(cell_len(line) for line in first.out.splitlines() if "report:" not in line) <= 80
    assert "…" not in first.out  # nothing is cut off
    page = (finished / "report.html").read_text()
    assert "<svg" in page


def test_without_a_map_every_section_prints_its_table(kontrast: Kontrast, tmp_path: Path) -> None:
    done = kontrast("study", "--preset", "paper-a", *TINY, "-o", tmp_path / "s", "--workers", 1)
    assert done.code == 0, done.err
    words = ("cosine similarity", "dot similarity", "NTK drift", "cosine: ", "dot: ")
    for word in (*words, "orthonormal output layer", "orthonormal: ", "linear probes", "pixel-pca", "verdict: "):
        assert word in done.out
    assert "what training does" not in done.out
    assert max(cell_len(line) for line in done.out.splitlines() if "report:" not in line) <= 80
    assert "…" not in done.out


def test_json_is_the_only_thing_on_standard_output(kontrast: Kontrast, finished: Path) -> None:
    for command in (("study", *TINY, "-o", finished), ("report", finished)):
        content = json.loads(kontrast(*command, "--json").out)
        assert set(content["similarities"]) == {"cosine", "dot"}
        assert content["report"] == str(finished / "report.html")
        assert content["spec"]["widths"] == [8, 32]
        assert content["pca"]["widths"] == [8, 32]
        assert 0 < content["probes"]["means"]["pixels"][0] <= 1
        assert content["verdict"]


def test_thresholds_are_options_of_study_and_report(kontrast: Kontrast, finished: Path) -> None:
    options = ("--tolerance", "0.3", "--gap-tolerance", "0.25", "--pca-tolerance", "0.999", "--probe-margin", "0.5")
    given = {"tolerance": 0.3, "gap_tolerance": 0.25, "pca_tolerance": 0.999, "probe_margin": 0.5}
    for command in (("study", *TINY, "-o", finished), ("report", finished)):
        content = json.loads(kontrast(*command, *options, "--json").out)
        assert content["thresholds"] == given
        assert content["pca"]["verdict"] == "pca"
        page = (finished / "report.html").read_text()
        assert "a PCA tolerance of 0.999" in page
    assert json.loads(kontrast("report", finished, "--json").out)["pca"]["verdict"] != "pca"


def test_a_pca_part_that_cannot_arrive_is_one_line_before_the_run(kontrast: Kontrast, tmp_path: Path) -> None:
    few = ("--pca-d-out", "3", "--pca-steps", "2", "--similarity", "cosine", "--probe-samples", "0", "--workers", 1)
    done = kontrast("study", *TINY, "--loss", "none", *few, "-o", tmp_path / "s", "--json")
    said, *_ = done.err.splitlines()
    assert re.fullmatch(
        r"the PCA part will not arrive: at dimension 3 the eigengap is [\d.e-]+ and needs about [\d,]+ steps, 2 are "
        r"given; with --pca-.*",
        said,
    )
    content = json.loads(done.out)
    assert content["pca_outlook"] == content["spec"]["pca_outlook"] == content["pca"]["outlook"]
    assert content["pca_outlook"].startswith(said.split(";")[0])
    assert content["pca"]["d_out"] == 3
    assert content["pca"]["step"] == 2
    assert content["pca"]["verdict"] in ("undertrained", "pca_underway", "still")


def test_a_pca_part_that_arrives_needs_no_words_before(first: Ended, finished: Path) -> None:
    assert "will not arrive" not in first.err
    found = stored(finished)
    assert found.spec.pca_outlook == ""
    assert found.pca is not None
    assert max(found.pca.means["pca_angle_frozen"]) < 0.05


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


def test_data_without_labels_is_studied_without_probes(kontrast: Kontrast, bad_files: Path, tmp_path: Path) -> None:
    done = kontrast("study", "--data", bad_files / "unlabelled.npy", *TINY[2:], "-o", tmp_path / "s", "--workers", 1)
    assert done.code == 0, done.err
    assert "; without labels to probe no gain can be told" in done.words
    assert "test accuracy" not in done.words
    assert "No downstream probes: the data has no labels" in (tmp_path / "s" / "report.html").read_text()
    options = ("study", "--data", bad_files / "unlabelled.npy", *TINY[2:], "--loss", "none")
    done = kontrast(*options, "-o", tmp_path / "without", "--workers", 1)
    assert done.code == 0, done.err
    assert "no downstream probes, the data has no labels" in done.words


def test_a_table_is_studied_with_its_labels_in_standardised_columns(kontrast: Kontrast, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kinds = np.arange(40) % 2
    rows = (rng.normal(size=(40, 3)) + 3 * kinds[:, None]) * [1e-3, 1, 1e4]
    lines = [f"{a},{b},{c},{'xz'[k]}" for (a, b, c), k in zip(rows, kinds, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,c,species", *lines]))
    options = ("study", "--data", tmp_path / "t.csv", *TINY[2:-6], "--widths", 8, "--seeds", 1, "--steps", 3)
    said = kontrast(*options, "-o", tmp_path / "s").refused
    assert (
        "the column 'species' looks like labels; pass --label-column species, or --label-column none to use it" in said
    )
    done = kontrast(*options, "--label-column", "species", "-o", tmp_path / "s", "--workers", 1)
    assert done.code == 0, done.err
    assert "columns are standardised to mean 0 and deviation 1; --no-standardize leaves them as they are" in done.words
    assert "test accuracy in % at width 8" in done.words
    page = (tmp_path / "s" / "report.html").read_text()
    assert "--label-column species --standardize" in page
    plain = kontrast(*options, "--label-column", -1, "--no-standardize", "-o", tmp_path / "p", "--workers", 1)
    assert plain.code == 0, plain.err
    assert "columns are standardised" not in plain.words
    page = (tmp_path / "p" / "report.html").read_text()
    assert "--label-column -1 --no-standardize" in page
    assert "--views relative-noise:0.1" in page


def test_report_rebuilds_the_same_page_from_the_cells_alone(kontrast: Kontrast, finished: Path) -> None:
    before = (finished / "report.html").read_bytes()
    result = (finished / "result.nc").read_bytes()
    (finished / "report.html").unlink()
    (finished / "result.nc").unlink()
    assert kontrast("report", finished).code == 0
    assert (finished / "report.html").read_bytes() == before
    assert kontrast("study", *TINY, "-o", finished).code == 0
    assert (finished / "result.nc").read_bytes() == result


def test_resume_takes_its_options_from_the_folder(kontrast: Kontrast, finished: Path) -> None:
    victim = next((finished / "cells").glob("*.sha256"))
    victim.unlink()
    done = kontrast("study", "--resume", finished, "--workers", 1)
    assert done.code == 0, done.err
    assert victim.exists()
    refused = kontrast("study", "--resume", finished, "--steps", "3")
    assert refused.code == 2
    assert "--resume takes every option from its folder" in refused.err


def test_the_default_folder_carries_data_and_hash(
    kontrast: Kontrast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = kontrast("study", *TINY[:-6], "--widths", 8, "--seeds", 1, "--steps", 3, "--similarity", "cosine", "--json")
    assert re.fullmatch(r"kontrast-studies/digits-[0-9a-f]{8}/report.html", done.found["report"])
    assert done.found["spec"]["similarities"] == ["cosine"]


BAD = [
    (["study", "--data", "mnist6k"], "mnist5k"),
    (["study", "--data", "missing.npz"], "missing.npz"),
    (["study", "--data", "corrupt.npz"], "corrupt.npz"),
    (["study", "--data", "nan.npy"], "nan.npy"),
    (["study", "--data", "inf.npy"], "inf.npy"),
    (["study", "--data", "cube.npy"], "cube.npy"),
    (["study", "--data", "words.npy"], "words.npy"),
    (["study", "--data", "digits", "--samples", "5000"], "at most 1797"),
    (["study", *TINY, "--learning-rate", "0"], "--learning-rate must be a positive number, got 0"),
    (["study", *TINY, "--learning-rate", "-1"], "--learning-rate must be a positive number, got -1"),
    (["study", *TINY, "--learning-rate", "fast"], "--learning-rate takes numbers with commas between"),
    (
        ["study", *TINY, "--learning-rate", "0.1,0.2,0.3"],
        "--learning-rate must be one for all similarities, or one for each of ['cosine', 'dot']",
    ),
    (["study", *TINY, "--samples", "abc"], "--samples must be a whole number, got 'abc'"),
    (["study", *TINY, "--steps", "1.5"], "--steps must be a whole number, got '1.5'"),
    (["study", *TINY, "--negatives", "²"], "--negatives must be a whole number of at least 0, or 'all', got '²'"),
    (["study", *TINY, "--widths", "99999999999"], "GiB"),
    (["study", *TINY, "--depth", "99999999999"], "--depth must be a whole number of at most"),
    (["study", *TINY, "--device", "meta"], "--device must look like"),
    (["study", *TINY, "-o", "x" * 400], "cannot write to"),
    (["study", "--data", "huge.npy", *TINY[2:], "--no-standardize"], "scale them"),
    (["study", "--data", "larger.npy", *TINY[2:]], "too large to square; scale them"),
    (["study", "--data", "keys.npz", *TINY[2:]], "pass --x-key and --y-key"),
    (["study", "--data", "keys.npz", *TINY[2:], "--x-key", "c"], "no array 'c'; give --x-key one of its keys: a, b"),
    (["study", "--data", "keys.npz", *TINY[2:], "--label-column", "a"], "so none called 'a'; leave --label-column out"),
    (
        ["study", *TINY, "--label-column", "a"],
        "'digits' has its own labels and no column 'a'; leave --label-column out",
    ),
    (["study", *TINY, "--standardize", "yes"], "yes"),
    (["study", "--nope"], "--nope"),
    (["studdy"], "study"),
    (["report"], "kontrast report --help"),
    (["study", *TINY, "--temperature", "0"], "--temperature must be a positive number"),
    (["study", *TINY, "--delta", "-0.1"], "--delta must be a positive number"),
    (["study", *TINY, "--widths", "8,x"], "--widths takes whole numbers"),
    (["study", *TINY, "--widths", "2", "--parametrization", "orthogonal"], "width 2 < 3"),
    (["study", *TINY, "--workers", "0"], "--workers must be at least 1"),
    (["study", *TINY, "--tolerance", "2"], "--tolerance must lie between 0 and 1"),
    (["study", *TINY, "--pca-tolerance", "0"], "--pca-tolerance must lie between 0 and 1"),
    (["study", *TINY, "--probe-margin", "-1"], "--probe-margin must be at least 0"),
    (["report", "mine", "--probe-margin", "7"], "--probe-margin must be at least 0"),
    (["study", *TINY, "--pca-learning-rate", "0"], "--pca-learning-rate must be a positive number"),
    (["study", *TINY, "--probe-samples", "5000"], "has 1797 samples, 898 to train and to test on"),
    (["study", "--data", "unlabelled.npy", *TINY[2:], "--probe-samples", "5"], "has no labels"),
    (["study", "--data", "unlabelled.npy", *TINY[2:], "--label-curves"], "has no labels; leave --label-curves out"),
    (["study", "--data", "constant.npy", *TINY[2:]], "is the same, so there is nothing to contrast"),
    (["study", *TINY, "--similarity", "l2"], "l2"),
    (["study", *TINY, "--views", "crop:2,1"], "crop"),
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
    np.save(folder / "larger.npy", 1e200 * np.random.default_rng(0).random((30, 4)))
    np.save(folder / "unlabelled.npy", np.random.default_rng(0).random((30, 4)))
    np.save(folder / "constant.npy", np.full((30, 4, 4), 0.5))
    np.savez(folder / "keys.npz", a=rows, b=rows[:, 0])
    np.save(folder / "cube.npy", np.ones((3, 4, 5, 6, 7)))
    np.save(folder / "words.npy", np.array(["a", "b"]))
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("keep me")
    return folder


@pytest.mark.parametrize("arguments, message", BAD, ids=[" ".join(case[0][-3:]) for case in BAD])
def test_bad_input_is_one_line_and_exit_code_2(
    kontrast: Kontrast, bad_files: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(bad_files)
    before = content(bad_files)
    done = kontrast(*arguments)
    assert message in done.refused
    assert done.err.count("\n") == 1
    assert content(bad_files) == before


def test_debug_shows_the_traceback(bad_files: Path) -> None:
    done = in_a_process("study", "--data", "missing.npz", "--debug", cwd=bad_files)
    assert "Traceback" in done.err
    assert "DataError" in done.err


def test_another_study_is_not_overwritten(kontrast: Kontrast, finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    done = kontrast("study", *TINY, "--steps", "13", "-o", finished)
    assert done.code == 2
    assert "holds other results" in done.err
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


SLOWER = StudySpec(
    data="digits",
    n_samples=6,
    d_out=3,
    rates=(0.3, 3.0),
    max_steps=8,
    batch_size=8,
    widths=(8, 16, 32),
    n_seeds=3,
    n_steps=12,
)
OPTIONS = [*TINY[:-6], "--widths", "8,16,32", "--seeds", "3", "--steps", "12"]  # the same


def cells(folder: Path) -> list[Path]:
    return sorted(folder.glob("cells/*.sha256"))


def test_ctrl_c_stops_cleanly_and_says_how_to_resume(kontrast: Kontrast, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    many = [*OPTIONS[:-4], "--loss", "none", "--similarity", "cosine", "--probe-samples", "0", "--seeds", "4"]
    ended = stopped_by_ctrl_c("study", *many, "-o", folder, when=lambda: bool(cells(folder)))
    assert ended.code == 130, ended.err
    assert f"kontrast study --resume {folder}" in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""
    assert not list(folder.rglob("*.partial"))
    assert 1 <= len(cells(folder)) < 12
    assert kontrast("study", "--resume", folder, "--workers", 1).code == 0
    assert len(cells(folder)) == 12


@pytest.mark.slow
def test_ten_kills_and_a_resume_give_the_same_arrays_bit_for_bit(kontrast: Kontrast, tmp_path: Path) -> None:
    """SIGKILL at random moments while cells are computed and written: twice the command with its workers, then runs."""
    whole, killed, moments = tmp_path / "whole", tmp_path / "killed", random.Random(2024)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kontrast.study"])
    spec, kills = prepare(SLOWER), 0
    while kills < 10:
        for path in moments.sample(cells(killed), len(cells(killed)) // 3):  # so that something is left to compute
            path.unlink()
        if kills < 2:
            process = start("study", *OPTIONS, "-o", killed)
        else:
            process = context.Process(target=run_study, args=(spec, killed))
            process.start()
        if kills % 2:
            time.sleep(moments.uniform(0, 1))  # while importing, claiming, reading, starting workers
        else:
            before = len(cells(killed))
            wait_for(lambda before=before: len(cells(killed)) > before, process)
            time.sleep(moments.uniform(0, 0.3))  # while computing and writing
        process.kill()
        kills += 1
        process.communicate(timeout=90) if kills <= 2 else process.join(90)
    resumed = kontrast("study", "--resume", killed)
    assert resumed.code == 0, resumed.err
    run_study(spec, whole)  # here, without workers
    names = sorted(path.name for path in (whole / "cells").iterdir())
    assert names == sorted(path.name for path in (killed / "cells").iterdir())
    for name in ["result.nc", *(f"cells/{name}" for name in names)]:
        assert (whole / name).read_bytes() == (killed / name).read_bytes(), name
    assert from_bytes((whole / "result.nc").read_bytes()).sizes["seed"] == 3
