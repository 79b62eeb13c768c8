from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from kontrast.errors import InputError
from kontrast.losses import LazyTerms, LossValue

__all__ = ["scaled"]

Loss = TypeVar("Loss", Tensor, LossValue)


def scaled(loss: Loss, *weights: Tensor) -> Loss:
    r"""Paper B, Prop. 3 (1): the loss over $\prod_l \lVert W_l \rVert_2^2$, which stands in for orthonormal weights.

    For a loss that is quadratic in the outputs of a linear network, (1) or (12), it does not change when a weight is
    rescaled, is bounded below, and its minimum keeps as many dimensions as the orthonormal one
    (`spectral.constrained_optimum`). A drop-in for any network:

    ```python
    outputs = net(pairs.rows)
    loss = scaled(contrastive_trace_loss(*pairs.split(outputs)), net[0].weight, net[2].weight)
    loss.total.backward()
    ```

    Norms are operator norms and differentiable in the weights; the gradient $u_1 v_1^\top$ of one involves no gap
    between singular values, so it is exact also where the largest two nearly meet, as they do at the minimum. Where
    they are equal it is a subgradient. Weights are read to refuse zeros, for which a GPU is waited for.

    Args:
        loss: a scalar tensor, or a `LossValue`, whose terms are scaled too.
        weights: matrices, at least one, none of them zero or of a norm so extreme that its powers overflow.
    """
    if not isinstance(loss, Tensor | LossValue):
        raise InputError(f"loss must be a tensor or a LossValue, got {type(loss).__name__}; scaled(loss, *weights)")
    if not weights:
        raise InputError("scaled(loss, *weights) was given no weights; pass each layer's matrix, net[0].weight, …")
    for place, weight in enumerate(weights, start=1):
        _require_matrix(weight, place)
    factor = torch.stack([_inverse_square_norm(weight, place) for place, weight in enumerate(weights, start=1)]).prod()
    if not _is_held(float(factor.detach()), factor.dtype):
        raise InputError(
            f"the product of the {len(weights)} squared norms is beyond what {factor.dtype} holds; rescale the "
            "weights, on which a linear network's scaled loss does not depend, or use float64"
        )
    if isinstance(loss, LossValue):
        terms = loss.terms
        return LossValue(loss.total * factor, LazyTerms(lambda: {name: term * factor for name, term in terms.items()}))
    return loss * factor


def _require_matrix(weight: Tensor, place: int) -> None:
    if not isinstance(weight, Tensor):
        raise InputError(
            f"weight {place} must be a floating-point matrix, got {type(weight).__name__}; pass tensors one by one, "
            "a layer's layer.weight, an array by torch.as_tensor(array)"
        )
    if weight.dim() != 2 or 0 in weight.shape or not weight.is_floating_point():
        raise InputError(
            f"weight {place} must be a floating-point matrix, got {weight.dtype} {tuple(weight.shape)}; leave "
            "biases out, and flatten convolutions with weight.flatten(1)"
        )


def _is_held(value: float, dtype: torch.dtype) -> bool:
    return torch.finfo(dtype).tiny <= value <= torch.finfo(dtype).max


def _inverse_square_norm(weight: Tensor, place: int) -> Tensor:
    if not torch.isfinite(weight).all() or not weight.any():
        raise InputError(
            f"weight {place} is zero, NaN or infinite, and the loss cannot be divided by its norm; start from weights "
            "that are not zero, and lower the learning rate if they overflow"
        )
    norm: Tensor = torch.linalg.matrix_norm(weight, ord=2)
    size = float(norm.detach())
    if not _is_held(size * size * size, norm.dtype):  # the gradient goes as ‖W‖⁻³
        raise InputError(
            f"weight {place} has the norm {size:.3g}, whose powers {norm.dtype} does not hold; rescale it, on which a "
            "linear network's scaled loss does not depend"
        )
    return norm.pow(-2)
