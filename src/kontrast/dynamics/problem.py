"""What is minimised: inputs, and an objective of the outputs there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kontrast._types import Tensor
from kontrast.data import Pairs
from kontrast.losses import ContrastiveLoss, LossValue

Objective = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Problem:
    """Minimise `objective(f(inputs))`, a scalar of the (m, z) outputs.

    The network (or the kernel that replaces it) enters through the outputs alone, so one problem serves gradient
    descent, its linearisation and the fixed-kernel flow. `subset` picks some of the `size` samples for mini-batches.
    """

    inputs: Tensor
    objective: Objective
    size: int
    subset: Callable[[Tensor], Problem] | None = None


def contrastive_problem(pairs: Pairs, loss: Callable[..., LossValue]) -> Problem:
    """The loss (1) of paper A over `pairs`: a sample is an anchor with its positives and negatives."""
    weight = pairs.negative_weight
    # Without weights a loss of three arguments (paper B's, say) fits as well.
    extra = () if weight is None else (weight,)

    def objective(outputs: Tensor) -> Tensor:
        if isinstance(loss, ContrastiveLoss):  # each point of the pool is normalised once, however often it serves
            return loss.of_embedded(*pairs.split(loss.similarity.embed(outputs)), *extra).total
        return loss(*pairs.split(outputs), *extra).total

    return Problem(
        inputs=pairs.rows,
        objective=objective,
        size=pairs.n_anchors,
        subset=lambda anchors: contrastive_problem(pairs.subset(anchors), loss),
    )


def trace_problem(eigenvalues: Tensor, basis: Tensor) -> Problem:
    """Paper B's loss (7), Tr(u C u^T), for linear networks: the inputs are C's eigenvectors, so that outputs are q."""

    def loss(q: Tensor) -> Tensor:
        return torch.sum(eigenvalues[:, None] * q.square())

    return Problem(inputs=basis.mT.contiguous(), objective=loss, size=len(eigenvalues))
