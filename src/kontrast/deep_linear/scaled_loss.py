"""Paper B, Prop. 3 (1): a loss divided by the squared norms of the weights, in the place of a constraint on them."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from kontrast.checks import require_floating, require_shape, require_type
from kontrast.errors import InputError
from kontrast.losses import LazyTerms, LossValue

Loss = TypeVar("Loss", Tensor, LossValue)


def scaled_loss(loss: Loss, *weights: Tensor) -> Loss:
    r"""Paper B, Prop. 3 (1): the loss over $\prod_l \lVert W_l \rVert_2^2$, which replaces orthonormal weights.

    For a loss that is quadratic in the outputs of a linear network, (1) or (12), it does not change when a weight is
    rescaled, it is bounded below, and its minimum keeps as many dimensions as the orthonormal one
    (`constrained_optimum`). It works for any network:

    ```python
    outputs = net(pairs.rows)
    loss = scaled_loss(contrastive_trace_loss(*pairs.split(outputs)), net[0].weight, net[2].weight)
    loss.total.backward()
    ```

    Norms are operator norms and differentiable in the weights. The gradient $u_1 v_1^\top$ of a norm involves no gap
    between singular values, so it is exact even where the largest two nearly meet, as they do at the minimum. Where
    they are equal it is a subgradient. Refusing zero weights reads them, so a GPU is synchronised.

    Args:
        loss: a scalar tensor, or a `LossValue`, whose terms are scaled too.
        weights: at least one matrix, none of them zero or with a norm so extreme that its powers overflow.
    """
    require_type("loss", loss, (Tensor, LossValue), "call scaled_loss(loss, *weights)")
    if not weights:
        raise InputError("scaled_loss(loss, *weights) got no weights; pass each layer's matrix, net[0].weight, …")
    factor = torch.stack([_inverse_square_norm(weight, f"weights[{i}]") for i, weight in enumerate(weights)]).prod()
    if not _is_held(float(factor.detach()), factor.dtype):
        raise InputError(
            f"the product of the {len(weights)} squared norms is beyond the range of {factor.dtype}; rescale the "
            "weights, which does not change a linear network's scaled loss, or use float64"
        )
    if isinstance(loss, LossValue):
        terms = loss.terms
        return LossValue(loss.total * factor, LazyTerms(lambda: {name: term * factor for name, term in terms.items()}))
    return loss * factor


def _is_held(value: float, dtype: torch.dtype) -> bool:
    return torch.finfo(dtype).tiny <= value <= torch.finfo(dtype).max


def _inverse_square_norm(weight: Tensor, name: str) -> Tensor:
    require_floating(name, weight, "pass matrices one by one: layer.weight, or torch.as_tensor(array)")
    require_shape(name, weight, ("n", "m"), "leave biases out, and flatten convolutions with weight.flatten(1)")
    if not torch.isfinite(weight).all() or not weight.any():
        raise InputError(
            f"{name} is zero, NaN or infinite, so the loss cannot be divided by its norm; start from weights that are "
            "not zero, and lower the learning rate if they overflow"
        )
    norm: Tensor = torch.linalg.matrix_norm(weight, ord=2)
    size = float(norm.detach())
    if not _is_held(size * size * size, norm.dtype):  # the gradient goes as ‖W‖⁻³
        raise InputError(
            f"{name} has norm {size:.3g}, whose powers are beyond the range of {norm.dtype}; rescale it, which does "
            "not change a linear network's scaled loss"
        )
    return norm.pow(-2)
