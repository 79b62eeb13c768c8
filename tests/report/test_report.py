"""The report as files: complete, the same every time, self-contained, and whatever the study holds."""

from __future__ import annotations

import importlib.resources
import itertools
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr

from kontrast.errors import StoreError
from kontrast.report import write_report
from kontrast.report.study.plates import plates
from kontrast.study import find, kernel, labels
from tests.report.reading import Page
from tests.report.studies import study

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "<script>alert(1)</script>\"'&amp;$x^2$ {{ 7*7 }}.npz"


def report(folder: Path, result: xr.Dataset) -> Page:
    return Page(write_report(folder, result, find(result)).read_text())


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


SMALL = {
    "widths": (64,),
    "n_seeds": 1,
    "similarities": ("cosine",),
    "parametrization": "standard",
    "n_probe_samples": 0,
}
CASES = {  # an oddness of one section stands beside an oddness of another
    "one step; label curves": study(widths=(64,), n_seeds=1, n_steps=1, similarities=("cosine",), label_curves=True),
    "two widths, one seed; a PCA that is met exactly": study(
        widths=(64, 128), n_seeds=1, scale=dict.fromkeys(("pca_angle_start", "matrix_drift", "frozen_gap"), 0.0)
    ),
    "thirteen widths; three hidden layers, one output; the kernel's prediction overflows": study(
        widths=tuple(2**k for k in range(2, 15)), n_seeds=1, similarities=("cosine",), depth=3, d_out=1, kernel_until=20
    ),
    "dot alone, diverged before any recorded step; some orthonormal runs diverge": study(
        similarities=("dot",),
        diverging={"dot": lambda w, s: 1},
        pca_diverging=lambda w, s: 20 if s == 1 and w > 16 else None,
    ),
    "some seeds diverge; the orthonormal run diverges at once": study(
        diverging={"cosine": lambda w, s: 20 if s == 1 and w > 16 else None}, pca_diverging=lambda w, s: 1
    ),
    "the kernel's prediction overflows at once; no labels": study(
        similarities=("cosine",), kernel_until=1, n_probe_samples=0, n_classes=0
    ),
    "zeros; no PCA view": study(
        similarities=("cosine",),
        parametrization="standard",
        scale={it.name: 0.0 for it in kernel.QUANTITIES if it.name != "output_move"},
    ),
    "huge; neither PCA nor probes": study(
        scale={"ntk_drift_max": 1e150, "loss": 1e150, "output_move": 1e150, "parameter_move": 1e150},
        parametrization="orthogonal",
        n_probe_samples=0,
    ),
    "a wild law through two widths; label curves where all diverged": study(
        **{**SMALL, "widths": (64, 65)}, label_curves=True
    ).pipe(
        lambda result: result.assign(
            **{it.name: result[it.name] * np.nan for it in labels.QUANTITIES},
            ntk_drift_max=result.ntk_drift_max * xr.DataArray([1e-100, 1e100], dims="width"),
        )
    ),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    report(folder, study())
    return folder


def test_a_report_is_its_page_its_pictures_and_a_png(built: Path) -> None:
    pictures = {picture.name for plate in plates(study(), find(study())) for picture in plate.pictures}
    assert {"study-width", "prediction-step", "pca-width", "features-step", "probes", "losses-dot"} < pictures
    assert {"movement-weights", "collapse-rank", "divergence"} < pictures
    assert content(built).keys() == {"report.html", "figures/study.png", *(f"figures/{name}.svg" for name in pictures)}
    assert len(Page((built / "report.html").read_text()).all("svg")) == len(pictures)


def test_the_same_result_gives_the_same_bytes_whatever_matplotlib_is_set_to(built: Path, tmp_path: Path) -> None:
    with mpl.rc_context({"font.size": 20, "svg.fonttype": "path", "xtick.direction": "in", "lines.markersize": 9}):
        before = dict(mpl.rcParams)
        report(tmp_path, study())
        assert dict(mpl.rcParams) == before
    assert content(tmp_path) == content(built)


def test_other_numbers_give_another_report_rebuilt_in_place(tmp_path: Path) -> None:
    report(tmp_path, study(**SMALL))
    before = content(tmp_path)
    report(tmp_path, study(**SMALL, scale={"kernel_gap": 1.5}))
    after = content(tmp_path)
    assert after.keys() == before.keys()
    changed = {name for name, data in after.items() if data != before[name]}
    assert changed == {"report.html", "figures/prediction-width.svg", "figures/prediction-step.svg"}


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "figures").write_text("a file in the way")
    monkeypatch.setattr("kontrast.report.study_files", lambda result, findings: {"figures/study.png": b"drawn"})
    with pytest.raises(StoreError, match=re.escape(str(tmp_path))):
        report(tmp_path, study(**SMALL))


def test_the_png_is_a_picture_for_a_readme(built: Path) -> None:
    data = (built / "figures" / "study.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
    assert 1200 <= width <= 1600
    assert 500 <= height <= 800
    assert b"tEXt" not in data  # no software, no date


@pytest.mark.parametrize("name", CASES)
def test_odd_studies_are_reported_without_a_warning(name: str, tmp_path: Path) -> None:
    result = CASES[name]
    page = report(tmp_path, result)
    check_page(page)
    for path in (tmp_path / "figures").glob("*.svg"):
        check_svg(path, page)
    assert ("divergence" in content_names(tmp_path)) == bool(result.diverged.any())
    assert "nan" not in page.text().lower().replace("a diverged run is nan", "")
    assert "inf" not in page.text().lower().split()


def content_names(folder: Path) -> set[str]:
    return {Path(name).stem for name in content(folder)}


def check_page(page: Page) -> None:
    """Nothing is loaded from anywhere, and every id is one element's."""
    for tag, attributes in page.tags:
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "base", "foreignobject"}
        for key, value in attributes.items():
            assert not key.startswith("on"), f"{tag} runs {key}"
            if key in ("href", "src", "srcset", "action", "data", "xlink:href"):
                assert value.startswith("#"), f"{tag} refers to {value}"
            if key not in ("xmlns", "xmlns:xlink", "aria-label"):
                assert "//" not in value
            for reference in re.findall(r"url\(([^)]*)\)", value):
                assert reference.startswith("#")
    styles = "".join(data for within, data in page.texts if "style" in within)
    assert "@import" not in styles
    assert "url(" not in styles
    ids = Counter(attributes["id"] for _, attributes in page.tags if "id" in attributes)
    assert ids.total() > 20
    assert not [name for name, count in ids.items() if count > 1]
    used = {attributes["href"][1:] for _, attributes in page.tags if "href" in attributes}
    used |= {
        name
        for _, attributes in page.tags
        for value in attributes.values()
        for name in re.findall(r"url\(#(.*?)\)", value)
    }
    assert used <= ids.keys()


def check_svg(path: Path, page: Page) -> None:
    root = ElementTree.parse(path).getroot()
    assert root.tag == f"{SVG}svg"
    assert root.get("viewBox")
    assert root.get("aria-label") in [attributes["aria-label"] for attributes in page.all("svg")]
    text = path.read_text()
    assert "currentColor" in text
    assert "#010203" not in text
    assert "nan" not in " ".join(element.get("d", "") for element in root.iter()).lower()
    width, height = (float(part) for part in root.attrib["viewBox"].split()[2:])
    for element in root.iter(f"{SVG}text"):
        moved = re.search(r"translate\((\S+) (\S+)\)", element.get("transform", ""))
        x, y = moved.groups() if moved else (element.attrib["x"], element.attrib["y"])
        assert 0 <= float(x) <= width
        assert 0 <= float(y) <= height


def test_a_data_set_may_have_any_name(tmp_path: Path) -> None:
    name = f"{EVIL} ../数据/étude ✓ a\x01b\udcff\n$\\frac{{1}}{{2}}$.npy"
    result = study(data=name, views=EVIL, activation="<b>relu</b>", **SMALL)
    page = report(tmp_path, result)
    check_page(page)
    assert not page.all("b")
    assert EVIL in page.text("td")
    shown = "".join(character if character.isprintable() else "\ufffd" for character in name)
    assert shown in page.text("h1")
    assert shown in page.text("title")
    assert shown in page.text("td")
    for attributes in page.all("svg"):
        assert shown in attributes["aria-label"]
    for path in (tmp_path / "figures").glob("*.svg"):
        root = ElementTree.parse(path).getroot()
        assert shown in root.attrib["aria-label"]
        assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
            "svg",
            "g",
            "path",
            "use",
            "defs",
            "clipPath",
            "rect",
            "text",
        }


def test_the_templates_are_part_of_the_package() -> None:
    for package in ("study", "claims"):
        assert importlib.resources.files(f"kontrast.report.{package}").joinpath("page.html").is_file()


def test_the_page_is_accessible(built: Path) -> None:
    page = Page((built / "report.html").read_text())
    assert page.all("html")[0]["lang"] == "en"
    assert any(meta.get("name") == "viewport" for meta in page.all("meta"))
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.all("th"))
    assert all(a["role"] == "img" and len(a["aria-label"]) > 20 and a["viewbox"] for a in page.all("svg"))
    assert len(page.all("figure")) == len(page.all("figcaption")) == 9
    assert not [a for a in page.all("svg") if "width" in a or "height" in a]  # so that CSS scales them


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_text_has_contrast_in_both_schemes(built: Path) -> None:
    css = (built / "report.html").read_text().split("</style>")[0]
    schemes = [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in re.findall(r":root \{([^}]*)\}", css)]
    assert len(schemes) == 2
    assert luminance(schemes[0]["page"]) > 0.9
    assert luminance(schemes[1]["page"]) < 0.05
    for scheme in schemes:
        for ink in ("ink", "quiet"):
            for ground in ("page", "raised"):
                assert contrast(scheme[ink], scheme[ground]) >= 4.5
    badges = re.findall(r"--badge: (#\w{6})", css)
    assert len(badges) == 10
    assert min(contrast("#ffffff", badge) for badge in badges) >= 4.5


def test_colors_stand_out_on_both_pages_and_keep_their_order_in_gray(built: Path) -> None:
    from kontrast.report.axes import COLORS, width_colors

    for similarity, color in COLORS.items():
        assert min(contrast(color, "#ffffff"), contrast(color, "#14171b")) > 3
        ramp = width_colors(similarity, 6)
        assert min(min(contrast(c, "#ffffff"), contrast(c, "#14171b")) for c in ramp) > 2.2
        lightness = [116 * luminance(c) ** (1 / 3) - 16 for c in ramp]
        assert max(np.diff(lightness)) < -5
