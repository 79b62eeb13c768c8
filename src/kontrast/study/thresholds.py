"""The numbers that turn measures into verdicts: shown in every report, and the user's to change."""

from __future__ import annotations

from dataclasses import dataclass

from kontrast.errors import InputError


@dataclass(frozen=True)
class Thresholds:
    """What counts as predicting, as PCA and as better; the defaults are those of `kontrast study`.

    Attributes:
        tolerance: a kernel that predicts the outputs within this share of their norm counts as predicting them.
        pca_tolerance: a subspace whose largest sine to PCA's is at most this counts as PCA.
        probe_margin: accuracy by which a trained embedding must beat the best closed form, to count as better.
    """

    tolerance: float = 0.05
    pca_tolerance: float = 0.1
    probe_margin: float = 0.02

    def __post_init__(self) -> None:
        for name in ("tolerance", "pca_tolerance"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(
                    f"{name} must lie between 0 and 1, got {getattr(self, name)}; {getattr(Thresholds, name)} is the "
                    "default"
                )
        if not 0 <= self.probe_margin < 1:
            raise InputError(
                f"probe_margin must be at least 0 and below 1, got {self.probe_margin}; "
                f"{Thresholds.probe_margin} is the default"
            )
