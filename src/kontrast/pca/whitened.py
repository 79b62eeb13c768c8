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
from torch import Tensor

from kontrast.checks import features_not_finite, require_components, require_finite_not_negative
from kontrast.errors import InputError, TooManyComponentsError
from kontrast.linalg import fix_signs, largest_eigenpairs, top_eigenpairs
from kontrast.pca.moments import features_do_not_vary

DIRECT_BELOW = 3000  # features up to which L⁻¹ B L⁻ᵀ is formed on a CPU; Lanczos solves with L instead, above
NOISE = 1e-9  # eigenvalues, which are at most 1, count as not positive up to this
LANCZOS_TOLERANCE = 1e-7  # of eigenvalues in [0, 1]: far below the error of a finite sample of views


@dataclass(frozen=True, eq=False)
class WhitenedPCA:
    r"""$B w_i = \lambda_i (\Sigma + \rho I) w_i$ with $W^\top(\Sigma + \rho I)W = I$, values descending.

    λ is the share of an output's variance that two views of a sample have in common, 1 for outputs that are the same
    for all views; the ridge counts as variance that they do not share.
    """

    frame: Tensor  # (M, k)
    values: Tensor  # (k,)
    ridge: float  # ρ itself

    def scaled(self, power: float) -> Tensor:
        """W with column i times λ_i^power; ½ gives the minimum of the spectral contrastive loss."""
        return self.frame * self.values**power


def whitened_pca(
    between: Tensor,
    covariance: Tensor,
    n_components: int,
    *,
    ridge: float,
    resolution: float = 0.0,
    allow_fewer: bool = False,
) -> WhitenedPCA:
    r"""The heads that maximise $\mathrm{Tr}(W^\top B W)$ under $W^\top(\Sigma + \rho I)W = I$.

    Args:
        between: B (M, M), the covariance of two views of a sample, from `ViewMoments`.
        covariance: Σ (M, M), of all views.
        n_components: k.
        ridge: ρ as a share of the total variance Tr Σ, so that it does not depend on the scale of the features and,
            divided by √M, not on their number.
        resolution: the relative rounding of the features' products, `ViewMoments.resolution`; a covariance that is
            singular to it is refused.
        allow_fewer: leave out, instead of refusing, components whose eigenvalues are not positive.
    """
    M = len(covariance)
    k = require_components(n_components, M)
    require_finite_not_negative(ridge=ridge)
    variance = float(covariance.diagonal().sum())
    if not math.isfinite(variance):
        raise features_not_finite()
    if not variance > 0:
        raise features_do_not_vary()
    L = _cholesky(covariance, ridge * variance, variance, resolution)
    # B's rounding, 0.2 eps Tr Σ where few samples repeat, is divided by the smallest directions of Σ + ρI.
    noise = max(NOISE, 0.4 * resolution * variance / float(L.diagonal().square().min()))
    if covariance.is_cpu and M > DIRECT_BELOW:
        values, u = _by_lanczos(between, L, k)
    else:
        half = torch.linalg.solve_triangular(L, between, upper=False)
        values, u = largest_eigenpairs(torch.linalg.solve_triangular(L, half.mT, upper=False), k)
    if allow_fewer:
        values, u = values[values > noise], u[:, values > noise]
    else:
        require_positive_values(values, k, noise=noise)
    frame = torch.linalg.solve_triangular(L.mT, u, upper=True)
    return WhitenedPCA(fix_signs(frame), values, ridge * variance)


def require_positive_values(values: Tensor, k: int, *, noise: float, top_noise: float = 0.0) -> None:
    """Refuse components beyond the last positive eigenvalue: they would repel positives.

    `values` are descending, and those up to `noise` count as not positive. `top_noise` is the largest eigenvalue that
    rounding alone gives to features that do not vary.
    """
    n_positive = int((values > noise).sum()) if float(values[0]) > top_noise else 0
    if n_positive < k:
        raise TooManyComponentsError(
            f"n_components={k}, but only {n_positive} eigenvalues are positive: no further direction brings views of a "
            f"sample closer than other samples; ask for at most {n_positive}, or give more samples, features or weaker "
            "views",
            n_positive,
        )


def _cholesky(covariance: Tensor, ridge: float, variance: float, resolution: float) -> Tensor:
    regular = covariance.clone()
    regular.diagonal().add_(ridge)
    L: Tensor
    L, failed = torch.linalg.cholesky_ex(regular)
    # A pivot that is only rounding, of the products or of the decomposition, may come out positive.
    if int(failed) or float(L.diagonal().square().min()) <= max(4 * resolution, 1e-13) * variance:
        fix = "pass a ridge above 0, such as 1e-5"
        if ridge > 0:
            fix = f"a ridge of {ridge / variance:.1g} is below their rounding: use 1e-6 or more, or dtype='float64'"
        raise InputError(
            f"the covariance of the {len(covariance)} features is singular (more features than varied samples, or "
            f"features that repeat); {fix}"
        )
    return L


def _by_lanczos(between: Tensor, L: Tensor, k: int) -> tuple[Tensor, Tensor]:
    def product(block: Tensor) -> Tensor:
        inside = between @ torch.linalg.solve_triangular(L.mT, block, upper=True)
        result: Tensor = torch.linalg.solve_triangular(L, inside, upper=False)
        return result

    top = top_eigenpairs(product, k, n=len(L), tolerance=LANCZOS_TOLERANCE)
    return top.values, top.vectors
