"""Comparison of subspaces: sines of principal angles, and the rotation that lays one set of columns on another."""

from __future__ import annotations

import torch
from torch import Tensor

from kontrast.checks import require_finite, require_floating, require_same_shape, require_shape
from kontrast.errors import InputError


def subspace_sines(U: Tensor, V: Tensor) -> Tensor:
    r"""Sines of the k principal angles between the column spans of U and V, both (n, k), largest first.

    The singular values of $(I - UU^\top) V$ for orthonormalised U, V (Björck & Golub 1973): right to rounding for small
    angles, where the cosines, the singular values of $U^\top V$, are 1 to rounding and say nothing. The columns need
    not be orthonormal. Computed in float64, returned in the number type of U.
    """
    _require_columns(U=U, V=V)
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
    _require_columns(A=A, B=B)
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
    require_finite(name, matrix)
    doubled = matrix.detach().double()
    size = doubled.abs().max()
    return doubled / size if float(size) > 0 else doubled


def _require_columns(**matrices: Tensor) -> None:
    """Refuse named matrices that are not floating-point, of one shape (n, k), with n ≥ k ≥ 1."""
    for name, matrix in matrices.items():
        require_floating(name, matrix, f"use {name}.double()")
        require_shape(name, matrix, ("n", "k"))
        if matrix.shape[0] < matrix.shape[1]:
            raise InputError(f"{name} must have at least as many rows as columns, got {tuple(matrix.shape)}")
    require_same_shape("compare as many columns with as many", **matrices)
