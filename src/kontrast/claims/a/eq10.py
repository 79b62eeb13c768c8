"""Claim A.eq10: under the normalised similarity the loss is a trace."""

from __future__ import annotations

from kontrast.claims.a.runs import DELTA
from kontrast.claims.a.trace_identity import trace_identity
from kontrast.claims.evidence import Evidence, Verdict
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting


@claim(
    "A.eq10",
    source="Paper A, (10)",
    title="Normalised similarity: the loss is a trace",
    printed="With the right side of (9) as similarity the loss (6) is −Tr(W^T C_V W) with C_V of (10).",
    recorded=Verdict.HOLDS,
)
def equation_10(setting: Setting) -> Evidence:
    """Compare the loss with the trace for the similarity on the right side of (9), random orthonormal W."""
    return trace_identity(setting, delta=DELTA)
