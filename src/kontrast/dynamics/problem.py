"""The problem to minimise: inputs, and an objective of the outputs there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.checks import (
    in_words,
    require_alike,
    require_finite,
    require_floating,
    require_rows,
    require_shape,
    require_type,
)
from kontrast.data import Pairs
from kontrast.dynamics.loss_of_pairs import PairLoss, loss_of_pairs
from kontrast.errors import InputError
from kontrast.losses import LossValue

Objective = Callable[[Tensor], Tensor]
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)  # number types of labels


@dataclass(frozen=True, eq=False)
class Problem:
    """Minimise `objective(f(inputs))`, a scalar of the (m, z) outputs at inputs (m, …) in the shape of the samples.

    The network (or the kernel that replaces it) enters through the outputs alone, so one problem serves gradient
    descent, its linearisation and the fixed-kernel flow. `subset` picks some of the `size` samples for mini-batches.
    """

    inputs: Tensor
    objective: Objective
    size: int
    subset: Callable[[Tensor], Problem] | None = None


def contrastive_problem(pairs: Pairs, loss: Callable[..., LossValue | Tensor]) -> Problem:
    """The loss (1) of paper A over `pairs`: a sample is an anchor with its positives and negatives.

    `loss` takes embeddings of anchors (n, z), positives (n, P, z) and negatives (n or 1, Q, z), and weights (n, Q)
    where the pairs have them, as `ContrastiveLoss` does. Or it takes two views (n, z) of a batch, as `nt_xent`, a
    `ViewLoss`, a `LossModule` of these or a function of your own does: anchors and the one positive of each, with
    negatives from the batch; the pairs are then made with n_positives=1 and negatives=0.

    The inputs keep the samples' shape: images go to a ConvNet as they are, and an `MLP` flattens them itself.
    """
    require_type("pairs", pairs, Pairs, "use kontrast.data.make_pairs")
    return _contrastive(pairs, loss_of_pairs(loss, pairs))


def _contrastive(pairs: Pairs, loss: PairLoss) -> Problem:
    return Problem(
        inputs=pairs.x,
        objective=lambda outputs: loss(pairs, outputs),
        size=pairs.n_anchors,
        subset=lambda anchors: _contrastive(pairs.subset(anchors), loss),
    )


def trace_problem(eigenvalues: Tensor, basis: Tensor) -> Problem:
    """Paper B's loss (7), Tr(u C u^T), of linear networks: the inputs are C's eigenvectors, so the outputs are q."""

    def loss(q: Tensor) -> Tensor:
        return torch.sum(eigenvalues[:, None] * q.square())

    return Problem(inputs=basis.mT.contiguous(), objective=loss, size=len(eigenvalues))


def regression_problem(x: Tensor, targets: Tensor) -> Problem:
    """½‖f(x) − targets‖², a sum over samples and outputs (paper D, assumption 5); targets are (n, z) as f(x) is."""
    require_rows("x", x)
    require_floating("targets", targets, "for class numbers use classification_problem")
    require_shape("targets", targets, (len(x), "z"), "one row per row of x; for one output use targets[:, None]")
    require_alike(x=x if x.is_floating_point() else x.to(targets.dtype), targets=targets)
    require_finite("targets", targets, "leave those rows out")
    return _regression(x.detach(), targets.detach())


def classification_problem(x: Tensor, labels: Tensor) -> Problem:
    """The cross-entropy of the softmax of f(x), a sum over samples; labels are class numbers from 0, of shape (n,)."""
    require_rows("x", x)
    if not isinstance(labels, Tensor) or labels.dtype not in WHOLE:
        raise InputError(
            f"labels must be a tensor of whole class numbers, got {in_words(labels)}; "
            f"use labels.long(), or regression_problem for numbers"
        )
    require_shape("labels", labels, (len(x),), "one class number per row of x; for one-hot rows use labels.argmax(1)")
    if labels.device != x.device or int(labels.min()) < 0:
        raise InputError(f"labels must be 0 or more and on {x.device}, got {int(labels.min())} on {labels.device}")
    return _classification(x.detach(), labels.long())


def _regression(x: Tensor, targets: Tensor) -> Problem:
    def loss(outputs: Tensor) -> Tensor:
        if outputs.shape != targets.shape:  # (n,) and (n, 1) would broadcast to (n, n)
            raise InputError(
                f"the outputs are {tuple(outputs.shape)} but the targets {tuple(targets.shape)}; they must be alike"
            )
        return (outputs - targets).square().sum() / 2

    return Problem(x, loss, size=len(x), subset=lambda rows: _regression(x[rows], targets[rows]))


def _classification(x: Tensor, labels: Tensor) -> Problem:
    shape = (len(labels), int(labels.max()) + 1)

    def loss(outputs: Tensor) -> Tensor:
        if outputs.ndim != 2 or len(outputs) != shape[0] or outputs.shape[1] < shape[1]:
            raise InputError(
                f"the outputs must be ({shape[0]}, k) with k of {shape[1]} or more classes, got {tuple(outputs.shape)}"
            )
        return torch.nn.functional.cross_entropy(outputs, labels, reduction="sum")

    return Problem(x, loss, size=len(x), subset=lambda rows: _classification(x[rows], labels[rows]))
