"""Embeddings as the metrics read them: checked, in double precision, without gradients, of unit length where asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kontrast.checks import require_floating, require_matrix, require_same_shape
from kontrast.errors import InputError

STRIP = 2**22  # entries of a similarity matrix that are held at once, 32 MiB


def as_rows(name: str, z: Tensor) -> Tensor:
    """One embedding per row (n, d), finite, in float64."""
    require_matrix(name, z, ("n", "d"), "pass one embedding per row")
    return z.detach().double()


def as_two_views(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The embeddings of two views of the same samples, (n, d) each."""
    first, second = as_rows("a", a), as_rows("b", b)
    require_same_shape("row i of both is one sample", a=first, b=second)
    return first, second.to(first.device)


def as_views(views: Tensor | Sequence[Tensor]) -> Tensor:
    """Embeddings grouped by sample (n, v, d), v ≥ 2, from such a tensor or from one tensor (n, d) per view."""
    if not isinstance(views, Tensor):
        if len(views) < 2:
            raise InputError(f"views must hold at least 2 views of every sample, got {len(views)}; pass more")
        for index, view in enumerate(views):
            require_floating(f"views[{index}]", view)
        named = {f"views[{index}]": view for index, view in enumerate(views)}
        require_same_shape("row i of every view is one sample", **named)
        views = torch.stack([view.double().to(views[0].device) for view in views], 1)
    require_matrix("views", views, ("n", "v", "d"), "pass (samples, views, dimensions): views of one sample together")
    if views.shape[1] < 2:
        raise InputError(f"views must hold at least 2 views of every sample, got shape {tuple(views.shape)}; pass more")
    return views.detach().double()


def unit_rows(rows: Tensor) -> Tensor:
    """The rows divided by their length; a row of zeros has no direction and stays zero, at cosine 0 with every row."""
    length = norm_of(rows)[..., None]
    return rows / torch.where(rows.any(-1, keepdim=True), length, 1.0)


def centered_rows(rows: Tensor) -> Tensor:
    """The rows less their mean: exactly zero where all are equal."""
    shifted = rows - rows[0]
    return shifted - shifted.mean(0)


def norm_of(values: Tensor) -> Tensor:
    """The Euclidean norm over the last axis, also where squares leave the range of floats."""
    largest = values.abs().amax(-1, keepdim=True)
    scale = torch.where(largest > 0, largest, 1.0)
    norm: Tensor = torch.linalg.vector_norm(values / scale, dim=-1)
    return scale[..., 0] * norm


def gram_strips(rows: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The matrix of inner products of all rows, in strips of rows: (first row, (rows of the strip, n))."""
    height = max(1, STRIP // len(rows))
    for start in range(0, len(rows), height):
        yield start, rows[start : start + height] @ rows.mT
