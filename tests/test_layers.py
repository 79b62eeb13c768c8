"""The house keeps its plan: a core in layers, topics that do not know one another, uses on top."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "kontrast"
CORE = [  # each imports only from those above it
    {"errors", "__init__"},
    {"checks", "options"},
    {"bounds", "memory", "progress", "threads"},
    {"linalg"},
    {"data", "nets", "losses"},
    {"kernels"},
    {"dynamics"},
]
TOPICS = {"lazy", "pca", "deep_linear", "patterns", "learnability"}  # the core, and never one another
USES = [{"estimators"}, {"runs"}, {"diagnosis"}, {"study"}, {"claims"}, {"report"}, {"cli"}, {"__main__"}]
LAYERS = [*CORE, TOPICS, *USES]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
NUMERICAL = {name for names in (*CORE, TOPICS) for name in names} - {"data", "progress", "__init__"}
ONLY_IN = {
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "typer": {"cli"},
    "rich": {"cli", "progress"},
    "mlxtend": {"data"},
    "PIL": {"data"},
    "triton": {"kernels"},
}
STANDARD = {"torch", "numpy", "scipy", "kontrast", "triton"}  # triton is a part of torch for NVIDIA GPUs
FILES = sorted(SOURCE.rglob("*.py"))


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write absolute imports"
            found.append(node.module or "")
            if node.module == "kontrast":
                found += [f"kontrast.{alias.name}" for alias in node.names if alias.name in LEVEL]
    return found


def test_every_package_has_a_layer() -> None:
    assert {layer_of(path) for path in FILES} <= LEVEL.keys()


# The package itself imports on first use, and names the rest for type checkers alone; `test_package` keeps it so.
@pytest.mark.parametrize("path", sorted({*FILES} - {SOURCE / "__init__.py"}), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_come_from_layers_above(path: Path) -> None:
    here = layer_of(path)
    for name in imports_of(path):
        top, *rest = name.split(".")
        if top == "kontrast" and rest and rest[0] != here:
            assert LEVEL[rest[0]] < LEVEL[here], f"{here} imports {name}, which is not above it"
            assert len(rest) == 1, f"{path.name} reaches into {name}; import from kontrast.{rest[0]}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_libraries_stay_in_their_place(path: Path) -> None:
    here = layer_of(path)
    for name in {name.split(".")[0] for name in imports_of(path)} - sys.stdlib_module_names:
        assert here in ONLY_IN.get(name, {here}), f"{name} belongs to {ONLY_IN[name]}, not to {here}"
        if here in NUMERICAL:
            assert name in STANDARD, f"the numerical core imports {name}"


def test_the_table_in_contributing_is_this_one() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (`[^|]*) \|", text, flags=re.MULTILINE)
    told = [set(re.findall(r"`([a-z_]+)(?:\.py)?`", row)) for row in rows]
    planned = [names - {"__init__", "__main__"} for names in LAYERS]
    assert told == [names for names in planned if names]


def test_no_name_that_explains_nothing() -> None:
    names = {part.removesuffix(".py") for path in FILES for part in path.relative_to(ROOT).parts}
    assert not names & {"utils", "helpers", "common", "misc"}
