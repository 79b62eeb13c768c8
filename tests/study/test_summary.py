"""The study's findings as one line, as a summary and as JSON."""

from __future__ import annotations

import json

import pytest

from kontrast.study import KernelVerdict, PCAVerdict, Thresholds, find, kernel, pca
from tests.report import studies
from tests.study.test_kernel import SPEC
from tests.study.test_kernel import study as made


def test_json_holds_every_number_and_no_nan() -> None:
    content = find(made(diverged_at={(0, 0): 50})).as_dict()
    text = json.dumps(content, allow_nan=False)
    back = json.loads(text)["similarities"]["cosine"]
    assert back["verdict"] == "diverges"
    assert back["diverged_at"] == [50.0, None, None, None]
    assert back["exponents"]["ntk_drift_max"]["exponent"] == pytest.approx(-0.8, abs=0.05)
    assert json.loads(text)["spec"] == SPEC.as_dict()


def test_the_verdict_has_a_phrase_for_every_run_and_what_training_buys() -> None:
    found = find(studies.study())
    assert found.pca is not None
    assert found.probes is not None
    assert found.probes.gain is not None
    assert found.verdict == (
        "cosine: a kernel machine; dot: training diverges, and no kernel describes where it goes; "
        f"orthonormal: PCA of its starting features; {found.probes.gain.sentence}"
    )
    assert found.summary.split("\n") == [
        found.verdict,
        *(one.sentence for one in found.similarities),
        found.pca.sentence,
    ]
    alike = find(studies.study(diverging={}, n_probe_samples=0, n_classes=0, parametrization="standard"))
    assert alike.verdict == "cosine and dot: a kernel machine; no downstream probes, the data has no labels"


def test_no_phrase_calls_a_run_a_kernel_machine_whose_loss_still_falls() -> None:
    found = find(studies.still_falling(studies.study()))
    assert found.verdict.startswith(
        "cosine: undertrained: the loss still falls; dot: training diverges, and no kernel describes where it goes; "
    )
    assert "a kernel machine predicts this model within" in found.similarities[0].sentence
    back = json.loads(json.dumps(found.as_dict(), allow_nan=False))["similarities"]["cosine"]
    assert back["verdict"] == "undertrained"
    assert back["still_falling"] == pytest.approx(0.5, abs=0.05)


def test_every_rule_has_its_verdict_and_its_thresholds() -> None:
    """No verdict without a rule, and no threshold that a reader would have to look up."""
    thresholds = Thresholds(tolerance=0.06, pca_tolerance=0.2)
    assert [rule.verdict for rule in kernel.RULES] == sorted(KernelVerdict, key=[r.verdict for r in kernel.RULES].index)
    assert {rule.verdict for rule in pca.RULES} == set(PCAVerdict)
    reasons = [rule.reason(thresholds) for rule in (*kernel.RULES, *pca.RULES)]
    assert not [reason for reason in reasons if "{" in reason]
    assert sum("0.06" in reason for reason in reasons) == 4
    assert sum("0.2" in reason for reason in reasons) == 7
    found = find(studies.study(), thresholds)
    assert found.similarities[0].reason == "at the widest network the kernel gap is at most a tolerance of 0.06"
    assert found.pca is not None
    assert "within a PCA tolerance of 0.2 of PCA of C̃(0)" in found.pca.reason


def test_learning_is_said_of_features_that_move() -> None:
    learned = find(studies.study(widths=(64, 256), scale={"pca_angle_start": 30}))
    assert "orthonormal: learning" in learned.verdict
    both = find(studies.study(similarities=("cosine",), scale={"kernel_gap": 20, "pca_angle_start": 30}, flat_gap=True))
    assert "cosine: learning" in both.verdict


def test_json_holds_the_pca_view_the_probes_and_the_thresholds() -> None:
    chosen = Thresholds(tolerance=0.06, pca_tolerance=0.2, probe_margin=0.03)
    content = json.loads(json.dumps(find(studies.study(), chosen).as_dict(), allow_nan=False))
    assert content["thresholds"] == {
        "tolerance": 0.06,
        "gap_tolerance": 0.15,
        "pca_tolerance": 0.2,
        "probe_margin": 0.03,
    }
    assert content["pca"]["verdict"] == "pca"
    assert content["pca"]["exponents"]["matrix_drift"]["exponent"] == pytest.approx(-1, abs=0.1)
    assert content["probes"]["means"]["dot"] == [None, None, None]
    assert content["probes"]["gain"]["buys"] in (True, False)
    assert content["verdict"].startswith("cosine: a kernel machine; ")
    absent = find(made()).as_dict()
    assert absent["pca"] is None
    assert "ntk parametrization" in absent["without_pca"]
    doubted = find(studies.study(pca_outlook="the PCA part will not arrive: no")).as_dict()
    assert doubted["pca_outlook"] == doubted["pca"]["outlook"] == "the PCA part will not arrive: no"
    assert absent["without_probes"] == "the data has no labels"


def test_a_result_of_format_3_is_judged_under_its_new_names() -> None:
    result = studies.study()
    spec = json.loads(result.attrs["spec"]) | {"format": 3}
    for new, old in (("views", "view"), ("label_curves", "labels"), ("n_ntk_points", "n_probes")):
        spec[old] = spec.pop(new)
    expected = find(result)
    result.attrs["spec"] = json.dumps(spec)
    found = find(result)
    assert found.summary == expected.summary
    assert (found.spec.format, found.spec.views) == (3, expected.spec.views)
