"""Measures of one kernel or of two, read once or twice in row strips: matrices may be far larger than memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kontrast.checks import require_finite, require_finite_not_negative, require_same_shape, require_shape
from kontrast.errors import InputError
from kontrast.linalg.eigen import extreme_eigenvalues
from kontrast.linalg.operators import Matrix, require_real_matrix, require_symmetric, resolution, sampled_asymmetry
from kontrast.memory import rows_that_fit

SAME_POINTS = "over the same points in the same order"
STRIP_BYTES = 2**26  # strips beyond this gain no speed and cost memory
NEARLY_SYMMETRIC = 0.01  # of the largest entry: a square matrix closer to its transpose is hardly one of features
ROUNDED = 4  # units in the last place that a mean of equal numbers may be off


@dataclass(frozen=True)
class KernelDrift:
    """How far a kernel moved: ‖K − K0‖_F / ‖K0‖_F, the largest |K − K0| of any entry, and `kernel_alignment`.

    Where a kernel only grew, it is aligned with the old one. A kernel that became zero has no alignment: nan.
    """

    relative: float
    largest: float
    alignment: float


@dataclass
class KernelComparison:
    """The sums behind `KernelDrift`, over entries that come part by part."""

    moved: float = 0.0  # ‖K − K0‖²
    product: float = 0.0  # ⟨K, K0⟩
    size: float = 0.0  # ‖K‖²
    first_size: float = 0.0  # ‖K0‖²
    largest: float = 0.0

    def add(self, K: Tensor, K0: Tensor, *, times: int = 1) -> None:
        """Count these entries, in float64, so many times."""
        self.product += times * float((K * K0).sum())
        self.size += times * float(K.square().sum())
        self.first_size += times * float(K0.square().sum())
        difference = K - K0
        self.moved += times * float(difference.square().sum())
        self.largest = max(self.largest, float(difference.abs().max()))

    def drift(self) -> KernelDrift:
        """What they say; refuses to relate a change to nothing."""
        if self.first_size == 0:
            raise InputError("K0 is zero everywhere, so a relative drift has no meaning; compare with another kernel")
        norms = math.sqrt(self.size) * math.sqrt(self.first_size)
        return KernelDrift(
            math.sqrt(self.moved / self.first_size), self.largest, self.product / norms if norms > 0 else math.nan
        )


@dataclass(frozen=True)
class ConditionNumber:
    """(λ_max + ridge) / (λ_min + ridge), infinite where the denominator is not above its own error.

    `error` bounds how far `smallest` and `largest` are from eigenvalues of K, by the residuals of their vectors.
    """

    value: float
    largest: float
    smallest: float
    error: float


def kernel_alignment(K1: Matrix, K2: Matrix, *, memory: float | None = None) -> float:
    r"""$\langle K_1, K_2\rangle_F / (\|K_1\|_F \|K_2\|_F)$, uncentred (Cristianini et al. 2001); one pass.

    Two kernels with positive entries are aligned by their means alone: see `cka`.
    """
    _require_kernels(K1, K2)
    sums = torch.zeros(3, dtype=torch.float64)
    for _, (a, b) in strips([K1, K2], memory):
        sums += torch.stack([(a * b).sum(), a.square().sum(), b.square().sum()]).cpu()
    return _cosine(sums, "a kernel of zeros has no direction to compare")


def cka(A: Matrix, B: Matrix, *, memory: float | None = None) -> float:
    r"""Centred kernel alignment (Cortes et al. 2012; Kornblith et al. 2019) of kernels or features of the same points.

    `kernel_alignment` of H K H and H L H with H = I − 11^T/n. In [0, 1] for kernels; blind to rotations, scalings and
    shifts of features. Each argument on its own is a kernel (n, n) or features (n, d), which stand for their linear
    kernel Z Z^T:

    * what is square and symmetric is a kernel. Features that happen to be both count as one too: pass Z @ Z.T.
    * what is square and symmetric to within a hundredth but not to rounding could be either, and is refused.
    * anything else with n rows is features.

    Features on both sides with d < n meet as $\|Z^\top H Y\|_F^2 / (\|Z^\top H Z\|_F \|Y^\top H Y\|_F)$, and those
    beside a kernel in strips, so that (n, n) is never formed for them. Two passes: means first, since sums of uncentred
    products cancel to nothing on kernels that are nearly constant.
    """
    n = _require_same_points(A, B)
    # Features at least as wide as they are long are no larger as a kernel. From here on, (n, n) is a kernel.
    A, B = (
        _linear_kernel(Z, name, memory) if not _is_kernel(Z, name) and Z.shape[1] >= n else Z
        for name, Z in (("A", A), ("B", B))
    )
    narrow = A.shape[1] < n and B.shape[1] < n
    sums = (_sums_of_features if narrow else _sums_of_kernels)(A, B, memory)
    return _cosine(sums, f"what is constant over its {n} points, a kernel or features, is zero once centred")


def kernel_drift(K: Matrix, K0: Matrix, *, memory: float | None = None) -> KernelDrift:
    """How far `K` is from `K0`, two matrices of one shape (cross kernels too); one pass."""
    for matrix, name in ((K, "K"), (K0, "K0")):
        require_real_matrix(matrix, name)
        require_shape(name, matrix, ("n", "m"))
    require_same_shape(f"compare {SAME_POINTS}", K=K, K0=K0)
    seen = KernelComparison()
    for _, (a, b) in strips([K, K0], memory, names=("K", "K0")):
        seen.add(a, b)
    return seen.drift()


def condition_number(K: Matrix, *, ridge: float = 0.0, tolerance: float | None = None) -> ConditionNumber:
    """The condition number of K + ridge I from its extreme eigenvalues.

    Exact to rounding for n ≤ 1000; above, by Lanczos from both ends, where the small end converges slowly: `tolerance`
    is relative to the largest eigenvalue, so without a ridge nothing above 1/tolerance can be told from infinity.
    """
    require_symmetric(K, "K")
    require_finite_not_negative(ridge=ridge)
    ends = extreme_eigenvalues(K, tolerance=tolerance)
    bottom = ends.smallest + ridge
    value = (ends.largest + ridge) / bottom if bottom > ends.error else math.inf
    return ConditionNumber(value, ends.largest, ends.smallest, ends.error)


def strips(
    matrices: list[Matrix], memory: float | None, *, names: tuple[str, ...] = ("K1", "K2")
) -> Iterator[tuple[int, list[Tensor]]]:
    """Row strips of all matrices together, as float64 copies, with the index of their first row."""
    n, widths = len(matrices[0]), [K.shape[1] for K in matrices]
    tensors = [K for K in matrices if isinstance(K, Tensor)]
    device = tensors[0].device if tensors else torch.device("cpu")
    bytes_per_row = 8 * (sum(widths) + 2 * max(widths))  # the copies and two products on the way
    if memory is None:
        memory = max(STRIP_BYTES, bytes_per_row)
    height = rows_that_fit(bytes_per_row, n, memory=memory, device=device, what="a kernel strip")
    for start in range(0, n, height):
        strips = []
        for K, name in zip(matrices, names, strict=False):
            strip = _in_double(K[start : start + height], device)
            if not torch.isfinite(strip).all():
                raise InputError(
                    f"{name} holds NaN or infinite values in rows {start} to {start + len(strip) - 1}; "
                    f"check the data behind it"
                )
            strips.append(strip)
        yield start, strips


def _sums_of_kernels(A: Matrix, B: Matrix, memory: float | None) -> Tensor:
    """The sums (⟨K, L⟩, ‖K‖², ‖L‖²) of two centred kernels; of features (n, d < n) on one side, strip by strip."""
    pair, n = [A, B], len(A)
    centers: list[list[Tensor]] = [[], []]
    for _, both in strips(pair, memory, names=("A", "B")):
        for found, strip in zip(centers, both, strict=True):
            found.append(strip.mean(1) if strip.shape[1] == n else strip)
    centered = [torch.cat(found) for found in centers]  # row means of a kernel, or all rows of features
    centered = [found - found.mean(0) if found.ndim == 2 else found for found in centered]
    sums, floors = torch.zeros(3, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for start, both in strips(pair, memory, names=("A", "B")):
        floors += torch.stack([strip.square().sum() for strip in both]).cpu()
        a, b = (_rows_of_centered(strip, start, known) for strip, known in zip(both, centered, strict=True))
        sums += torch.stack([(a * b).sum(), a.square().sum(), b.square().sum()]).cpu()
    return _without_rounding(sums, floors, pair)


def _rows_of_centered(strip: Tensor, start: int, known: Tensor) -> Tensor:
    """Rows of the centred kernel, by its row means or by all centred rows of its features."""
    at = slice(start, start + len(strip))
    if known.ndim == 2:
        return known[at] @ known.mT
    # In place: strips are copies. K − r_i − r_j + mean, r the row means of a symmetric K.
    return strip.sub_(known).sub_(known[at, None]).add_(known.mean())


def _sums_of_features(A: Matrix, B: Matrix, memory: float | None) -> Tensor:
    """The sums (⟨K, L⟩, ‖K‖², ‖L‖²) of the centred linear kernels of features, from their (d, d) moments."""
    pair, n = [A, B], len(A)
    means, floors = [torch.zeros(()), torch.zeros(())], torch.zeros(2, dtype=torch.float64)
    for _, both in strips(pair, memory, names=("A", "B")):
        means = [mean.to(strip) + strip.sum(0) / n for mean, strip in zip(means, both, strict=True)]
    moments = [torch.zeros(()) for _ in range(3)]
    for _, both in strips(pair, memory, names=("A", "B")):
        floors += torch.stack([strip.square().sum() for strip in both]).cpu()
        z, y = (strip.sub_(mean) for strip, mean in zip(both, means, strict=True))
        moments = [M.to(z) + part for M, part in zip(moments, (z.mT @ y, z.mT @ z, y.mT @ y), strict=True)]
    return _without_rounding(torch.stack([M.square().sum() for M in moments]).cpu(), floors, pair)


def _without_rounding(sums: Tensor, sizes: Tensor, pair: list[Matrix]) -> Tensor:
    """The sums with zero for the squared norm of what rounding of its entries leaves of a constant kernel.

    `sizes` are Σ K² of kernels and Σ Z² of features.
    """
    for i, (Z, size) in enumerate(zip(pair, sizes, strict=True), start=1):
        features = Z.shape[1] < len(Z)
        floor = (resolution(Z) * ROUNDED if features else resolution(Z)) ** 2 * size
        sums[i] *= sums[i] > (floor.square() if features else floor)
    return sums


def _linear_kernel(Z: Matrix, name: str, memory: float | None) -> Tensor:
    """Z Z^T of features (n, d), centred, in float64, from blocks of columns."""
    n, d = Z.shape
    device = Z.device if isinstance(Z, Tensor) else torch.device("cpu")
    budget = max(STRIP_BYTES, 16 * n) if memory is None else memory
    width = rows_that_fit(16 * n, d, memory=budget, device=device, what="a block of features")
    K, size, left = torch.zeros(n, n, dtype=torch.float64, device=device), 0.0, 0.0
    for first in range(0, d, width):
        block = _in_double(Z[:, first : first + width], device)
        require_finite(name, block)
        size += float(block.square().sum())
        block -= block.mean(0)
        left += float(block.square().sum())
        K.addmm_(block, block.mT)
    return K if left > (ROUNDED * resolution(Z)) ** 2 * size else K.zero_()


def _in_double(part: Matrix, device: torch.device) -> Tensor:
    """A copy of a part of a matrix in float64."""
    if isinstance(part, Tensor):
        return part.detach().to(device=device, dtype=torch.float64, copy=True)
    return torch.from_numpy(np.array(part, dtype=np.float64)).to(device)


def _require_same_points(A: Matrix, B: Matrix) -> int:
    """The number n of points; refuses what has no n rows."""
    for name, Z in (("A", A), ("B", B)):
        require_real_matrix(Z, name)
        require_shape(name, Z, ("n", "d"), f"pass a kernel (n, n) or features (n, d), such as {name}.flatten(1)")
    if len(A) != len(B):
        raise InputError(f"A has {len(A)} rows and B {len(B)}; compare kernels or features {SAME_POINTS}")
    return len(A)


def _is_kernel(Z: Matrix, name: str) -> bool:
    """Whether it is square and symmetric; refuses one that is almost."""
    if Z.shape[0] != Z.shape[1]:
        return False
    asymmetry, size = sampled_asymmetry(Z, name)
    if asymmetry <= math.sqrt(resolution(Z)) * size:
        return True
    if asymmetry > NEARLY_SYMMETRIC * size:
        return False
    raise InputError(
        f"{name} is square and nearly symmetric: entries differ from their mirror images by up to {asymmetry:.2g} "
        f"(largest entry {size:.2g}); for a kernel pass ({name} + {name}.T) / 2, for features {name} @ {name}.T"
    )


def _require_kernels(K1: Matrix, K2: Matrix) -> None:
    for K, name in ((K1, "K1"), (K2, "K2")):
        require_real_matrix(K, name)
        if K.ndim != 2 or K.shape[0] != K.shape[1] or K.shape[0] == 0:
            raise InputError(
                f"{name} must be a kernel (n, n), got shape {tuple(K.shape)}; for (n, d) features Z pass Z @ Z.T"
            )
    require_same_shape(f"compare kernels {SAME_POINTS}", K1=K1, K2=K2)


def _cosine(sums: Tensor, reason: str) -> float:
    """The cosine from the sums (⟨a, b⟩, ‖a‖², ‖b‖²)."""
    product, a, b = sums.tolist()
    if not all(map(math.isfinite, (product, a, b))):
        raise InputError("the entries are too large to square; divide the kernels by their largest entry first")
    if a == 0 or b == 0:
        raise InputError(f"the alignment is undefined: {reason}")
    return float(product / (math.sqrt(a) * math.sqrt(b)))
