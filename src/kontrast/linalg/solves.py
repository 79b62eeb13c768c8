"""Kernel ridge regression and Gaussian-process posteriors: (K + ridge I) α = targets and what follows from α."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kontrast._types import Tensor
from kontrast.errors import ConvergenceError, InputError
from kontrast.linalg.eigen import extreme_eigenvalues
from kontrast.linalg.operators import Operator, OperatorLike, as_operator, require_symmetric


@dataclass(frozen=True, eq=False)
class RidgeSolution:
    """α with (K + ridge I) α = targets, and ‖(K + ridge I) α − targets‖ / ‖targets‖ for each target."""

    weights: Tensor  # the shape of targets
    residuals: Tensor  # (c,), or () for a single target
    n_steps: int  # conjugate-gradient steps; 0 for Cholesky


@dataclass(frozen=True, eq=False)
class Posterior:
    """A Gaussian process given its training targets, at m test points."""

    mean: Tensor  # (m,) or (m, c)
    variance: Tensor  # (m,), of the noise-free function; the same for every target


def ridge_solve(
    K: OperatorLike,
    targets: Tensor,
    *,
    ridge: float,
    tolerance: float | None = None,
    max_steps: int = 1000,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> RidgeSolution:
    """Weights α of kernel ridge regression, (K + ridge I) α = targets for targets (n,) or (n, c).

    A torch matrix is factorised by Cholesky, which needs one more matrix of its size. Everything else that
    `top_eigenpairs` takes (memory maps, objects with `@`, functions) is solved by conjugate gradients, all targets at
    once, until every relative residual is at most `tolerance` (1e-10 in float64, 1e-5 in float32).

    Raises:
        InputError: K + ridge I is not positive definite; the text says which ridge makes it so.
        ConvergenceError: Conjugate gradients did not reach the tolerance.
    """
    A = as_operator(K, n=None if hasattr(K, "shape") else targets.shape[0], dtype=dtype, device=device, name="K")
    B = _checked_targets(A, targets, ridge)
    if A.tensor is not None:
        L = _cholesky(A, ridge)
        weights, n_steps = torch.cholesky_solve(B, L), 0
    else:
        goal = tolerance if tolerance is not None else {torch.float64: 1e-10, torch.float32: 1e-5}[A.dtype]
        weights, n_steps = _conjugate_gradients(A, B, ridge, goal, max_steps)
    error = (A(weights) + ridge * weights - B).norm(dim=0)
    size = B.norm(dim=0)
    residuals = torch.where(size > 0, error / size, error)
    return RidgeSolution(weights.reshape(targets.shape), residuals.reshape(targets.shape[1:]), n_steps)


def gp_posterior(K_train: Tensor, K_cross: Tensor, k_test: Tensor, targets: Tensor, *, noise: float) -> Posterior:
    r"""Mean and variance at m test points of a Gaussian process seen through noise of variance `noise`.

    With $G = K + \sigma^2 I$: mean $k_*^\top G^{-1} y$, variance $k_{**} - k_*^\top G^{-1} k_*$ (Rasmussen & Williams
    2006, Eqs. 2.25 and 2.26).

    Args:
        K_train: (n, n), the kernel among training points.
        K_cross: (m, n), test points in rows, training points in columns.
        k_test: (m,), the kernel of each test point with itself.
        targets: (n,) or (n, c).
        noise: The variance σ², at least 0.
    """
    L, B, half = _factors(K_train, K_cross, targets, noise)
    if k_test.shape != K_cross.shape[:1]:
        raise InputError(
            f"k_test must be ({K_cross.shape[0]},), the diagonal of the test kernel, got {tuple(k_test.shape)}; "
            f"for a full covariance use gp_covariance"
        )
    mean = half.mT @ torch.linalg.solve_triangular(L, B, upper=False)
    variance = k_test - half.square().sum(0)
    _check_variance(variance, k_test)
    return Posterior(mean.reshape(K_cross.shape[0], *targets.shape[1:]), variance.clamp(min=0))


def gp_covariance(K_train: Tensor, K_cross: Tensor, K_test: Tensor, *, noise: float) -> Tensor:
    """The posterior covariance (m, m) of the noise-free function at the test points; see `gp_posterior`."""
    _, _, half = _factors(K_train, K_cross, K_train[:, :1], noise)
    if K_test.shape != (K_cross.shape[0],) * 2:
        raise InputError(f"K_test must be ({K_cross.shape[0]}, {K_cross.shape[0]}), got {tuple(K_test.shape)}")
    covariance = K_test - half.mT @ half
    _check_variance(covariance.diagonal(), K_test.diagonal())
    return covariance


def log_marginal_likelihood(K: Tensor, targets: Tensor, *, noise: float) -> Tensor:
    r"""$\log p(y) = -\tfrac12 y^\top G^{-1} y - \tfrac12 \log\det G - \tfrac n2 \log 2\pi$, one value per target.

    G = K + noise·I (Rasmussen & Williams 2006, Eq. 2.30). The shape is () for targets (n,) and (c,) for (n, c).
    """
    A = as_operator(K, name="K")
    B = _checked_targets(A, targets, noise, name="noise")
    L = _cholesky(A, noise, name="noise")
    fit = torch.linalg.solve_triangular(L, B, upper=False).square().sum(0)
    value: Tensor = -0.5 * fit - L.diagonal().log().sum() - 0.5 * A.n * math.log(2 * math.pi)
    return value.reshape(targets.shape[1:])


def _factors(K_train: Tensor, K_cross: Tensor, targets: Tensor, noise: float) -> tuple[Tensor, Tensor, Tensor]:
    """L with L L^T = K + noise·I, the targets as (n, c), and L^-1 K_cross^T."""
    A = as_operator(K_train, name="K_train")
    B = _checked_targets(A, targets, noise, name="noise")
    if K_cross.ndim != 2 or K_cross.shape[1] != A.n:
        raise InputError(
            f"K_cross must be (m, {A.n}), test points in rows and training points in columns, "
            f"got {tuple(K_cross.shape)}; is it transposed?"
        )
    if (K_cross.dtype, K_cross.device) != (A.dtype, A.device) or not torch.isfinite(K_cross).all():
        raise InputError(
            f"K_cross must be finite and like K_train, {A.dtype} on {A.device}, got {K_cross.dtype} on {K_cross.device}"
        )
    L = _cholesky(A, noise, name="noise")
    return L, B, torch.linalg.solve_triangular(L, K_cross.mT, upper=False)


def _check_variance(variance: Tensor, prior: Tensor) -> None:
    lowest, size = float(variance.min()), float(prior.abs().max())
    if lowest < -1e3 * torch.finfo(prior.dtype).eps ** 0.5 * size:
        raise InputError(
            f"the posterior variance reaches {lowest:.3g}: the kernels of train, cross and test do not belong "
            f"to one kernel; compute all three with the same function and settings"
        )


def _checked_targets(A: Operator, targets: Tensor, ridge: float, *, name: str = "ridge") -> Tensor:
    """The targets as (n, c), on the kernel's device and in its number type, or a refusal."""
    if targets.ndim not in (1, 2) or targets.shape[0] != A.n:
        raise InputError(f"targets must be ({A.n},) or ({A.n}, c) like the kernel, got {tuple(targets.shape)}")
    if (targets.dtype, targets.device) != (A.dtype, A.device):
        raise InputError(
            f"targets are {targets.dtype} on {targets.device} and the kernel is {A.dtype} on {A.device}; "
            f"convert them with targets.to(...)"
        )
    if not torch.isfinite(targets).all():
        raise InputError("targets hold NaN or infinite values; leave those rows out")
    if not isinstance(ridge, int | float) or not (math.isfinite(ridge) and ridge >= 0):
        raise InputError(f"{name} must be a finite number of at least 0, got {ridge!r}")
    return targets.reshape(A.n, -1)


def _cholesky(A: Operator, ridge: float, *, name: str = "ridge") -> Tensor:
    if A.tensor is None:
        raise InputError(
            f"{A.name} must be a torch matrix here, which is factorised; convert it with torch.tensor(...)"
        )
    require_symmetric(A.tensor, A.name)
    shifted = A.tensor.clone()
    shifted.diagonal().add_(ridge)
    L: Tensor
    L, info = torch.linalg.cholesky_ex(shifted)
    if int(info) != 0 or not torch.isfinite(L.diagonal()).all():
        raise _not_positive(A, ridge, name)
    return L


def _not_positive(A: Operator, ridge: float, name: str) -> InputError:
    """What to tell the user: the smallest eigenvalue and the ridge that lifts it above rounding."""
    try:
        ends = extreme_eigenvalues(A, tolerance=max(1e-7, 100 * torch.finfo(A.dtype).eps), max_steps=300)
    except ConvergenceError:
        ends = extreme_eigenvalues(A, tolerance=1e-3)
    size = max(abs(ends.largest), abs(ends.smallest))
    needed = max(0.0, ends.error - ends.smallest) + 4 * A.n * torch.finfo(A.dtype).eps * size
    return InputError(
        f"{A.name} + {name}·I is not positive definite with {name}={ridge:g}: the smallest eigenvalue of {A.name} is "
        f"about {ends.smallest:.2g} and the largest {ends.largest:.2g}; pass {name}={_rounded_up(needed):.2g} or more"
    )


def _rounded_up(value: float) -> float:
    """The next number of two digits, so that the ridge that is printed is not below the one that is needed."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1) if value > 0 else 1e-300
    return math.ceil(value / step) * step


def _conjugate_gradients(A: Operator, B: Tensor, ridge: float, goal: float, max_steps: int) -> tuple[Tensor, int]:
    """One conjugate-gradient iteration per target, in step, so that the kernel multiplies a block."""
    X, R = torch.zeros_like(B), B.clone()
    P, rho = R.clone(), R.square().sum(0)
    size = B.norm(dim=0)
    for step in range(max_steps + 1):
        active = R.norm(dim=0) > 0.5 * goal * size
        if not bool(active.any()):
            return X, step
        if step == max_steps:
            break
        Q = A(P) + ridge * P
        curvature = (P * Q).sum(0)
        if bool((curvature[active] <= 0).any()):
            raise _not_positive(A, ridge, "ridge")
        # Targets that are done stand still: their step is 0, not 0/0.
        length = torch.where(active, rho / torch.where(active, curvature, 1.0), 0.0)
        X, R = X + length * P, R - length * Q
        new = R.square().sum(0)
        P = R + torch.where(active, new / torch.where(active, rho, 1.0), 0.0) * P
        rho = new
    worst = float((R.norm(dim=0) / size.clamp(min=torch.finfo(B.dtype).tiny)).max())
    raise ConvergenceError(
        f"conjugate gradients reached the relative residual {worst:.2g} in {max_steps} steps, not {goal:.2g}; "
        f"raise ridge (now {ridge:g}) or max_steps, or pass tolerance={2 * worst:.1g}"
    )
