r"""How many steps descent of W needs to PCA when C is fixed: in closed form, from C's eigenvalues and the start.

Descent of $-\mathrm{Tr}(W^\top C W)$ on the Grassmannian follows the flow $\dot W = 2(I - W W^\top) C W$, whose span at
the time t is that of $e^{2Ct} W(0)$. In eigenvectors of C, the k largest first, $W(0) = (A; B)$, and the tangents of
the angles to PCA are the singular values of T(t) with the entries

$$T_{ji}(t) = (B A^{-1})_{ji}\, e^{-2(\lambda_i - \lambda_j)t}, \qquad i \le k < j.$$

A step of length η is a time η of the flow. Around PCA it multiplies $T_{ji}$ by $1 - 2\eta(\lambda_i - \lambda_j)$
instead, which overshoots from $\eta = 1/(\lambda_1 - \lambda_M)$ on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.checks import require_between, require_positive, require_whole
from kontrast.pca.contrastive_pca import contrastive_matrix, rounding_of_eigenvalues


@dataclass(frozen=True, eq=False)
class FrozenDescent:
    """Descent of W (M, Z), or of its first k columns, towards PCA of a C that does not move.

    `values` are C's eigenvalues, descending, over the span of the features and of W(0), and `start` is W(0) in their
    eigenvectors; outside, C and W are zero and stay so. `noise` is the rounding error of an eigenvalue.
    """

    values: Tensor  # (n,), float64
    start: Tensor  # (n, Z)
    width: int  # M ≥ n
    noise: float

    @classmethod
    def of(cls, features: Tensor, S: Tensor, frame: Tensor) -> FrozenDescent:
        """For C = Φ^T S Φ of the `pair_features` Φ (m, M) and the symmetric `pair_matrix` S, from W(0) = `frame`.

        Cost: one QR factor (M, m + Z) and the eigenvalues of a matrix of size min(M, m + Z).
        """
        noise = rounding_of_eigenvalues(features, S)
        features, S, frame = features.detach().double(), S.double(), frame.detach().double()
        if features.shape[0] + frame.shape[1] < features.shape[1]:
            Q = torch.linalg.qr(torch.cat([features.mT, frame], dim=1)).Q
            features, start = features @ Q, Q.mT @ frame
        else:
            start = frame
        C = contrastive_matrix(features, S)
        values, vectors = torch.linalg.eigh((C + C.mT) / 2)
        return cls(values.flip(0), vectors.flip(1).mT @ start, len(frame), noise)

    @property
    def spread(self) -> float:
        """λ_1 − λ_M."""
        return float(self.values[0] - self.values[-1])

    @property
    def learning_rate(self) -> float:
        """1/(2(λ_1 − λ_M)): the longest step that overshoots in no direction; infinite where C is zero to rounding."""
        return 0.5 / self.spread if self.spread > self.noise else math.inf

    def gap(self, k: int) -> float:
        """λ_k − λ_(k+1) among all M eigenvalues: 0 where it is zero to rounding, infinite for k = M."""
        k = require_whole("k", k, most=self.start.shape[1])
        if k == self.width:
            return math.inf
        if len(self.values) < self.width and float(self.values[k - 1]) <= self.noise:  # one of many zeros
            return 0.0
        gap = float(self.values[k - 1] - self.values[k])
        return gap if gap > self.noise else 0.0

    def steps_to(self, sine: float, k: int, *, learning_rate: float) -> float:
        """About how many steps bring the largest sine to PCA of k dimensions below `sine`; infinite where none do.

        From ‖T‖_F, which for k = 1 is the tangent itself and otherwise somewhat more than the largest. The first steps
        of a random W are shorter than the flow's, by a factor of up to 1 + 2η λ_1, and the last ones are longer; half
        of η times the spread more steps have been enough for both.
        """
        require_between("sine", sine, 0, 1, low_included=False, high_included=False)
        require_positive(learning_rate=learning_rate)
        gap = self.gap(k)
        if gap == math.inf:
            return 0.0
        factors, tangents = self._log_factors(k, learning_rate), self._log_tangents(k)
        if gap == 0 or float(factors.max()) >= 0:
            return math.inf
        wanted = math.log(sine) - math.log1p(-sine * sine) / 2  # log of the tangent

        def excess(steps: float) -> float:
            return float((2 * (tangents + steps * factors)).flatten().logsumexp(0)) / 2 - wanted

        low, high = 0.0, excess(0.0) / -float(factors.max())  # as if all directions were as slow as the slowest
        if not high > 0:
            return 0.0
        while math.isfinite(high) and high - low > 0.01 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return high * (1 + learning_rate * self.spread / 2)

    def _log_factors(self, k: int, learning_rate: float) -> Tensor:
        """(n − k, k): log of what a step makes of T_ji, the flow's or that around PCA, whichever is slower."""
        x = 2 * learning_rate * (self.values[:k] - self.values[k:, None])
        return torch.maximum(-x, (1 - x).abs().log())

    def _log_tangents(self, k: int) -> Tensor:
        """(n − k, k): log |T(0)|; infinite where W(0) misses a direction of PCA."""
        A, B = self.start[:k, :k], self.start[k:, :k]
        solved, info = torch.linalg.inv_ex(A)
        return (B @ solved).abs().log() if int(info) == 0 else torch.full_like(B, math.inf)
