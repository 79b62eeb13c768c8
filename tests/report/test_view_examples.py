"""The picture of a view shows the samples and their views, and says so before it draws when it cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.image import imread

from kontrast.data import Brightness, GaussianNoise, HorizontalFlip, Masking, View, parse_view
from kontrast.errors import InputError, StoreError
from kontrast.report import view_examples, write_view_examples
from tests.cases import generator, randn


def drawn(monkeypatch: pytest.MonkeyPatch, path: Path, x: torch.Tensor, view: View, **options: int) -> Figure:
    """The figure as it is saved."""
    figures: list[Figure] = []
    real = view_examples.to_png

    def keep(figure: Figure) -> bytes:
        figures.append(figure)
        return real(figure)

    monkeypatch.setattr(view_examples, "to_png", keep)
    assert write_view_examples(path, x, view, **options) == path
    assert imread(path).ndim == 3
    [figure] = figures
    return figure


def sheet_of(figure: Figure) -> np.ndarray:
    [ax] = figure.axes
    [image] = ax.images
    return np.asarray(image.get_array())


def images(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=generator())


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_images_stand_beside_their_views(channels, tmp_path, monkeypatch):
    x = images(3, channels, 6, 10)
    figure = drawn(monkeypatch, tmp_path / "views.png", x, HorizontalFlip(1.0), n_samples=2, n_views=2)
    sheet = sheet_of(figure)
    shown = x if channels == 3 else x[:, :1].expand(3, 3, 6, 10)
    gap = 1
    assert sheet.shape == (2 * 6 + gap, 3 * 10 + 4 * gap, 3)
    for sample in (0, 1):
        top = sample * 7
        for left, image in ((0, shown[sample]), (13, shown[sample].flip(2)), (24, shown[sample].flip(2))):
            np.testing.assert_array_equal(sheet[top : top + 6, left : left + 10], image.permute(1, 2, 0).numpy())
    assert (sheet[6] == 1).all()
    [ax] = figure.axes
    assert ax.get_title(loc="left") == "flip:1.0"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["sample", "views"]


def test_values_in_about_the_unit_interval_are_clipped(tmp_path, monkeypatch):
    x = images(1, 1, 4, 4) * 1.1 - 0.05
    sheet = sheet_of(drawn(monkeypatch, tmp_path / "a.png", x, Brightness(0.9), n_views=1))
    np.testing.assert_allclose(sheet[:, :4, 0], x[0, 0].clamp(0, 1).numpy())


def test_other_values_are_scaled_by_their_sample(tmp_path, monkeypatch):
    x = torch.stack([torch.linspace(-3, 5, 16), torch.linspace(100, 200, 16)]).view(2, 1, 4, 4)
    sheet = sheet_of(drawn(monkeypatch, tmp_path / "a.png", x, Masking(1.0), n_views=1))
    even = np.linspace(0, 1, 16).reshape(4, 4)
    np.testing.assert_allclose(sheet[:4, :4, 0], even, atol=1e-6)
    np.testing.assert_allclose(sheet[5:, :4, 0], even, atol=1e-6)
    np.testing.assert_allclose(sheet[:4, 7:, 0], 3 / 8, atol=1e-6)  # a view of zeros, on its sample's scale
    assert (sheet[5:, 7:] == 0).all()


def test_what_is_not_finite_is_drawn_without_a_complaint(tmp_path, monkeypatch):
    x = images(2, 1, 4, 4).double()
    x[0, 0, 0, 0], x[0, 0, 0, 1] = float("nan"), float("inf")
    x[1] = float("nan")
    sheet = sheet_of(drawn(monkeypatch, tmp_path / "a.png", x, HorizontalFlip(0.0)))
    assert (sheet[0, :2] == 0).all()
    assert (sheet[5:, :4] == 0).all()
    drawn(monkeypatch, tmp_path / "b.png", 1e308 * randn(2, 1, 4, 4), GaussianNoise(1e300))
    drawn(monkeypatch, tmp_path / "c.png", torch.full((2, 5), float("nan")), GaussianNoise())


def test_large_images_are_thinned_out(tmp_path, monkeypatch):
    sheet = sheet_of(drawn(monkeypatch, tmp_path / "a.png", images(1, 1, 600, 300), HorizontalFlip(0.0), n_views=1))
    assert sheet.shape[0] == 200


@pytest.mark.parametrize("d", [1, 2, 60])
def test_rows_are_lines_and_their_views_thin_lines(d, tmp_path, monkeypatch):
    x = randn(4, d)
    figure = drawn(monkeypatch, tmp_path / "rows.png", x, GaussianNoise(0.1), n_samples=3, n_views=5, seed=2)
    assert len(figure.axes) == 3
    g = generator(2)
    views = [GaussianNoise(0.1)(x[:3], g) for _ in range(5)]
    for sample, ax in enumerate(figure.axes):
        *thin, thick = ax.lines
        np.testing.assert_array_equal(thick.get_ydata(), x[sample])
        np.testing.assert_array_equal([line.get_ydata() for line in thin], [view[sample] for view in views])
        assert all(line.get_linewidth() < thick.get_linewidth() for line in thin)
    assert figure.axes[0].get_title(loc="left") == "noise:0.1"


def test_the_same_arguments_give_the_same_bytes_and_no_setting_is_left_behind(tmp_path):
    before = dict(rcParams)
    x, view = images(8, 3, 8, 8), parse_view("crop:0.4,1+flip+brightness+contrast+gray+affine+mask+mixup+noise")
    first, again, other = (
        write_view_examples(tmp_path / f"{k}.png", x, view, seed=seed).read_bytes() for k, seed in enumerate((0, 0, 1))
    )
    assert first == again
    assert first != other
    assert dict(rcParams) == before


@pytest.mark.parametrize("title", ["+".join(["noise:0.1"] * 20), "a" * 300, "$x_1$ \ud800\n", ""])
def test_any_text_can_be_a_title(title, tmp_path, monkeypatch):
    class Named(GaussianNoise):
        def __str__(self) -> str:
            return title

    figure = drawn(monkeypatch, tmp_path / "a.png", images(1, 1, 4, 4), Named(), n_views=1)
    assert figure.axes[0].get_title(loc="left").replace("\n", "") == title.replace("\ud800\n", "��").strip()


@pytest.mark.parametrize(
    "name, x, options, words",
    [
        ("views.svg", images(1, 4), {}, r"written as PNG, got the name 'views.svg'; end it in .png"),
        ("views", images(1, 4), {}, r"got the name 'views'; end it in .png"),
        ("nowhere/views.png", images(1, 4), {}, r"nowhere of views.png does not exist; make it"),
        ("folder.png", images(1, 4), {}, r"folder.png is a folder; give the name of a file"),
        ("views.png", images(0, 4), {}, r"at least one, got shape \(0, 4\)"),
        ("views.png", images(2, 1, 0, 4), {}, r"at least one, got shape \(2, 1, 0, 4\)"),
        (
            "views.png",
            images(2, 3, 4),
            {},
            r"images \(n, c, h, w\) or rows \(n, d\), at least one, got shape \(2, 3, 4\)",
        ),
        ("views.png", images(2, 4), {"n_samples": 0}, "n_samples must be a whole number of at least 1, got 0"),
        ("views.png", images(2, 4), {"n_views": 1.5}, "n_views must be a whole number of at least 1, got 1.5"),
        ("views.png", images(2, 4).byte(), {}, "floating-point numbers, got torch.uint8"),
    ],
)
def test_what_cannot_be_drawn_is_refused(name, x, options, words, tmp_path):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match=words):
        write_view_examples(tmp_path / name, x, GaussianNoise(), **options)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


def test_a_view_that_changes_the_shape_is_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"\(2, 4\) into torch.float32 \(2, 3\); a view must keep number type and shape"
    ):
        write_view_examples(tmp_path / "a.png", images(2, 4), lambda x, generator: x[:, 1:])


def test_a_file_that_cannot_be_written_is_reported(tmp_path, monkeypatch):
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kontrast.report.png.write_atomic", full)
    with pytest.raises(StoreError, match=r"cannot write .*a.png: No space left on device; choose a place"):
        write_view_examples(tmp_path / "a.png", images(2, 4), GaussianNoise())
