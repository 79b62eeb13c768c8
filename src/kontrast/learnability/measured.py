r"""Learnability measured: kernel regression from random training sets of a finite domain (paper D, (5) and (6))."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from kontrast import checks
from kontrast.errors import InputError
from kontrast.learnability.transfer import checked_kernel, checked_targets, is_regular, negative_eigenvalues
from kontrast.linalg import eigenvalue_rounding


@dataclass(frozen=True, eq=False)
class MeasuredLearning:
    """Results of kernel regression from random training sets: every field is (draws, c), or (draws,) for one target.

    Errors are mean squares: `test_error` over all points, `unseen_error` over those that were not drawn (NaN if all
    were), `train_error` over the samples (NaN without any). `learnability` is (6).
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
    r"""Regression (5) of the targets from `n_samples` random points of the domain, `n_draws` times.

    Without a ridge, a K(D, D) that is singular because points coincide or were drawn twice is replaced by its
    pseudo-inverse: eigenvalues below n times the rounding of the largest are dropped.

    K (M, M) is the kernel over the domain, `targets` are f at every point, (M,) or (M, c), and the ridge is δ of
    $(K + δI)^{-1}$. With `replacement` a point may be drawn twice.
    """
    K = checked_kernel(K)
    f = checked_targets(targets, K)
    n_samples, n_draws = checks.require_whole("n_samples", n_samples, least=0), checks.require_whole("n_draws", n_draws)
    checks.require_finite_not_negative(ridge=ridge)
    checks.require_generator(generator)
    M = len(K)
    if n_samples > M and not replacement:
        raise InputError(
            f"n_samples must be at most the {M} points of the domain without replacement, got {n_samples}; lower it, "
            "or pass replacement=True"
        )
    draws = [_one_draw(K, f, _draw(M, n_samples, replacement, generator).to(K.device), ridge) for _ in range(n_draws)]
    names = [field.name for field in fields(MeasuredLearning)]
    return MeasuredLearning(
        *(torch.stack([getattr(draw, name) for draw in draws]).reshape(n_draws, *targets.shape[1:]) for name in names)
    )


def _draw(M: int, n: int, replacement: bool, generator: torch.Generator) -> Tensor:
    if replacement:
        return torch.randint(M, (n,), generator=generator, device=generator.device)
    return torch.randperm(M, generator=generator, device=generator.device)[:n]


def _one_draw(K: Tensor, f: Tensor, rows: Tensor, ridge: float) -> MeasuredLearning:
    """The result of one training set, every field (c,)."""
    predicted = K[:, rows] @ _weights(K[rows][:, rows], f[rows], ridge)
    squares = (f - predicted).square()
    unseen = torch.ones(len(K), dtype=torch.bool, device=K.device)
    unseen[rows] = False
    return MeasuredLearning(
        learnability=learnability(f, predicted),
        test_error=squares.mean(0),
        unseen_error=squares[unseen].mean(0),  # NaN if there are none
        train_error=squares[rows].mean(0),
    )


def _weights(G: Tensor, f: Tensor, ridge: float) -> Tensor:
    """(G + δI)⁻¹f, by the pseudo-inverse if that is singular to rounding."""
    if len(G) == 0:
        return f
    G = G.clone()
    G.diagonal().add_(ridge)
    L, info = torch.linalg.cholesky_ex(G)
    if int(info) == 0 and is_regular(L):
        return torch.cholesky_solve(f, L)
    values, vectors = torch.linalg.eigh(G)
    kept = values > len(G) * torch.finfo(G.dtype).eps * values[-1]
    if float(values[0]) < -10 * eigenvalue_rounding(G, torch.finfo(G.dtype).eps):
        raise negative_eigenvalues(float(values[0]), float(values[-1]))
    weights: Tensor = vectors[:, kept] @ ((vectors[:, kept].mT @ f) / values[kept, None])
    return weights


def learnability(target: Tensor, predicted: Tensor) -> Tensor:
    r"""$\langle f, \hat f\rangle/\langle f, f\rangle$, (6) and (34), of functions (M,) or of the columns of (M, c).

    The share of f that was learned: in [0, 1] for an eigenfunction, for others it may be outside (claims D.mono).
    """
    checks.require_floating("target", target)
    checks.require_floating("predicted", predicted)
    checks.require_shape("predicted", predicted, target.shape, "pass both functions at the same points")
    if target.ndim not in (1, 2):
        raise InputError(f"target must have shape (M,) or (M, c), got {tuple(target.shape)}")
    return (target * predicted).sum(0) / target.square().sum(0)
