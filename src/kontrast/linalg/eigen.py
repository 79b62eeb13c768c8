"""Top eigenpairs of symmetric and of K-self-adjoint operators: dense for small n, block Lanczos above."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack

import torch
from scipy.linalg import eigh as scipy_eigh
from torch import Tensor

from kontrast.checks import require_between, require_whole, resolve_generator
from kontrast.errors import ConvergenceError, InputError
from kontrast.linalg.operators import OfFunction, Operator, OperatorLike, as_operator, require_symmetric

DENSE_BELOW = 1000  # a matrix of no more rows is decomposed whole, in 0.2 s on one core
DIRECT_BELOW = 4000  # n up to which some eigenpairs of a given matrix are found directly on a CPU, in 15 s at most
DENSE_LIMIT = 30_000  # LAPACK's 32-bit workspace overflows near n = 32,000 on the CPU
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
TOLERANCE_IN_METRIC = {torch.float64: 1e-8, torch.float32: 1e-4}  # about √eps: K's norm squares its rounding

Order = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Eigenpairs:
    """A v_i = λ_i v_i, values descending; each vector's largest entry is positive.

    `residuals` are ‖A v − λ v‖ (in the metric's norm where one was given) over the largest |eigenvalue| seen; they are
    at most the tolerance.
    """

    values: Tensor  # (k,)
    vectors: Tensor  # (n, k)
    residuals: Tensor  # (k,)


@dataclass(frozen=True)
class SpectralNorm:
    """The largest |eigenvalue| and the relative residual of its eigenpair."""

    value: float
    residual: float


@dataclass(frozen=True)
class ExtremeEigenvalues:
    """Both ends of a spectrum; `error` bounds how far each value is from an eigenvalue."""

    largest: float
    smallest: float
    error: float


def top_eigenpairs(
    operator: OperatorLike,
    k: int,
    *,
    metric: OperatorLike | None = None,
    generator: torch.Generator | None = None,
    tolerance: float | None = None,
    max_steps: int = 1000,
    **of_function: Unpack[OfFunction],
) -> Eigenpairs:
    r"""The k algebraically largest eigenvalues of a symmetric operator and their orthonormal eigenvectors.

    With `metric=K`, positive semidefinite, A is self-adjoint in $\langle u, v\rangle_K = u^\top K v$ (K A symmetric;
    A = S K for a symmetric S, say) and the vectors are K-orthonormal. Where K is singular, vectors are meant up to its
    null space: such directions are dropped and A v = λ v holds in K's norm.

    Matrices with n ≤ 1000, and problems where k is a good part of n, are decomposed whole in float64. Above, a
    thick-restarted block Lanczos iteration with full reorthogonalisation runs on the operator's device and multiplies
    (n, b) blocks, b > k, in its number type: a block as wide as k finds every copy of a repeated eigenvalue, which a
    single vector does not. Memory: the basis, two (with a metric three) float64 arrays of n × (4b + 20).

    Args:
        operator: A torch or numpy matrix (memory maps too), a scipy sparse matrix or LinearOperator, an object with
            `shape` and `@`, or a function of (n, b) blocks.
        k: How many pairs.
        metric: The matrix or operator K; the standard inner product by default.
        generator: Draws the start block; seed 0 by default.
        tolerance: The largest residual, relative to the largest |eigenvalue|; 1e-10 for float64 and 1e-5 for float32,
            in a metric 1e-8 and 1e-4.
        max_steps: The most blocks that Lanczos multiplies.
        **of_function: `n`, `dtype` and `device` of a function.

    Raises:
        ConvergenceError: The residuals stayed above `tolerance`.
    """
    A = as_operator(operator, **of_function)
    K = None if metric is None else as_operator(metric, n=A.n, dtype=A.dtype, device=A.device, name="metric")
    k = require_whole("k", k, most=A.n)
    tolerance = _tolerance(A, K, tolerance)
    if _is_small(A, k):
        return _dense(A, k, tolerance, _algebraic) if K is None else _dense_in_metric(A, K, k, tolerance)
    return _lanczos(A, K, k, tolerance, _algebraic, generator, max_steps)


def spectral_norm(
    operator: OperatorLike,
    *,
    generator: torch.Generator | None = None,
    tolerance: float | None = None,
    max_steps: int = 1000,
    **of_function: Unpack[OfFunction],
) -> SpectralNorm:
    """The largest |eigenvalue| of a symmetric operator, from both ends of one Lanczos run; see `top_eigenpairs`."""
    A = as_operator(operator, **of_function)
    tolerance = _tolerance(A, None, tolerance)
    if _is_small(A, 1):
        pair = _dense(A, 1, tolerance, torch.abs)
    else:
        pair = _lanczos(A, None, 1, tolerance, torch.abs, generator, max_steps)
    return SpectralNorm(float(pair.values[0].abs()), float(pair.residuals[0]))


def extreme_eigenvalues(
    operator: OperatorLike,
    *,
    generator: torch.Generator | None = None,
    tolerance: float | None = None,
    max_steps: int = 1000,
    **of_function: Unpack[OfFunction],
) -> ExtremeEigenvalues:
    """The largest and the smallest eigenvalue of a symmetric operator; see `top_eigenpairs`.

    Of a kernel above n = 1000 the small end converges slowly, and is exact only to tolerance × the largest.
    """
    A = as_operator(operator, **of_function)
    tolerance = _tolerance(A, None, tolerance)
    if _is_small(A, 1):
        pairs = _dense(A, A.n, tolerance, _algebraic)
        largest, smallest = float(pairs.values[0]), float(pairs.values[-1])
        residual = A.n * torch.finfo(A.dtype).eps
    else:
        top, low = (_lanczos(B, None, 1, tolerance, _algebraic, generator, max_steps) for B in (A, A.negative()))
        largest, smallest = float(top.values[0]), -float(low.values[0])
        residual = max(float(top.residuals[0]), float(low.residuals[0]))
    return ExtremeEigenvalues(largest, smallest, residual * max(abs(largest), abs(smallest)))


def largest_eigenpairs(matrix: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest eigenvalues of a matrix's symmetric part, descending (all there are, if fewer), and their vectors.

    Direct for every matrix on a GPU and up to n = 4000 on a CPU, where LAPACK's syevr finds the k alone in a quarter of
    the time of all; block Lanczos beyond.
    """
    n, k = len(matrix), require_whole("k", k)
    symmetric = (matrix + matrix.mT) / 2
    if symmetric.is_cpu and n > DIRECT_BELOW and not _is_small(as_operator(symmetric), k):
        top = top_eigenpairs(symmetric, k)
        return top.values, top.vectors
    if symmetric.is_cpu and 2 * k < n:
        some = scipy_eigh(symmetric.numpy(), subset_by_index=(n - k, n - 1), check_finite=False, overwrite_a=True)
        values, vectors = map(torch.from_numpy, some)
    else:
        values, vectors = torch.linalg.eigh(symmetric)
    return values.flip(0)[:k], vectors.flip(1)[:, :k]


def eigenvalue_rounding(K: Tensor, eps: float) -> float:
    """The error of a kernel's eigenvalues when its entries were rounded to `eps` and it was decomposed in float64.

    Errors of the entries are nearly independent, so that n of them add up to √n of one. An eigenvalue below this size
    may be zero, or of either sign; one that is merely far below the largest need not be rounding.
    """
    decomposition = 16 * torch.finfo(torch.float64).eps * float(K.diagonal().abs().sum())
    return max(entry_rounding(K, eps), decomposition)


def entry_rounding(K: Tensor, eps: float) -> float:
    """The part of `eigenvalue_rounding` that comes from rounding the entries to `eps`."""
    return 4 * math.sqrt(len(K)) * eps * float(K.diagonal().abs().max())


def fix_signs(vectors: Tensor) -> Tensor:
    """Each column times ±1, so that its entry of largest magnitude is positive; the first of tied entries decides."""
    size = vectors.abs()
    tied = size >= (1 - torch.finfo(vectors.dtype).eps ** 0.5) * size.amax(0)
    first = tied.to(torch.uint8).argmax(0, keepdim=True)
    sign = torch.where(vectors.gather(0, first) < 0, -1.0, 1.0).to(vectors.dtype)
    return vectors * sign


def _algebraic(values: Tensor) -> Tensor:
    return values


def _tolerance(A: Operator, K: Operator | None, tolerance: float | None) -> float:
    """The tolerance asked for or the default one; refuses operators that no eigenpairs can be found of."""
    if K is not None and (K.dtype, K.device) != (A.dtype, A.device):
        raise InputError(
            f"operator and metric must share number type and device, got {A.dtype} on {A.device} "
            f"and {K.dtype} on {K.device}; convert one with .to(...)"
        )
    if A.matrix is not None and K is None:
        require_symmetric(A.matrix, A.name)
    if K is not None and K.matrix is not None:
        require_symmetric(K.matrix, K.name)
    default = (TOLERANCE if K is None else TOLERANCE_IN_METRIC)[A.dtype]
    if tolerance is None:
        return default
    fix = f"leave it out for {default}"
    return require_between("tolerance", tolerance, 0, 1, low_included=False, high_included=False, fix=fix)


def _block_and_capacity(k: int) -> tuple[int, int]:
    """How many vectors are multiplied at once and how many are kept at most."""
    block = k + min(k, 4)  # a few more than asked: convergence then depends on a wider gap
    return block, 4 * block + 20


def _is_small(A: Operator, k: int) -> bool:
    full = _block_and_capacity(k)[1] >= A.n  # Lanczos would fill the whole space
    if full and A.n > DENSE_LIMIT:
        raise InputError(
            f"k={k} of n={A.n} needs a full decomposition, which overflows above n = {DENSE_LIMIT}; "
            f"ask for at most {(A.n - 20) // 4 - 5} pairs"
        )
    return full or (A.matrix is not None and A.n <= DENSE_BELOW)


def _dense(A: Operator, k: int, tolerance: float, order: Order) -> Eigenpairs:
    matrix = A.dense()
    require_symmetric(matrix.to(A.dtype), A.name, n_sampled=A.n)
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    top = order(values).argsort(descending=True)[:k]
    residual = (matrix @ vectors[:, top] - values[top] * vectors[:, top]).norm(dim=0)
    return _result(A, values[top], vectors[:, top], residual, values.abs().max(), tolerance)


def _dense_in_metric(A: Operator, K: Operator, k: int, tolerance: float) -> Eigenpairs:
    r"""With K = U s U^T and u = s^½ U^T v the problem is B u = λ u for B = s^½ (U^T A U) s^-½, symmetric.

    Entry (i, j) carries √(s_i/s_j): for s ascending the upper triangle never amplifies rounding, so B is read from
    there alone, however ill-conditioned K is.
    """
    matrix, gram = A.dense(), K.dense()
    s, U = torch.linalg.eigh((gram + gram.mT) / 2)
    noise = A.n * torch.finfo(A.dtype).eps * float(s.abs().max())
    if float(s[0]) < -10 * noise:
        raise InputError(f"metric must be positive semidefinite, but has the eigenvalue {float(s[0]):.3g}")
    U, root = U[:, s > noise], s[s > noise].sqrt()
    if len(root) < k:
        raise _too_few(k, len(root))
    inside = U.mT @ matrix @ U  # (r, r), r = rank of K
    B = (root[:, None] * inside / root[None, :]).triu()
    _require_self_adjoint(gram @ matrix, A.dtype)
    values, u = torch.linalg.eigh(B, UPLO="U")
    top = values.argsort(descending=True)[:k]
    vectors = U @ (u[:, top] / root[:, None])
    error = matrix @ vectors - values[top] * vectors
    # K's norm through its factor: error^T K error would lose half the digits to the null space.
    residual = (root[:, None] * (U.mT @ error)).norm(dim=0)
    return _result(A, values[top], vectors, residual, values.abs().max(), tolerance)


def _require_self_adjoint(product: Tensor, dtype: torch.dtype) -> None:
    """K A must be symmetric, to rounding."""
    asymmetry, size = float((product - product.mT).norm()), float(product.norm())
    if asymmetry > 100 * torch.finfo(dtype).eps ** 0.5 * size:
        raise InputError(
            f"operator is not self-adjoint in the metric: metric @ operator differs from its transpose by "
            f"{asymmetry / size:.2g} of its norm; an operator S @ metric with symmetric S is"
        )


def _too_few(k: int, rank: int) -> InputError:
    return InputError(f"k={k} pairs, but the metric has rank {rank}; ask for at most {rank}")


def _result(
    A: Operator, values: Tensor, vectors: Tensor, residual: Tensor, scale: Tensor, tolerance: float
) -> Eigenpairs:
    """Checks the residuals and fixes the signs; a zero operator has residuals 0."""
    relative = residual / scale if float(scale) > 0 else torch.zeros_like(residual)
    worst = float(relative.max())
    if not worst <= tolerance:
        raise ConvergenceError(
            f"eigenpairs reached the relative residual {worst:.2g}, not {tolerance:.2g}; "
            f"pass tolerance={2 * worst:.1g}, more max_steps, or a float64 operator"
        )
    return Eigenpairs(values.to(A.dtype), fix_signs(vectors.to(A.dtype)), relative.to(A.dtype))


class _Subspace:
    """A growing K-orthonormal basis V with A V and K V, and H = V^T K A V on the CPU in float64."""

    def __init__(self, A: Operator, K: Operator | None, capacity: int) -> None:
        self.A, self.K, self.size = A, K, 0
        self.eps = torch.finfo(A.dtype).eps
        self.metric_size = 0.0  # the largest ‖K w‖/‖w‖ seen, a lower bound of K's norm
        # In float64 for every operator: inner products of 400,000 float32 numbers lose orthogonality, and
        # Lanczos then stops at residuals of 5e-5. Vectors lie one after the other in memory: sums down strided columns
        # are several times slower.
        self._V, self._AV, self._KV = (
            torch.empty(capacity if i < 2 or K is not None else 0, A.n, dtype=torch.float64, device=A.device).mT
            for i in range(3)
        )
        if K is None:
            self._KV = self._V
        self.H = torch.zeros(capacity, capacity, dtype=torch.float64)

    @property
    def V(self) -> Tensor:
        return self._V[:, : self.size]

    @property
    def AV(self) -> Tensor:
        return self._AV[:, : self.size]

    @property
    def KV(self) -> Tensor:
        return self._KV[:, : self.size]

    def in_metric(self, block: Tensor) -> Tensor:
        return block if self.K is None else self.K(block)

    def norms(self, block: Tensor, K_block: Tensor) -> Tensor:
        return (block * K_block).sum(0).clamp(min=0).sqrt()

    def ritz(self, order: Order) -> tuple[Tensor, Tensor]:
        """Eigenvalues of H in the wanted order, and their coefficients in V."""
        values, Y = torch.linalg.eigh(self.H[: self.size, : self.size])
        best = order(values).argsort(descending=True)
        return values[best], Y[:, best]

    def combine(self, array: Tensor, Y: Tensor) -> Tensor:
        return (Y.to(dtype=array.dtype, device=array.device).mT @ array.mT).mT

    def shrink(self, values: Tensor, Y: Tensor) -> None:
        """Thick restart: keep the Ritz vectors V Y alone."""
        arrays = [self._V, self._AV] if self.K is None else [self._V, self._AV, self._KV]
        kept = Y.shape[1]
        for array in arrays:
            array[:, :kept] = self.combine(array[:, : self.size], Y)
        self.size = kept
        self.H.zero_()
        self.H[:kept, :kept] = torch.diag(values[:kept])

    def extend(self, block: Tensor) -> int:
        """Append what is new in `block`; how many vectors that is."""
        block, K_block = self._new_directions(block)
        old, new = self.size, block.shape[1]
        if new == 0:
            return 0
        self._V[:, old : old + new] = block
        self._KV[:, old : old + new] = K_block
        self._AV[:, old : old + new] = self.A(block)
        self.size += new
        columns = (self.KV.mT @ self._AV[:, old : old + new]).double().cpu()  # (size, new)
        corner = columns[old:]
        self._require_symmetric(corner)
        self.H[: self.size, old : self.size] = columns
        self.H[old : self.size, : self.size] = columns.mT
        self.H[old : self.size, old : self.size] = (corner + corner.mT) / 2
        return new

    def _new_directions(self, block: Tensor) -> tuple[Tensor, Tensor]:
        """The block made K-orthonormal and K-orthogonal to V; dependent directions and K's null space are dropped.

        Gram–Schmidt by eigenvectors of the block's Gram matrix (Stathopoulos & Wu 2002), done twice: the first pass
        drops, the second repairs what dividing by small norms has amplified.
        """
        block = block / block.norm(dim=0).clamp(min=torch.finfo(block.dtype).tiny)
        for _ in range(2):
            K_block = self.in_metric(block)
            if self.K is not None:
                self.metric_size = max([self.metric_size, *(K_block.norm(dim=0) / block.norm(dim=0)).tolist()])
            overlap = self.KV.mT @ block
            block = block - self.V @ overlap
            K_block = block if self.K is None else K_block - self.KV @ overlap
            # What rounding leaves of a vector without any K-norm: eps ‖K‖ ‖w‖².
            floor = self.eps * (1.0 if self.K is None else self.metric_size) * block.double().square().sum(0)
            mix = _orthonormalizing((block.mT @ K_block).double().cpu(), floor.cpu(), self.eps)
            block = self.combine(block, mix)
            K_block = block if self.K is None else self.combine(K_block, mix)
            if block.shape[1] == 0:
                break
        return block, K_block

    def _require_symmetric(self, corner: Tensor) -> None:
        size = max(float(corner.norm()), float(self.H.abs().max()))
        asymmetry = float((corner - corner.mT).norm())
        if asymmetry > 100 * self.eps**0.5 * size:
            which = "symmetric" if self.K is None else "self-adjoint in the metric"
            raise InputError(
                f"operator is not {which}: u^T A v and v^T A u differ by {asymmetry / size:.2g} of its size; "
                f"for (A + A^T)/2 pass a function that adds both products"
            )


def _orthonormalizing(gram: Tensor, floor: Tensor, eps: float) -> Tensor:
    """T with T^T gram T = I, of as many columns as the block has directions above their rounding `floor`."""
    norm2 = gram.diagonal()
    alive = norm2 > 100 * floor
    if not bool(alive.any()):
        return gram.new_zeros(len(gram), 0)
    scale = norm2[alive].rsqrt()
    noise = max(eps, float((floor[alive] * scale**2).max()))
    s, Q = torch.linalg.eigh(scale[:, None] * gram[alive][:, alive] * scale)
    keep = s > 100 * noise
    mix = gram.new_zeros(len(gram), int(keep.sum()))
    mix[alive] = scale[:, None] * Q[:, keep] * s[keep].rsqrt()
    return mix


def _lanczos(
    A: Operator,
    K: Operator | None,
    k: int,
    tolerance: float,
    order: Order,
    generator: torch.Generator | None,
    max_steps: int,
) -> Eigenpairs:
    """Thick-restarted block Lanczos in the form of block Davidson without a preconditioner.

    Expanding by the residuals of the best Ritz vectors spans the same space as the three-term recurrence (Wu & Simon
    2000 for single vectors) and needs no bookkeeping at restarts.
    """
    b, capacity = _block_and_capacity(k)
    generator, max_steps = resolve_generator(generator), require_whole("max_steps", max_steps)
    space = _Subspace(A, K, capacity)

    def random_block() -> Tensor:
        draw = torch.randn(A.n, b, generator=generator, dtype=torch.float64, device=generator.device)
        return draw.to(A.device)

    # In a metric the start is A g: a random g has a part in K's null space that no K-product sees and that dominates
    # the residuals once they are small. A g lacks ker A, so that is added later where it can matter.
    space.extend(random_block() if K is None else A(random_block()))
    lacks_kernel, scale, goal = K is not None, 0.0, tolerance / 2
    for _ in range(max_steps):
        values, Y = space.ritz(order)
        scale = max([scale, *values.abs().tolist()])
        lead, Y_lead = values[:b].to(A.device), Y[:, :b]
        R = space.combine(space.AV, Y_lead) - lead * space.combine(space.V, Y_lead)
        errors = space.norms(R, space.in_metric(R))
        done = space.size >= k and bool((errors[:k] <= goal * scale).all())
        open_ = errors > 0.1 * goal * scale
        if space.size + b > capacity:
            space.shrink(values, Y[:, : max(b, (capacity - b) // 2)])
        stalled = not done and space.extend(R[:, open_]) == 0
        if lacks_kernel and (done or stalled) and (space.size < k or float(values[k - 1]) < -goal * scale):
            lacks_kernel = False
            if space.extend(space.in_metric(random_block())) > 0:
                continue
        if done or stalled:
            break
    if space.size < k:
        raise _too_few(k, space.size)
    return _measured(space, k, scale, tolerance, order)


def _measured(space: _Subspace, k: int, scale: float, tolerance: float, order: Order) -> Eigenpairs:
    """The k leading Ritz pairs, their residuals measured afresh: A V was updated by combination, not by products."""
    values, Y = space.ritz(order)
    values = values[:k].to(space.A.device)
    vectors = space.combine(space.V, Y[:, :k])
    R = space.A(vectors) - values * vectors
    residual = space.norms(R, space.in_metric(R))
    overlap = (vectors.mT @ space.in_metric(vectors)).double().cpu() - torch.eye(k, dtype=torch.float64)
    if space.K is not None and float(overlap.abs().max()) > 100 * tolerance:
        raise ConvergenceError(
            f"eigenvectors are orthonormal to {float(overlap.abs().max()):.1g} only: they lie where the metric is zero "
            f"to rounding; ask for fewer than k={k} pairs, or add a small multiple of the identity to the metric"
        )
    return _result(space.A, values, vectors, residual, residual.new_tensor(scale), tolerance)
