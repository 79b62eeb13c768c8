"""The picture of an embedding shows its leading dimensions, and says so before it draws when it cannot."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.image import imread

from kontrast.errors import InputError, StoreError
from kontrast.report import embedding_figure, write_embedding_figure
from tests.cases import randn


def drawn(monkeypatch: pytest.MonkeyPatch, path: Path, *arguments: object, **options: int) -> Figure:
    """The figure as it is saved."""
    figures: list[Figure] = []
    real = embedding_figure.to_png

    def keep(figure: Figure) -> bytes:
        figures.append(figure)
        return real(figure)

    monkeypatch.setattr(embedding_figure, "to_png", keep)
    assert write_embedding_figure(path, *arguments, **options) == path
    assert imread(path).ndim == 3
    [figure] = figures
    return figure


def points(figure: Figure, panel: int = 0) -> np.ndarray:
    [scatter] = figure.axes[panel].collections
    return np.asarray(scatter.get_offsets())


def words(figure: Figure) -> tuple[str, list[str]]:
    [legend] = figure.legends
    return legend.get_title().get_text(), [text.get_text() for text in legend.get_texts()]


def test_leading_dimensions_stand_by_two(tmp_path, monkeypatch):
    z = randn(30, 6)
    figure = drawn(monkeypatch, tmp_path / "a.png", z)
    assert len(figure.axes) == 2
    for panel, (first, second) in enumerate([(0, 1), (2, 3)]):
        shown = points(figure, panel)
        assert sorted(map(tuple, shown.tolist())) == sorted(map(tuple, z[:, [first, second]].tolist()))
        assert figure.axes[panel].get_xlabel() == f"dimension {first + 1}"
        assert figure.axes[panel].get_ylabel() == f"dimension {second + 1}"
    assert words(figure)[0] == "30 samples, darker where they lie denser"


@pytest.mark.parametrize("n_dimensions, n_panels", [(1, 1), (2, 1), (3, 1), (4, 2)])
def test_few_dimensions(n_dimensions, n_panels, tmp_path, monkeypatch):
    z = randn(20, n_dimensions)
    figure = drawn(monkeypatch, tmp_path / "a.png", z)
    assert len(figure.axes) == n_panels
    assert sorted(points(figure)[:, 0].tolist()) == sorted(z[:, 0].tolist())
    assert figure.axes[0].get_ylabel() == ("" if n_dimensions == 1 else "dimension 2")


def test_each_label_has_its_color_and_its_place_in_the_legend(tmp_path, monkeypatch):
    z, labels = randn(60, 2), torch.tensor([-3, 7, 100]).repeat(20)
    figure = drawn(monkeypatch, tmp_path / "a.png", z, labels)
    title, entries = words(figure)
    assert title == "60 samples, coloured by label"
    assert entries == ["-3", "7", "100"]
    handles = dict(zip(entries, figure.legends[0].legend_handles, strict=True))
    [scatter] = figure.axes[0].collections
    label_at = {tuple(row): int(label) for row, label in zip(z.tolist(), labels, strict=True)}
    for place, color in zip(points(figure).tolist(), scatter.get_facecolors(), strict=True):
        assert tuple(color[:3]) == to_rgba(handles[str(label_at[tuple(place)])].get_color())[:3]


@pytest.mark.parametrize("n_classes, n_entries", [(1, 1), (10, 10), (13, 20), (20, 20), (21, 1)])
def test_many_classes(n_classes, n_entries, tmp_path, monkeypatch):
    labels = torch.arange(60) % n_classes
    figure = drawn(monkeypatch, tmp_path / "a.png", randn(60, 2), labels)
    title, entries = words(figure)
    assert len(entries) == n_entries
    # matplotlib has them by columns
    assert sorted(filter(None, entries), key=int) == ([str(k) for k in range(n_classes)] if n_classes <= 20 else [])
    assert title == f"60 samples, coloured by {'label' if n_classes <= 20 else 'the order of their 21 labels'}"
    [scatter] = figure.axes[0].collections
    assert len({tuple(color) for color in scatter.get_facecolors().tolist()}) == n_classes


def test_of_many_samples_some_are_drawn(tmp_path, monkeypatch):
    z = randn(5003, 2)
    figure = drawn(monkeypatch, tmp_path / "a.png", z, seed=1)
    shown = {tuple(row) for row in points(figure).tolist()}
    assert len(shown) == 5000
    assert shown < {tuple(row) for row in z.tolist()}
    assert words(figure)[0].startswith("5,000 of 5,003 samples")


def test_denser_points_are_darker_and_on_top(tmp_path, monkeypatch):
    z = torch.cat([0.05 * randn(300, 2), torch.tensor([[8.0, 8.0], [-8.0, 8.0], [8.0, -8.0]], dtype=torch.float64)])
    figure = drawn(monkeypatch, tmp_path / "a.png", z)
    shown = points(figure)
    assert sorted(map(tuple, np.abs(shown[:3]).tolist())) == [(8, 8)] * 3
    [scatter] = figure.axes[0].collections
    luminance = scatter.get_facecolors()[:, :3] @ [0.299, 0.587, 0.114]
    assert luminance[:3].min() > luminance[-100:].max()


def test_the_same_arguments_give_the_same_bytes(tmp_path):
    z, labels = randn(50, 4), torch.arange(50) % 3
    one = write_embedding_figure(tmp_path / "a.png", z, labels).read_bytes()
    assert write_embedding_figure(tmp_path / "b.png", z, labels).read_bytes() == one
    assert write_embedding_figure(tmp_path / "b.png", z + 1, labels).read_bytes() != one


@pytest.mark.parametrize("z", [torch.zeros(5, 2), torch.zeros(1, 4), 1e300 * randn(9, 2), 1e-300 * randn(9, 3)])
def test_extremes_are_drawn(z, tmp_path, monkeypatch):
    assert len(points(drawn(monkeypatch, tmp_path / "a.png", z))) == len(z)


@pytest.mark.parametrize(
    "name, z, labels, said",
    [
        ("a.svg", torch.ones(3, 2), None, "written as PNG, got the name 'a.svg'"),
        ("gone/a.png", torch.ones(3, 2), None, "does not exist"),
        ("folder.png", torch.ones(3, 2), None, "is a folder"),
        ("a.png", torch.ones(3), None, r"shape \(n, d\)"),
        ("a.png", torch.ones(0, 2), None, r"got \(0, 2\)"),
        ("a.png", torch.full((3, 2), math.nan), None, "NaN or infinite"),
        ("a.png", torch.ones(3, 2), torch.ones(4), r"labels must have shape \(3,\), got \(4,\); one per sample"),
    ],
)
def test_what_cannot_be_drawn_is_refused(name, z, labels, said, tmp_path):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match=said):
        write_embedding_figure(tmp_path / name, z, labels)


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kontrast.report.png.write_atomic", full)
    with pytest.raises(StoreError, match=r"cannot write .*: No space left on device"):
        write_embedding_figure(tmp_path / "a.png", torch.ones(3, 2))
