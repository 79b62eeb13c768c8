"""The input checks of every loss: they look at shapes and options only, so they never wait for a device."""

from __future__ import annotations

from torch import Tensor

from kontrast.errors import InputError


def require_rows(at_least: int = 1, **embeddings: Tensor) -> None:
    """Refuse named embeddings that are not floating-point matrices (n, z) of one shape with n ≥ `at_least`."""
    first_name, first = next(iter(embeddings.items()))
    for name, tensor in embeddings.items():
        _require_floating(name, tensor)
        if tensor.dim() != 2:
            raise InputError(
                f"{name} must have shape (n, z), got {tuple(tensor.shape)}; flatten it to one row per sample"
            )
        if tensor.shape[1] == 0:
            raise InputError(f"{name} has no dimensions, got shape {tuple(tensor.shape)}; embed into at least one")
        if tensor.dtype != first.dtype:
            raise InputError(
                f"{name} must be {first.dtype} like {first_name}, got {tensor.dtype}; use {name}.to({first_name}.dtype)"
            )
        if tensor.shape != first.shape:
            raise InputError(
                f"{name} must have the shape of {first_name}, {tuple(first.shape)}, got {tuple(tensor.shape)};"
                " pass the same number of rows and dimensions"
            )
    if first.shape[0] < at_least:
        raise InputError(f"the loss needs at least {at_least} samples, got {first.shape[0]}; use a larger batch")


def require_queue(query: Tensor, queue: Tensor) -> None:
    """Refuse a queue of negatives that is not (K, z) with K ≥ 1 and the z of `query`."""
    _require_floating("queue", queue)
    if queue.dim() != 2 or queue.shape[0] == 0 or queue.shape[1] != query.shape[1]:
        raise InputError(
            f"queue must have shape (K, {query.shape[1]}) with K at least 1, got {tuple(queue.shape)};"
            " pass one stored key per row"
        )


def require_labeled_views(features: Tensor, labels: Tensor) -> None:
    """Refuse features that are not (n, v, z) with at least two rows in all, or labels that are not (n,)."""
    _require_floating("features", features)
    if features.dim() != 3:
        raise InputError(
            f"features must have shape (n, v, z), got {tuple(features.shape)}; use features.unsqueeze(1) for one view"
        )
    if labels.shape != features.shape[:1]:
        raise InputError(
            f"labels must have shape ({features.shape[0]},), got {tuple(labels.shape)}; pass one label per sample"
        )
    if features.shape[0] * features.shape[1] < 2:
        raise InputError(f"supcon needs at least 2 rows (n · v), got shape {tuple(features.shape)}; use a larger batch")


def require_pairs(
    anchor: Tensor, positives: Tensor, negatives: Tensor | None = None, negative_weight: Tensor | None = None
) -> None:
    """Refuse anything but anchor (n, z), positives (n, P, z), negatives (n or 1, Q, z), negative_weight (n, Q)."""
    require_rows(anchor=anchor)
    n, z = anchor.shape
    _require_partners("positives", positives, n, z, leading=(n,))
    if positives.shape[1] == 0:
        raise InputError(f"positives must hold at least one positive per anchor, got {tuple(positives.shape)}")
    if negatives is None:
        return
    _require_partners("negatives", negatives, n, z, leading=(n, 1))
    if negative_weight is not None and negative_weight.shape != (n, negatives.shape[1]):
        raise InputError(
            f"negative_weight must have shape (n, Q) = ({n}, {negatives.shape[1]}), got {tuple(negative_weight.shape)};"
            " pass one weight per pair of anchor and negative, or None for 1 each"
        )


def _require_partners(name: str, partners: Tensor, n: int, z: int, *, leading: tuple[int, ...]) -> None:
    _require_floating(name, partners)
    if partners.dim() != 3 or partners.shape[0] not in leading or partners.shape[2] != z:
        raise InputError(
            f"{name} must have shape ({n}, any, {z}) to match the anchor, got {tuple(partners.shape)};"
            f" use {name}.unsqueeze(1) for one per anchor"
        )


def _require_floating(name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise InputError(f"{name} must be floating-point embeddings, got {tensor.dtype}; use {name}.float()")
