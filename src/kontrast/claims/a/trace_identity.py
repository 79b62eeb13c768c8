"""The identity behind claims A.eq8 and A.eq10: the loss is a trace."""

from __future__ import annotations

import math

import torch

from kontrast.claims.evidence import Evidence, judged, printed
from kontrast.claims.setting import Setting, largest
from kontrast.data import pair_matrix
from kontrast.pca import contrastive_matrix, hidden_features, orthonormal_start, pair_features


def trace_identity(setting: Setting, *, delta: float | None) -> Evidence:
    """Compare the loss (6) with −Tr(W^T C_V W), under the dot product or, with `delta`, the right side of (9)."""
    worst = 0.0
    for seed in setting.seeds(quick=4, full=20):
        pairs = setting.pairs(20, seed=seed)
        net = setting.net(pairs.x, 48, 6, seed=seed)
        W = orthonormal_start(net)["output"]
        phi = hidden_features(net, pairs.rows)
        scale = (
            math.sqrt(net.width) if delta is None else (phi.norm(dim=1, keepdim=True) + math.sqrt(net.width) * delta)
        )
        f = phi @ W / scale
        s_pos = (f[pairs.anchor] * f[pairs.positive[:, 0]]).sum(1)
        s_neg = (f[pairs.anchor] * f[pairs.negative[:, 0]]).sum(1)
        loss = float((s_neg - s_pos).mean())  # (6), α = +1 for the positive and −1 for the negative
        features = pair_features(net, pairs.rows, delta=delta)
        for symmetric in (True, False):
            C = contrastive_matrix(features, pair_matrix(pairs, symmetric=symmetric))
            worst = largest(worst, abs(loss + float(torch.trace(W.mT @ C @ W))) / abs(loss))
    return judged(
        printed("largest_error", worst, "loss and trace agree", high=1e-13),
        setting={"n_samples": 20, "width": 48, "d_out": 6},
    )
