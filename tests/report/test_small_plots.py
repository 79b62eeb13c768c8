"""Small plots show their curves where they lie, whatever the numbers are, and say what they show."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays
from hypothesis.strategies import floats

from kontrast.report.small_plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Curve, small_plot

STEPS = np.array([0.0, 2, 4, 8, 16])
SVG = "{http://www.w3.org/2000/svg}"


def plotted(*curves, **options):
    return ET.fromstring(str(small_plot("loss", "Loss over steps", STEPS, curves, **options)))


def paths(svg, color):
    return [it for it in svg.iter(f"{SVG}path") if color in (it.get("stroke"), it.get("fill"))]


def points(path):
    return [tuple(map(float, pair.split())) for pair in re.findall(r"[\d.-]+ [\d.-]+", path.get("d"))]


def words(svg):
    return [it.text for it in svg.iter(f"{SVG}text")]


def test_a_line_goes_from_corner_to_corner_and_its_ends_are_labelled():
    svg = plotted(Curve(np.log1p(STEPS)[None], "red"))
    [line] = paths(svg, "red")
    found = points(line)
    assert found[0] == (pytest.approx(LEFT), pytest.approx(BOTTOM))
    assert found[-1] == (pytest.approx(RIGHT), pytest.approx(TOP))
    # Steps lie by log(1 + step), so log(1 + step) itself is a straight line.
    slopes = [(y - BOTTOM) / (x - LEFT) for x, y in found[1:]]
    assert slopes == pytest.approx([slopes[0]] * 4, rel=0.01)
    assert words(svg) == ["loss", "0", "2.8", "step 0", "16"]
    assert svg.get("aria-label") == "Loss over steps"
    assert svg.get("role") == "img"


def test_seeds_are_a_mean_in_a_band_from_lowest_to_highest():
    values = np.array([[0.0, 1, 2, 3, 4], [2.0, 3, 4, 5, 6]])
    band, line = paths(plotted(Curve(values, "red")), "red")
    height = BOTTOM - TOP
    low, high = points(band)[:5], points(band)[5:][::-1]
    for k, (x, y) in enumerate(points(line)):
        assert y == pytest.approx(BOTTOM - height * (k + 1) / 6, abs=0.1)
        assert low[k] == (x, pytest.approx(BOTTOM - height * k / 6, abs=0.1))
        assert high[k] == (x, pytest.approx(BOTTOM - height * (k + 2) / 6, abs=0.1))


def test_a_mean_ends_where_a_seed_does_and_the_band_goes_on():
    values = np.array([[0.0, 1, 2, np.nan, np.nan], [2.0, 3, 4, 5, 6]])
    band, line = paths(plotted(Curve(values, "red", dashed=True)), "red")
    assert len(points(line)) == 3
    assert len(points(band)) == 10
    assert line.get("stroke-dasharray")


def test_nothing_finite_is_said_and_one_value_is_a_dot():
    empty = plotted(Curve(np.full((2, 5), np.nan), "red"))
    assert "no finite value was recorded" in words(empty)
    one = plotted(Curve(np.array([[1.0, np.nan, np.nan, np.nan, np.nan]]), "red"))
    assert len(list(one.iter(f"{SVG}circle"))) == 1


def test_a_level_is_drawn_where_it_lies_and_a_floor_is_the_bottom():
    curve = Curve(np.array([[0.2, 0.4, 0.6, 0.8, 1.0]]), "red")
    level = paths(plotted(curve, level=0.5, floor=0.0), "currentColor")[-1]
    assert float(level.get("d").removeprefix("M").split()[1].split("H")[0]) == pytest.approx((TOP + BOTTOM) / 2)
    assert len(paths(plotted(curve, level=2.0, floor=0.0), "currentColor")) == 1  # the axes alone
    assert "0" in words(plotted(curve, floor=0.0))


@given(arrays(float, (2, 5), elements=floats(allow_nan=True, allow_infinity=True, width=64)))
def test_whatever_the_numbers_the_plot_is_well_formed_and_inside_its_axes(values):
    svg = plotted(Curve(values, "red"), level=0.15, floor=0.0)
    for path in paths(svg, "red"):
        for x, y in points(path):
            assert LEFT - 0.1 <= x <= RIGHT + 0.1
            assert TOP - 0.1 <= y <= BOTTOM + 0.1
    assert "nan" not in ET.tostring(svg, encoding="unicode").replace("no finite", "")
    assert svg.get("viewBox") == f"0 0 {WIDTH} {HEIGHT}"


def test_a_run_away_is_still_seen_beside_its_start():
    values = np.array([[1.0, 2.0, 10.0, 1e4, 1e8]])
    ys = [y for _, y in points(paths(plotted(Curve(values, "red")), "red")[0])]
    assert ys[0] - ys[2] > 8  # on a linear axis 10 would lie on top of 1
    assert math.isclose(ys[-1], TOP, abs_tol=0.1)


def test_words_are_escaped():
    svg = ET.fromstring(str(small_plot("a < b", 'of "x" & <y>', STEPS, [Curve(STEPS[None], "red")])))
    assert words(svg)[0] == "a < b"
    assert svg.get("aria-label") == 'of "x" & <y>'
