"""The claims of four papers, each measured, judged by stated criteria, and corrected where it is wrong."""

from kontrast.claims import a as _a  # noqa: F401  (registers the claims of paper A)
from kontrast.claims import b as _b  # noqa: F401  (and those of paper B)
from kontrast.claims import c as _c  # noqa: F401  (and those of paper C)
from kontrast.claims import d as _d  # noqa: F401  (and those of paper D)
from kontrast.claims.evidence import RULES, Criterion, Curve, Evidence, Panel, Verdict, judge
from kontrast.claims.papers import PAPERS, Paper
from kontrast.claims.registry import Claim, all_claims, select
from kontrast.claims.setting import SCALES, Setting
from kontrast.claims.verification import (
    Record,
    measure_claim,
    reservations,
    stored_records,
    verification_name,
    verification_spec,
    verify,
)
from kontrast.linalg import Estimate

__all__ = [
    "PAPERS",
    "RULES",
    "SCALES",
    "Claim",
    "Criterion",
    "Curve",
    "Estimate",
    "Evidence",
    "Panel",
    "Paper",
    "Record",
    "Setting",
    "Verdict",
    "all_claims",
    "judge",
    "measure_claim",
    "reservations",
    "select",
    "stored_records",
    "verification_name",
    "verification_spec",
    "verify",
]
