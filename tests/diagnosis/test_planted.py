"""What was planted is found: one case of each kind with small settings, all of them as a user would call it."""

from __future__ import annotations

import pytest

from kontrast.diagnosis import embeddings
from tests.diagnosis.planted import HEALTHY, PLANTED, diagnosed, mistakes, told

SMALL = {"n_samples": 128, "n_points": 16, "n_splits": 10, "control": False}
QUICK = (
    "lazy",
    "pca",
    "useful: MLP",
    "learning: MLP",
    "undertrained: three steps",
    "healthy: MLP, T = 0.5",
    "healthy: ConvNet, T = 0.1",
    "healthy: VICReg",
    "dimensional: one direction",
    "complete: no stop-gradient",
    "complete: alignment, ConvNet",
    "useless: ruinous views",
    "augmentation off: ConvNet",
    "temperature 20: MLP",
    "temperature 0.005: ConvNet",
)


@pytest.mark.parametrize("name", QUICK)
def test_what_was_planted_is_found_with_small_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "FEATURES", 256)
    case = PLANTED[name](0)
    found = diagnosed(case, **SMALL)
    assert mistakes(case, told(found)) == []
    assert found.exit_code == {"none": 4 if found.pays == "no" else 0}.get(found.collapse, 3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_is_found(name: str, seed: int) -> None:
    case = PLANTED[name](seed)
    assert mistakes(case, told(diagnosed(case))) == []


def test_each_kind_of_case_is_among_the_quick_ones() -> None:
    kinds = {name.partition(":")[0] for name in PLANTED}
    assert {name.partition(":")[0] for name in QUICK} == kinds
    assert len(HEALTHY) >= 5


def test_a_mistake_is_seen() -> None:
    case = PLANTED["undertrained: three steps"](0)
    said = {"regime": "learning", "collapse": "none", "buys": False, "blamed": ("loss",)}
    assert mistakes(case, said) == ["regime: learning, expected undertrained"]
    assert mistakes(case, said | {"regime": "undertrained"}) == []
