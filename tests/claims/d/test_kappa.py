"""Claim D.kappa is measured otherwise once a prediction or a spectrum is broken."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kontrast.claims.d import kappa
from kontrast.learnability import Spectrum, hypercube_spectrum, predict_learning
from tests.claims.breaks import Break, times, with_keyword
from tests.claims.sections import Sections, each_of

PREDICTED = sys.modules[predict_learning.__module__]
DOMAINS = sys.modules[hypercube_spectrum.__module__]


def even_multiplicities(real: Any) -> Any:
    """Every level of the hypercube as large as any other."""

    def spectrum(kernel: Any, d: int) -> Spectrum:
        levels = real(kernel, d)
        return Spectrum(levels.eigenvalues, torch.full_like(levels.counts, 2**d / (d + 1)))

    return spectrum


@pytest.fixture(scope="module")
def sections() -> Iterator[Sections]:
    """Fewer sizes, which are enough to tell what is broken from what is not."""
    names = ["_cube_study", "_sphere_study", "_digits_study", "_contrastive_study", "_other_domains"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kappa, "DIGIT_SAMPLES", (20, 100, 350))
        patch.setattr(kappa, "SHOWN", kappa.SAMPLES)
        yield Sections("D.kappa", kappa, names)


@each_of(
    [
        (kappa, "predict_learning", with_keyword(replacement=True), "_cube_study"),
        (PREDICTED, "_root", times(1.3), "_cube_study"),
        (kappa, "predict_at_points", with_keyword(ridge=1.0), "_digits_study"),
        (PREDICTED, "_overfitting", times(1.2), "_cube_study"),
        (kappa, "hypercube_spectrum", even_multiplicities, "_cube_study"),
        (
            DOMAINS,
            "_harmonics",
            lambda real: lambda d, k: real(d, k) + (d == 8) * 5 * k,
            "_sphere_study",
            "_other_domains",
        ),
    ]
)
def test_a_broken_implementation_changes_the_verdict(
    where: Any, name: str, broken: Break, rest_on_it: list[str], sections: Sections
) -> None:
    sections.assert_noticed(where, name, broken, *rest_on_it)
