"""The map on its page comes first, every cell leads to its numbers, and its colours can be told apart by everyone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_rgb

from kontrast.report.axes import INK, ORANGE, style
from kontrast.report.plates import picture_figure
from kontrast.report.small_plots import Curve, small_plot
from kontrast.report.study.cells import cards
from kontrast.report.study.page import study_files
from kontrast.report.study.plates import plates
from kontrast.report.study.regimes import COLORS, cell_id, map_plate, pays_plate
from kontrast.study import Findings, Regime, find
from tests.report.maps import STEPS, map_study
from tests.report.reading import Page

# Colours


def linear(color: str) -> np.ndarray:
    rgb = np.array(to_rgb(color))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear sRGB, white point D65."""
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.119192, 0.9503041]]
    )
    t = np.array(to_xyz) @ rgb / np.array([0.95047, 1.0, 1.08883])
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


SEEN_BY = {  # Machado, Oliveira and Fernandes (2009), severity 1, on linear sRGB
    "all colours": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def distances(matrix: Any) -> dict[tuple[str, str], float]:
    seen = {regime.name: lab(np.clip(np.array(matrix) @ linear(color), 0, 1)) for regime, color in COLORS.items()}
    return {(a, b): float(np.linalg.norm(seen[a] - seen[b])) for a, b in itertools.combinations(seen, 2)}


def test_lab_of_known_colours() -> None:
    np.testing.assert_allclose(lab(linear("#ffffff")), [100, 0, 0], atol=0.02)
    np.testing.assert_allclose(lab(linear("#ff0000")), [53.24, 80.09, 67.20], atol=0.05)


@pytest.mark.parametrize("eyes", SEEN_BY)
def test_regimes_are_apart_for_every_common_colour_blindness(eyes: str) -> None:
    pair, nearest = min(distances(SEEN_BY[eyes]).items(), key=lambda item: item[1])
    assert nearest >= 30, pair


def test_in_grey_they_are_less_apart() -> None:
    assert min(distances([[0.2126729, 0.7151522, 0.072175]] * 3).values()) >= 9


def test_every_regime_has_a_colour() -> None:
    assert set(COLORS) == set(Regime)


# The page


@pytest.fixture(scope="module", params=["labels", "no labels"])
def made(request: pytest.FixtureRequest) -> tuple[xr.Dataset, Findings, Page, dict[str, bytes]]:
    whole = request.param == "labels"  # and above the full-batch sections, which a model of one's own has not
    result = map_study(labels=whole, sections=whole)
    findings = find(result)
    files = study_files(result, findings)
    return result, findings, Page(files["report.html"].decode()), files


def test_the_map_stands_first_and_every_cell_leads_to_its_numbers(made: Any) -> None:
    _, findings, page, files = made
    headings = [data.strip() for within, data in page.texts if within[-1:] == ("h2",) and data.strip()]
    assert headings[:2] == ["Verdict", "The map: kernel, PCA or learning?"]
    assert next(iter(files)) == "figures/map-nt_xent.svg"
    ids = [cell_id(cell) for cell in findings.map.cells]
    assert len(set(ids)) == len(ids) == 60
    sections = [it for it in page.all("section") if it.get("id", "") in set(ids)]
    assert [it["id"] for it in sections] == ids
    links = [it.get("href", it.get("xlink:href", "")) for it in page.all("a")]
    for name in ids:
        assert links.count(f"#{name}") >= 3  # on the map, in the table, and from a neighbour
    known = {it["id"] for _, it in page.tags if "id" in it}
    assert {link[1:] for link in links if link.startswith("#")} <= known


def test_a_cell_has_its_numbers_its_reason_its_curves_and_definitions_one_click_away(made: Any) -> None:
    result, findings, page, _ = made
    text = page.text()
    made_cards = cards(result, findings)
    assert len(made_cards) == len(findings.map.cells)
    labelled = bool(findings.map.baselines)
    for card, cell in zip(made_cards, findings.map.cells, strict=True):
        assert card.cell is cell
        assert card.color == COLORS[cell.regime]
        assert cell.reason in text
        names = [number.name for number in card.numbers]
        for probe in ("a linear probe", "20 nearest neighbours"):
            assert (f"gain over its start by {probe}, in points" in names) == labelled
        if cell.regime is not Regime.DIVERGED:
            assert "kernel gap" in names
            gap = card.numbers[names.index("kernel gap")]
            estimate = cell.numbers["map_gap"]
            assert gap.mean == f"{100 * estimate.mean:.2f}%"
            assert gap.interval == f"[{100 * estimate.low:.2f}%, {100 * estimate.high:.2f}%]"
        assert all(number.definition in text for number in card.numbers)
        assert [len(card.curves), sum("<path" in str(curve) for curve in card.curves)] == [2, 2]
        assert f'aria-label="Held-out loss of the network and of its kernel twin over the steps: {card.words}' in str(
            card.curves[0]
        )
        assert f"step {STEPS[0]}" in str(card.curves[0])
        assert f">{STEPS[-1]}<" in str(card.curves[0])
    assert sum(card.is_setting for card in made_cards) == 1
    summaries = [data for within, data in page.texts if within[-1:] == ("summary",)]
    assert "kernel gap" in summaries
    details = [within for within, data in page.texts if "linearised twin trained on the same batches" in data]
    assert any("details" in within for within in details)


def test_the_curves_of_a_cell_are_its_own(made: Any) -> None:
    result, findings, _, _ = made
    for card, cell in zip(cards(result, findings), findings.map.cells, strict=True):
        rate = findings.spec.rates_of(cell.loss).index(cell.rate)
        seen = result.sel(panel=cell.loss, width=cell.size).isel(rate=rate)
        gap = small_plot(
            "kernel gap",
            f"Kernel gap at held-out samples over the steps: {card.words}",
            STEPS,
            [Curve(seen.map_gap_curve.transpose("seed", "checkpoint").values, ORANGE)],
            level=findings.thresholds.gap_tolerance,
            floor=0.0,
        )
        assert card.curves[1] == gap


def test_neighbours_are_one_step_away(made: Any) -> None:
    result, findings, _, _ = made
    by_id = {cell_id(cell): cell for cell in findings.map.cells}
    for card in cards(result, findings):
        for way, name in card.neighbours:
            other = by_id[name]
            assert other.loss == card.cell.loss
            if way in ("narrower", "wider"):
                assert other.rate == card.cell.rate
                assert math.log2(other.size / card.cell.size) == (1 if way == "wider" else -1)
            else:
                assert other.size == card.cell.size
                assert (other.rate > card.cell.rate) == (way == "higher rate")
        assert 2 <= len(card.neighbours) <= 4


def test_the_verdict_and_the_rules_are_on_the_page(made: Any) -> None:
    _, findings, page, _ = made
    text = page.text()
    assert findings.map.verdict[1:] in text
    for cell in findings.map.cells:
        assert cell.reason in text
    if not findings.map.baselines:
        assert "Nothing to compare accuracies with" in text
        assert pays_plate(findings.map) is None
    else:
        assert "Does training pay?" in page.text("h2")
    assert "nan" not in text.split()


# The pictures


@pytest.fixture
def _styled() -> Iterator[None]:
    with style(INK, salt="test"):
        yield


@pytest.mark.usefixtures("_styled")
def test_the_picture_has_a_square_of_the_right_colour_for_every_cell_and_a_star_at_the_setting() -> None:
    result = map_study()
    findings = find(result)
    found = findings.map
    assert found is not None
    for picture, loss in zip(map_plate(found).pictures, found.losses, strict=True):
        [ax] = picture_figure(picture).axes
        squares = {
            (round(p.get_x() + p.get_width() / 2, 3), p.get_facecolor()[:3])
            for p in ax.patches
            if p.get_gid() == "cell"
        }
        for cell in found.panel(loss):
            assert (round(math.log2(cell.size), 3), to_rgb(COLORS[cell.regime])) in squares
        assert sum(p.get_gid() == "cell" for p in ax.patches) == 30
        stars = [line for line in ax.lines if line.get_gid() == "setting"]
        assert len(stars) == (loss == found.setting.loss)
        for star in stars:
            assert float(star.get_xdata()[0]) == pytest.approx(math.log2(found.setting.size))
            assert float(star.get_ydata()[0]) == pytest.approx(math.log10(found.setting.rate))
        assert len(picture.links) == 30


@pytest.mark.usefixtures("_styled")
@pytest.mark.parametrize("fields", [{"widths": (64,)}, {"n_seeds": 1}, {"rates": (1.0,)}, {"has_width": False}])
def test_small_maps_are_drawn_as_well(fields: dict[str, Any]) -> None:
    result = map_study(**fields)
    made = plates(result, find(result))
    for plate in made:
        if plate.name in ("map", "pays"):
            for picture in plate.pictures:
                assert picture_figure(picture).axes
