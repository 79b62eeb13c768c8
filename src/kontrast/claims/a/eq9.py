"""Claim A.eq9: cosine similarity is at least its orthogonal surrogate."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kontrast.claims.a.runs import DELTA
from kontrast.claims.evidence import Evidence, Verdict, corrected, judged, printed, shown
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest
from kontrast.pca import hidden_features, orthonormal_start, pair_features


@claim(
    "A.eq9",
    source="Paper A, (9)",
    title="Cosine similarity is at least its orthogonal surrogate",
    printed="With W^T W = I the cosine similarity is bounded from below by (W^T φ)^T(W^T φ~)/((‖φ‖+δ')(‖φ~‖+δ')).",
    corrected="True only where the numerator is not negative; wherever it is negative the inequality is reversed.",
    recorded=Verdict.CORRECTED,
)
def equation_9(setting: Setting) -> Evidence:
    """Compare both sides for pairs of points and random networks, separately by the sign of the numerator."""
    above, signs, error = list[Tensor](), list[Tensor](), 0.0
    for seed in setting.seeds(quick=10, full=40):
        x = setting.pairs(30, seed=seed).rows
        net = setting.net(x, 32, 4, seed=seed)
        phi = hidden_features(net, x)
        f = phi @ orthonormal_start(net)["output"] / math.sqrt(net.width)
        numerator = f @ f.mT
        cosine = numerator / torch.outer(f.norm(dim=1) + DELTA, f.norm(dim=1) + DELTA)
        sizes = phi.norm(dim=1) + math.sqrt(net.width) * DELTA
        surrogate = net.width * numerator / torch.outer(sizes, sizes)  # the right side of (9)
        g = pair_features(net, x, delta=DELTA) @ orthonormal_start(net)["output"]
        error = largest(error, float((g @ g.mT - surrogate).abs().max()))
        above.append((cosine - surrogate).flatten())
        signs.append(numerator.flatten() >= 0)
    gap, positive = torch.cat(above), torch.cat(signs)
    never = [] if bool((~positive).any()) else ["no pair has f(x)·f(y) < 0 on this data, so (9) is not tested"]

    def share(cases: Tensor) -> float:
        return float(cases.double().mean())

    violated, reversed_ = share(gap[positive] < -1e-15), share(gap[~positive] <= 0)
    return judged(
        printed("share_violated", share(gap < -1e-15), "the bound holds for every pair", high=0),
        corrected("share_violated_where_not_negative", violated, "it holds wherever f(x)·f(y) ≥ 0", high=0),
        corrected("share_reversed_where_negative", reversed_, "it is reversed wherever f(x)·f(y) < 0", low=1),
        corrected("surrogate_error", error, "the features of (10) give the right side of (9)", high=1e-12),
        *shown(share_negative=share(~positive)),
        setting={"n_pairs": len(gap), "width": 32, "d_out": 4},
        warnings=never,
    )
