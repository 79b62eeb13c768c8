"""The claims of paper D on learnability are measured otherwise once the code they rest on is broken."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from kontrast.claims import Setting, measure, select
from kontrast.claims.d import learnability, prediction
from kontrast.learnability import Spectrum, hypercube_spectrum, measure_learning, predict_learning
from tests.claims.breaks import Break, assert_noticed, each_of, times, with_keyword

MEASURED = sys.modules[measure_learning.__module__]
PREDICTED = sys.modules[predict_learning.__module__]
DOMAINS = sys.modules[hypercube_spectrum.__module__]


def transposed(real: Any) -> Any:
    """T^T has the same diagonal and trace, but is the projector of another space."""
    return lambda *args, **kwargs: real(*args, **kwargs).mT


def flipped(real: Any) -> Any:
    """L of prediction and target the wrong way round."""
    return lambda target, predicted: real(predicted, target)


def without_last_draw(real: Any) -> Any:
    return lambda M, n, replacement, generator: real(M, n, replacement, generator)[: max(n - 1, 1)]


def without_its_own(real: Any) -> Any:
    """(40) for i = j too."""

    def derivative(*args: Any, **kwargs: Any) -> Tensor:
        found = real(*args, **kwargs)
        found.diagonal().neg_()
        return found

    return derivative


def even_multiplicities(real: Any) -> Any:
    """Every level of the hypercube as large as any other."""

    def spectrum(kernel: Any, d: int) -> Spectrum:
        levels = real(kernel, d)
        return Spectrum(levels.eigenvalues, torch.full_like(levels.counts, 2**d / (d + 1)))

    return spectrum


BROKEN: list[tuple[str, Any, str, Break]] = [
    ("D.nofree", learnability, "transfer_matrix", times(1 + 1e-9)),
    ("D.nofree", learnability, "measure_learning", with_keyword(ridge=1e-8)),
    ("D.nofree", learnability, "measure_learning", with_keyword(replacement=True)),
    ("D.nofree", MEASURED, "learnability", flipped),
    ("D.nofree", MEASURED, "_draw", without_last_draw),
    ("D.mono", learnability, "transfer_matrix", transposed),
    ("D.mono", learnability, "transfer_matrix", times(1 + 1e-6)),
    ("D.mono", learnability, "transfer_derivative", transposed),
    ("D.mono", learnability, "transfer_derivative", without_its_own),
    ("D.mono", learnability, "transfer_derivative", with_keyword(ridge=0.0)),
    ("D.kappa", prediction, "predict_learning", with_keyword(replacement=True)),
    ("D.kappa", PREDICTED, "_root", times(1.3)),
    ("D.kappa", prediction, "predict_at_points", with_keyword(ridge=1.0)),
    ("D.kappa", PREDICTED, "_overfitting", times(1.2)),
    ("D.kappa", prediction, "hypercube_spectrum", even_multiplicities),
    ("D.kappa", DOMAINS, "_harmonics", lambda real: lambda d, k: real(d, k) + (d == 8) * 5 * k),
]


@each_of(BROKEN)
def test_a_broken_implementation_changes_the_verdict(
    claim_id: str, where: Any, name: str, broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_noticed(claim_id, where, name, broken, monkeypatch, n_seeds=1)


@pytest.mark.gpu
@pytest.mark.parametrize("claim_id", ["D.nofree", "D.mono"])
def test_on_a_gpu(claim_id: str) -> None:
    (claim,) = select([claim_id])
    assert measure(claim, Setting(scale="quick", device="cuda")).verdict is claim.recorded
