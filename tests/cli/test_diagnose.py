"""`kontrast diagnose` and `kontrast report` of what it wrote, as a person uses them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.cells import cell_len

from kontrast.diagnosis import Limits
from kontrast.errors import InputError
from kontrast.report import read_diagnosis
from tests.cli.running import Ended, Kontrast
from tests.report.diagnosis.small import diagnosed, monitored, samples, states

NET = """
import torch
from tests.report.diagnosis.small import Encoder

def build(generator):
    return Encoder(16, generator)

def sized(width, generator):
    return Encoder(width, generator)

def broken(generator):
    raise KeyError("no\\nsuch layer")

def loss(a, b):
    return (a - b).square().mean()

def view(x, generator):
    return x + 0.3 * torch.randn(x.shape, generator=generator)
"""
QUICK = ("--samples", 24, "--points", 8, "--splits", 8, "--no-control")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, checkpoints out of alphabetical order, and samples with labels and without."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "net.py").write_text(NET)
    (folder / "runs").mkdir()
    for number, state in zip((0, 2, 10), states().values(), strict=True):
        torch.save(state, folder / "runs" / f"epoch_{number}.pt")
    x, y = (part.numpy() for part in samples())
    np.savez(folder / "x.npz", x=x.astype(np.float32), y=y)
    np.save(folder / "bare.npy", x.astype(np.float32))
    np.save(folder / "y.npy", y)
    return folder


@pytest.fixture(autouse=True)
def there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


@pytest.fixture
def quick(kontrast: Kontrast) -> Kontrast:
    return lambda *arguments: kontrast("diagnose", "net.py:build", *arguments, *QUICK)


@pytest.fixture
def asked(kontrast: Kontrast, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """What a command asks the library for, without its work."""

    def ask(*arguments: object) -> dict[str, Any]:
        seen: list[dict[str, Any]] = []

        def diagnose(net: Any, **given: Any) -> None:
            seen.append({"net": net, **given})
            raise InputError("enough")

        monkeypatch.setattr("kontrast.diagnosis.diagnose", diagnose)
        assert kontrast("diagnose", *arguments).refused == "error: enough"
        return seen[0]

    return ask


EXPANDED = (
    "--checkpoint",
    "runs/epoch_0.pt",
    "runs/epoch_10.pt",
    "runs/epoch_2.pt",
)  # as a shell makes it of runs/*.pt


@pytest.fixture(scope="module")
def finished(place: Path) -> Path:
    return place / "kontrast-diagnoses" / "net-x"


def test_sentence_reasons_advice_table_and_page(quick: Kontrast, finished: Path) -> None:
    done = quick(*EXPANDED, "--data", "x.npz", "--head", "head", "--loss", "nt_xent", "--temperature", 0.3)
    d = read_diagnosis(finished)
    assert done.code == d.exit_code
    assert f"verdict: {d.verdict}" in done.words
    for reason in d.reasons:
        assert f"- {' '.join(reason.split())}" in done.words
    told = [done.words.index(words) for words in ("verdict: ", "because", "try next", "lazy or learning?", "report: ")]
    assert told == sorted(told)
    for words in ("error of the linearised prediction", "centred entropy rank", "contrastive PCA of start"):
        assert words in done.words
    assert [str(label) for label in d.result.checkpoint.values] == ["epoch_0", "epoch_2", "epoch_10"]
    assert d.result.attrs["loss"] == "NT-Xent at temperature 0.3"
    assert json.loads(d.result.attrs["settings"])["n_samples"] == 24
    assert max(cell_len(line) for line in done.out.splitlines() if "report:" not in line) <= 80
    assert "…" not in done.out
    assert (finished / "diagnosis.html").is_file()
    assert "diagnosing" in done.err  # the bar


def test_checkpoints_however_they_are_given(asked: Callable[..., dict[str, Any]]) -> None:
    model, data = "net.py:build", ("--data", "x.npz")
    three = [f"runs/epoch_{k}.pt" for k in (0, 2, 10)]
    for given, start, end in (
        (EXPANDED, three, None),
        (("--checkpoint", "runs/epoch_*.pt"), "runs/epoch_*.pt", None),
        (("--checkpoint", "runs"), "runs", None),
        (("--checkpoint", three[2], "--checkpoint", three[0]), [three[2], three[0]], None),
        (("--init", three[0], "--checkpoint", three[2]), three[0], three[2]),
        (("--init", "seed", *EXPANDED), None, three),
        (("--checkpoint", three[2], "--seed", 3), None, three[2]),
    ):
        found = asked(model, *given, *data)
        assert (found["start"], found["end"]) == (start, end)
    assert asked(*EXPANDED, model, *data)["start"] == three  # the model may come last


def test_one_checkpoint_has_no_start(quick: Kontrast) -> None:
    said = quick("--checkpoint", "runs/epoch_10.pt", "--data", "bare.npy").refused
    assert "one checkpoint, and there is no start to compare it with; pass --init FILE, or the --seed" in said


def test_json_and_the_exit_codes(quick: Kontrast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kontrast.report.write_diagnosis", lambda folder, d: folder / "diagnosis.html")
    found = {kind: diagnosed(kind) for kind in ("bare", "collapsed")}
    for kind, code in (("bare", 0), ("collapsed", 3)):
        monkeypatch.setattr("kontrast.diagnosis.diagnose", lambda net, kind=kind, **given: found[kind])
        done = quick(*EXPANDED, "--data", "bare.npy", "--json", "-o", "new")
        assert done.code == done.found["exit_code"] == code
        assert done.found["report"] == "new/diagnosis.html"
        assert done.found["verdict"] == found[kind].verdict


def test_training_that_buys_nothing_is_4_and_report_judges_again(kontrast: Kontrast, finished: Path) -> None:
    strict, mild = (kontrast("report", finished, "--margin", margin, "--json") for margin in (0.9, 0.0))
    assert strict.code == strict.found["exit_code"] == 4
    assert strict.found["pays"] == "no"
    assert mild.found["numbers"] == strict.found["numbers"]
    page = (finished / "diagnosis.html").read_text()
    assert "--margin 0.0" in page
    loose = kontrast("report", finished, "--gap", 0.001, "--moved", 0.0)
    assert "learning: the embedding has moved" in loose.words
    assert "--tolerance: for studies alone" in kontrast("report", finished, "--tolerance", 0.1).refused


def test_what_the_options_ask_for(asked: Callable[..., dict[str, Any]]) -> None:
    given = (
        "--data",
        "bare.npy",
        "--labels",
        "y.npy",
        "--test",
        "x.npz",
        "--views",
        "net.py:view",
        "--loss",
        "net.py:loss",
    )
    more = (
        "--features",
        "backbone",
        "--head",
        "head",
        "--select",
        "1",
        "--widths",
        "8,16",
        "--width",
        16,
        "--gap",
        0.1,
    )
    found = asked("net.py:sized", *EXPANDED, *given, *more, *QUICK)
    x, y = samples()
    assert found["data"].x.shape == x.shape
    assert torch.equal(found["data"].y, y)
    assert torch.equal(found["test"].y, y)
    assert (found["views"].__name__, found["loss"].__name__) == ("view", "loss")
    assert (found["features"], found["head"], found["select"]) == ("backbone", "head", 1)
    assert (found["width_sweep"], found["width"], found["limits"]) == ((8, 16), 16, Limits(gap=0.1))
    assert (found["n_samples"], found["n_points"], found["control"]) == (24, 8, False)
    plain = asked("net.py:build", *EXPANDED, "--data", "x.npz", "--loss", "nt_xent", "--temperature", 0.2)
    assert plain["loss"].words == "NT-Xent at temperature 0.2"
    assert (plain["views"], plain["test"], plain["name"]) == ("auto", None, "net.py:build")


def test_data_with_a_test_part_are_probed_on_it(asked: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    x, y = (part.numpy() for part in samples())
    np.savez(tmp_path / "both.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    common = ("net.py:build", *EXPANDED, "--data", tmp_path / "both.npz")
    for split, n, n_test in ((None, 40, 20), ("train", 40, None), ("test", 20, None), ("all", 60, None)):
        found = asked(*common, *(("--split", split) if split else ()))
        assert len(found["data"]) == n
        assert (found["test"] is None) if n_test is None else len(found["test"]) == n_test


def test_the_folder_of_a_monitor(kontrast: Kontrast, tmp_path: Path) -> None:
    folder = monitored(tmp_path / "run")
    said = kontrast("report", folder).refused
    assert f"make its page by kontrast diagnose {folder}" in said
    done = kontrast("diagnose", folder)
    assert done.code == 0, done.err
    assert "verdict: seen from step 0 to step 8; no collapse" in done.words
    assert f"report: {folder / 'diagnosis.html'}" in done.words
    assert "a monitor sees embeddings alone" in (folder / "diagnosis.html").read_text()
    assert kontrast("report", folder, "--json").found["regime"] == "unknown"
    assert (
        "holds its own numbers; leave out --data, --samples"
        in kontrast("diagnose", folder, "--data", "x.npz", *QUICK[:2]).refused
    )


BAD = {
    "no checkpoints": (("--data", "x.npz"), "--checkpoint is missing"),
    "no data": (EXPANDED, "--data is missing"),
    "no such data": ((*EXPANDED, "--data", "nothing.npz"), "no data set or file is called 'nothing.npz'"),
    "no such checkpoint": (("--checkpoint", "runs/x*.pt", "--data", "x.npz"), "no file matches 'runs/x*.pt'"),
    "no such start": (("--init", "x.pt", *EXPANDED, "--data", "x.npz"), "there is no checkpoint x.pt"),
    "no such view": ((*EXPANDED, "--data", "x.npz", "--views", "nois"), "did you mean noise?"),
    "no such loss": ((*EXPANDED, "--data", "x.npz", "--loss", "nt_xant"), "did you mean 'nt_xent'?"),
    "no such loss file": ((*EXPANDED, "--data", "x.npz", "--loss", "y.py:f"), "--loss must be FILE.py:FUNCTION"),
    "no such head": ((*EXPANDED, "--data", "x.npz", "--head", "haed"), "--head haed names no submodule of Encoder"),
    "few samples": ((*EXPANDED, "--data", "x.npz", "--samples", 3), "--samples must be a whole number of at least 8"),
    "a limit": ((*EXPANDED, "--data", "x.npz", "--gap", 3), "--gap must be at least 0 and below 1"),
    "widths in words": ((*EXPANDED, "--data", "x.npz", "--widths", "8,x"), "--widths takes whole numbers with commas"),
    "widths without a width": (
        (*EXPANDED, "--data", "x.npz", "--widths", "8"),
        "--widths needs a function build(width",
    ),
    "no test part": ((*EXPANDED, "--data", "x.npz", "--split", "test"), "--split test is for data with train and test"),
    "a strange folder": ((*EXPANDED, "--data", "x.npz", "-o", "runs"), "runs exists and holds no diagnosis"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(name: str, kontrast: Kontrast) -> None:
    arguments, said = BAD[name]
    assert said in kontrast("diagnose", "net.py:build", *arguments).refused
    assert "\n" not in kontrast("diagnose", "net.py:build", *arguments).refused


def test_a_model_that_is_none(kontrast: Kontrast) -> None:
    options = (*EXPANDED, "--data", "x.npz")
    assert "error: MODEL must be FILE.py:FUNCTION" in kontrast("diagnose", "nothing", "--data", "x.npz").refused
    assert "defines no function 'biuld'" in kontrast("diagnose", "net.py:biuld", *options).refused
    said = kontrast("diagnose", "net.py:broken", *options).refused
    assert said == "error: the model's builder failed: KeyError: 'no\\nsuch layer'; mend it"
    assert (
        "--width, that of the model whose checkpoints these are"
        in kontrast("diagnose", "net.py:sized", *options).refused
    )
    assert "one model at a time" in kontrast("diagnose", "net.py:build", "net.py:sized", *options).refused


def test_help_is_there_at_once() -> None:
    program = (
        "import sys; sys.argv = ['kontrast', 'diagnose', '--help']\n"
        "from kontrast.cli import main\n"
        "try: main()\nexcept SystemExit: print(bool({'torch', 'numpy', 'xarray'} & sys.modules.keys()))"
    )
    done = Ended(*_run(program))
    for words in (
        "FILE.py:FUNCTION",
        "exit code is 0 for a healthy model, 3 for a collapsed one, 4 where",
        "--views-per-sample",
    ):
        assert words in done.words
    assert done.out.rstrip().endswith("False")
    *_, listed = Ended(
        *_run("import sys; sys.argv = ['kontrast', '--help']\nfrom kontrast.cli import main; main()")
    ).out.split("Commands:")
    assert [line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2] != " "][:3] == [
        "study",
        "diagnose",
        "embed",
    ]


def _run(program: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr
