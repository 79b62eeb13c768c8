"""The picture of patterns shows them by basin, says what is known of each, and how every start came to its end."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.image import imread
from torch import Tensor

from kontrast.errors import InputError, StoreError
from kontrast.report import write_pattern_figure
from kontrast.report.pattern_figure import pattern_figure
from tests.cases import randn


class End(Enum):
    CONVERGED = 1
    CHATTERING = 2
    SILENT = 3
    ELSEWISE = 4


@dataclass(frozen=True)
class Made:
    """What the figure reads of the patterns found."""

    weights: Tensor
    eigenvalues: Tensor
    certified: Tensor
    stable: Tensor
    basins: Tensor
    discrepancies: Tensor
    status: tuple[End, ...]


def made(m: int = 3, d: int = 12, k: int = 8) -> Made:
    """m patterns by falling basins that hold all starts but one in ten, and k starts that converge."""
    steps = torch.arange(1, 6, dtype=torch.float64)[:, None]
    shares = torch.arange(m, 0, -1, dtype=torch.float64)
    return Made(
        weights=torch.nn.functional.normalize(randn(m, d)),
        eigenvalues=0.1 / torch.arange(1, m + 1, dtype=torch.float64),
        certified=torch.arange(m) % 3 == 0,
        stable=torch.arange(m) % 3 < 2,
        basins=0.9 * shares / shares.sum(),
        discrepancies=torch.exp(-steps * torch.arange(1, k + 1)),
        status=(End.CONVERGED,) * k,
    )


def parts(figure: Figure) -> tuple[list[Axes], Axes, Axes]:
    """The patterns' axes, that of the convergence, that of the basins."""
    above, below = figure.subfigs
    left, right = below.subfigs
    [convergence], [basins] = left.axes, right.axes
    return [ax for ax in above.axes if ax.axison], convergence, basins


def captions(axes: list[Axes]) -> list[tuple[str, str, str]]:
    return [(ax.get_title("left"), ax.get_title("right"), ax.get_xlabel()) for ax in axes]


def words(figure: Figure, panel: int) -> tuple[str, list[str]]:
    [legend] = figure.subfigs[1].subfigs[panel].legends
    return legend.get_title().get_text(), [text.get_text() for text in legend.get_texts()]


def ticks(ax: Axes) -> list[str]:
    return [str(label) for label in ax.xaxis.get_major_formatter().seq]  # type: ignore[attr-defined]


def test_patterns_stand_by_basin_with_share_eigenvalue_and_mark() -> None:
    found = made()
    shuffled = replace(
        found,
        **{
            name: getattr(found, name)[[2, 0, 1]]
            for name in ("weights", "eigenvalues", "certified", "stable", "basins")
        },
    )
    for patterns in (found, shuffled):
        axes, _, _ = parts(pattern_figure(patterns, image_shape=(3, 4)))
        assert captions(axes) == [
            ("1", "●", "45 %\nλ 0.1"),
            ("2", "◐", "30 %\nλ 0.05"),
            ("3", "×", "15 %\nλ 0.0333"),
        ]
        for ax, weights in zip(axes, found.weights, strict=True):
            [image] = ax.images
            brightest = np.asarray(image.get_array())
            assert brightest.shape == (3, 4, 3)
            reds = brightest[..., 0] - brightest[..., 2]  # red above 0, blue below
            assert (np.sign(reds) == np.sign(weights.view(3, 4).numpy())).all()


def test_images_are_symmetric_about_zero() -> None:
    """The largest weight has the colour at an end of the scale, whatever its size, and 0 the one in the middle."""
    weights = torch.tensor([[0.8, -0.4, 0.0, 0.0], [-1e-9, 0.0, 0.0, 5e-10]], dtype=torch.float64)
    axes, _, _ = parts(pattern_figure(replace(made(2), weights=weights), image_shape=(1, 2, 2)))
    first, second = (np.asarray(ax.images[0].get_array()).reshape(4, 3) for ax in axes)
    np.testing.assert_allclose(first[2:], second[1:3])
    np.testing.assert_allclose(first[2], [247 / 255] * 3, atol=0.01)
    assert first[0, 0] < 0.45 > first[0, 2], "dark red"
    assert second[0, 2] < 0.45 > second[0, 0], "dark blue"


def test_three_channels_are_colors_about_gray() -> None:
    found = made(2, 12)
    axes, _, _ = parts(pattern_figure(found, image_shape=(3, 2, 2)))
    for ax, weights in zip(axes, found.weights, strict=True):
        expected = 0.5 + weights.view(3, 2, 2).permute(1, 2, 0) / (2 * weights.abs().max())
        np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), expected)


def test_without_an_image_shape_patterns_are_bars_or_lines() -> None:
    few, many = made(2, 12), made(2, 60)
    axes, _, _ = parts(pattern_figure(few))
    for ax, weights in zip(axes, few.weights.numpy(), strict=True):
        assert [bar.get_height() for bar in ax.patches] == weights.tolist()
        assert ax.get_ylim() == axes[0].get_ylim()
    axes, _, _ = parts(pattern_figure(many))
    for ax, weights in zip(axes, many.weights.numpy(), strict=True):
        np.testing.assert_array_equal(np.asarray(ax.lines[0].get_ydata()), weights)


@pytest.mark.parametrize("m, shown, n_rows", [(1, 1, 1), (8, 8, 1), (9, 9, 2), (24, 24, 3), (30, 24, 3)])
def test_many_patterns_stand_in_rows(m: int, shown: int, n_rows: int) -> None:
    figure = pattern_figure(made(m), image_shape=(3, 4))
    axes, _, basins = parts(figure)
    assert len(axes) == shown
    assert axes[0].get_gridspec().nrows == n_rows
    title = figure.get_suptitle()
    assert title == (f"{m} pattern{'s' * (m > 1)} from 8 starts" + ", the 24 largest basins shown" * (m > shown))
    assert [name for name in ticks(basins) if not name.isdigit()] == ["other"] * (m > shown) + ["none"]


def test_basins_add_up() -> None:
    figure = pattern_figure(made(6), n_patterns=4)
    _, _, basins = parts(figure)
    heights = [bar.get_height() for bar in basins.patches]
    assert len(heights) == 6
    assert sum(heights) == pytest.approx(100)
    assert heights[-1] == pytest.approx(10), "one start in ten led nowhere"
    assert heights[-2] == pytest.approx(90 * (2 + 1) / 21), "the two patterns that are not shown"
    full = parts(pattern_figure(replace(made(2), basins=torch.tensor([0.75, 0.25]))))[2]
    assert [bar.get_height() for bar in full.patches] == [75, 25]


def test_marks_are_explained_where_they_occur() -> None:
    for m in (1, 2, 3):
        figure = pattern_figure(made(m))
        said = [text for text in words(figure, 1)[1] if text]
        assert sorted(said) == sorted(["certified (Theorem 1)", "stable, not certified", "not stable"][:m])
        colors = [bar.get_facecolor() for bar in parts(figure)[2].patches[:m]]
        handles = {
            text: handle
            for text, handle in zip(
                words(figure, 1)[1], figure.subfigs[1].subfigs[1].legends[0].legend_handles, strict=True
            )
            if text
        }
        named = ["certified (Theorem 1)", "stable, not certified", "not stable"][:m]
        assert colors == [to_rgba(handles[name].get_color()) for name in named]


def test_every_start_is_a_line_in_the_color_of_its_ending() -> None:
    found = made(k=4)
    runs = found.discrepancies.clone()
    runs[2:, 1] = math.nan  # ended at step 2
    runs[:, 3] = math.nan  # never took a step
    ends = (End.CONVERGED, End.CONVERGED, End.ELSEWISE, End.SILENT)
    figure = pattern_figure(replace(found, discrepancies=runs, status=ends))
    _, ax, _ = parts(figure)
    lines = [line for collection in ax.collections for line in collection.get_segments()]
    assert sorted(map(len, lines)) == [2, 5, 5]
    for line in lines:
        start = int(np.flatnonzero(np.isclose(runs[0].numpy(), line[0, 1]))[0])
        np.testing.assert_allclose(line[:, 1], runs[: len(line), start])
        np.testing.assert_allclose(line[:, 0], np.arange(1, len(line) + 1))
    assert ax.get_yscale() == "log"
    said = [text for text in words(figure, 0)[1] if text]
    assert said == ["converged (2)", "silent (1)", "elsewise (1)"]  # by frequency, then as they come; column by column


def test_of_many_starts_and_steps_some_are_drawn_and_every_end() -> None:
    n_steps, n_starts = 3000, 450
    runs = torch.exp(-torch.arange(n_steps, dtype=torch.float64)[:, None] / 100 * torch.linspace(1, 2, n_starts))
    runs[2500:, ::2] = math.nan
    figure = pattern_figure(replace(made(), discrepancies=runs, status=(End.CONVERGED,) * n_starts))
    _, ax, _ = parts(figure)
    [collection] = ax.collections
    lines = collection.get_segments()
    assert len(lines) == 400
    assert words(figure, 0) == ("400 of 450 starts, evenly spaced", ["converged (450)"])
    assert {int(line[-1, 0]) for line in lines} == {2500, 3000}
    assert max(map(len, lines)) <= 401


def test_what_comes_to_rest_exactly_is_marked_below_the_axis(tmp_path: Path) -> None:
    runs = torch.tensor([[0.5, 0.25], [0.1, 0.0], [0.01, math.nan]], dtype=torch.float64)
    figure = pattern_figure(replace(made(), discrepancies=runs, status=(End.CONVERGED,) * 2))
    _, ax, _ = parts(figure)
    [mark] = [line for line in ax.lines if line.get_marker() == "v"]
    assert np.asarray(mark.get_xdata()).tolist() == [2]
    assert ax.get_ylim()[0] > 1e-3


def test_no_patterns_and_no_steps_are_drawn(tmp_path: Path) -> None:
    empty = replace(made(0), discrepancies=torch.full((0, 8), math.nan), status=(End.SILENT,) * 8)
    path = write_pattern_figure(tmp_path / "a.png", empty)
    assert imread(path).ndim == 3
    figure = pattern_figure(empty)
    _, convergence, basins = parts(figure)
    assert figure.subfigs[0].axes[0].texts[0].get_text() == "no start came to rest at a pattern"
    assert convergence.texts[0].get_text() == "no start took a step"
    assert ticks(basins) == ["none"]


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    one = write_pattern_figure(tmp_path / "a.png", made(), image_shape=(3, 4)).read_bytes()
    assert write_pattern_figure(tmp_path / "b.png", made(), image_shape=(3, 4)).read_bytes() == one
    titled = write_pattern_figure(tmp_path / "b.png", made(), image_shape=(3, 4), title="$a_b$ \x07 語 " + 40 * "word ")
    assert titled.read_bytes() != one


@pytest.mark.parametrize(
    "name, patterns, options, said",
    [
        ("a.svg", made(), {}, r"written as PNG, got the name 'a\.svg'"),
        ("gone/a.png", made(), {}, "does not exist"),
        ("folder.png", made(), {}, "is a folder"),
        ("a.png", made(), {"n_patterns": 0}, "n_patterns must be a whole number of at least 1"),
        ("a.png", made(), {"title": 3}, "title must be str, got int"),
        ("a.png", made(), {"image_shape": (5, 5)}, r"patterns have 12 values, which image_shape \(5, 5\) does not fit"),
        ("a.png", made(), {"image_shape": 12}, r"must be \(h, w\) or \(c, h, w\), got 12"),
        ("a.png", made(), {"image_shape": (3.0, 4)}, "a size of image_shape must be a whole number"),
        ("a.png", randn(3, 4), {}, "takes what find_lmes returns, got Tensor"),
        ("a.png", "patterns", {}, "takes what find_lmes returns, got str"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    name: str, patterns: Any, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match=said):
        write_pattern_figure(tmp_path / name, patterns, **options)


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kontrast.report.png.write_atomic", full)
    with pytest.raises(StoreError, match=r"cannot write .*: No space left on device"):
        write_pattern_figure(tmp_path / "a.png", made(1))
