"""The numbers that turn measures into verdicts: shown in every report, and the user's to change."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kontrast.checks import is_number
from kontrast.errors import InputError


@dataclass(frozen=True)
class Thresholds:
    """The limits at which a kernel predicts, a subspace is PCA's and training pays.

    Attributes:
        tolerance: relative error of the outputs below which a kernel counts as predicting the model.
        gap_tolerance: kernel gap of a mini-batch run below which its linearised twin counts as predicting it. At unit
            length 0.15 is a mean cosine of 0.99.
        pca_tolerance: largest sine at which a subspace counts as that of PCA.
        probe_margin: accuracy by which training must beat every closed form of its dimension to count as better.
    """

    tolerance: float = 0.05
    gap_tolerance: float = 0.15
    pca_tolerance: float = 0.1
    probe_margin: float = 0.02

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            may_be_zero = name == "probe_margin"
            if not is_number(value) or not 0 <= value < 1 or (value == 0 and not may_be_zero):
                limits = "be at least 0 and below 1" if may_be_zero else "lie between 0 and 1"
                raise InputError(f"{name} must {limits}, got {value}; the default is {getattr(Thresholds, name)}")
