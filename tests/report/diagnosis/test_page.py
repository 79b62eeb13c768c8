"""The page of a diagnosis: self-contained, every number defined, the same every time, whatever was measured."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

import kontrast as kt
from kontrast.diagnosis import Diagnosis, Limits, monitor
from kontrast.report import diagnosis_figure, diagnosis_page, diagnosis_summary
from kontrast.report.diagnosis.page import sections_of
from tests.report.diagnosis.small import diagnosed, monitored
from tests.report.reading import Page

EVIL = "ы<b>$x^2$</b>{{7*7}}/" + "a_very_long_name_without_a_space" * 3


@pytest.fixture(scope="module")
def html() -> str:
    return page_of("whole")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    return Diagnosis(monitor.read_monitor(monitored(tmp_path_factory.mktemp("monitor") / "run")))


@functools.cache
def page_of(kind: str) -> str:
    """The page of one of the small diagnoses, drawn once."""
    return diagnosis_page(diagnosed(kind))


def check(html: str) -> Page:
    """Nothing is loaded from anywhere, every id is one element's, and every link leads to one."""
    page = Page(html)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len({*ids})
    for tag, attributes in page.tags:
        assert tag not in ("script", "img", "link", "iframe", "object", "image")
        for name, value in attributes.items():
            if name.endswith(("href", "src")):
                assert value.startswith("#")
                assert value[1:] in ids
            if name != "xmlns":
                assert "//" not in value
    assert not re.search(r">\s*(nan|inf|None)\b", html)
    return page


def test_the_page_is_one_file_that_asks_for_nothing(html: str) -> None:
    check(html)
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    assert len(html.encode()) < 1_000_000


def test_the_answer_comes_first(page: Page) -> None:
    d, said = diagnosed(), page.text()
    at = [said.lower().index(words.lower()) for words in (d.verdict, d.reasons[0], d.advice[0], "Lazy or learning?")]
    assert at == sorted(at)
    assert "a <small> model" in page.text("h1")


def test_every_question_has_its_section_with_pictures_and_tables(page: Page) -> None:
    sections = sections_of(diagnosed())
    assert [section.id for section in sections] == [
        *("lazy", "collapse", "pays", "checkpoints", "blame", "labels", "widths")
    ]
    for section in sections:
        assert section.title in page.text("h2")
        assert section.grids
    pictures = [picture for section in sections for plate in section.plates for picture in plate.pictures]
    assert len({picture.name for picture in pictures}) == len(pictures) == len(page.all("svg"))


@pytest.mark.parametrize("kind", ["whole", "bare", "watched"])
def test_every_number_has_its_definition(kind: str, request: pytest.FixtureRequest) -> None:
    d = request.getfixturevalue("watched") if kind == "watched" else diagnosed(kind)
    html = diagnosis_page(d) if kind == "watched" else page_of(kind)
    defined = dict(re.findall(r'<tr id="define-([^"]+)">.*?<td class="long">(.*?)</td>', html))
    assert all(text.endswith((".", ")")) for text in defined.values()), defined
    assert {*map(str, d.result.data_vars)} <= {*defined}
    for section in sections_of(d):
        for grid in section.grids:
            for first, cells in grid.rows:
                for column, cell in zip(grid.head[1:], cells, strict=True):
                    if re.search(r"\d", cell) and cell not in map(str, d.result.checkpoint.values):
                        assert {first.name, column.name} & {*defined}, (grid.title, first, column)


@pytest.mark.parametrize("kind", ["bare", "collapsed", "watched"])
def test_what_was_not_measured_is_left_out_or_says_why(kind: str, request: pytest.FixtureRequest) -> None:
    d = request.getfixturevalue("watched") if kind == "watched" else diagnosed(kind)
    page = check(diagnosis_page(d) if kind == "watched" else page_of(kind))
    for reason in d.missing.values():
        assert reason in page.text()
    assert ("How wide" in page.text()) is False
    if kind == "watched":
        assert "a monitor sees embeddings alone" in page.text()
        assert d.verdict == "seen from step 0 to step 8; no collapse"
        assert (d.regime, d.pays, d.exit_code) == ("unknown", "unsure", 0)


def test_the_rule_that_decided_is_marked(page: Page) -> None:
    d = diagnosed()
    assert f"{d.decided.regime.value} (decided" in page.text("ol")
    assert page.text("ol").count("(decided") == 1
    strict = d.judged_by(Limits(gap=0.01, moved=0.0))
    judged = Page(diagnosis_page(strict))
    assert f"{strict.decided.regime.value} (decided" in judged.text("ol")
    assert strict.regime != d.regime
    assert "--gap 0.01" in judged.text("pre")


def test_words_of_the_user_are_shown_as_they_are() -> None:
    d = diagnosed()
    names = {old: f"{EVIL} {k}" for k, old in enumerate(map(str, d.result.checkpoint.values))}
    points = [names.get(str(label), str(label)) for label in d.result.point.values]
    layers = [layer if layer == "embedding" else EVIL for layer in map(str, d.result.layer.values)]
    result = d.result.assign_coords(checkpoint=list(names.values()), point=points, layer=layers)
    result = result.assign_attrs(name=EVIL, features=EVIL, missing=f'{{"x": "{EVIL}"}}', notes=f'["{EVIL}"]')
    page = check(diagnosis_page(Diagnosis(result)))
    assert EVIL in page.text("h1")
    assert EVIL in page.text("td")


def test_numbers_that_are_missing_or_extreme_are_drawn() -> None:
    d = diagnosed()
    for value in (np.nan, 0.0, 1e100):
        numbers = {
            name: array.copy(data=np.full(array.shape, value))
            for name, array in d.result.data_vars.items()
            if array.dtype.kind == "f"
        }
        said = diagnosis_page(Diagnosis(d.result.assign(numbers)))
        assert ">nan" not in said
        assert "<svg" in said


def test_the_same_numbers_give_the_same_page_whatever_matplotlib_is_set_to(html: str) -> None:
    with mpl.rc_context({"font.size": 20, "svg.fonttype": "path"}):
        assert diagnosis_page(diagnosed()) == html


def test_many_checkpoints_fit_on_a_page() -> None:
    d = diagnosed("collapsed")
    many = d.result.isel(checkpoint=np.arange(2000) % 2).assign_coords(
        checkpoint=[f"step {200 * k}" for k in range(2000)]
    )
    html = diagnosis_page(Diagnosis(many))
    assert len(html.encode()) < 1_000_000
    assert "100 of 2,000 checkpoints" in html


def test_figure_and_summary() -> None:
    d = diagnosed()
    assert isinstance(d.plot(), Figure)
    assert len(diagnosis_figure(d).subfigs) == 6
    assert len(diagnosis_figure(diagnosed("bare")).subfigs) >= 4
    shown = Page(diagnosis_summary(d))
    assert d._repr_html_() == diagnosis_summary(d)
    assert not {tag for tag, _ in shown.tags} & {"script", "style", "link", "img", "svg"}
    assert shown.text("p").lower().startswith(d.verdict.lower())
    assert all(reason in shown.text("li") for reason in d.reasons)
    assert "color: #" not in diagnosis_summary(d)  # the notebook's own, light or dark


def test_the_page_of_a_diagnosis_is_that_of_its_method(html: str, tmp_path: Path) -> None:
    assert diagnosed().to_html(tmp_path / "page.html") == html
    assert (tmp_path / "page.html").read_text("utf-8") == html
    assert kt.report.diagnosis_page is diagnosis_page
