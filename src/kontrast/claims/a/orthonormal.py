"""Training with an orthonormal output layer: the runs that the claims on contrastive PCA share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kontrast.claims.a.runs import DELTA
from kontrast.claims.setting import Setting, geometric
from kontrast.data import Pairs, pair_matrix
from kontrast.dynamics import Recorder, Snapshot
from kontrast.linalg import orthonormality_error
from kontrast.nets import MLP, parameters_of
from kontrast.pca import contrastive_drift, orthonormal_start, pair_features, row_difference, train_pca_network
from kontrast.runs import padded

PCA_RATE = 1.0  # the learning rate of all runs with an orthonormal output layer


def orthonormal_net(setting: Setting, pairs: Pairs, width: int, d_out: int, *, seed: int) -> MLP:
    """Paper A's network (7): Gaussian V, orthonormal W."""
    net = setting.net(pairs.x, width, d_out, seed=seed)
    net.load_state_dict(orthonormal_start(net))
    return net


def pca_scale(setting: Setting) -> tuple[tuple[int, ...], int, int]:
    """Widths, samples and steps of the claims on C_V."""
    widths = setting.pick(quick=(32, *geometric(128, 1024)), full=geometric(32, 2048), paper=geometric(32, 8192))
    return widths, setting.pick(quick=50, full=100, paper=1000), setting.pick(quick=100, full=500)


def orthonormal_run(
    net: MLP, pairs: Pairs, *, n_steps: int, steps: Sequence[int], frozen: bool = False
) -> dict[str, np.ndarray]:
    """Train (7) under (10): drift of C_V, change of W and, if `frozen`, the distance to training with frozen V."""
    start, S = parameters_of(net), pair_matrix(pairs, symmetric=False)
    features = pair_features(net, pairs.rows, delta=DELTA)
    size = float(contrastive_drift(features, torch.zeros_like(features), S))

    def drift(now: Snapshot) -> float:
        return contrastive_drift(pair_features(net, pairs.rows, delta=DELTA, parameters=now.parameters), features, S)

    recorders: dict[str, Recorder] = {
        "drift": drift,
        "frame_change": lambda now: (now.parameters["output"] - start["output"]).norm() / start["output"].norm(),
        "orthonormality": lambda now: orthonormality_error(now.parameters["output"]),
    }
    runs = [
        train_pca_network(
            net,
            pairs,
            delta=DELTA,
            learning_rate=PCA_RATE,
            n_steps=n_steps,
            freeze_hidden=freeze,
            record_at=steps,
            recorders={} if freeze else recorders,
            keep_outputs=True,
        )
        for freeze in ((False, True) if frozen else (False,))
    ]
    found = {name: padded(values, len(steps)) for name, values in runs[0].records.items()}
    found["relative_drift"] = found["drift"] / size
    if frozen:
        trained, untrained = (run.outputs for run in runs)
        assert trained is not None
        assert untrained is not None
        found["frozen_difference"] = np.array([row_difference(a, b) for a, b in zip(trained, untrained, strict=True)])
    return found
