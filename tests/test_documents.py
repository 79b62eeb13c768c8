"""What the documents say is true: their programs run, their links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from kontrast.data import parse_view

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([sys.executable, *map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def programs_of(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), flags=re.S)


def shown_by(document: str, tmp_path: Path) -> list[str]:
    """What its programs print, each run as it stands."""
    shown = []
    for k, program in enumerate(programs_of(document)):
        (tmp_path / f"{k}.py").write_text(program)
        shown.append(run(tmp_path / f"{k}.py", cwd=tmp_path))
    return shown


@pytest.mark.parametrize("document", ["README.md", "CHANGELOG.md"])
def test_the_python_examples_run_as_they_stand(document: str, tmp_path: Path) -> None:
    programs = programs_of(document)
    assert programs
    shown = []
    for k, program in enumerate(programs):
        (tmp_path / f"{k}.py").write_text(f'if __name__ == "__main__":\n{indented(program)}')
        shown.append(run(tmp_path / f"{k}.py", cwd=tmp_path))
    assert "cosine: " in shown[-1]
    signs = ("1797, 32", "patterns from 64 starts", "of the 1797 samples")
    assert all(any(sign in text for sign in signs) for text in shown[:-1])


def test_the_kernel_examples_run_as_they_stand(tmp_path: Path) -> None:
    shown = shown_by("docs/kernels.md", tmp_path)
    assert len(shown) == 2
    assert all(shown)
    assert (tmp_path / "kernel.npy").is_file()


def test_the_examples_of_dynamics_run_as_they_stand(tmp_path: Path) -> None:
    shown = shown_by("docs/dynamics.md", tmp_path)
    assert len(shown) == 3
    equation, trained = re.findall(r"(-\d+\.\d+)", shown[0])[3:5]
    assert float(equation) == pytest.approx(float(trained), abs=2e-3)
    assert "1.0000, 1.0000]" in shown[1]


def test_the_examples_of_learnability_run_as_they_stand(tmp_path: Path) -> None:
    shown = shown_by("docs/learnability.md", tmp_path)
    assert len(shown) == 3
    losses = [float(number) for number in shown[0].splitlines()[0].strip("[]").split(",")]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == 0
    assert float(re.findall(r"tensor\((0\.\d+)", shown[1])[0]) > 0.95
    assert "of the 1000 samples" in shown[2]


def test_label_efficiency(tmp_path: Path) -> None:
    lines = run(ROOT / "examples/label_efficiency.py", cwd=tmp_path).splitlines()
    rows = {line[:16].strip(): re.findall(r"(\d+)% \((\d+)%\)", line) for line in lines[1:5]}
    assert list(rows) == ["pixels", "infinite NTK", "random features", "contrastive"]
    for cells in rows.values():
        (_, _), *later = [(int(a), int(b)) for a, b in cells]  # of 20 labels more draws than 5 would be needed
        assert all(abs(predicted - measured) <= 6 for predicted, measured in later)
    assert rows["contrastive"][1][1] > rows["random features"][1][1]
    assert "the NTK learns" in lines[-1]


def test_the_examples_of_patterns_run_as_they_stand(tmp_path: Path) -> None:
    shown = shown_by("docs/patterns.md", tmp_path)
    assert len(shown) == 3
    assert "0 starts without" in shown[0]
    with Image.open(tmp_path / "patterns.png") as picture:
        assert picture.width > 600
    assert "[20, 20]" in shown[1]
    assert "[4, 2, 20]" in shown[2]


def test_one_layer_patterns(tmp_path: Path) -> None:
    """Linear filters find one pattern, ReLU ones a few, and on whitened patches many."""
    _, *rows, last = run(ROOT / "examples/one_layer_patterns.py", tmp_path / "p.png", cwd=tmp_path).splitlines()
    linear, relu, white = (int(row.split()[-4]) for row in rows)
    assert linear == 1
    assert 2 <= relu <= 4
    assert white >= 8
    with Image.open(last.removeprefix("figure: ")) as picture:
        assert picture.width > 600


def test_deep_linear_ssl(tmp_path: Path) -> None:
    """A network in training and its foretelling agree; see the two columns that the example prints."""
    _, *rows = (line.split() for line in run(ROOT / "examples/deep_linear_ssl.py", cwd=tmp_path).splitlines())
    assert len(rows) == 6
    for _, loss, trained, difference, _ in rows[:-1]:
        assert float(loss) == pytest.approx(float(trained), abs=0.05)
        assert float(difference) < 0.1
    accuracies = [float(row[-1]) for row in rows]
    assert accuracies[-1] > accuracies[0] + 0.2


def test_kernel_regression(tmp_path: Path) -> None:
    lines = run(ROOT / "examples/kernel_regression.py", cwd=tmp_path).splitlines()
    linear, *kernels = (float(line.split()[-1]) for line in lines)
    assert len(kernels) == 4
    assert min(kernels) > 0.97 > linear


def indented(program: str) -> str:
    return "".join(f"    {line}\n" for line in program.splitlines())


def test_the_readme_example_is_five_lines() -> None:
    programs = programs_of("README.md")
    assert len(programs) == 5
    assert len([line for line in programs[-1].splitlines() if line.strip()]) == 5


def test_kernel_or_learning(tmp_path: Path) -> None:
    rows = [line.split() for line in run(ROOT / "examples/kernel_or_learning.py", cwd=tmp_path).splitlines()[1:]]
    gaps = [float(row[1]) for row in rows]
    assert gaps == sorted(gaps, reverse=True)
    assert all(float(row[2]) < 1e-10 for row in rows)


def test_study_your_rows(tmp_path: Path) -> None:
    said = run(ROOT / "examples/study_your_rows.py", tmp_path / "out", cwd=tmp_path)
    assert "dot: " in said
    assert (tmp_path / "out" / "study" / "report.html").is_file()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_the_readme_commands_exist() -> None:
    help_text = run("-m", "kontrast", "study", "--help", cwd=ROOT)
    commands = re.findall(r"kontrast study (.*?)(?:#|`|\n)", (ROOT / "README.md").read_text())
    for option in {word for command in commands for word in command.split() if word.startswith("--")}:
        assert option in help_text, option
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make (\w+)", (ROOT / "README.md").read_text()):
        assert f"\n{target}:" in makefile, target


def test_pca_or_learning(tmp_path: Path) -> None:
    rows = [line.split() for line in run(ROOT / "examples/pca_or_learning.py", cwd=tmp_path).splitlines()[1:]]
    sines = [float(row[1]) for row in rows]
    assert sines == sorted(sines, reverse=True)
    assert sines[-1] < 0.1
    assert all(float(row[4]) >= float(row[3]) for row in rows)


def test_embed_your_images(tmp_path: Path) -> None:
    lines = run(ROOT / "examples/embed_your_images.py", cwd=tmp_path).splitlines()
    assert lines[0] == "600 images of 1024 values → 32 dimensions"
    assert all(len(line.split()) == 6 for line in lines[1:-1])
    assert len(lines) == 8
    assert (tmp_path / "neighbours.png").is_file()
    colors = tmp_path / "colors"
    colors.mkdir()
    for k in range(12):
        Image.new("RGB", (40, 30 + k), (20 * k, 255 - 20 * k, 90)).save(colors / f"{k}.jpg")
    Image.effect_noise((32, 32), 60).save(colors / "noise.png")
    said = run(ROOT / "examples/embed_your_images.py", colors, tmp_path / "sheet.png", cwd=tmp_path)
    assert said.startswith("13 images of 3072 values → 3 dimensions")
    assert (tmp_path / "sheet.png").is_file()


def test_the_embedding_examples_run_as_they_stand(tmp_path: Path) -> None:
    first, head, loader = shown_by("docs/embeddings.md", tmp_path)
    assert first.startswith("torch.Size([1797, 32])")
    assert head.startswith("torch.Size([1797, 32])")
    assert loader == "True\n"


def test_the_embedding_page_lists_the_views_with_their_own_numbers() -> None:
    page = (ROOT / "docs/embeddings.md").read_text()
    for name in ("crop", "flip", "affine", "brightness", "contrast", "gray", "noise", "mask", "mixup"):
        assert f"| `{parse_view(name)}` |" in page, name


def test_the_embedding_page_names_options_that_exist() -> None:
    help_text = run("-m", "kontrast", "embed", "--help", cwd=ROOT)
    for option in set(re.findall(r"--[a-z][a-z-]*", (ROOT / "docs/embeddings.md").read_text())):
        assert option in help_text, option
