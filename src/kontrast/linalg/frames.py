"""Orthonormal frames W (M × Z, W^T W = I): random ones, retractions, and descent that keeps them so."""

from __future__ import annotations

import torch
from torch import Tensor

from kontrast.checks import require_generator, require_positive, require_whole, resolve_dtype
from kontrast.errors import InputError


def random_frame(
    n_rows: int, n_columns: int, *, generator: torch.Generator, dtype: torch.dtype | str = torch.float64
) -> Tensor:
    """A frame drawn uniformly (Haar measure): the QR factor of a Gaussian matrix with R's diagonal positive."""
    n_rows, n_columns = require_whole("n_rows", n_rows), require_whole("n_columns", n_columns)
    require_generator(generator)
    gaussian = torch.randn(n_rows, n_columns, generator=generator, dtype=torch.float64, device=generator.device)
    return qr_retraction(gaussian).to(resolve_dtype(dtype))


def qr_retraction(matrix: Tensor) -> Tensor:
    """The orthonormal factor Q of `matrix`, made unique (and smooth in `matrix`) by a positive diagonal of R."""
    _check_tall(*matrix.shape)
    q, r = torch.linalg.qr(matrix)
    sign = torch.where(r.diagonal() < 0, -1.0, 1.0).to(q.dtype)
    return torch.mul(q, sign)


def polar_retraction(matrix: Tensor) -> Tensor:
    """The frame nearest to `matrix` in Frobenius norm: its polar factor U V^T."""
    _check_tall(*matrix.shape)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    return torch.matmul(u, vh)


def grassmann_tangent(frame: Tensor, gradient: Tensor) -> Tensor:
    """(I − W W^T) G: the gradient on the Grassmannian (Edelman et al. 1998; paper A, footnote 7)."""
    return gradient - frame @ (frame.mT @ gradient)


def grassmann_step(frame: Tensor, gradient: Tensor, *, learning_rate: float) -> Tensor:
    """One step of Grassmannian gradient descent: tangent projection, then QR retraction.

    A QR factor of the raw step W − ηG, without the projection, is not a descent method (claims B.thm2).
    """
    return qr_retraction(frame - learning_rate * grassmann_tangent(frame, gradient))


def polar_step(frame: Tensor, gradient: Tensor, *, learning_rate: float) -> Tensor:
    """Projected gradient descent: the frame nearest to W − ηG.

    To first order a step along the Stiefel manifold's gradient in the Euclidean metric, G − W sym(W^T G).
    """
    return polar_retraction(frame - learning_rate * gradient)


def cayley_step(frame: Tensor, gradient: Tensor, *, learning_rate: float) -> Tensor:
    r"""One step along the Stiefel manifold's gradient in the canonical metric, G − W G^T W, by Cayley's transform.

    $W_+ = (I + \frac\eta2 A)^{-1}(I - \frac\eta2 A) W$ with the skew A = G W^T − W G^T (Wen & Yin 2013). A has rank
    2Z: for 2Z < M the inverse is one of size 2Z.
    """
    _check_tall(*frame.shape)
    M, Z = frame.shape
    half = learning_rate / 2
    left, right = torch.cat([gradient, frame], dim=1), torch.cat([frame, -gradient], dim=1)  # A = left right^T
    if 2 * Z < M:
        small = torch.eye(2 * Z, dtype=frame.dtype, device=frame.device) + half * right.mT @ left
        moved = frame - learning_rate * left @ torch.linalg.solve(small, right.mT @ frame)
    else:
        A = left @ right.mT
        identity = torch.eye(M, dtype=frame.dtype, device=frame.device)
        moved = torch.linalg.solve(identity + half * A, frame - half * A @ frame)
    # Newton's step to the nearest frame, so that rounding never adds up.
    return torch.sub(1.5 * moved, moved @ (moved.mT @ moved), alpha=0.5)


def operator_ball(matrix: Tensor, radius: float = 1.0) -> Tensor:
    """The matrix nearest to `matrix` whose singular values are at most `radius`."""
    require_positive(radius=radius)
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    return torch.matmul(u * s.clamp(max=radius), vh)


def frobenius_ball(matrix: Tensor, radius: float = 1.0) -> Tensor:
    """The matrix nearest to `matrix` whose Frobenius norm is at most `radius`."""
    require_positive(radius=radius)
    return torch.mul(matrix, radius / matrix.norm().clamp(min=radius))


def orthonormality_error(frame: Tensor) -> float:
    """The largest entry of |W^T W − I|, the distance from being a frame."""
    gram = frame.mT @ frame
    return float((gram - torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)).abs().max())


def _check_tall(n_rows: int, n_columns: int) -> None:
    if n_rows < n_columns:
        raise InputError(
            f"a frame needs at least as many rows as columns, got {n_rows} x {n_columns}; "
            f"raise the width to {n_columns} or lower the output dimension to {n_rows}"
        )
