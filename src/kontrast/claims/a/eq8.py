"""Claim A.eq8: under the dot product the loss is a trace."""

from __future__ import annotations

from kontrast.claims.a.trace_identity import trace_identity
from kontrast.claims.evidence import Evidence, Verdict
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting


@claim(
    "A.eq8",
    source="Paper A, (5) and (8)",
    title="Dot product: the loss is a trace",
    printed="With W^T W = I the loss (6) under the dot product is −Tr(W^T C_V W), and C_V may be symmetrised.",
    recorded=Verdict.HOLDS,
)
def equation_8(setting: Setting) -> Evidence:
    """Compare the loss of the outputs with the trace, for random orthonormal W."""
    return trace_identity(setting, delta=None)
