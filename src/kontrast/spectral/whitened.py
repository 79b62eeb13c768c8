r"""Contrastive learning with whitened outputs in closed form (claim A.spec; beyond paper A).

Paper A's (5) has the constraint $W^\top W = I$. With $W^\top \Sigma W = I$ instead, outputs of unit covariance, the
best heads are the eigenvectors of $B w = \lambda(\Sigma + \rho I)w$. The same w, with lengths √λ, minimise for ρ = 0
and centred f the spectral contrastive loss (HaoChen et al. 2021)
$-2\,\mathbb{E} f(x)\cdot f(x^+) + \mathbb{E}(f(x)\cdot f(x'))^2$, which is
$-2\,\mathrm{Tr}(W^\top B W) + \|W^\top \Sigma W\|_F^2$ for $f = W^\top \varphi$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kontrast._types import Tensor
from kontrast.errors import InputError
from kontrast.linalg import fix_signs, largest_eigenpairs, top_eigenpairs

DIRECT_BELOW = 3000  # features up to which L⁻¹ B L⁻ᵀ is formed on a CPU; Lanczos solves with L instead, above
LANCZOS_TOLERANCE = 1e-7  # of eigenvalues in [0, 1]: far below what a sample of views settles


@dataclass(frozen=True, eq=False)
class WhitenedSolution:
    r"""$B w_i = \lambda_i (\Sigma + \rho I) w_i$ with $W^\top(\Sigma + \rho I)W = I$, values descending.

    λ is the share of an output's variance that two views of a sample have in common, 1 for outputs that views leave
    alone; the ridge counts as variance that they do not share.
    """

    frame: Tensor  # (M, k)
    values: Tensor  # (k,)
    ridge: float  # ρ itself

    @property
    def spectral_frame(self) -> Tensor:
        """W with columns of length √λ: the minimum of the spectral contrastive loss."""
        return self.frame * self.values.sqrt()


def spectral_contrastive(between: Tensor, covariance: Tensor, n_components: int, *, ridge: float) -> WhitenedSolution:
    r"""The heads that maximise $\mathrm{Tr}(W^\top B W)$ under $W^\top(\Sigma + \rho I)W = I$.

    Args:
        between: B (M, M), the covariance of two views of a sample, from `ViewMoments`.
        covariance: Σ (M, M), of all views.
        n_components: k.
        ridge: ρ as a share of the total variance Tr Σ, so that it means the same for features of every scale and, over
            √M, every number.

    Raises:
        InputError: Σ + ρI is singular, or fewer than k eigenvalues are positive.
    """
    M = len(covariance)
    k = n_components
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= M:
        raise InputError(f"n_components must be a whole number from 1 to the {M} features, got {k!r}")
    if not (isinstance(ridge, int | float) and math.isfinite(ridge) and ridge >= 0):
        raise InputError(f"ridge must be a number of at least 0, a share of the total variance, got {ridge!r}")
    variance = float(covariance.diagonal().sum())
    if not math.isfinite(variance):
        raise InputError("the features hold NaN, infinite or huge values; scale the samples, or look at the encoder")
    if not variance > 0:
        raise InputError("the features do not vary: all samples look alike to them; give samples that differ")
    L = _cholesky(covariance, ridge * variance, variance)
    if covariance.is_cpu and M > DIRECT_BELOW:
        values, u = _by_lanczos(between, L, k)
    else:
        half = torch.linalg.solve_triangular(L, between, upper=False)
        values, u = largest_eigenpairs(torch.linalg.solve_triangular(L, half.mT, upper=False), k)
    require_positive_values(values, k, noise=1e-9)
    frame = torch.linalg.solve_triangular(L.mT, u, upper=True)
    return WhitenedSolution(fix_signs(frame), values, ridge * variance)


def require_positive_values(values: Tensor, k: int, *, noise: float) -> None:
    """Refuse components beyond the last positive eigenvalue: they would repel positives, or be rounding."""
    n_positive = int((values > noise).sum())
    if n_positive < k:
        raise InputError(
            f"n_components={k}, but only {n_positive} eigenvalues are positive: no further direction brings views of a "
            f"sample closer than other samples; ask for at most {n_positive}, or give more samples, features or weaker "
            "views"
        )


def _cholesky(covariance: Tensor, ridge: float, variance: float) -> Tensor:
    regular = covariance.clone()
    regular.diagonal().add_(ridge)
    L: Tensor
    L, failed = torch.linalg.cholesky_ex(regular)
    # A pivot that is only rounding passes for positive: the smallest that float64 sums of float32 products resolve.
    if int(failed) or float(L.diagonal().square().min()) <= 1e-13 * variance:
        raise InputError(
            f"the covariance of the {len(covariance)} features is singular (more features than varied samples, or "
            "features that repeat); pass a ridge above 0, such as 1e-5"
        )
    return L


def _by_lanczos(between: Tensor, L: Tensor, k: int) -> tuple[Tensor, Tensor]:
    def product(block: Tensor) -> Tensor:
        inside = between @ torch.linalg.solve_triangular(L.mT, block, upper=True)
        result: Tensor = torch.linalg.solve_triangular(L, inside, upper=False)
        return result

    top = top_eigenpairs(product, k, n=len(L), tolerance=LANCZOS_TOLERANCE)
    return top.values, top.vectors
