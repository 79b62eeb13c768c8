"""The pages in a real browser: on a phone they never scroll sideways, and their pictures are there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kontrast.diagnosis import Diagnosis
from kontrast.report import write_claims_report, write_diagnosis, write_report
from kontrast.study import find
from tests.report.claims.test_page import RECORDS, SPEC
from tests.report.diagnosis.small import diagnosed
from tests.report.maps import map_study
from tests.report.studies import study

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
OPTIONS += "--disable-component-update --disable-sync --allow-file-access-from-files --virtual-time-budget=5000"


@pytest.fixture(scope="module", params=["study", "map", "claims", "diagnosis"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if CHROMIUM is None:
        pytest.skip("no chromium; install it (apt-get install chromium) to look at the page in a browser")
    if request.param == "claims":
        return write_claims_report(tmp_path_factory.mktemp("page"), RECORDS, SPEC)
    if request.param == "diagnosis":
        named = diagnosed().result.assign_attrs(name="a.very.long.name." + "without_a_single_space" * 8)
        return write_diagnosis(tmp_path_factory.mktemp("page"), Diagnosis(named))
    long_name = "a/very/long/path/" + "without_a_single_space" * 8 + ".npz"
    if request.param == "map":
        result = map_study(data=long_name, n_seeds=2, label_curves=True)
    else:
        result = study(data=long_name, widths=(64, 128, 256, 512, 1024, 2048), n_seeds=2, label_curves=True)
    return write_report(tmp_path_factory.mktemp("page"), result, find(result))


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_never_scrolls_sideways(width: int, page: Path, tmp_path: Path) -> None:
    frame = tmp_path / "frame.html"
    # A window cannot be as narrow as a phone; a frame can.
    frame.write_text(
        f"<iframe id=f src='{page.as_uri()}' style='width:{width}px;height:900px'></iframe><output id=o></output>"
        "<script>f.onload = () => { const d = f.contentDocument, e = d.documentElement;"
        "const r = [e.scrollWidth, e.clientWidth];"
        "const shown = [...d.querySelectorAll('svg')].filter(s => s.checkVisibility());"  # of the map's cells, one is
        "r.push(100 * Math.min(...shown.map(s => s.getBoundingClientRect().width / s.viewBox.baseVal.width)));"
        "r.push(Math.max(...shown.map(s => s.getBoundingClientRect().right)));"
        "o.textContent = 'measured ' + r.map(Math.round).join(' '); };</script>"
    )
    command = [CHROMIUM, *OPTIONS.split(), f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", frame.as_uri()]
    outcome = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    measured = re.search(r"measured (\d+) (\d+) (\d+) (\d+)", outcome.stdout)
    assert measured, outcome.stderr[-2000:]
    content, window, percent, rightmost = (int(part) for part in measured.groups())
    assert window in range(width - 20, width + 1)
    assert content <= window
    assert percent >= 100  # a picture's own text is 10 points high or more: no smaller than 10 pixels
    assert rightmost <= window
