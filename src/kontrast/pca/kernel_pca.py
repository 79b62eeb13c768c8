r"""Contrastive PCA at infinite width (claim A.inf): from the kernel alone, exactly or by landmarks.

$C = \Phi^\top S \Phi$ has the nonzero eigenpairs of S K, $K = \Phi\Phi^\top$: if $S K a = \lambda a$ then
$w = \Phi^\top a$ has $C w = \lambda w$, and $f(x) = w^\top \varphi(x) = \sum_i a_i k(x_i, x)$. S K is self-adjoint in
$\langle a, b\rangle_K = a^\top K b$, where $\|a\|_K = \|w\|$. As the width grows K tends to the NNGP kernel, divided by
its norms for the cosine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kontrast.errors import InputError
from kontrast.kernels import KERNEL_TILE, Kernel, kernel_from_state
from kontrast.linalg import fix_signs, largest_eigenpairs, top_eigenpairs
from kontrast.pca.whitened import require_positive_values

WHOLE_BELOW = 1000  # points up to which the whole kernel is decomposed
# Residuals over the largest eigenvalue. Eigenvalues err by residual²/gap: 1e-3 leaves 1e-6 of the largest.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
MAX_STEPS = 60  # blocks; real data need 6 to 10


class KernelFeatures:
    """k(x, points), times a matrix if there is one: the features of a finite expansion in an infinite model."""

    def __init__(self, kernel: Kernel, points: Tensor, mix: Tensor | None = None) -> None:
        self.kernel, self.points, self.mix = kernel, points, mix

    def state(self) -> dict[str, Any]:
        """The tensors and the kernel from which `from_state` makes the same features."""
        if not hasattr(self.kernel, "state"):
            raise InputError(f"a kernel of the type {type(self.kernel).__name__} cannot be saved")
        tensors = {"points": self.points} if self.mix is None else {"points": self.points, "mix": self.mix}
        return {"kind": "kernel", "mixed": self.mix is not None, "kernel": self.kernel.state(), **tensors}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> KernelFeatures:
        """The features of a `state`."""
        return cls(kernel_from_state(state["kernel"]), state["points"], state["mix"] if state["mixed"] else None)

    @property
    def n_features(self) -> int:
        """One per point, or per column of the matrix."""
        return len(self.points) if self.mix is None else self.mix.shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        """(n, …) → (n, M)."""
        if self.mix is None:
            return self.kernel(x, self.points)
        rows = max(1, KERNEL_TILE[x.device.type] // len(self.points))
        return torch.cat([self.kernel(part, self.points) @ self.mix for part in torch.split(x, rows)])


def nystrom_features(kernel: Kernel, landmarks: Tensor) -> KernelFeatures:
    r"""Features $k(x, Z) K_{ZZ}^{-1/2}$ whose products are the kernel, exactly where x or y is a landmark of Z.

    Elsewhere they are the products of projections onto the landmarks' span, so the approximation leaves out
    $k(x, x) - \|\varphi(x)\|^2 \ge 0$. Directions of $K_{ZZ}$ below rounding are dropped.
    """
    values, vectors = torch.linalg.eigh(kernel(landmarks.double()))
    kept = values > torch.finfo(landmarks.dtype).eps * values[-1]
    if not bool(kept.any()):
        raise InputError("the kernel is zero on the landmarks, as for samples of zeros; pass samples that vary")
    root = vectors[:, kept] * values[kept].rsqrt()
    return KernelFeatures(kernel, landmarks, root.flip(1).to(landmarks.dtype))


def kernel_contrastive_pca(
    K: Tensor, S: Callable[[Tensor], Tensor], n_components: int, *, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Coefficients a (m, k) with a^T K a = I and S K a = λ a, and λ (k,): contrastive PCA from a kernel alone.

    K is the kernel over the pool, (m, m), and S multiplies blocks (m, b) by the symmetric pair matrix. Refused where
    fewer than k = `n_components` eigenvalues are positive. `generator` draws the start of the iteration.
    """
    if len(K) <= WHOLE_BELOW:
        return _whole(K, S, n_components)
    top = top_eigenpairs(
        lambda block: S(K @ block),
        n_components,
        metric=K,
        n=len(K),
        dtype=K.dtype,
        device=K.device,
        generator=generator,
        tolerance=TOLERANCE[K.dtype],
        max_steps=MAX_STEPS,
    )
    noise = float(top.residuals.max()) * float(top.values.abs().max())
    require_positive_values(top.values, n_components, noise=noise, top_noise=_rounding(K))
    return top.vectors, top.values


def _rounding(K: Tensor) -> float:
    """The rounding of an eigenvalue of C, a difference of means of products of the size of k(x, x)."""
    return 4 * torch.finfo(K.dtype).eps * float(K.diagonal().mean())


def _whole(K: Tensor, S: Callable[[Tensor], Tensor], k: int) -> tuple[Tensor, Tensor]:
    """The same from features Φ = K^½, exact even where samples of few dimensions make K singular to rounding."""
    values, U = torch.linalg.eigh(K.double())
    kept = values > len(K) * torch.finfo(K.dtype).eps * values[-1]
    root, U = values[kept].sqrt(), U[:, kept]
    phi = U * root
    C = phi.mT @ S(phi.to(K.dtype)).double()
    found, u = largest_eigenpairs(C, min(k, len(C)))
    noise = 16 * torch.finfo(K.dtype).eps * float(C.norm())
    require_positive_values(found, k, noise=noise, top_noise=_rounding(K))
    return fix_signs((U / root) @ u).to(K.dtype), found.to(K.dtype)
