r"""Predictions of regression from n of M points at each of the others, with one κ per point (claims D.kappa).

`predict_learning` has one κ for all points, as if each were equally easy to predict from the others. In real data
outliers are not, and it promises too much: a quarter of the error where most of 400 digits are samples. Here every
point has its own κ. Regression with K + δI fits its samples, so its matrix H, f ↦ f̂, averaged over the draws, has n/M
on the diagonal *at every point*. With p = n/M and τ_x > 0,

$$H = (K + δI)(K + δI + \mathrm{diag}\,τ)^{-1}, \qquad H_{xx} = p \text{ for all } x,$$

which is $λ/(λ + κ)$ where all τ are Mκ. Let $g_x$ be the error at x from the other samples, so that the residual is
$(1 - b_x)g_x$, with $b_x = 1$ where x is a sample. Its mean is (1 − H)f, so $E g = (f - Hf)/(1 - p)$. To leading order
in 1/n the deviations of all points are H times independent ones of size $g_x(p - b_x)/p$, which gives the second
moments $q_x = E g_x g_x^\top$:

$$q_x = (E g_x)(E g_x)^\top + \sum_{y \ne x} \frac{H_{xy}^2}{p(1 - p)}\,q_y.$$

Their mean over the points is $E_0 \sum_i (1 - L_i)^2 v_i^2/(1 - p)$ where all τ are equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.checks import require_finite_not_negative, require_whole
from kontrast.errors import ConvergenceError, InputError
from kontrast.learnability.eigenlearning import Spectrum, kappa
from kontrast.learnability.transfer import checked_kernel, checked_targets, negative_eigenvalues
from kontrast.linalg import eigenvalue_rounding

MAX_STEPS = 60  # of Newton's method; 4 to 6 are taken
TOLERANCE = 1e-10  # of log(1 − H_xx)


@dataclass(frozen=True, eq=False)
class PointPrediction:
    """The predictions of regression from n random points at each point that is not one of them, in float64."""

    n_samples: int  # n
    kappas: Tensor  # one κ per point, (M,): τ/M
    outputs: Tensor  # the mean prediction, (M, c)
    moments: Tensor  # the mean of (f − f̂)(f − f̂)^T over the c targets, (M, c, c)
    targets: Tensor  # f, (M, c)

    @property
    def errors(self) -> Tensor:
        """The mean squared error at each point, (M, c)."""
        return self.moments.diagonal(dim1=1, dim2=2)

    @property
    def unseen_error(self) -> Tensor:
        """The mean squared error at unseen points, (c,)."""
        return self.errors.mean(0)

    @property
    def covariance(self) -> Tensor:
        """The covariance of the predictions at each point, over the draws of the samples, (M, c, c)."""
        bias = self.targets - self.outputs
        return self.moments - bias[:, :, None] * bias[:, None, :]


def predict_at_points(K: Tensor, targets: Tensor, n_samples: int, *, ridge: float = 0.0) -> PointPrediction:
    """Mean and spread of kernel regression at each point, over the sets of `n_samples` other points.

    Costs some ten products of (M, M) matrices. K (M, M) is the kernel over the domain, `targets` are f at every point,
    (M,) or (M, c). The ridge is δ of (K + δI)⁻¹, above 0 where the samples outnumber the rank of K.
    """
    eps = torch.finfo(checked_kernel(K).dtype).eps
    K = K.detach().double()
    f = checked_targets(targets, K)
    M = len(K)
    require_finite_not_negative(ridge=ridge)
    n_samples = require_whole("n_samples", n_samples)
    if n_samples >= M:
        raise InputError(f"n_samples must be at most {M - 1}, to leave one of {M} points unseen, got {n_samples}")
    p, scale = n_samples / M, float(K.diagonal().mean()) + ridge
    shifted = K / scale  # so that no square overflows at any scale of the kernel
    shifted.diagonal().add_(ridge / scale)
    tau, R = _tau(shifted, n_samples, eigenvalue_rounding(K, eps) / scale, scale)
    bias = tau[:, None] * (R @ f) / (1 - p)  # (1 − H)f, as 1 − H = τR
    products = (bias[:, :, None] * bias[:, None, :]).flatten(1)  # (M, c²)
    # q − Σ H_xy²/(p(1 − p)) q_y over τ_x², which is symmetric, as H_xy = −τ_x R_xy. Positive definite: weighted by τ,
    # its rows sum to more than 0, since (RτR)_xx < R_xx.
    system = R.square_().div_(-p * (1 - p)).fill_diagonal_(0.0)
    system.diagonal().add_(tau.pow(-2))
    moments = _solve(system, products / tau.square()[:, None]).view(M, f.shape[1], f.shape[1])
    return PointPrediction(n_samples, tau * (scale / M), f - bias, moments, f)


def _solve(A: Tensor, B: Tensor) -> Tensor:
    """A⁻¹B of a positive definite A."""
    return torch.cholesky_solve(B, _cholesky(A))


def _cholesky(A: Tensor) -> Tensor:
    L: Tensor
    L, info = torch.linalg.cholesky_ex(A)
    if int(info) != 0:
        raise ConvergenceError(
            "K + ridge·I is singular to rounding, so the κ of each point could not be found; raise ridge"
        )
    return L


def _tau(shifted: Tensor, n: int, noise: float, scale: float) -> tuple[Tensor, Tensor]:
    r"""τ and $R = (K' + \mathrm{diag}\,τ)^{-1}$ with $τ_x R_{xx} = 1 - p$, by Newton's method for log τ.

    The derivative of log R_xx by log τ_y is −R_xy² τ_y/R_xx; the rows of $\mathrm{diag}(R_{xx}/τ_x) - R_{xy}^2$,
    weighted by τ, sum to more than 0, so it is positive definite. Starts at the κ common to all points.
    """
    M = len(shifted)
    values = torch.linalg.eigvalsh(shifted).flip(0)
    if float(values[-1]) < -10 * noise:
        raise negative_eigenvalues(scale * float(values[-1]), scale * float(values[0]))
    rank = int((values > noise).sum())
    if n >= rank or not bool((shifted.diagonal() > 0).all()):
        raise InputError(
            f"K + ridge·I has rank {rank} and {int((shifted.diagonal() <= 0).sum())} points where k(x, x) = 0, so {n} "
            f"samples cannot fit every target; pass ridge={2 * scale * noise:.2g} or more, above rounding"
        )
    start = M * kappa(Spectrum(torch.where(values > noise, values, 0.0) / M), n, replacement=False)
    log_tau = torch.full_like(values, math.log(start))
    goal = math.log1p(-n / M)
    for _ in range(MAX_STEPS):
        tau = log_tau.exp()
        R = torch.cholesky_inverse(_cholesky(shifted + torch.diag(tau)))
        r = R.diagonal().clone()
        off = log_tau + r.log() - goal
        if float(off.abs().max()) < TOLERANCE:
            return tau, R
        slope = R.square_().neg_()
        slope.diagonal().add_(r / tau)
        log_tau = log_tau - (_solve(slope, (r * off)[:, None])[:, 0] / tau).clamp(-2, 2)
    raise ConvergenceError(
        f"the κ of each point was found to {float(off.abs().max()):.2g} in {MAX_STEPS} steps, not {TOLERANCE:g}; raise "
        "ridge"
    )
