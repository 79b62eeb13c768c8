"""The numbers that turn measures into verdicts: shown in every report, and the user's to change."""

from __future__ import annotations

from dataclasses import dataclass

from kontrast.checks import is_number
from kontrast.errors import InputError


@dataclass(frozen=True)
class Thresholds:
    """The limits at which a kernel predicts, a subspace is PCA's and training pays.

    Attributes:
        tolerance: relative error of the outputs below which a kernel counts as predicting the model.
        pca_tolerance: largest sine at which a subspace counts as that of PCA.
        probe_margin: accuracy by which training must beat every closed form to count as better.
    """

    tolerance: float = 0.05
    pca_tolerance: float = 0.1
    probe_margin: float = 0.02

    def __post_init__(self) -> None:
        for name in ("tolerance", "pca_tolerance"):
            if not is_number(getattr(self, name)) or not 0 < getattr(self, name) < 1:
                raise InputError(
                    f"{name} must lie between 0 and 1, got {getattr(self, name)}; the default is "
                    f"{getattr(Thresholds, name)}"
                )
        if not is_number(self.probe_margin) or not 0 <= self.probe_margin < 1:
            raise InputError(
                f"probe_margin must be at least 0 and below 1, got {self.probe_margin}; the default is "
                f"{Thresholds.probe_margin}"
            )
