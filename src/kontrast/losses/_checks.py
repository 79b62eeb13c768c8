"""The shapes that losses take. Only shapes and number types are looked at, so that no check waits for a device."""

from __future__ import annotations

from torch import Tensor

from kontrast.checks import require_floating, require_same_dtype, require_same_shape, require_shape
from kontrast.errors import InputError


def require_rows(at_least: int = 1, **embeddings: Tensor) -> None:
    """Refuse named embeddings that are not floating-point matrices (n, z) of one shape with n ≥ `at_least`."""
    for name, tensor in embeddings.items():
        require_floating(name, tensor, f"use {name}.float()")
        require_shape(name, tensor, ("n", "z"), "pass one row per sample")
    if len(embeddings) > 1:
        require_same_dtype(**embeddings)
        require_same_shape("pass as many rows and dimensions", **embeddings)
    n = tensor.shape[0]
    if n < at_least:
        raise InputError(f"the loss needs at least {at_least} samples, got {n}; use a larger batch")


def require_pairs(
    anchor: Tensor, positives: Tensor, negatives: Tensor | None = None, negative_weight: Tensor | None = None
) -> None:
    """Refuse anything but anchor (n, z), positives (n, P, z), negatives (n or 1, Q, z), negative_weight (n, Q)."""
    require_rows(anchor=anchor)
    n, z = anchor.shape
    require_floating("positives", positives, "use positives.float()")
    require_shape("positives", positives, (n, "P", z), "use positives.unsqueeze(1) for one positive per anchor")
    if negatives is None:
        return
    require_floating("negatives", negatives, "use negatives.float()")
    if negatives.dim() != 3 or negatives.shape[0] not in (n, 1) or negatives.shape[2] != z:
        raise InputError(
            f"negatives must have shape ({n}, Q, {z}), or (1, Q, {z}) to share them, got {tuple(negatives.shape)};"
            " use negatives.unsqueeze(1) for one per anchor"
        )
    if negative_weight is not None:
        fix = "pass one weight per pair of anchor and negative, or None for 1 each"
        require_shape("negative_weight", negative_weight, (n, negatives.shape[1]), fix)
