"""Paper A, Sec. 4 in one cell: the orthonormal network (7), trained, beside PCA of C̃(0), PCA of C̃(t) and a twin."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.data import Pairs, pair_matrix
from kontrast.dynamics import Recorder, Snapshot, Status, Trajectory
from kontrast.errors import InputError
from kontrast.linalg import subspace_sines
from kontrast.nets import MLP, Parameters
from kontrast.pca import (
    PCASolution,
    alternating_pca,
    contrastive_drift,
    contrastive_pca,
    orthonormal_start,
    pair_features,
    pca_network,
    row_difference,
    train_pca_network,
)
from kontrast.runs import padded
from kontrast.study.probes import Embedding
from kontrast.study.spec import StudySpec

N_UPDATES = 5  # of the iterative algorithm; paper A, Fig. 5 (right)

PCA_MEASURES = {
    "pca_angle_start": "largest sine between the span of W(t) and PCA of C̃(0)",
    "pca_angle_now": "largest sine between the span of W(t) and PCA of C̃(t)",
    "pca_angle_frozen": "largest sine between the span of the frozen twin's W(t) and PCA of C̃(0)",
    "matrix_drift": "‖C̃(t) − C̃(0)‖_F / ‖C̃(0)‖_F",
    "frozen_gap": "mean over the points of ‖f − f_0‖ / ‖f_0‖, f_0 the twin with its features frozen",
    "eigengap": "λ_Z − λ_(Z+1) of C̃(t)",
    "pca_loss": "−Tr(W^T C̃(t) W), the loss (10)",
}


@dataclass(frozen=True, eq=False)
class PCAView:
    """The orthonormal run's measures over its steps, and the embeddings a probe can judge; None where one diverged."""

    measures: xr.Dataset
    embeddings: dict[str, Embedding | None]


def pca_view(spec: StudySpec, net: MLP, pairs: Pairs) -> PCAView:
    """Train (7) under the loss (10) by Grassmannian descent, and measure how far it is from PCA at every record."""
    span = _in_own_span(net, pairs)
    S, start = pair_matrix(pairs), orthonormal_start(span.net)
    features = pair_features(span.net, span.pairs.x, delta=spec.delta).detach()
    before = _pca(features, S, spec.d_out)
    train = functools.partial(
        train_pca_network,
        span.net,
        span.pairs,
        delta=spec.delta,
        learning_rate=spec.pca_learning_rate,
        n_steps=spec.n_steps,
        start=start,
        record_at=spec.record_steps,
    )
    twin = train(
        freeze_hidden=True,
        keep_outputs=True,
        recorders={"pca_angle_frozen": lambda now: _largest_sine(now.parameters["output"], before)},
    )
    trained = train(recorders={"now": _recorder(span, S, features, before, twin, spec)})
    network = pca_network(net, delta=spec.delta)

    def embedding(parameters: Parameters | None) -> Embedding | None:
        return None if parameters is None else functools.partial(network, span.lift(parameters))

    return PCAView(
        _as_dataset(spec, trained, twin, before),
        {
            "pca": embedding({**start, "output": before.frame} if before else None),
            "trained": embedding(trained.final_parameters if trained.status is not Status.DIVERGED else None),
            "iterative": embedding(_alternation(spec, span) if before else None),
            "random": embedding(start),
        },
    )


@dataclass(frozen=True, eq=False)
class _Span:
    """A net and its points in the points' own coordinates, and the way back to the input's."""

    net: MLP
    pairs: Pairs
    lift: Callable[[Parameters], Parameters]


def _in_own_span(net: MLP, pairs: Pairs) -> _Span:
    """The same network on the same points, in an orthonormal basis Q of the points' span where that is smaller.

    With x = R Q^T the pre-activations are V x^T = (V Q) R^T, and the gradient in V, a matrix times x, has no part
    outside the span. So descent of V on x and of V Q on R are the same, and at width 2048 training on 100 points of 784
    pixels takes 1.7 s in place of 4.7 s. What V does outside the span, V (I − Q Q^T), never changes; `lift` puts it
    back.
    """
    x = pairs.rows
    m, d = x.shape
    if m >= d:
        return _Span(net, pairs, lambda parameters: parameters)
    Q, R = torch.linalg.qr(x.mT)
    V = net.hidden[0].detach()
    small = MLP(
        m,
        net.width,
        net.d_out,
        depth=net.depth,
        activation=net.activation,
        parametrization=net.parametrization,
        dtype=x.dtype,
        device=x.device,
    )
    small.load_state_dict({**net.state_dict(), "hidden.0": V @ Q})

    def lift(parameters: Parameters) -> Parameters:
        return {**parameters, "hidden.0": V + (parameters["hidden.0"] - V @ Q) @ Q.mT}

    return _Span(small, replace(pairs, x=R.mT.contiguous()), lift)


def _alternation(spec: StudySpec, span: _Span) -> Parameters | None:
    try:
        return alternating_pca(
            span.net, span.pairs, delta=spec.delta, learning_rate=spec.pca_learning_rate, n_updates=N_UPDATES
        ).parameters
    except InputError:  # a step so long that it overflowed, or silenced every unit
        return None


RECORDED = ("pca_angle_start", "pca_angle_now", "matrix_drift", "frozen_gap", "eigengap", "not_unique")


def _recorder(
    span: _Span, S: Tensor, features0: Tensor, before: PCASolution | None, twin: Trajectory, spec: StudySpec
) -> Recorder:
    """The numbers of `RECORDED`, from one look at the features."""
    size = contrastive_drift(features0, torch.zeros_like(features0), S)  # ‖C̃(0)‖_F
    frozen = dict(zip(twin.steps, twin.outputs if twin.outputs is not None else (), strict=True))

    def record(now: Snapshot) -> Tensor:
        W = now.parameters["output"]
        features = pair_features(span.net, span.pairs.x, delta=spec.delta, parameters=now.parameters)
        after = _pca(features, S, spec.d_out)
        numbers = (
            _largest_sine(W, before),
            _largest_sine(W, after),
            contrastive_drift(features, features0, S) / size if size else math.nan,
            _frozen_gap(now.outputs, frozen.get(now.step)),
            after.gap if after else math.nan,
            float(after is None or bool(after.warnings)),
        )
        return torch.tensor(numbers, dtype=torch.float64)

    return record


def _pca(features: Tensor, S: Tensor, n_components: int) -> PCASolution | None:
    try:
        return contrastive_pca(features, S, n_components)
    except InputError:  # C̃ is zero to rounding: every unit of a narrow net is silent, or all points look alike to it
        return None


def _largest_sine(W: Tensor, solution: PCASolution | None) -> float:
    return math.nan if solution is None else float(subspace_sines(W, solution.frame)[0])


def _frozen_gap(outputs: Tensor, frozen: Tensor | None) -> float:
    """`row_difference` over the points that the frozen twin sees: a narrow net may be silent at others."""
    if frozen is None:
        return math.nan
    seen = frozen.norm(dim=1) > 0
    return row_difference(outputs[seen], frozen[seen]) if bool(seen.any()) else math.nan


def _as_dataset(spec: StudySpec, trained: Trajectory, twin: Trajectory, before: PCASolution | None) -> xr.Dataset:
    steps = spec.record_steps
    seen = trained.records.get("now")
    records = dict(zip(RECORDED, seen.unbind(1), strict=True)) if seen is not None else {}
    warned = before is None or bool(before.warnings) or bool(records.pop("not_unique", torch.zeros(1)).any())
    records |= twin.records  # pca_angle_frozen
    records["pca_loss"] = trained.losses[[step for step in steps if step < len(trained.losses)]]
    return xr.Dataset(
        {
            name: ("step", padded(records.get(name), len(steps)), {"long_name": text})
            for name, text in PCA_MEASURES.items()
        }
        | {
            "pca_diverged": ((), np.int32(trained.status is Status.DIVERGED), {"long_name": "1 where it overflowed"}),
            "pca_stopped_at": ((), np.int32(trained.stopped_at), {"long_name": "the orthonormal run's last step"}),
            "pca_not_unique": ((), np.int32(warned), {"long_name": "1 where a C̃ had no eigengap, so no one PCA"}),
            "eigengap_start": (
                (),
                before.gap if before else math.nan,
                {"long_name": "λ_Z − λ_(Z+1) of C̃(0)"},
            ),
        },
        coords={"step": np.asarray(steps, dtype=np.int32)},
    )
