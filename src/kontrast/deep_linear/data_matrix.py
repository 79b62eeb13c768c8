r"""Paper B, (5): the data matrix C in which the loss (1) of a linear model is a trace.

$\mathcal L = \sum_i u(x_i)^\top (\sum_q u(x_{iq}^-) - \sum_p u(x_{ip}^+))$ is Tr(Θ C Θ^T) for u = Θx. Everything here
is a **sum** over anchors and over their positives and negatives, as in the paper; `pair_matrix` is paper A's mean with
the other sign. Without negatives the loss is the non-contrastive (12) and $\tilde C = -\sum_i x_i x_i^{+\top}$: the
paper's Sec. 5 prints it without the minus, which negates the loss (B.nc).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kontrast.checks import features_not_finite, in_words, require_whole
from kontrast.data import Pairs, pair_matrix
from kontrast.errors import InputError

BLOCK = 8192  # anchors at a time where the features of the whole pool are held anyway

Features = Callable[[Tensor], Tensor]


def data_matrix(
    pairs: Pairs, *, features: Features | None = None, symmetric: bool = True, batch_size: int | None = None
) -> Tensor:
    r"""$\tilde C = \sum_i \varphi_i (\sum_q w_{iq} \varphi_{iq}^- - \sum_p \varphi_{ip}^+)^\top$ of paper B, (5).

    `contrastive_trace_loss` of u = Θφ is exactly Tr(Θ C Θ^T); for pairs without negatives `alignment_loss` is.

    Args:
        pairs: N anchors with any number of positives and negatives, shared or weighted.
        features: φ, from points as they stand in `pairs.x` to rows (b, d); None takes the points themselves, flattened.
        symmetric: C = (C̃ + C̃^T)/2, which has the same trace; False keeps C̃.
        batch_size: anchors at a time, so that no more than three such blocks of features are ever held; each block of
            anchors then computes its partners' features anew, weighted shared negatives all of them. None computes
            the features of the pool once and holds them.

    Returns:
        (d, d) in the features' number type; blocks are added up in float64.
    """
    _require_pairs(pairs)
    _require_function("features", features)
    if pairs.n_anchors == 0:
        raise InputError("there are no anchors, so there is nothing to sum over; pass at least 1")
    if not pairs.x.is_floating_point():
        raise InputError(f"pairs.x must be floating-point, got {pairs.x.dtype}; use pairs.to(dtype=torch.float64)")
    size = BLOCK if batch_size is None else require_whole("batch_size", batch_size)
    look_up = _features_of(pairs, features, hold=batch_size is None)
    with torch.no_grad():
        common = _shared_sum(pairs, look_up, size)
        product: Tensor | float = 0.0
        for block in torch.split(torch.arange(pairs.n_anchors, device=pairs.anchor.device), size):
            anchors = look_up(pairs.anchor[block])
            partners = torch.zeros_like(anchors) if common is None else common.expand_as(anchors).clone()
            _add_partners(partners, pairs, block, look_up, size, negatives=common is None)
            product = product + (anchors.mT @ partners).double()
    assert isinstance(product, Tensor)
    if not torch.isfinite(product).all():
        raise features_not_finite()
    return ((product + product.mT) / 2 if symmetric else product).to(anchors.dtype)


def pair_weights(pairs: Pairs) -> Tensor:
    r"""S, sparse (m, m) and symmetric: the loss (1) of outputs U (m, z) over the pool is Tr(U^T S U).

    −N times the `pair_matrix`, for linear models (U = XΘ^T, C = X^T S X) and kernel models alike.
    """
    _require_pairs(pairs)
    return pair_matrix(pairs) * -float(pairs.n_anchors)


def expected_data_matrix(x: Tensor, *, view_mean: Features | None = None, contrastive: bool = True) -> Tensor:
    r"""E[C], (d, d): the mean of `data_matrix` over views and over one negative drawn among the **other** samples.

    With $m(x) = \mathbb E[x^+ \mid x]$ it is
    $\mathrm{sym} \sum_i x_i (\frac1{N-1}\sum_{j \ne i} x_j - m(x_i))^\top = -N\,\widehat{\mathrm{Cov}}(x) -
    \mathrm{sym} \sum_i x_i (m(x_i) - x_i)^\top$, so −N times the unbiased covariance for noise of mean zero.

    Args:
        x: samples as rows (N, d), each of them an anchor.
        view_mean: m, from samples (N, d) to the means of their views; None is the identity (x⁺ = x + noise).
        contrastive: False drops the negatives, (12): $-\mathrm{sym}\sum_i x_i m(x_i)^\top$.
    """
    least = 2 if contrastive else 1
    if not _are_rows(x) or len(x) < least or x.shape[1] == 0:
        raise InputError(
            f"x must be floating-point rows (N, d) of at least {least} samples, got {in_words(x)}; use "
            "torch.as_tensor(x).double(), with a row for each sample"
        )
    _require_function("view_mean", view_mean)
    rows = x.detach().double()
    means = x if view_mean is None else view_mean(x)
    if not _are_rows(means) or means.shape != rows.shape:
        raise InputError(f"view_mean must keep the shape {tuple(x.shape)} of the samples, got {in_words(means)}")
    mean = means.detach().double()
    if contrastive:
        centered = rows - rows.mean(0)
        C = -len(x) / (len(x) - 1) * centered.mT @ centered - rows.mT @ (mean - rows)
    else:
        C = -rows.mT @ mean
    if not torch.isfinite(C).all():
        raise InputError("the samples or the means of their views hold NaN, infinite or huge values; scale the samples")
    return ((C + C.mT) / 2).to(x.dtype)


def _require_pairs(pairs: Pairs) -> None:
    if not isinstance(pairs, Pairs):
        raise InputError(f"pairs must be Pairs, got {type(pairs).__name__}; make them with kontrast.data.make_pairs")


def _require_function(name: str, function: Features | None) -> None:
    if function is not None and not callable(function):
        raise InputError(f"{name} must be a function of rows, or None, got {function!r}; pass one that maps tensors")


def _are_rows(rows: Tensor) -> bool:
    return isinstance(rows, Tensor) and rows.ndim == 2 and rows.is_floating_point()


def _features_of(pairs: Pairs, features: Features | None, *, hold: bool) -> Features:
    """The features of points of the pool, by their indices: looked up, or computed anew."""

    def compute(points: Tensor) -> Tensor:
        rows = points.flatten(1) if features is None else features(points)
        if not _are_rows(rows) or len(rows) != len(points):
            raise InputError(
                f"features must give floating-point rows ({len(points)}, d) for {len(points)} points, got "
                f"{in_words(rows)}"
            )
        return rows

    if not hold:
        return lambda index: compute(pairs.x[index])
    with torch.no_grad():
        return compute(pairs.x).__getitem__


def _shared_sum(pairs: Pairs, look_up: Features, size: int) -> Tensor | None:
    """The sum over negatives that all anchors share with weight 1, which one pass finds for all of them."""
    if len(pairs.negative) != 1 or pairs.n_negatives == 0 or pairs.negative_weight is not None:
        return None
    return torch.stack([look_up(chunk).sum(0) for chunk in torch.split(pairs.negative[0], size)]).sum(0)


def _add_partners(total: Tensor, pairs: Pairs, block: Tensor, look_up: Features, size: int, *, negatives: bool) -> None:
    """Take some anchors' positives off `total`, (b, d), and add their negatives where these are still to come."""
    for index in pairs.positive[block].unbind(1):
        total -= look_up(index)
    if not negatives or pairs.n_negatives == 0:
        return
    weight = None if pairs.negative_weight is None else pairs.negative_weight[block].to(total.dtype)
    if len(pairs.negative) == 1:  # shared and weighted: without weights their sum was in `total`
        assert weight is not None
        for places in torch.split(torch.arange(pairs.n_negatives, device=block.device), size):
            total += weight[:, places] @ look_up(pairs.negative[0, places])
        return
    for q, index in enumerate(pairs.negative[block].unbind(1)):
        total += look_up(index) if weight is None else weight[:, q, None] * look_up(index)
