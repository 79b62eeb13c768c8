"""The page says what the findings say, and its command makes the study again."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import kontrast.study
from kontrast.cli import app
from kontrast.report.command import OPTIONS, command
from kontrast.report.study.page import render
from kontrast.study import Findings, KernelVerdict, PCAVerdict, StudySpec, Thresholds, find, kernel, pca
from kontrast.study.quantities import share, short
from kontrast.study.tables import accuracy, count
from tests.report.reading import Page
from tests.report.studies import later_when_wider, still_falling, study


def page_of(result: Any, **options: float) -> tuple[Page, Findings]:
    findings = find(result, Thresholds(**options))
    return Page(render(result, findings, (FAKE,), {})), findings


@dataclasses.dataclass(frozen=True)
class FakePlate:
    name: str = "study"
    title: str = "Pictures"
    caption: str = "None here."
    pictures: tuple[()] = ()


FAKE: Any = FakePlate()
COLUMNS = {  # heading → quantity, and how its values are written
    "NTK drift, max": ("ntk_drift_max", short),
    "NTK drift, relative": ("ntk_drift_fro", share),
    "kernel gap": ("kernel_gap", share),
    "outputs moved": ("output_move", share),
    "weights moved": ("parameter_move", short),
    "effective rank": ("effective_rank", short),
    "spread": ("spread", share),
}
# Dimensions; all other embeddings of the made-up study have those of its orthonormal run, 10.
SIZES = {"pixels": 784, **dict.fromkeys(("cosine", "dot", "pixel-pca"), StudySpec().d_out)}
PCA_COLUMNS = {
    "sine to C̃(0)": ("pca_angle_start", short),
    "sine to C̃(t)": ("pca_angle_now", short),
    "sine, frozen": ("pca_angle_frozen", short),
    "C̃ drift": ("matrix_drift", share),
    "frozen gap": ("frozen_gap", share),
    "eigengap now": ("eigengap", short),
}


def rows_after(page: Page, caption: str) -> list[list[str]]:
    """The rows of the table with that caption, as strings."""
    rows: list[list[str]] = []
    within_table = False
    for within, data in page.texts:
        if "caption" in within or "table" not in within:
            within_table = caption in data and "table" in within
        if within_table and "tr" in within and within[-1] == "tr":
            continue
        if within_table and "tr" in within:
            rows[-1].append(data.strip())
        elif within_table and "table" in within:
            rows.append([])
    return [[cell for cell in row if cell] for row in rows if any(row)]


def test_tables_hold_the_means_and_the_exponents() -> None:
    page, findings = page_of(study())
    for found in findings.similarities:
        rows = rows_after(page, f"{found.similarity.capitalize()} similarity, learning rate {found.learning_rate:g}")
        assert f"at step {found.step}" in page.text("caption")
        body = {row[0]: dict(zip(rows[0][1:], row[1:], strict=False)) for row in rows[1:]}
        for i, width in enumerate(found.widths):
            for heading, (name, write) in COLUMNS.items():
                assert body[str(width)][heading] == write(found.means[name][i])
            at = f"{found.diverged[i]} of 3, step {found.diverged_at[i]:.0f}" if found.diverged[i] else "–"
            assert body[str(width)]["seeds diverged"] == at
        laws = " ".join(rows[-1])
        for law in found.exponents.values():
            assert str(law) in laws
        assert laws.count("[") == len(found.exponents) >= 4


def test_numbers_keep_three_digits() -> None:
    assert [short(v) for v in (2.6, 28.2371, 100.2, 1234.0, 0.0001)] == ["2.60", "28.2", "100", "1.23e+03", "0.000100"]
    assert [share(v) for v in (0.13387, 1.1566, 12.0, float("nan"))] == ["13.39%", "115.66%", "1.2e+01", "–"]


def test_verdicts_are_the_findings_words() -> None:
    page, findings = page_of(study())
    for found in findings.similarities:
        assert found.verdict.value in page.text("span")
        assert found.sentence.removeprefix(f"{found.similarity}: ") in page.text("p")
    assert findings.pca is not None
    assert findings.pca.sentence.removeprefix("orthonormal: ") in page.text("p")
    assert findings.verdict[1:] in page.text("p")
    badges = [a["class"].split()[1] for a in page.all("span") if "badge" in a.get("class", "")]
    assert badges == [found.verdict.name.lower() for found in (*findings.similarities, findings.pca)]


VERDICTS = {
    KernelVerdict.DIVERGES: study(similarities=("cosine",), diverging={"cosine": later_when_wider}),
    KernelVerdict.UNDERTRAINED: still_falling(study(similarities=("cosine",))),
    KernelVerdict.STILL: study(similarities=("cosine",), scale={"output_move": 0.01}),
    KernelVerdict.KERNEL: study(similarities=("cosine",)),
    KernelVerdict.KERNEL_WHEN_WIDER: study(similarities=("cosine",), scale={"kernel_gap": 20}),
    KernelVerdict.LEARNS: study(similarities=("cosine",), scale={"kernel_gap": 20}, flat_gap=True),
    KernelVerdict.UNDECIDED: study(similarities=("cosine",), widths=(64,), scale={"kernel_gap": 20}),
}


@pytest.mark.parametrize("verdict", KernelVerdict)
def test_the_rule_that_decided_is_marked(verdict: KernelVerdict) -> None:
    page, findings = page_of(VERDICTS[verdict])
    assert findings.similarities[0].verdict is verdict
    assert page.text("strong").startswith("(decided cosine)")
    assert page.text("strong").count("cosine") == 1
    items = page.text("ol").split(";")
    [marked] = [item for item in items if "(decided cosine)" in item]
    assert verdict.value in marked
    assert findings.similarities[0].reason in marked


def test_rules_stand_in_the_order_in_which_they_are_asked() -> None:
    """A study that meets the conditions of two rules is judged by the one that stands first."""
    order = [rule.verdict for rule in kernel.RULES]
    assert set(order) == set(KernelVerdict)
    both = {
        (KernelVerdict.DIVERGES, KernelVerdict.STILL): study(
            similarities=("cosine",), diverging={"cosine": later_when_wider}, scale={"output_move": 1e-9}
        ),
        (KernelVerdict.DIVERGES, KernelVerdict.UNDERTRAINED): still_falling(
            study(similarities=("cosine",), diverging={"cosine": later_when_wider})
        ),
        (KernelVerdict.UNDERTRAINED, KernelVerdict.STILL): still_falling(
            study(similarities=("cosine",), scale={"output_move": 0.01})
        ),
        (KernelVerdict.STILL, KernelVerdict.KERNEL): study(similarities=("cosine",), scale={"output_move": 0.01}),
        (KernelVerdict.KERNEL, KernelVerdict.KERNEL_WHEN_WIDER): study(similarities=("cosine",)),
    }
    for (first, second), result in both.items():
        assert find(result).similarities[0].verdict is first
        assert order.index(first) < order.index(second)


def test_a_kernel_that_overflows_at_once_is_no_kernel() -> None:
    page, findings = page_of(study(similarities=("cosine",), kernel_until=1))
    assert findings.similarities[0].verdict is KernelVerdict.DIVERGES
    assert "an overflow too early for means" in page.text("caption")
    head, row, *_ = rows_after(page, "Cosine similarity")
    assert row == ["16", *["–"] * (len(head) - 1)]


def test_other_thresholds_are_named_and_repeated() -> None:
    page, findings = page_of(study(), tolerance=0.125, pca_tolerance=0.3, probe_margin=0.07)
    for words in ("a tolerance of 0.125", "a PCA tolerance of 0.3"):
        assert words in page.text("ol")
    assert "a probe margin of 0.07" in page.text("p")
    options = "--tolerance 0.125 --pca-tolerance 0.3 --probe-margin 0.07"
    every = options.replace("--pca", "--gap-tolerance 0.15 --pca")
    assert f"kontrast report FOLDER {every}" in page.text("pre")
    assert command(findings).text.endswith(options)
    rows = {row[0]: row[1:] for row in rows_after(page, "Every threshold")}
    assert rows["pca_tolerance"] == ["0.3", "--pca-tolerance"]


def test_the_pca_table_holds_the_means_and_the_exponents() -> None:
    page, findings = page_of(study())
    assert findings.pca is not None
    head, *rows = rows_after(page, "Orthonormal output layer")
    body = {row[0]: dict(zip(head[1:], row[1:], strict=False)) for row in rows}
    for i, width in enumerate(findings.pca.widths):
        for heading, (name, write) in PCA_COLUMNS.items():
            assert body[str(width)][heading] == write(findings.pca.means[name][i])
    laws = " ".join(rows[-1])
    assert all(str(law) in laws for law in findings.pca.exponents.values())
    assert laws.count("[") == len(findings.pca.exponents) >= 4


def test_the_probe_table_holds_means_and_deviations() -> None:
    page, findings = page_of(study())
    found = findings.probes
    assert found is not None
    head, *rows = rows_after(page, "Linear probes")
    assert head == [
        "width",
        *(name if name == "chance" else f"{name} ({SIZES.get(name, 10)})" for name in found.embeddings),
    ]
    for i, row in enumerate(rows):
        assert row[1:] == [accuracy(found.means[name][i], found.deviations[name][i]) for name in found.embeddings]
        assert row[1 + found.embeddings.index("dot")] == "–"  # it diverged
    assert "none of them was contrasted" in page.text("p")
    crowded = study()
    crowded["probe_overlap"] += 30
    assert "30 of these were contrasted too" in page_of(crowded)[0].text("p")


def test_label_tables_hold_what_was_measured_and_predicted() -> None:
    page, findings = page_of(study(label_curves=True))
    found = findings.labels
    assert found is not None
    tables = {
        "test error": ("label_error", lambda value: f"{value:.3f}"),
        "test accuracy in per cent": ("label_accuracy", lambda value: f"{100 * value:.1f}"),
    }
    for caption, (quantity, write) in tables.items():
        measured, predicted = found.means[quantity], found.means[f"{quantity}_predicted"]
        head, *rows = rows_after(page, caption + (", as a share" if "error" in caption else ", measured"))
        assert head == ["labels", *map(str, found.n_labels)]
        assert [row[0] for row in rows] == list(found.representations)
        for name, *cells in rows:
            pairs = zip(measured[name], predicted[name], strict=True)
            assert cells == ["–" if name == "dot" else f"{write(one)} / {write(two)}" for one, two in pairs]
    rows = {row[0]: row[1:] for row in rows_after(page, "Labels needed for an accuracy of")[1:]}
    assert rows["measured"] == [count(found.needed[name]) for name in found.representations]
    assert rows["predicted"] == [count(found.predicted_needed[name]) for name in found.representations]
    assert found.sentence in page.text("p")
    assert "All are of 600 samples" in page.text("p")
    plain, _ = page_of(study())
    assert "Labels needed" not in plain.text()


def test_numbers_of_labels_have_two_digits() -> None:
    assert [count(n) for n in (7.4, 46.2, 238.0, float("nan"))] == ["7", "46", "240", "–"]


def test_accuracies_are_written_in_per_cent() -> None:
    assert [accuracy(*pair) for pair in ((0.8123, 0.0149), (1.0, float("nan")), (float("nan"), 0.1))] == [
        "81.2±1.5",
        "100.0",
        "–",
    ]


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"n_probe_samples": 0, "n_classes": 0}, "No downstream probes: the data has no labels"),
        ({"n_probe_samples": 0, "n_classes": 1}, "No downstream probes: the data's labels are all of one class"),
        ({"n_probe_samples": 0}, "No downstream probes: they were switched off"),
        ({"parametrization": "standard"}, "No PCA view: paper A's network (7) is one in ntk parametrization"),
        ({"pca_d_out": 17}, "No PCA view: 17 orthonormal columns need a width of 17, and one is 16"),
        ({"n_samples": 5}, "No PCA view: 10 points have no unique PCA of 10 dimensions"),
    ],
    ids=str,
)
def test_what_is_missing_is_said(fields: dict[str, Any], words: str) -> None:
    page, _ = page_of(study(**fields))
    assert words in page.text("p")


PCA_VERDICTS = {
    PCAVerdict.DIVERGES: study(pca_diverging=lambda width, seed: 20),
    PCAVerdict.UNDEFINED: study().assign(pca_not_unique=study().pca_not_unique + 1),
    PCAVerdict.PCA: study(),
    PCAVerdict.PCA_WHEN_WIDER: study(scale={"pca_angle_start": 30}),
    PCAVerdict.PCA_OF_LEARNED_FEATURES: study(widths=(64, 256), scale={"pca_angle_start": 30}),
    PCAVerdict.STILL: study(scale=dict.fromkeys(("pca_angle_start", "pca_angle_now", "pca_angle_frozen"), 300.0)).pipe(
        lambda result: result.assign(pca_loss=result.pca_loss * 0 - 0.3)
    ),
    PCAVerdict.PCA_UNDERWAY: study(
        scale=dict.fromkeys(("pca_angle_start", "pca_angle_now", "pca_angle_frozen"), 300.0) | {"frozen_gap": 0.01}
    ),
    PCAVerdict.UNDERTRAINED: study(
        scale=dict.fromkeys(("pca_angle_start", "pca_angle_now", "pca_angle_frozen", "frozen_gap"), 300.0)
    ),
    PCAVerdict.NOT_CONVERGED: study(
        widths=(64, 256), scale=dict.fromkeys(("pca_angle_start", "pca_angle_now", "frozen_gap"), 300.0)
    ),
}


@pytest.mark.parametrize("verdict", PCAVerdict)
def test_the_pca_rule_that_decided_is_marked(verdict: PCAVerdict) -> None:
    assert [rule.verdict for rule in pca.RULES] == list(PCA_VERDICTS)
    page, findings = page_of(PCA_VERDICTS[verdict])
    assert findings.pca is not None
    assert findings.pca.verdict is verdict
    [marked] = [item for item in page.text("ol").split(";") if "(decided orthonormal)" in item]
    assert verdict.value in marked
    assert findings.pca.reason in marked


def test_every_field_of_the_spec_is_in_the_setting() -> None:
    result = study(depth=3, negatives="all", temperature=0.25, link="softmax")
    page, findings = page_of(result)
    rows = {row[0]: row[1:] for row in rows_after(page, "Every field")}
    assert rows.keys() - {"field"} == {field.name for field in dataclasses.fields(StudySpec)}
    assert rows["depth"] == ["3", "--depth"]
    assert rows["widths"] == ["16, 64, 256", "--widths"]
    assert rows["temperature"][0] == str(findings.spec.temperature)
    assert "3 hidden layers" in page.text("header")


def test_every_array_of_the_result_is_described() -> None:
    result = study()
    page, _ = page_of(result)
    for name in result.data_vars:
        assert str(name) in page.text("code")
    for name, size in result.sizes.items():
        assert f"{name} ({size})" in page.text("p")


SPECS = {
    "the default": study(widths=StudySpec().widths, n_seeds=StudySpec().n_seeds, n_steps=StudySpec().n_steps),
    "everything else": study(
        data="my data/it's $HOME <b>.npz",
        split="all",
        image_shape=(3, 8, 8),
        n_samples=20,
        n_ntk_points=20,
        views="crop:0.25,1.0+flip",
        n_positives=2,
        negatives="all",
        similarities=("dot",),
        link="softmax",
        temperature=0.1,
        delta=0.5,
        activation="tanh",
        depth=3,
        parametrization="standard",
        d_out=4,
        device="cpu",
        dtype="float32",
        learning_rates=(0.003,),
        pca_learning_rate=0.5,
        n_probe_samples=30,
    ),
    "one rate for both": study(learning_rates=(0.02, 0.02)),
    "a rate for each": study(learning_rates=(0.2, 1e-05)),
    "dot before cosine": study(similarities=("dot", "cosine")),
    "label curves": study(label_curves=True),
    "a table": study(data="my table.csv", label_column="the kind", standardize=False, views="relative-noise:0.1"),
    "an archive": study(data="mine.npz", x_key="points", y_key="kind", standardize=True),
    "a path with a dash": study(data="-data.npz", negatives=3),
}


def parsed(text: str, monkeypatch: pytest.MonkeyPatch) -> StudySpec:
    """The spec that the real command line makes of the text, caught before it is prepared and run."""
    caught: list[StudySpec] = []

    class CaughtError(Exception):
        pass

    def catch(spec: StudySpec) -> StudySpec:
        caught.append(spec)
        raise CaughtError

    monkeypatch.setattr(kontrast.study, "prepare", catch)
    words = shlex.split(text)
    assert words[0] == "kontrast"
    outcome = CliRunner().invoke(app, words[1:])
    assert isinstance(outcome.exception, CaughtError), outcome.output
    return caught[0]


@pytest.mark.parametrize("name", SPECS)
def test_the_command_makes_the_spec_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page, findings = page_of(SPECS[name])
    made = command(findings)
    assert made.complete
    assert made.text in page.text("pre")
    again, spec = parsed(made.text, monkeypatch), findings.spec
    automatic = dataclasses.replace(
        spec,
        data_digest="",
        pca_outlook="",
        n_ntk_points=StudySpec().n_ntk_points,
    )
    assert again == automatic


def test_the_default_study_has_a_short_command() -> None:
    expected = (
        "kontrast study --loss none --views crop:0.5,1.0 --learning-rate 0.1,0.00284 --pca-learning-rate 1.0 "
        "--pca-d-out 10 --pca-steps 40 --probe-samples 500"
    )
    assert command(find(SPECS["the default"])).text == expected


@pytest.mark.parametrize("fields", [{"n_ntk_points": 7}, {"data": "\x01.npz"}])
def test_what_no_option_can_say_is_admitted(fields: dict[str, Any]) -> None:
    page, findings = page_of(study(**fields))
    assert not command(findings).complete
    assert "does not make the study again" in page.text("strong")
    assert "kontrast study --resume" in page.text("code")


def test_every_option_exists() -> None:
    known = CliRunner().invoke(app, ["study", "--help"], env={"COLUMNS": "200"}).output
    assert set(OPTIONS.values()) <= set(re.findall(r"--[a-z-]+", known))
    assert OPTIONS.keys() <= {field.name for field in dataclasses.fields(StudySpec)}


def test_the_reproduction_by_spec_alone_is_true(tmp_path: Path) -> None:
    """A folder that holds only spec.json is one that the store accepts for that spec."""
    from kontrast.runs import Store

    spec = find(study()).spec
    Store(tmp_path / "first").claim(spec.as_dict())
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "spec.json").write_bytes((tmp_path / "first" / "spec.json").read_bytes())
    Store(tmp_path / "second").claim(spec.as_dict())
    assert StudySpec.from_dict(Store(tmp_path / "second").spec()) == spec
