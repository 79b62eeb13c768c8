r"""The learning transfer matrix of a training set, in the eigenfunctions of a kernel (paper D, Sec. 2.2 and 4).

$\hat f(x) = K(x, D)(K(D, D) + δI)^{-1} f(D)$ is linear in f: in the basis of the kernel's eigenfunctions
$\hat v = T^{(D)} v$ with the learning transfer matrix T (33), which depends on the training set D and not on f.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.checks import in_words, require_finite, require_finite_not_negative, require_floating, require_type
from kontrast.errors import InputError
from kontrast.learnability.eigenlearning import Spectrum
from kontrast.linalg import eigenvalue_rounding, fix_signs, require_symmetric


@dataclass(frozen=True, eq=False)
class Eigensystem:
    r"""A kernel's eigenfunctions on M points, (31): $\frac1M \sum_{x'} K(x, x')φ_i(x') = λ_i φ_i(x)$, in float64."""

    eigenvalues: Tensor  # of K/M, descending, (M,); those within rounding of 0 are 0
    functions: Tensor  # (M, M), column i is φ_i at every point, of mean square 1

    @property
    def spectrum(self) -> Spectrum:
        """The eigenvalues for `predict_learning`."""
        return Spectrum(self.eigenvalues)

    def coefficients(self, targets: Tensor) -> Tensor:
        r"""The v of (32), $v_i = \langle φ_i, f\rangle$, of targets (M,) or (M, c)."""
        f = checked_targets(targets, self.functions)
        return (self.functions.mT @ f / len(f)).reshape(targets.shape)

    def powers(self, targets: Tensor) -> Tensor:
        """v² for `predict_learning`, of the shape of the targets."""
        return self.coefficients(targets).square()


def eigensystem(K: Tensor) -> Eigensystem:
    """Eigenvalues and eigenfunctions of a kernel matrix (M, M) over a finite domain or data set.

    Eigenvalues within rounding of zero, of either sign, are 0; a kernel with others below 0 is refused.
    """
    K = checked_kernel(K)
    M, noise = len(K), eigenvalue_rounding(K, torch.finfo(K.dtype).eps)
    values, vectors = torch.linalg.eigh(K.double())
    if float(values[0]) < -10 * noise:
        raise negative_eigenvalues(float(values[0]), float(values[-1]))
    values = torch.where(values > noise, values, 0.0)
    return Eigensystem(values.flip(0) / M, fix_signs(vectors.flip(1)) * math.sqrt(M))


def transfer_matrix(system: Eigensystem, rows: Tensor, *, ridge: float = 0.0) -> Tensor:
    r"""The learning transfer matrix (33), $T^{(D)} = ΛΦ(Φ^\top ΛΦ + δI)^{-1}Φ^\top$, (M, M), of the points `rows`.

    Its diagonal holds the D-learnabilities of the eigenfunctions (37); its trace is n without a ridge (Theorem 2.2), or
    the rank of K(D, D) where that is singular: singular values of $Λ^{1/2}Φ$ below their rounding are dropped. With a
    ridge the trace is $n - δ\,\mathrm{Tr}(K(D, D) + δI)^{-1}$.
    """
    Phi = _at_samples(system, rows, ridge)
    root = system.eigenvalues.sqrt()
    # Through Λ^½Φ = U s V^T, whose condition number is the root of the kernel's.
    U, s, Vt = torch.linalg.svd(root[:, None] * Phi, full_matrices=False)
    kept = s > max(Phi.shape) * torch.finfo(s.dtype).eps * s[:1] if ridge == 0 else s > 0
    U, s, Vt = U[:, kept], s[kept], Vt[kept]
    T: Tensor = root[:, None] * ((U * (s / (s.square() + ridge))) @ (Vt @ Phi.mT))
    return T


def transfer_derivative(system: Eigensystem, rows: Tensor, *, ridge: float = 0.0) -> Tensor:
    r"""How eigenvalues compete: entry (i, j) is $dT_{jj}/dλ_i = (δ_{ij} - λ_j Q_{ij})Q_{ij}$, (39) and (40), (M, M).

    $Q_{ij} = φ_i(D)^\top (K(D, D) + δI)^{-1} φ_j(D)$. Needs K(D, D) + δI to be regular: a pseudo-inverse has no
    derivative.
    """
    Phi = _at_samples(system, rows, ridge)
    G = Phi.mT @ (system.eigenvalues[:, None] * Phi)
    G.diagonal().add_(ridge)
    L, info = torch.linalg.cholesky_ex(G)
    if int(info) != 0 or not is_regular(L):
        raise InputError(
            f"K(D, D) of these {len(G)} points is singular to rounding, and its inverse has no derivative; leave out "
            "points that coincide, or pass a ridge above 0"
        )
    half = torch.linalg.solve_triangular(L, Phi.mT, upper=False)
    Q = half.mT @ half
    derivative: Tensor = (torch.eye(len(Q), dtype=Q.dtype, device=Q.device) - system.eigenvalues * Q) * Q
    return derivative


def is_regular(L: Tensor) -> bool:
    """Whether no pivot of a Cholesky factor is rounding."""
    pivots = L.diagonal().square()
    return bool(pivots.min() > len(L) * torch.finfo(L.dtype).eps * pivots.max()) if len(L) else True


def _at_samples(system: Eigensystem, rows: Tensor, ridge: float) -> Tensor:
    """Φ of (33), the eigenfunctions at the samples, (M, n)."""
    require_type("system", system, Eigensystem, "make one with eigensystem(K)")
    require_finite_not_negative(ridge=ridge)
    M = len(system.functions)
    if not isinstance(rows, Tensor) or rows.ndim != 1 or rows.dtype != torch.int64:
        raise InputError(f"rows must be indices of points of the domain, an int64 tensor (n,), got {in_words(rows)}")
    if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < M):
        raise InputError(f"rows must be from 0 to {M - 1}, got {int(rows.min())} to {int(rows.max())}")
    return system.functions[rows.to(system.functions.device)].mT


def negative_eigenvalues(smallest: float, largest: float) -> InputError:
    """The error for a matrix that is not a kernel."""
    return InputError(
        f"K must not have negative eigenvalues, but its smallest is {smallest:.3g}, its largest {largest:.3g}; use a "
        f"kernel, or add {-smallest:.2g} to its diagonal"
    )


def checked_kernel(K: Tensor) -> Tensor:
    """K itself; refuses what is not a kernel matrix."""
    is_matrix = isinstance(K, Tensor) and K.ndim == 2 and K.shape[0] == K.shape[1] > 0 and K.layout == torch.strided
    if not is_matrix or K.dtype not in (torch.float32, torch.float64):
        raise InputError(
            "K must be a dense square float tensor (M, M), float32 or float64, the kernel over the domain, got "
            f"{in_words(K)}"
        )
    require_finite("K", K)
    require_symmetric(K, "K")
    if not bool(K.any()):
        raise InputError("K is zero everywhere, so it learns nothing; check that the samples are not all zero")
    return K.detach()


def checked_targets(targets: Tensor, like: Tensor) -> Tensor:
    """The targets as (M, c), in the number type of `like`, which has one row per point."""
    M = len(like)
    require_floating("targets", targets, "for class labels use torch.nn.functional.one_hot(labels).double()")
    if targets.ndim not in (1, 2) or len(targets) != M:
        raise InputError(
            f"targets must have shape ({M},) or ({M}, c), f at each of the {M} points, got {tuple(targets.shape)}"
        )
    f = targets.detach().to(like).reshape(M, -1)
    require_finite("targets", f, "leave those points out")
    if not bool((f != 0).any(0).all()):
        raise InputError("a target is zero at every point, so there is nothing to learn; leave it out")
    return f
