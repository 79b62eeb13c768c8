"""Figures against the width and the step show means over seeds, and guides through the first series."""

from __future__ import annotations

import pytest

from kontrast.claims.panels import accuracy_panel, step_panel, width_panel
from kontrast.claims.setting import sweep

DATA = sweep([4, 16], [0, 1], lambda w, s: {"a": 2 * s / w, "b": s + 1.0, "c": [w, s, w + s]}, t=[0, 1, 2])


def test_guides_start_at_the_first_series() -> None:
    panel = width_panel("title", {"one_word": DATA.a, "b": DATA.b}, "y", guides=[-1.0, -0.5], dashed=["b"], letter="h")
    one, other, inverse, root = panel.curves
    assert (panel.x_label, panel.y_log) == ("width h", True)
    assert (one.label, one.x, one.y, one.style) == ("one word", (4.0, 16.0), (0.25, 0.0625), "line")
    assert (other.y, other.style) == ((1.5, 1.5), "dashed")
    assert (inverse.label, inverse.y) == ("1/h", pytest.approx((0.25, 0.0625)))
    assert (root.label, root.y) == ("h^−1/2", pytest.approx((0.25, 0.125)))


def test_the_start_has_no_place_on_a_logarithmic_axis() -> None:
    panel = step_panel("title", DATA.c, step="epoch")
    assert [(line.label, line.x, line.y) for line in panel.curves] == [
        ("M = 4", (1.0, 2.0), (0.5, 4.5)),
        ("M = 16", (1.0, 2.0), (0.5, 16.5)),
    ]
    assert panel.x_label == "epoch"


def test_accuracies_of_pixels_are_dashed() -> None:
    accuracy = DATA.c.rename(t="embedding").assign_coords(embedding=["pca", "pixels", "pixel-pca"])
    panel = accuracy_panel("title", accuracy)
    assert [(line.label, line.style) for line in panel.curves] == [
        ("pca", "line"),
        ("pixels", "dashed"),
        ("pixel-pca", "dashed"),
    ]
    assert not panel.y_log
