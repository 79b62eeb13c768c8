"""Subspaces compared: sines of principal angles, and the rotation that lays one set of columns on another."""

from __future__ import annotations

import torch
from torch import Tensor

from kontrast.errors import InputError


def subspace_sines(U: Tensor, V: Tensor) -> Tensor:
    r"""Sines of the k principal angles between the column spans of U and V, both (n, k), largest first.

    The singular values of $(I - UU^\top) V$ for orthonormalised U, V (Björck & Golub 1973): right to rounding for small
    angles, where the cosines, the singular values of $U^\top V$, are 1 to rounding and say nothing. The columns need
    not be orthonormal. Computed in float64, returned in the number type of U.
    """
    _require_same_shape(U, V, "U", "V")
    u, v = _orthonormalized(U, "U"), _orthonormalized(V, "V")
    # Either span's distance from the other gives the same sines; rounding can carry a right angle's above 1.
    sines: Tensor = torch.linalg.svdvals(v - u @ (u.mT @ v))
    return sines.clamp(max=1.0).to(U.dtype)


def best_rotation(A: Tensor, B: Tensor) -> Tensor:
    r"""The orthogonal (k, k) matrix O that minimises $\|A O - B\|_F$ for A, B (n, k): orthogonal Procrustes.

    The O of paper A, Lemma 17, which compares representations up to a rotation: those of `A` are to be rotated onto
    those of `B`. O = P Q^T for the singular value decomposition A^T B = P Σ Q^T (Schönemann 1966); reflections are
    allowed, and where A^T B is singular O is one of many.
    """
    _require_same_shape(A, B, "A", "B")
    P, _, Qh = torch.linalg.svd(_scaled(A, "A").mT @ _scaled(B, "B"))
    return torch.matmul(P, Qh).to(A.dtype)


def _orthonormalized(matrix: Tensor, name: str) -> Tensor:
    """An orthonormal basis of the columns' span, in float64; refuses columns that depend on each other."""
    n, k = matrix.shape
    columns = _scaled(matrix, name)
    columns = columns / columns.norm(dim=0).clamp(min=torch.finfo(columns.dtype).tiny)
    q: Tensor
    q, r = torch.linalg.qr(columns)
    sizes = torch.linalg.svdvals(r)
    rank = int((sizes > n * torch.finfo(matrix.dtype).eps * sizes[0]).sum()) if float(sizes[0]) > 0 else 0
    if rank < k:
        raise InputError(
            f"the {k} columns of {name} span only {rank} dimensions, so its principal angles are not defined; "
            f"drop the dependent columns"
        )
    return q


def _scaled(matrix: Tensor, name: str) -> Tensor:
    """The matrix in float64 over its largest entry, which changes neither span nor best rotation."""
    if not torch.isfinite(matrix).all():
        raise InputError(f"{name} holds NaN or infinite values; check the data behind it")
    doubled = matrix.detach().double()
    size = doubled.abs().max()
    return doubled / size if float(size) > 0 else doubled


def _require_same_shape(a: Tensor, b: Tensor, name_a: str, name_b: str) -> None:
    if a.ndim != 2 or a.shape != b.shape or not 1 <= a.shape[1] <= a.shape[0]:
        raise InputError(
            f"{name_a} and {name_b} must be matrices of one shape (n, k) with n >= k >= 1, got {tuple(a.shape)} and "
            f"{tuple(b.shape)}; compare as many columns with as many"
        )
    for matrix, name in ((a, name_a), (b, name_b)):
        if not matrix.is_floating_point():
            raise InputError(f"{name} must be real floating-point numbers, got {matrix.dtype}; use {name}.double()")
