r"""Learnability on a finite domain: how much of a function a kernel regains from a training set (paper D, Sec. 2.2, 4).

$\hat f(x) = K(x, D)(K(D, D) + δI)^{-1} f(D)$ is linear in f: in the basis of the kernel's eigenfunctions
$\hat v = T^{(D)} v$ with the learning transfer matrix T (33), which knows all about the training set and nothing of f.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.checks import in_words, require_finite_not_negative, require_whole
from kontrast.errors import InputError
from kontrast.learnability.eigenlearning import Spectrum
from kontrast.linalg import eigenvalue_rounding, fix_signs, require_symmetric


@dataclass(frozen=True, eq=False)
class Eigensystem:
    r"""A kernel on M points by its eigenfunctions, (31): $\frac1M \sum_{x'} K(x, x')φ_i(x') = λ_i φ_i(x)$, in float64.

    Attributes:
        eigenvalues: of K/M, descending, (M,); those below rounding are 0.
        functions: (M, M), column i is $φ_i$ at every point, of mean square 1.
    """

    eigenvalues: Tensor
    functions: Tensor

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

    Eigenvalues that may be the rounding of zero, of either sign, are 0; a kernel with others below 0 is refused.
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
    # Through Λ^½Φ = U s V^T, whose condition is the root of the kernel's.
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
    if int(info) != 0 or not _is_regular(L):
        raise InputError(
            f"K(D, D) of these {len(G)} points is singular to rounding, and its inverse has no derivative; leave out "
            "points that coincide, or pass ridge above 0"
        )
    half = torch.linalg.solve_triangular(L, Phi.mT, upper=False)
    Q = half.mT @ half
    derivative: Tensor = (torch.eye(len(Q), dtype=Q.dtype, device=Q.device) - system.eigenvalues * Q) * Q
    return derivative


@dataclass(frozen=True, eq=False)
class MeasuredLearning:
    """Kernel regression from random training sets: every field is (draws, c), or (draws,) for one target.

    Errors are mean squares; `test_error` is over all points, `unseen_error` over those that were not drawn (NaN where
    all were), `train_error` over the samples (NaN without any); `learnability` is (6).
    """

    learnability: Tensor
    test_error: Tensor
    unseen_error: Tensor
    train_error: Tensor


def measure_learning(
    K: Tensor,
    targets: Tensor,
    n_samples: int,
    *,
    n_draws: int,
    generator: torch.Generator,
    ridge: float = 0.0,
    replacement: bool = False,
) -> MeasuredLearning:
    r"""Regression (5) of the targets from `n_samples` random points of the domain, again and again.

    Without a ridge a singular K(D, D), of points that coincide or were drawn twice, has its pseudo-inverse taken:
    eigenvalues below n times the rounding of the largest are dropped.

    Args:
        K: the kernel over the domain, (M, M).
        targets: f at every point, (M,) or (M, c).
        n_samples: how many points a training set has.
        n_draws: how many training sets.
        generator: draws them.
        ridge: δ of $(K + δI)^{-1}$.
        replacement: whether a point may be drawn twice.
    """
    K = checked_kernel(K)
    f = checked_targets(targets, K)
    require_whole("n_samples", n_samples, least=0)
    require_whole("n_draws", n_draws)
    require_finite_not_negative(ridge=ridge)
    if not isinstance(generator, torch.Generator):
        raise InputError(
            f"training sets are random: pass generator=torch.Generator().manual_seed(…), got {generator!r}"
        )
    M = len(K)
    if n_samples > M and not replacement:
        raise InputError(
            f"asked for {n_samples} samples of a domain of {M} points without replacement; ask for at most {M}, or "
            "pass replacement=True"
        )
    draws = [_one_draw(K, f, _draw(M, n_samples, replacement, generator).to(K.device), ridge) for _ in range(n_draws)]
    fields = (torch.stack(field).reshape(n_draws, *targets.shape[1:]) for field in zip(*draws, strict=True))
    return MeasuredLearning(*fields)


def _draw(M: int, n: int, replacement: bool, generator: torch.Generator) -> Tensor:
    if replacement:
        return torch.randint(M, (n,), generator=generator, device=generator.device)
    return torch.randperm(M, generator=generator, device=generator.device)[:n]


def _one_draw(K: Tensor, f: Tensor, rows: Tensor, ridge: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    predicted = K[:, rows] @ _weights(K[rows][:, rows], f[rows], ridge)
    squares = (f - predicted).square()
    unseen = torch.ones(len(K), dtype=torch.bool, device=K.device)
    unseen[rows] = False
    return (
        learnability(f, predicted),
        squares.mean(0),
        squares[unseen].mean(0),  # NaN of no points
        squares[rows].mean(0),
    )


def _weights(G: Tensor, f: Tensor, ridge: float) -> Tensor:
    """(G + δI)⁻¹f, with the pseudo-inverse where that is singular to rounding."""
    if len(G) == 0:
        return f
    G = G.clone()
    G.diagonal().add_(ridge)
    L, info = torch.linalg.cholesky_ex(G)
    if int(info) == 0 and _is_regular(L):
        return torch.cholesky_solve(f, L)
    values, vectors = torch.linalg.eigh(G)
    kept = values > len(G) * torch.finfo(G.dtype).eps * values[-1]
    if float(values[0]) < -10 * eigenvalue_rounding(G, torch.finfo(G.dtype).eps):
        raise negative_eigenvalues(float(values[0]), float(values[-1]))
    weights: Tensor = vectors[:, kept] @ ((vectors[:, kept].mT @ f) / values[kept, None])
    return weights


def learnability(target: Tensor, predicted: Tensor) -> Tensor:
    r"""$\langle f, \hat f\rangle/\langle f, f\rangle$, (6) and (34), of functions (M,) or of the columns of (M, c).

    The share of f that was learned, for an eigenfunction in [0, 1]; for others it may lie outside (claims D.mono).
    """
    for name, given in {"target": target, "predicted": predicted}.items():
        if not isinstance(given, Tensor) or given.ndim not in (1, 2) or not given.is_floating_point():
            raise InputError(f"{name} must be a float tensor (M,) or (M, c), got {in_words(given)}")
    if target.shape != predicted.shape:
        raise InputError(f"target and predicted differ in shape: {tuple(target.shape)} and {tuple(predicted.shape)}")
    return (target * predicted).sum(0) / target.square().sum(0)


def _is_regular(L: Tensor) -> bool:
    """Whether no pivot of a Cholesky factor is rounding."""
    pivots = L.diagonal().square()
    return bool(pivots.min() > len(L) * torch.finfo(L.dtype).eps * pivots.max()) if len(L) else True


def _at_samples(system: Eigensystem, rows: Tensor, ridge: float) -> Tensor:
    """Φ of (33), the eigenfunctions at the samples, (M, n)."""
    if not isinstance(system, Eigensystem):
        raise InputError(f"system must be an Eigensystem, got {in_words(system)}; make one by eigensystem(K)")
    require_finite_not_negative(ridge=ridge)
    M = len(system.functions)
    if not isinstance(rows, Tensor) or rows.ndim != 1 or rows.dtype != torch.int64:
        raise InputError(f"rows must be the samples' places in the domain, an int64 tensor (n,), got {in_words(rows)}")
    if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < M):
        raise InputError(f"rows must lie in 0 to {M - 1}, got {int(rows.min())} to {int(rows.max())}")
    return system.functions[rows.to(system.functions.device)].mT


def negative_eigenvalues(smallest: float, largest: float) -> InputError:
    """What to say of a matrix that is no kernel."""
    return InputError(
        f"a kernel has no negative eigenvalues, and the smallest of this one is {smallest:.3g} beside {largest:.3g}; "
        f"use a kernel, or add {-smallest:.2g} to its diagonal"
    )


def checked_kernel(K: Tensor) -> Tensor:
    """K, or a refusal of what is no kernel matrix."""
    is_matrix = isinstance(K, Tensor) and K.ndim == 2 and K.shape[0] == K.shape[1] > 0 and K.layout == torch.strided
    if not is_matrix or K.dtype not in (torch.float32, torch.float64):
        raise InputError(
            "K must be a dense square float tensor (M, M), float32 or float64, the kernel over the domain, got "
            f"{in_words(K)}"
        )
    if not bool(torch.isfinite(K).all()):
        raise InputError("K holds NaN or infinite values; check the data behind it")
    require_symmetric(K, "K")
    if not bool(K.any()):
        raise InputError("the kernel is zero at every pair, so it learns nothing; are the samples all zero?")
    return K.detach()


def checked_targets(targets: Tensor, like: Tensor) -> Tensor:
    """The targets as (M, c), in the number type of `like`, which has a row a point."""
    M = len(like)
    if not isinstance(targets, Tensor) or targets.ndim not in (1, 2) or len(targets) != M or targets.is_complex():
        raise InputError(
            f"targets must be a tensor ({M},) or ({M}, c), f at each of the {M} points, got {in_words(targets)}"
        )
    if not targets.is_floating_point():
        raise InputError(
            f"targets must be real numbers, got {targets.dtype}; of class labels make one column a class, by "
            "torch.nn.functional.one_hot(labels).double()"
        )
    f = targets.detach().to(like).reshape(M, -1)
    if not bool(torch.isfinite(f).all()):
        raise InputError("targets hold NaN or infinite values; leave those points out")
    if not bool((f != 0).any(0).all()):
        raise InputError("a target is zero at every point, so there is nothing to learn; leave it out")
    return f
