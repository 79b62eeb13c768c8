"""The documents are true: their programs run, their links lead somewhere."""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from kontrast.data import parse_view
from kontrast.diagnosis import SPECTRAL_METRICS, CollapseWarning, Limits
from kontrast.diagnosis.metrics import LIDAR_WORDS
from kontrast.diagnosis.rules import RULES as RULES_OF_A_DIAGNOSIS
from kontrast.study import Thresholds
from kontrast.study.map import RULES

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


class Programs:
    """Runs the programs of a document, or a script, as they stand: in this process, so that torch is loaded once."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> None:
        self.folder, self.patch, self.captured = folder, patch, captured

    def run(self, script: Path, *arguments: object) -> str:
        """What the script prints, started in the folder."""
        self.patch.chdir(self.folder)
        self.patch.setattr(sys, "argv", [str(script), *map(str, arguments)])
        self.captured.readouterr()
        runpy.run_path(str(script), run_name="__main__")
        return self.captured.readouterr().out

    def shown_by(self, document: str) -> list[str]:
        """What each program of the document prints."""
        shown = []
        for k, program in enumerate(programs_of(document)):
            (self.folder / f"{k}.py").write_text(program)
            shown.append(self.run(self.folder / f"{k}.py"))
        return shown


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Programs:
    return Programs(tmp_path, monkeypatch, capsys)


def help_of(command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kontrast", command, "--help"], capture_output=True, text=True, check=True
    )
    return done.stdout


def programs_of(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), flags=re.S)


@pytest.mark.parametrize("document", ["README.md", "CHANGELOG.md"])
def test_the_python_examples_run_as_they_stand(document: str, programs: Programs) -> None:
    *shown, study = programs.shown_by(document)
    assert "cosine: " in study
    signs = (
        "1797, 32",
        "patterns from 64 starts",
        "of the 1797 samples",
        "NT-Xent at width 16 and rate ",
        "training learns features; no collapse; training buys nothing over spectral: ",
    )
    assert all(any(sign in text for sign in signs) for text in shown)


def test_the_examples_of_diagnose_run_as_they_stand(programs: Programs) -> None:
    with pytest.warns(CollapseWarning, match="complete collapse of 'embedding' at step 50: "):
        digits, equal_rows, width, monitor, accumulators = programs.shown_by("docs/diagnose.md")
    assert digits.startswith("training learns features; no collapse; training buys nothing over spectral: ")
    ranks = dict(line.split(": ") for line in equal_rows.splitlines())
    assert float(ranks["rankme"]) < 1.5
    assert float(ranks["centered_rank"]) > 200
    assert width.startswith("a kernel drift below 0.1 takes a width of ")
    assert monitor.startswith("Monitor of Sequential: step 200, 5 records in my-run; ")
    assert abs(float(accumulators.split()[0])) < 1e-9


@pytest.mark.slow
def test_diagnose_simclr(programs: Programs) -> None:
    """A healthy run and three breaks, which few steps show; the notebook has a collapse."""
    words = ("healthy", "hot", "no-augmentation", "lr-0")
    said = programs.run(ROOT / "examples/diagnose_simclr.py", *words, "--size", 400, "--epochs", 4)
    healthy, hot, no_augmentation, lr_0 = re.findall(r"^.*; training .*$", said, flags=re.M)
    assert "no collapse" in healthy
    assert "to blame" not in healthy
    assert "to blame: temperature" in hot
    assert "to blame: augmentation" in no_augmentation
    assert lr_0.startswith("undertrained; no collapse")
    assert (programs.folder / "simclr-runs/hot/epoch_4.pt").is_file()


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every cell, in the folder of the notebook as Jupyter has it; what a cell ends with is shown."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shown = shown_by_notebook(ROOT / "examples/diagnose_simclr.ipynb")
    summary, *figures = (it for it in shown if hasattr(it, "_repr_html_"))
    assert "Training learns features; no collapse" in summary._repr_html_()
    assert [type(it).__name__ for it in figures] == ["Figure", "Figure"]
    printed = capsys.readouterr().out
    assert "hot: " in printed
    assert "to blame: temperature" in printed
    assert "no-stop-gradient: complete collapse" in printed


def shown_by_notebook(path: Path) -> list[Any]:
    """What the cells end with, run one after the other in a plain interpreter; stored outputs are stripped."""
    names: dict[str, Any] = {}
    shown = []
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == []
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, str(path), "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), str(path), "eval"), names))
    return shown


def test_the_page_of_the_diagnosis_states_its_rules_and_conventions() -> None:
    page = (ROOT / "docs/diagnose.md").read_text()

    def rows_between(first: str, end: str) -> list[tuple[str, str]]:
        """The first two cells of the rows of a table, without its heading."""
        _, *rows = re.findall(r"^\| (`?[\w ]+`?) \| (.*?) ?\|", page[page.index(first) : page.index(end)], flags=re.M)
        return rows

    rules = rows_between("| regime | rule |", '"(not sure)"')
    assert rules == [(rule.regime.word, rule.reason(Limits())) for rule in RULES_OF_A_DIAGNOSIS]
    metrics = [(f"`{it.name}`", it.words) for it in SPECTRAL_METRICS.values()]
    assert rows_between("| name | | centred |", "σ are singular values") == [*metrics, ("`lidar`", LIDAR_WORDS)]


def test_the_diagnosis_page_names_options_that_exist() -> None:
    help_text = help_of("diagnose")
    for option in set(re.findall(r"--[a-z][a-z-]*", (ROOT / "docs/diagnose.md").read_text())):
        assert option in help_text, option


def test_the_kernel_examples_run_as_they_stand(programs: Programs) -> None:
    shown = programs.shown_by("docs/kernels.md")
    assert len(shown) == 3
    assert all(shown)
    for line in shown[1].splitlines():  # the exact number, and an interval that holds it
        exact, low, high = re.match(r"(\S+) \S+ \[(\S+), (\S+?)\]", line).groups()  # type: ignore[union-attr]
        assert float(low) <= float(exact) <= float(high)
    assert (programs.folder / "kernel.npy").is_file()


def test_the_examples_of_dynamics_run_as_they_stand(programs: Programs) -> None:
    shown = programs.shown_by("docs/dynamics.md")
    assert len(shown) == 3
    equation, trained = re.findall(r"(-\d+\.\d+)", shown[0])[3:5]
    assert float(equation) == pytest.approx(float(trained), abs=2e-3)
    assert "1.0000, 1.0000]" in shown[1]


def test_the_examples_of_learnability_run_as_they_stand(programs: Programs) -> None:
    shown = programs.shown_by("docs/learnability.md")
    assert len(shown) == 4
    losses = [float(number) for number in shown[0].splitlines()[0].strip("[]").split(",")]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == 0
    assert float(re.findall(r"tensor\((0\.\d+)", shown[1])[0]) > 0.95
    assert "of the 1000 samples" in shown[2]
    assert "an error of 0.08 needs about 468 labels (367 to 689), and there are 400" in shown[3]


def test_label_efficiency(programs: Programs) -> None:
    lines = programs.run(ROOT / "examples/label_efficiency.py").splitlines()
    rows = {line[:16].strip(): re.findall(r"(\d+)% \((\d+)%\)", line) for line in lines[1:5]}
    assert list(rows) == ["pixels", "infinite NTK", "random features", "contrastive"]
    for cells in rows.values():
        (_, _), *later = [(int(a), int(b)) for a, b in cells]  # of 20 labels more draws than 5 would be needed
        assert all(abs(predicted - measured) <= 6 for predicted, measured in later)
    assert rows["contrastive"][1][1] > rows["random features"][1][1]
    assert "the NTK learns" in lines[-1]


def test_the_examples_of_patterns_run_as_they_stand(programs: Programs) -> None:
    shown = programs.shown_by("docs/patterns.md")
    assert len(shown) == 3
    assert "0 starts without" in shown[0]
    with Image.open(programs.folder / "patterns.png") as picture:
        assert picture.width > 600
    assert "[20, 20]" in shown[1]
    assert "[4, 2, 20]" in shown[2]


def test_one_layer_patterns(programs: Programs) -> None:
    """Linear filters find one pattern, ReLU ones a few, and on whitened patches many."""
    _, *rows, last = programs.run(ROOT / "examples/one_layer_patterns.py", programs.folder / "p.png").splitlines()
    linear, relu, white = (int(row.split()[-4]) for row in rows)
    assert linear == 1
    assert 2 <= relu <= 4
    assert white >= 8
    with Image.open(last.removeprefix("figure: ")) as picture:
        assert picture.width > 600


def test_deep_linear_ssl(programs: Programs) -> None:
    """A network in training and its prediction agree; see the two columns that the example prints."""
    _, *rows = (line.split() for line in programs.run(ROOT / "examples/deep_linear_ssl.py").splitlines())
    assert len(rows) == 6
    for _, loss, trained, difference, _ in rows[:-1]:
        assert float(loss) == pytest.approx(float(trained), abs=0.05)
        assert float(difference) < 0.1
    accuracies = [float(row[-1]) for row in rows]
    assert accuracies[-1] > accuracies[0] + 0.2


def test_kernel_regression(programs: Programs) -> None:
    lines = programs.run(ROOT / "examples/kernel_regression.py").splitlines()
    linear, *kernels = (float(line.split()[-1]) for line in lines)
    assert len(kernels) == 4
    assert min(kernels) > 0.97 > linear


def test_the_readme_example_is_four_lines() -> None:
    programs = programs_of("README.md")
    assert len(programs) == 7
    assert len([line for line in programs[-1].splitlines() if line.strip()]) == 4


def test_kernel_or_learning(programs: Programs) -> None:
    rows = [line.split() for line in programs.run(ROOT / "examples/kernel_or_learning.py").splitlines()[1:]]
    gaps = [float(row[1]) for row in rows]
    assert gaps == sorted(gaps, reverse=True)
    assert all(float(row[2]) < 1e-10 for row in rows)


def test_study_your_rows(programs: Programs) -> None:
    said = programs.run(ROOT / "examples/study_your_rows.py", programs.folder / "out")
    assert said.startswith("NT-Xent at width 64 and rate ")
    assert (programs.folder / "out" / "study" / "report.html").is_file()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        assert target.startswith("https://") or (document.parent / target).exists(), target


def test_the_page_of_the_study_states_the_rules_of_the_map() -> None:
    page = (ROOT / "docs/study.md").read_text()
    _, *rows = re.findall(
        r"\| ([\w ]+) \| (.*) \|", page[page.index("| regime | rule |") : page.index("The kernel gap is")]
    )
    assert rows == [(rule.regime.word, rule.reason(Thresholds())) for rule in RULES]


def test_the_readme_commands_exist() -> None:
    for name in ("study", "diagnose"):
        help_text = help_of(name)
        commands = re.findall(rf"kontrast {name} (.*?)(?:#|`|\n)", (ROOT / "README.md").read_text())
        assert commands
        for option in {word for command in commands for word in command.split() if word.startswith("--")}:
            assert option in help_text, option
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z-]+)(?:`|  )", (ROOT / "README.md").read_text()):
        assert f"\n{target}:" in makefile, target


def test_pca_or_learning(programs: Programs) -> None:
    rows = [line.split() for line in programs.run(ROOT / "examples/pca_or_learning.py").splitlines()[1:]]
    sines = [float(row[1]) for row in rows]
    assert sines == sorted(sines, reverse=True)
    assert sines[-1] < 0.1
    assert all(float(row[4]) >= float(row[3]) for row in rows)


def test_embed_your_images(programs: Programs) -> None:
    lines = programs.run(ROOT / "examples/embed_your_images.py").splitlines()
    assert lines[0] == "600 images of 1024 values → 32 dimensions"
    assert all(len(line.split()) == 6 for line in lines[1:-1])
    assert len(lines) == 8
    assert (programs.folder / "neighbours.png").is_file()
    colors = programs.folder / "colors"
    colors.mkdir()
    for k in range(12):
        Image.new("RGB", (40, 30 + k), (20 * k, 255 - 20 * k, 90)).save(colors / f"{k}.jpg")
    Image.effect_noise((32, 32), 60).save(colors / "noise.png")
    said = programs.run(ROOT / "examples/embed_your_images.py", colors, programs.folder / "sheet.png")
    assert said.startswith("13 images of 3072 values → 3 dimensions")
    assert (programs.folder / "sheet.png").is_file()


def test_the_embedding_examples_run_as_they_stand(programs: Programs) -> None:
    first, head, loader = programs.shown_by("docs/embeddings.md")
    assert first.startswith("torch.Size([1797, 32])")
    assert head.startswith("torch.Size([1797, 32])")
    assert loader == "True\n"


def test_the_embedding_page_lists_the_views_with_their_own_numbers() -> None:
    page = (ROOT / "docs/embeddings.md").read_text()
    for name in (
        "crop",
        "flip",
        "affine",
        "brightness",
        "contrast",
        "gray",
        "noise",
        "relative-noise",
        "mask",
        "mixup",
    ):
        assert f"| `{parse_view(name)}` |" in page, name


def test_the_embedding_page_names_options_that_exist() -> None:
    help_text = help_of("embed")
    for option in set(re.findall(r"--[a-z][a-z-]*", (ROOT / "docs/embeddings.md").read_text())):
        assert option in help_text, option
