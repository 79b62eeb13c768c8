"""The report of the claims says what the records hold, in markup that no record can break."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, lists, sampled_from, text

from kontrast.claims import RULES, Claim, Criterion, Curve, Estimate, Evidence, Panel, Record, Setting, Verdict
from kontrast.errors import StoreError
from kontrast.report import write_claims_report
from kontrast.report.axes import INK, style
from kontrast.report.claims.figures import _wrapped as wrapped
from kontrast.report.claims.figures import curve_colors, joined_svg, panel_figure, panel_svg
from kontrast.report.claims.markdown import markdown
from kontrast.report.claims.words import ORDER, words
from tests.report.reading import Page

SVG = "{http://www.w3.org/2000/svg}"
EVIL = '<script>alert(1)</script> & "it\'s" |a| `b` $x$ *c* [d](e) {{ 7*7 }}'
SPEC: dict[str, Any] = {
    "kind": "claims",
    "format": 1,
    "scale": "full",
    "device": "cpu",
    "n_seeds": None,
    "data": ["digits", "my <data> |1|.npz"],
    "data_digests": ["0123abcd", "4567ef01"],
    "code": "89abcdef",
}
COMMAND = "kontrast verify --data 'digits,my <data> |1|.npz'"
WIDTHS = (32.0, 128.0, 512.0, 2048.0, 8192.0)
NAN = math.nan


def never(setting: Setting) -> Evidence:
    raise AssertionError("a report measures nothing")


def record(
    id: str,
    verdict: Verdict = Verdict.HOLDS,
    *,
    recorded: Verdict | None = None,
    panels: tuple[Panel, ...] = (),
    text: str = "the kernel moves by 1/√M",
    corrected: str | None = None,
    warnings: tuple[str, ...] = (),
    measured: dict[str, Estimate] | None = None,
    setting: dict[str, Any] | None = None,
) -> Record:
    """A record whose criteria give the verdict."""
    outcomes: dict[Verdict, dict[str, float]] = {
        Verdict.HOLDS: {"printed": 0.5},
        Verdict.CORRECTED: {"printed": 2.0, "corrected": 0.5},
        Verdict.VACUOUS: {"printed": 0.5, "informative": 1.2e54},
        Verdict.REFUTED: {"printed": 2.0, "corrected": 3.0},
        Verdict.UNDECIDED: {"printed": NAN},
    }
    values = outcomes[verdict]
    criteria = tuple(
        Criterion(f"{role}_number", f"{text} ({role})", high=1.0, role=role)  # type: ignore[arg-type]
        for role in values
    )
    numbers = {f"{role}_number": Estimate(value, value, value) for role, value in values.items()}
    claim = Claim(id, f"Paper A, {id}", f"Title of {text}", text, corrected, recorded or verdict, never)
    found = Evidence({**numbers, **(measured or {})}, criteria, panels=panels, setting=setting or {}, warnings=warnings)
    made = Record(claim, found, 12.34, COMMAND)
    assert made.verdict is verdict
    return made


def falling(label: str, exponent: float, style: Any = "line") -> Curve:
    return Curve(label, WIDTHS, tuple(width**exponent for width in WIDTHS), style)


DRIFT = Panel(
    "NTK drift against width",
    "width M",
    "max |K(t) − K(0)|",
    (falling("tanh", -0.97), falling("relu", -0.8), falling("1/√M", -0.5, "dashed")),
)
ODD = Panel(
    f"{EVIL} and a title that runs on and on for much longer than any panel is wide",
    EVIL,
    "_y_ <b>",
    (
        Curve("_hidden <b>&amp;", WIDTHS, (1.0, NAN, 1e300, math.inf, 1e54)),
        Curve("nothing", WIDTHS, (NAN, math.inf, 0.0, -1.0, -math.inf)),
        Curve("empty", (), ()),
        Curve("a label " + "which is very long " * 8, (0.0, 1.0, 2.0), (1e-320, 1.0, 1.0), "plain"),
        Curve("数据 \x01\udcff", (1.0, 2.0, 4.0), (2.0, NAN, 3.0), "plain"),
    ),
)
LINEAR = Panel("Accuracy", "probes", "share right", (Curve("one", (0, 1), (0.93, 0.93)),), x_log=False, y_log=False)
MANY = Panel("Ten widths", "step", "gap", tuple(falling(str(2**k), -0.1 * k) for k in range(5, 15)))
EMPTY = Panel("Nothing at all", "x", "y", ())
RECORDS = [
    record("A.lem9", setting={"widths": [32, 64], "eta": 0.1, "nothing": None, "by": {"relu": 2}}, text="df/dt = −K"),
    record("A.fig3", Verdict.CORRECTED, panels=(DRIFT, MANY), corrected="the exponent is −1 for tanh"),
    record("A.thm13", Verdict.VACUOUS, panels=(LINEAR,)),
    record("A.rem15", Verdict.REFUTED, panels=(DRIFT, LINEAR, EMPTY, ODD)),
    record("A.odd", Verdict.UNDECIDED, text=EVIL, corrected=EVIL, warnings=(EVIL, "a\nb\x02"), panels=(ODD,)),
    record(
        "A.other",
        recorded=Verdict.REFUTED,
        measured={
            "slope": Estimate(-0.97123, -1.0512, -0.8934),
            "two_points": Estimate(1.5, -math.inf, math.inf),
            "pipe|name": Estimate(1e-13, 1e-13, 1e-13),
        },
    ),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("claims")
    assert write_claims_report(folder, RECORDS, SPEC) == folder / "report.html"
    return folder


@pytest.fixture(scope="module")
def page(built: Path) -> Page:
    return Page((built / "report.html").read_text())


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_report_is_a_page_a_markdown_file_and_one_picture_a_claim_that_has_panels(built: Path, page: Page) -> None:
    drawn = [it.claim.id for it in RECORDS if it.evidence.panels]
    assert content(built).keys() == {"report.html", "claims.md", *(f"figures/{name}.svg" for name in drawn)}
    assert len(page.all("svg")) == sum(len(it.evidence.panels) for it in RECORDS)


def test_the_same_evidence_stored_or_not_gives_the_same_bytes(built: Path, tmp_path: Path) -> None:
    stored = [
        Record(it.claim, Evidence.from_dataset(it.evidence.to_dataset()), it.seconds, it.command) for it in RECORDS
    ]
    write_claims_report(tmp_path, stored, SPEC)
    assert content(tmp_path) == content(built)


def test_the_papers_are_named_on_the_page_and_in_the_file(page: Page, built: Path) -> None:
    for paper in {it.claim.paper for it in RECORDS}:
        assert f"Paper {paper.letter} is {paper.authors}: {paper.title} ({paper.year}, {paper.link})." in page.text()
        assert paper.title in (built / "claims.md").read_text()


def test_the_page_loads_nothing_and_runs_nothing(page: Page) -> None:
    papers = {it.claim.paper.link for it in RECORDS}
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.tags:
        assert tag not in {"script", "link", "img", "iframe", "object", "b"}
        assert not [key for key in attributes if key.startswith("on")]
        target = attributes.get("href")  # a place on the page, or a paper
        assert target is None or target[1:] in ids or target in papers, f"{tag} leads to {target}"
        for value in attributes.values():
            assert all(name in ids for name in re.findall(r"url\(#(.*?)\)", value))


def test_every_word_and_number_is_on_the_page(page: Page) -> None:
    text = page.text()
    for it in RECORDS:
        said = words(it)
        assert {"id": it.claim.id, "aria-label": it.claim.id} in page.all("section")
        assert {"href": f"#{it.claim.id}"} in page.all("a")
        for part in (
            it.claim.title,
            it.claim.source,
            it.claim.printed,
            said.outcome,
            *(w for p in said.setting for w in p),
        ):
            assert part in text
        for row in said.criteria:
            assert row.statement in text
            assert row.range in text
            assert row.measured in text
        for name, value, interval in said.measured:
            assert name in page.text("th")
            assert value in page.text("td")
            assert interval in page.text("td")
    assert "the exponent is −1 for tanh" in page.text("dd")
    assert "-0.9712" in text
    assert "[-1.051, -0.8934]" in text
    assert "[-∞, ∞]" in text
    assert "1.2e+54" in text
    assert COMMAND in page.text("pre")
    assert "scale full, data digits, my <data> |1|.npz, device cpu" in page.text("header")
    assert "a b�" in page.text("p").replace("a�b", "a b")


def test_verdicts_are_words_on_badges_and_counted(page: Page) -> None:
    badges = [a["class"].split()[1] for a in page.all("span") if "badge" in a.get("class", "")]
    in_order = [it.verdict.name.lower() for it in RECORDS]
    assert badges == [verdict.name.lower() for verdict in ORDER] + in_order + in_order
    assert page.text("ul") == "holds 2 holds, corrected 1 vacuous 1 refuted 1 undecided 1"
    assert set(RULES) == set(ORDER) == set(Verdict)


def test_a_verdict_other_than_the_recorded_one_is_marked_and_a_refuted_one_is_not(page: Page, built: Path) -> None:
    assert "1 of 6 verdicts differ from the recorded ones: A.other." in page.text("header")
    assert page.text("strong").count("≠") == 2  # in the summary and in the claim's own section
    assert "≠ recorded: refuted" in page.text("strong")
    assert page.text("section").count("as recorded") == 5
    text = (built / "claims.md").read_text()
    assert text.count("≠") == 1
    assert "Verdict: **refuted**, as recorded." in text
    assert "Verdict: **holds**, **not as recorded** (refuted)." in text


def test_all_as_recorded_is_said(tmp_path: Path) -> None:
    write_claims_report(tmp_path, RECORDS[:1], SPEC)
    assert "Every verdict is as recorded" in (tmp_path / "report.html").read_text()
    assert "Every verdict is as recorded" in (tmp_path / "claims.md").read_text()


OUTCOMES = {
    Verdict.HOLDS: "as printed: holds",
    Verdict.CORRECTED: "as printed: fails; as corrected: holds",
    Verdict.VACUOUS: "as printed: holds; says something at this scale: no",
    Verdict.REFUTED: "as printed: fails; as corrected: fails",
    Verdict.UNDECIDED: "as printed: undecided",
}


@pytest.mark.parametrize("verdict", Verdict)
def test_which_statement_holds_is_said_in_words(verdict: Verdict) -> None:
    made = record("A.x", verdict)
    assert words(made).outcome == OUTCOMES[verdict]
    assert f"A{OUTCOMES[verdict][1:]}." in markdown([made], SPEC)


def test_a_correction_without_a_criterion_is_not_tested() -> None:
    assert words(record("A.x", corrected="with η")).outcome == "as printed: holds; as corrected: not tested"


def cells(line: str) -> list[str]:
    """A table's row as GitHub splits it: at pipes without a backslash before them."""
    return [part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_markdown_tables_keep_their_columns(built: Path) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", (built / "claims.md").read_text(), flags=re.M)
    assert len(tables) == 1 + 2 * len(RECORDS)
    for table in tables:
        rows = [cells(line) for line in table.splitlines()]
        assert len({len(row) for row in rows}) == 1, table
        assert all(re.fullmatch("---|--:", cell) for cell in rows[1])
        assert all(cell for row in rows for cell in row)
    summary = [cells(line) for line in tables[0].splitlines()[2:]]
    assert [row[2] for row in summary] == [it.verdict.value for it in RECORDS]
    assert [row[4] for row in summary] == ["12.3"] * len(RECORDS)


def test_markdown_links_lead_to_sections_and_pictures(built: Path) -> None:
    text = (built / "claims.md").read_text()
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()) for title in re.findall(r"^## (.*)$", text, flags=re.M)}
    links = re.findall(r"^\| \[A\.\w+\]\(#(.*?)\)", text, flags=re.M)
    assert len(links) == len(RECORDS)
    assert set(links) == anchors
    pictures = re.findall(r"^!\[.*\]\((figures/.*?)\)$", text, flags=re.M)
    assert len(pictures) == 4
    assert all((built / picture).is_file() for picture in pictures)


def test_markdown_holds_no_markup_of_the_records_own(built: Path) -> None:
    text = (built / "claims.md").read_text()
    body = text.replace(COMMAND, "").replace("<span>$</span>", "")
    assert "<" not in body
    assert "$" not in body
    assert r"\[d\](e)" in body
    assert r"\`b\`" in body
    assert "{{ 7\\*7 }}" in body


def test_another_folder_for_the_pictures(tmp_path: Path) -> None:
    write_claims_report(tmp_path, RECORDS[1:2], SPEC, figures="images/claims")
    assert (tmp_path / "images" / "claims" / "A.fig3.svg").is_file()
    assert "](images/claims/A.fig3.svg)" in (tmp_path / "claims.md").read_text()


def test_pictures_are_whole_xml_on_white_paper(built: Path) -> None:
    for it in RECORDS:
        if not it.evidence.panels:
            continue
        root = ElementTree.parse(built / "figures" / f"{it.claim.id}.svg").getroot()
        assert root.tag == f"{SVG}svg"
        assert it.claim.id in root.attrib["aria-label"]
        assert root.attrib["color"] == "#22262b"
        paper, *panels = root
        assert paper.attrib["fill"] == "#ffffff"
        assert len(panels) == len(it.evidence.panels)
        ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
        assert len(ids) == len(set(ids))
        width, height = (float(part) for part in root.attrib["viewBox"].split()[2:])
        for panel in panels:
            x, y, w, h = (float(panel.attrib[key]) for key in ("x", "y", "width", "height"))
            assert 0 <= x <= x + w <= width
            assert 0 <= y <= y + h <= height
        assert "nan" not in " ".join(element.get("d", "") for element in root.iter()).lower()


def test_panels_stand_side_by_side(built: Path) -> None:
    places = [(p.attrib["x"], p.attrib["y"]) for p in ElementTree.parse(built / "figures" / "A.fig3.svg").getroot()[1:]]
    assert len({y for _, y in places}) == 1
    root = ElementTree.fromstring(joined_svg([panel_svg(EMPTY, name=f"p{k}") for k in range(4)], label="four"))
    assert len({panel.attrib["x"] for panel in root[1:]}) == len({panel.attrib["y"] for panel in root[1:]}) == 2


def drawn(panel: Panel) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[str]]:
    """The lines on the axes, and the legend's words."""
    with style(INK, salt="test"):
        figure = panel_figure(panel)
        [ax] = figure.axes
        labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        return [(np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in ax.lines], labels


def test_every_point_is_drawn_that_an_axis_has_a_place_for() -> None:
    lines, labels = drawn(ODD)
    assert len(lines) == 6  # one a curve, and the mark of a zero
    np.testing.assert_array_equal(lines[0][1], [1, NAN, 1e250, NAN, 1e54])
    assert not np.isfinite(lines[1][1]).any()
    np.testing.assert_array_equal(lines[4][0], [NAN, 1, 2])
    assert "nothing (▼: zero)" in labels
    assert "empty (nothing finite)" in labels
    assert [label for label in labels if "_hidden" in label] == [" _hidden <b>&amp; (cut at 10²⁵⁰)"]
    lines, labels = drawn(DRIFT)
    for curve, (x, y) in zip(DRIFT.curves, lines, strict=True):
        np.testing.assert_allclose(x, curve.x)
        np.testing.assert_allclose(y, curve.y)
    assert labels[:3] == ["tanh", "relu", "1/√M"]


def test_zero_stands_below_a_logarithmic_axis() -> None:
    tail = Panel("t", "x", "y", (Curve("share", (4, 16, 64, 256), (0.1, 0.01, 0, 0)), Curve("none", (4, 16), (0, 0))))
    with style(INK, salt="test"):
        [ax] = panel_figure(tail).axes
        zeros = [list(line.get_xdata()) for line in ax.lines if line.get_marker() == "v"]
        assert zeros == [[64, 256], [4, 16]]
        assert ax.get_xlim()[1] > 256
    assert drawn(tail)[1][:2] == ["share (▼: zero)", "none (▼: zero)"]
    linear = Panel("t", "x", "y", tail.curves, y_log=False)
    assert drawn(linear)[1][:2] == ["share", "none"]


@given(lists(text(alphabet="ab-_ é", max_size=45), max_size=8).map(" ".join))
def test_titles_are_whole_and_end_in_no_lonely_word(words_given: str) -> None:
    lines = wrapped(words_given, 38).split("\n")
    assert "".join("".join(lines).split()) == "".join(words_given.split())
    assert max(map(len, lines)) <= 39
    even = wrapped("NTK change after 100 steps (Figs. 3, 7)", 38).split("\n")
    assert even == ["NTK change after 100", "steps (Figs. 3, 7)"]


def test_a_report_of_several_commands_names_each_and_one_of_none_has_none(tmp_path: Path) -> None:
    other = dataclasses.replace(RECORDS[1], command="kontrast verify A.fig3 --json")
    by_hand = dataclasses.replace(RECORDS[2], command="")
    write_claims_report(tmp_path, [RECORDS[0], other, by_hand], SPEC)
    assert Page((tmp_path / "report.html").read_text()).text("pre") == f"{COMMAND} {other.command}"
    assert f"```sh\n{COMMAND}\n{other.command}\n```\n" in (tmp_path / "claims.md").read_text()
    write_claims_report(tmp_path, [by_hand], SPEC)
    assert "<pre>" not in (tmp_path / "report.html").read_text()
    assert "```" not in (tmp_path / "claims.md").read_text()


def test_guides_are_dashed_and_marks_differ() -> None:
    with style(INK, salt="test"):
        [ax] = panel_figure(DRIFT).axes
        assert [line.is_dashed() for line in ax.lines] == [False, False, True]
        [ax] = panel_figure(MANY).axes
        assert len({line.get_marker() for line in ax.lines}) == 10


def test_a_guide_a_line_has_its_lines_color_and_stands_beside_it() -> None:
    lines = [falling(f"M = {k}", -k) for k in (1, 2, 3)]
    guides = [falling(f"bound {k}", -k, "dashed") for k in (1, 2, 3)]
    panel = Panel("t", "x", "y", (*lines, *guides))
    with style(INK, salt="test"):
        [ax] = panel_figure(panel).axes
        colors = [line.get_color() for line in ax.lines]
    assert colors[:3] == colors[3:] == curve_colors(3)
    by_rows = np.reshape(drawn(panel)[1], (4, 2)).T.ravel()  # matplotlib fills columns first
    assert [label for label in by_rows if label] == ["M = 1", "bound 1", "M = 2", "bound 2", "M = 3", "bound 3"]


def test_a_point_alone_is_a_dot_and_long_lines_have_few_marks() -> None:
    alone = Curve("alone", (1, 2, 3, 4, 5), (1, NAN, 1, 1, NAN), "dashed")
    long = Curve("long", tuple(range(1, 1001)), (1.0,) * 1000)
    with style(INK, salt="test"):
        [ax] = panel_figure(Panel("t", "x", "y", (alone, long))).axes
    assert ax.lines[0].get_markevery() == [0]
    assert ax.lines[0].get_marker() == "o"
    assert 20 <= len(ax.lines[1].get_markevery()) <= 24


extreme = sampled_from([0.0, NAN, math.inf, -math.inf, 1e308, -1e308, 5e-324, 1e54, 1.0]) | floats()


@settings(max_examples=25)
@given(lists(extreme, max_size=5), sampled_from([True, False]), sampled_from([True, False]))
def test_any_numbers_are_drawn(values: list[float], x_log: bool, y_log: bool) -> None:
    curves = (Curve("a", tuple(values), tuple(reversed(values))), Curve("b", tuple(values), tuple(values), "plain"))
    root = ElementTree.fromstring(panel_svg(Panel("t", "x", "y", curves, x_log, y_log), name="p"))
    paths = " ".join(element.get("d", "") for element in root.iter())
    assert "nan" not in paths.lower()
    assert "inf" not in paths.lower()


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_badges_and_text_have_contrast_and_curves_differ_in_gray(built: Path) -> None:
    css = (built / "report.html").read_text().split("</style>")[0]
    badges = dict(re.findall(r"\.(\w+) \{ --badge: (#\w{6})", css))
    assert badges.keys() == {verdict.name.lower() for verdict in Verdict}
    assert min(contrast("#ffffff", badge) for badge in badges.values()) >= 4.5
    schemes = [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in re.findall(r":root \{([^}]*)\}", css)]
    assert len(schemes) == 2
    for scheme in schemes:
        assert min(contrast(scheme[a], scheme[b]) for a in ("ink", "quiet") for b in ("page", "raised")) >= 4.5
        assert min(contrast(color, scheme["page"]) for color in curve_colors(10)) > 2.2
    lightness = [116 * luminance(color) ** (1 / 3) - 16 for color in curve_colors(10)]
    assert max(np.diff(lightness)) < -2.5


def test_the_page_is_accessible(page: Page) -> None:
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("h1")) == 1
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.all("th"))
    assert all(a["role"] == "img" and len(a["aria-label"]) > 20 for a in page.all("svg"))


def test_no_record_is_a_report_too(tmp_path: Path) -> None:
    write_claims_report(tmp_path, [], SPEC)
    assert "No claim has been measured yet." in Page((tmp_path / "report.html").read_text()).text("header")
    assert "No claim has been measured yet." in (tmp_path / "claims.md").read_text()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "figures").write_text("a file in the way")
    with pytest.raises(StoreError, match=rf"{re.escape(str(tmp_path))}.*choose another folder"):
        write_claims_report(tmp_path, RECORDS[1:2], SPEC)
