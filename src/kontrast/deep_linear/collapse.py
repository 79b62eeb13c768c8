"""How a model's outputs collapse without constraints (paper B, Prop. 1), in two kinds that are kept apart.

*Complete* collapse: every point maps to the same vector (`relative_spread` → 0). *Dimensional* collapse: the points
spread, but along few directions (`effective_rank` → 1). One number cannot show both: for a constant plus small noise
the centred rank is full and the uncentred one is 1.

Under the loss (1) or (12) every output of a linear or kernel model obeys the same linear equation. So the outputs are
known at any time (`linear_collapse`, `kernel_collapse`), and they end in one direction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from kontrast.checks import increasing_times, require_matrix, require_shape
from kontrast.errors import InputError
from kontrast.linalg import as_symmetric, effective_rank, require_symmetric

LATE_RATIOS = (1e-12, 1e-8)  # the s₂/s₁ between which its decay is one exponential and above rounding


@dataclass(frozen=True, eq=False)
class Collapse:
    r"""Exact outputs of a model under the loss (1) or (12) at all `times`, divided by the scale at which they diverge.

    `values[k]` times $e^{\mathtt{log\_scale}[k]}$ are the outputs at `times[k]`; `values[k]` has Frobenius norm 1. For
    a linear model they are the outputs at the unit vectors, $\Theta(t)^\top$ (d, z), so `X @ values[k]` are those of
    samples X; for a kernel model they are the outputs at its m points. All in float64.
    """

    times: Tensor  # (T,)
    values: Tensor  # (T, n, z)
    log_scale: Tensor  # (T,)
    eigenvalues: Tensor  # of C, or of KS, ascending: the first is the direction that wins
    predicted_rate: float  # the final rate of decay of s₂/s₁; 2(λ₂ − λ₁) without a projector

    def effective_ranks(self) -> Tensor:
        """The uncentred `effective_rank` at every time, (T,): 1 is complete dimensional collapse."""
        return torch.tensor([effective_rank(value, centered=False) for value in self.values], dtype=torch.float64)

    def singular_ratios(self) -> Tensor:
        """s₂/s₁ at every time, (T,); 0 throughout for a single output."""
        s = torch.linalg.svdvals(self.values)
        return s[:, 1] / s[:, 0] if s.shape[1] > 1 else torch.zeros_like(self.times)

    def measured_rate(self) -> float:
        """The decay rate of s₂/s₁ by least squares on its logarithm, over the times at which it is 1e-12 to 1e-8.

        NaN where fewer than 3 of the times are that late.
        """
        ratios = self.singular_ratios()
        late = (ratios >= LATE_RATIOS[0]) & (ratios <= LATE_RATIOS[1])
        if int(late.sum()) < 3:
            return math.nan
        t, y = self.times[late], ratios[late].log()
        t = t - t.mean()
        return -float((t * y).sum() / (t * t).sum())


def linear_collapse(
    C: Tensor, weights: Tensor, *, times: ArrayLike, projector: Tensor | None = None, symmetrize: bool = False
) -> Collapse:
    r"""A linear model u = Θx under Tr(Θ C Θ^T): $\Theta(t) = \Theta_0 e^{-2Ct}$ (paper B, Prop. 1), or u = AΘx.

    With a fixed projector A (Remark 3) G = AΘ obeys $\dot G = -2 A A^\top G C$, so in the eigenbases of $AA^\top$
    (values a) and of C it is $\tilde G_{ij}(t) = e^{-2 a_i \lambda_j t} \tilde G_{ij}(0)$. One direction still wins,
    but the outputs share one equation, as the remark says, only where AA^T ∝ I. Generically $s_1 s_2$ grows as the
    largest 2 × 2 minor, so s₂/s₁ decays at the rate
    $2 \max_i(-2 a_i \lambda_1) - \max_{i \ne k} -2(a_i \lambda_1 + a_k \lambda_2)$ over the nonzero a, which for
    a = 1 is 2(λ₂ − λ₁).

    C (d, d) is the symmetric `data_matrix`; one that is not symmetric is refused unless `symmetrize` takes
    (C + C^T)/2. `weights` are Θ₀ (z, d), `projector` is A (r, z).
    """
    matrix = as_symmetric(C, "C", symmetrize=symmetrize)
    moments = torch.from_numpy(increasing_times(times)).to(matrix.device)
    G = _checked_start(weights, "weights", ("z", len(matrix))).to(matrix.device)
    eigenvalues, Q = torch.linalg.eigh(matrix)
    speeds, P = torch.ones(len(G), dtype=torch.float64, device=G.device), None
    if projector is not None:
        A = _checked_start(projector, "projector", ("r", len(G))).to(matrix.device)
        P, s, _ = torch.linalg.svd(A, full_matrices=False)
        kept = s > max(A.shape) * torch.finfo(torch.float64).eps * s[0]
        speeds, P = s[kept].square(), P[:, kept]  # the nonzero eigenvalues (r',) of AA^T and their eigenvectors (r, r')
        G = P.mT @ (A @ G)
    modes = G @ Q  # (r, d)
    if not modes.any():
        raise InputError("the outputs are zero for every input, and stay so; pass weights that the projector keeps")
    exponents = -2 * moments[:, None, None] * speeds[:, None] * eigenvalues + modes.abs().log()  # (T, r, d)
    shift = exponents.amax((1, 2))
    scaled = modes.sign() * (exponents - shift[:, None, None]).exp() @ Q.mT
    values = (scaled if P is None else P @ scaled).mT
    return _collapse(moments, values, shift, eigenvalues, _projected_rate(speeds, eigenvalues))


def kernel_collapse(K: Tensor, S: Tensor, outputs: Tensor, *, times: ArrayLike) -> Collapse:
    r"""A kernel model's outputs over its m points under Tr(U^T S U): $U(t) = e^{-2KSt} U_0$ (paper B, Prop. 1).

    KS is not symmetric, and not even diagonalisable where K is singular. With K = LL^T and the symmetric
    $B = L^\top S L = Q \beta Q^\top$ the solution is
    $U(t) = U_0 + L Q\,\mathrm{diag}((e^{-2\beta t} - 1)/\beta)\,Q^\top L^\top S U_0$, for any start, even one outside
    the range of K, and without division by small eigenvalues of K. It is exact to the rounding of the larger of U(t)
    and U₀: outputs that die out altogether (no β < 0) are not followed below that.

    `eigenvalues` are β, and a 0 for each direction outside the range of K if U₀ has a part there, which never moves.
    K (m, m) is symmetric and positive semi-definite, S the `pair_weights` (m, m), dense or sparse, `outputs` U₀ (m, z).
    """
    kernel, weights = _symmetric(K, "K"), _symmetric(S, "S")
    moments = torch.from_numpy(increasing_times(times)).to(K.device)
    U = _checked_start(outputs, "outputs", (len(kernel), "z"))
    require_shape("S", weights, kernel.shape, "K and S must be over the same points")
    L, outside = _root(kernel, U, torch.finfo(K.dtype).eps)
    B = L.mT @ weights @ L
    if not torch.isfinite(B).all():
        raise _beyond_floats(moments, f"K of up to {float(kernel.abs().max()):.3g} × S")
    beta, Q = torch.linalg.eigh(B)
    push, LQ = Q.mT @ (L.mT @ (weights @ U)), L @ Q  # (r, z), (m, r)
    x = -2 * moments[:, None] * beta  # (T, r)
    # (e^x − 1)/x = e^max(x, 0) (1 − e^−|x|)/|x|, which is 1 at x = 0 and overflows in its first factor alone.
    size = x.abs().clamp(min=torch.finfo(torch.float64).tiny)
    growth = (2 * moments[:, None] * -torch.expm1(-size) / size * push.norm(dim=1)).log() + x.clamp(min=0)
    start = U.norm().log()
    shift = torch.cat([growth, start.expand(len(moments), 1)], dim=1).amax(1)
    unit = push / push.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    moved = LQ @ ((growth - shift[:, None]).exp()[:, :, None] * unit)
    values = U * (-shift).exp()[:, None, None] - moved
    eigenvalues = torch.cat([beta, beta.new_zeros(outside)]).sort().values
    return _collapse(moments, values, shift, eigenvalues, _projected_rate(beta.new_ones(U.shape[1]), eigenvalues))


def _collapse(times: Tensor, values: Tensor, shift: Tensor, eigenvalues: Tensor, rate: float) -> Collapse:
    norm = torch.linalg.matrix_norm(values)
    if not norm.all():
        raise InputError(
            f"at time {float(times[norm == 0][0]):.3g} the outputs are below the rounding of their start; pass earlier "
            "times"
        )
    if rate == math.inf or not torch.isfinite(shift + norm.log()).all():
        raise _beyond_floats(moments=times, what=f"eigenvalues of up to {float(eigenvalues.abs().max()):.3g}")
    return Collapse(times, values / norm[:, None, None], shift + norm.log(), eigenvalues, rate)


def _beyond_floats(moments: Tensor, what: str) -> InputError:
    return InputError(
        f"times of up to {float(moments[-1]):.3g} × {what}, or the start, are beyond the range of floats; divide the "
        "matrices by the number of anchors, or pass earlier times"
    )


def _projected_rate(speeds: Tensor, eigenvalues: Tensor) -> float:
    """2 max(−2a_iλ₁) − max_{i≠k} −2(a_iλ₁ + a_kλ₂); NaN for a single output or input, which has no second direction."""
    if len(speeds) < 2 or len(eigenvalues) < 2:
        return math.nan
    first, second = -2 * speeds * eigenvalues[0], -2 * speeds * eigenvalues[1]
    minors = first[:, None] + second
    minors.fill_diagonal_(-math.inf)
    rate = float(2 * first.max() - minors.max())
    return max(0.0, rate) if math.isfinite(rate) else math.inf


def _root(K: Tensor, U: Tensor, eps: float) -> tuple[Tensor, int]:
    """L (m, r) with K = LL^T, and the number of directions outside the range of K if U has a part there."""
    values, vectors = torch.linalg.eigh(K)
    floor = len(K) * eps * float(values.abs().max())
    if float(values[0]) < -10 * floor:
        raise InputError(
            f"K must be positive semi-definite, but its smallest eigenvalue is {float(values[0]):.2g} (largest "
            f"{float(values[-1]):.2g}); pass a kernel matrix such as X @ X.T"
        )
    kept = values > floor
    left_over = (vectors[:, ~kept].mT @ U).norm()
    outside = int((~kept).sum()) if float(left_over) > math.sqrt(eps) * float(U.norm()) else 0
    return vectors[:, kept] * values[kept].sqrt(), outside


def _symmetric(matrix: Tensor, name: str) -> Tensor:
    dense = matrix.to_dense() if isinstance(matrix, Tensor) and matrix.layout != torch.strided else matrix
    evened = as_symmetric(dense, name, symmetrize=True)  # removes rounding; more than that is refused next
    require_symmetric(dense, name, n_sampled=len(dense))
    return evened


def _checked_start(matrix: Tensor, name: str, shape: tuple[int | str, int | str]) -> Tensor:
    """The matrix in float64, if it has this shape and is not zero."""
    require_matrix(name, matrix, shape)
    if not matrix.any():
        raise InputError(f"{name} must not be zero everywhere: the outputs would be zero at all times")
    return matrix.detach().double()
