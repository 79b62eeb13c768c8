"""LiDAR: how many directions tell samples apart once the noise of their views is divided out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kontrast.checks import require_positive
from kontrast.diagnosis.metrics.rows import as_views, norm_of
from kontrast.diagnosis.metrics.scatter import Scatter, sized
from kontrast.diagnosis.metrics.spectra import entropy_rank_of, rounding_of
from kontrast.errors import InputError

DELTA = 1e-4
EPSILON = 1e-7
LIDAR_WORDS = "LiDAR"
LIDAR_DEFINITION = (
    "exp(−Σ p log p) with p = λ/Σλ + 1e-7 over the d eigenvalues λ of Σ_w^(−1/2) Σ_b Σ_w^(−1/2), where every sample is "
    "a class of its views: Σ_b is the covariance of the class means, Σ_w the covariance of views around their class "
    "mean plus 1e-4 I, both divided by the number of terms (Thilak et al. 2024, whose δ and ε are 'small constants')."
)


class ViewGroups:
    r"""LiDAR (Thilak et al. 2024) of views that arrive in batches, grouped by sample as (b, v, d).

    $\Sigma_b = \frac1n \sum_i (\mu_i - \mu)(\mu_i - \mu)^\top$ with $\mu_i$ the mean of sample i's views,
    $\Sigma_w = \frac1{nv} \sum_{ij} (z_{ij} - \mu_i)(z_{ij} - \mu_i)^\top + \delta I$, and the entropy rank of the
    eigenvalues of $\Sigma_w^{-1/2} \Sigma_b \Sigma_w^{-1/2}$. With $\Sigma_w = R^\top R$ these are the squared
    singular values of $B R^{-1}$, $B^\top B = \Sigma_b$: nothing is squared and no root is taken.

    Views of one sample must arrive in one batch; the shape enforces it. δ is absolute: of embeddings c times as large
    the same number needs c² δ. Batches are exact in any order and size, in constant memory.
    """

    def __init__(self, *, delta: float = DELTA) -> None:
        require_positive(delta=delta)
        self.delta = delta
        self._means = Scatter()
        self._residuals = Scatter()
        self._n_views = 0
        self._epsilon = 0.0

    @property
    def n(self) -> int:
        """How many samples it has seen."""
        return self._means.n

    def update(self, views: Tensor | Sequence[Tensor]) -> None:
        """Add a batch of samples, all with as many views as those before: (b, v, d), or v tensors (b, d)."""
        grouped = as_views(views)
        b, v, d = grouped.shape
        self._means.require_width(d)
        self._require_views(v)
        means = grouped.mean(1)
        self._means.update(means)
        self._residuals.update((grouped - means[:, None]).reshape(b * v, d))
        given = [views] if isinstance(views, Tensor) else views
        self._n_views = v
        self._epsilon = max(self._epsilon, *(torch.finfo(view.dtype).eps for view in given))

    def merge(self, other: ViewGroups) -> None:
        """Add all samples that another has seen; the other stays as it is."""
        if other.delta != self.delta:
            raise InputError(f"delta must be {self.delta} in both, got {other.delta}; start both with the same delta")
        if not other.n:
            return
        self._means.require_width(other._means.d)
        self._require_views(other._n_views)
        self._means.merge(other._means)
        self._residuals.merge(other._residuals)
        self._n_views, self._epsilon = other._n_views, max(self._epsilon, other._epsilon)

    def compute(self) -> dict[str, float]:
        """`{"lidar": number}`; NaN where it is missing, and `missing` says why."""
        return {"lidar": math.nan if self.missing else float(entropy_rank_of(self._eigenvalues(), EPSILON))}

    @property
    def missing(self) -> dict[str, str]:
        """Why LiDAR is missing, where it is."""
        if self.n < 2:
            return {"lidar": f"needs 2 samples, got {self.n}"}
        between = norm_of(self._means.factor().flatten())
        size = torch.hypot(between, math.sqrt(self.n) * norm_of(self._means.mean))
        if between <= rounding_of(size, self.n, self._means.d, self._epsilon):
            return {"lidar": "the mean embeddings of all samples are equal, or differ by rounding only"}
        return {}

    def _eigenvalues(self) -> Tensor:
        """All d of them, largest first."""
        n, d = self.n, self._means.d
        W, B = self._residuals.factor() / math.sqrt(n * self._n_views), self._means.factor() / math.sqrt(n)
        return sized(whitened_eigenvalues(W, B, self.delta), d)

    def _require_views(self, v: int) -> None:
        if self._n_views not in (0, v):
            raise InputError(f"samples had {self._n_views} views so far, got {v}; give every sample as many")


def whitened_eigenvalues(W: Tensor, B: Tensor, delta: float) -> Tensor:
    """Eigenvalues of (WᵀW + δI)^(−1/2) BᵀB (WᵀW + δI)^(−1/2) that can differ from zero, largest first."""
    rows = torch.cat([W, B])
    if rows.shape[0] < rows.shape[1]:  # all that is not zero lies in the span of the rows
        rows = torch.linalg.qr(rows.mT, mode="r").R.mT
    W, B = rows[: len(W)], rows[len(W) :]
    ridge = math.sqrt(delta) * torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    R = torch.linalg.qr(torch.cat([W, ridge]), mode="r").R
    whitened: Tensor = torch.linalg.svdvals(torch.linalg.solve_triangular(R, B, upper=True, left=False))
    return whitened.square()


def lidar(views: Tensor | Sequence[Tensor], *, delta: float = DELTA) -> float:
    """LiDAR of embeddings grouped by sample (n, v, d), or of one tensor (n, d) per view; see `ViewGroups`.

    NaN for one sample, or where all samples have the same mean embedding.
    """
    groups = ViewGroups(delta=delta)
    groups.update(views)
    return groups.compute()["lidar"]
