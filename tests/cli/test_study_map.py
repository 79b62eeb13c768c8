"""`kontrast study` with its map, as a person uses it: a network of one's own, a budget, one line where it is bad."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import Kontrast
from tests.report.reading import Page

CODE = """
from torch import nn


def build(width, generator):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 3))


def same(width, generator):
    return build(4, generator)
"""
TINY = [
    "--data",
    "digits",
    "--samples",
    "8",
    "--widths",
    "4,8",
    "--seeds",
    "2",
    "--max-steps",
    "8",
    "--batch-size",
    "8",
]
MAP = [*TINY, "--map-samples", "64", "--loss", "nt_xent", "--rates", "0.1,1", "--workers", "1"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "my_net.py"
    path.write_text(CODE)
    return path


def test_a_model_from_a_file_is_mapped_and_reported(kontrast: Kontrast, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    done = kontrast("study", *MAP, "--model", f"{model}:build", "-o", folder, "--json")
    assert done.code == 0, done.err
    assert done.found["verdict"].startswith("NT-Xent at width 8 and rate ")
    assert [cell["width"] for cell in done.found["map"]] == [4, 4, 8, 8]
    assert [table["width"] for table in done.found["baselines"]] == [4, 8]
    page = Page((folder / "report.html").read_text())
    assert "The map: kernel, PCA or learning?" in page.text("h2")
    again = kontrast("study", "--resume", folder)
    assert again.code == 0, again.err
    assert "verdict: NT-Xent at width 8 and rate " in again.words
    report = kontrast("report", folder, "--json")
    assert json.loads(report.out)["map"] == done.found["map"]


def test_a_bad_model_is_one_line(kontrast: Kontrast, model: Path, tmp_path: Path) -> None:
    for name, words in (
        (f"{model}:same", "ignores its width"),
        (f"{model}:nothing", "defines no function 'nothing'"),
        (str(tmp_path / "none.py:build"), "there is no file"),
        ("build", "FILE.py:FUNCTION"),
    ):
        assert words in kontrast("study", *MAP, "--model", name, "-o", tmp_path / "s").refused
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("budget, words", [("soon", "budget must be a time"), ("0s", "budget must be more than no")])
def test_what_is_no_time_is_one_line(kontrast: Kontrast, tmp_path: Path, budget: str, words: str) -> None:
    assert words in kontrast("study", *MAP, "--budget", budget, "-o", tmp_path / "s").refused


def test_a_budget_that_is_too_small_is_one_line(kontrast: Kontrast, tmp_path: Path) -> None:
    long = [*MAP, "--max-steps", "100000", "--budget", "1s", "-o", tmp_path / "s"]
    said = kontrast("study", *long).refused
    assert "a budget of 1 s is too small for one cell" in said
    assert "--max-steps" in said


def test_a_budget_says_what_it_leaves_out(kontrast: Kontrast, model: Path, tmp_path: Path) -> None:
    options = ("--model", f"{model}:build", "--budget", "10m", "-o", tmp_path / "s", "--json")
    done = kontrast("study", *MAP, *options)
    assert done.code == 0, done.err
    assert "the whole study fits into the budget" in done.err
    assert len(done.found["map"]) == 4
