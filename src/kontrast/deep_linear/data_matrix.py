r"""Paper B, (5): the data matrix C in which the loss (1) of a linear model is a trace.

$\mathcal L = \sum_i u(x_i)^\top (\sum_q u(x_{iq}^-) - \sum_p u(x_{ip}^+))$ is Tr(Θ C Θ^T) for u = Θx. Everything here
is a **sum** over anchors and over their positives and negatives, as in the paper; `pair_matrix` is paper A's mean, with
the opposite sign. Without negatives the loss is the non-contrastive (12) and $\tilde C = -\sum_i x_i x_i^{+\top}$: the
paper's Sec. 5 prints it without the minus, which negates the loss (B.nc).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kontrast import checks
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
        features: φ, from points as they are in `pairs.x` to rows (b, d); None takes the points themselves, flattened.
        symmetric: C = (C̃ + C̃^T)/2, which has the same trace; False keeps C̃.
        batch_size: anchors at a time, so that at most three such blocks of features are held. Each block of anchors
            then computes its partners' features again, and all of them if negatives are shared and weighted. None
            computes the features of the pool once and holds them. Blocks are added up in float64.
    """
    _require_pairs(pairs)
    if features is not None:
        checks.require_callable("features", features, "pass a function from points to rows, or None")
    if pairs.n_anchors == 0:
        raise InputError("there are no anchors, so there is nothing to sum over; pass at least 1")
    checks.require_floating("pairs.x", pairs.x, "use pairs.to(dtype=torch.float64)")
    size = BLOCK if batch_size is None else checks.require_whole("batch_size", batch_size)
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
        raise checks.features_not_finite()
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
    checks.require_floating("x", x)
    checks.require_shape("x", x, ("N", "d"), "pass one row per sample")
    if contrastive and len(x) < 2:
        raise InputError("x must have at least 2 rows, got 1: a negative is another sample")
    if view_mean is not None:
        checks.require_callable(
            "view_mean", view_mean, "pass a function from samples (N, d) to the means of their views"
        )
    rows = x.detach().double()
    means = x if view_mean is None else view_mean(x)
    checks.require_floating("view_mean(x)", means)
    checks.require_shape("view_mean(x)", means, x.shape)
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
    checks.require_type("pairs", pairs, Pairs, "make them with kontrast.data.make_pairs")


def _features_of(pairs: Pairs, features: Features | None, *, hold: bool) -> Features:
    """A function from indices of the pool to the features of its points: looked up, or computed each time."""

    def compute(points: Tensor) -> Tensor:
        rows = points.flatten(1) if features is None else features(points)
        if not isinstance(rows, Tensor) or not rows.is_floating_point() or rows.shape[:-1] != (len(points),):
            raise InputError(
                f"features must return floating-point rows ({len(points)}, d) for {len(points)} points, got "
                f"{checks.in_words(rows)}"
            )
        return rows

    if not hold:
        return lambda index: compute(pairs.x[index])
    with torch.no_grad():
        return compute(pairs.x).__getitem__


def _shared_sum(pairs: Pairs, look_up: Features, size: int) -> Tensor | None:
    """The sum over negatives that all anchors share with weight 1, computed once for all of them; else None."""
    if len(pairs.negative) != 1 or pairs.n_negatives == 0 or pairs.negative_weight is not None:
        return None
    return torch.stack([look_up(chunk).sum(0) for chunk in torch.split(pairs.negative[0], size)]).sum(0)


def _add_partners(total: Tensor, pairs: Pairs, block: Tensor, look_up: Features, size: int, *, negatives: bool) -> None:
    """Subtract some anchors' positives from `total`, (b, d), and add their negatives unless these are in it already."""
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
