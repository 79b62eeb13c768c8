"""Measures of one kernel or of two, read once or twice in row strips: matrices may be far larger than memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kontrast.checks import require_finite_not_negative, require_same_shape, require_shape
from kontrast.errors import InputError
from kontrast.linalg.eigen import extreme_eigenvalues
from kontrast.linalg.operators import Matrix, require_real_matrix, require_symmetric, resolution
from kontrast.memory import rows_that_fit

SAME_POINTS = "over the same points in the same order"
STRIP_BYTES = 2**26  # strips beyond this gain no speed and cost memory


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


def cka(K1: Matrix, K2: Matrix, *, memory: float | None = None) -> float:
    """Centred kernel alignment (Cortes et al. 2012; Kornblith et al. 2019): `kernel_alignment` of H K1 H and H K2 H.

    H = I − 11^T/n. In [0, 1] for kernels; blind to rotations and scalings of features. Two passes: means first, since
    sums of uncentred products cancel to nothing on kernels that are nearly constant.
    """
    _require_kernels(K1, K2)
    for K, name in ((K1, "K1"), (K2, "K2")):
        require_symmetric(K, name)
    n = K1.shape[0]
    means: list[list[Tensor]] = [[], []]
    for _, pair in strips([K1, K2], memory):
        for rows, strip in zip(means, pair, strict=True):
            rows.append(strip.mean(1))
    row_means = [torch.cat(rows) for rows in means]
    sums, sizes = torch.zeros(3, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for start, pair in strips([K1, K2], memory):
        stop = start + len(pair[0])
        sizes += torch.stack([strip.square().sum() for strip in pair]).cpu()
        # In place: the strips are this function's own copies. K − r_i − r_j + mean, r the row means of a symmetric K.
        for strip, r in zip(pair, row_means, strict=True):
            strip.sub_(r).sub_(r[start:stop, None]).add_(r.mean())
        a, b = pair
        sums += torch.stack([(a * b).sum(), a.square().sum(), b.square().sum()]).cpu()
    noise = torch.tensor([resolution(K1), resolution(K2)], dtype=torch.float64)
    # What rounding of the entries leaves of a constant kernel: its centred norm counts as zero.
    sums[1:] *= sums[1:] > noise.square() * sizes
    return _cosine(sums, f"a kernel that is constant over its {n} points is zero once centred")


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
    n, width = matrices[0].shape
    tensors = [K for K in matrices if isinstance(K, Tensor)]
    device = tensors[0].device if tensors else torch.device("cpu")
    bytes_per_row = 8 * width * (len(matrices) + 2)  # the copies and two products on the way
    if memory is None:
        memory = max(STRIP_BYTES, bytes_per_row)
    height = rows_that_fit(bytes_per_row, n, memory=memory, device=device, what="a kernel strip")
    for start in range(0, n, height):
        strips = []
        for K, name in zip(matrices, names, strict=False):
            rows = K[start : start + height]
            if isinstance(rows, Tensor):
                strip = rows.detach().to(device=device, dtype=torch.float64, copy=True)
            else:
                strip = torch.from_numpy(np.array(rows, dtype=np.float64)).to(device)
            if not torch.isfinite(strip).all():
                raise InputError(
                    f"{name} holds NaN or infinite values in rows {start} to {start + len(strip) - 1}; "
                    f"check the data behind it"
                )
            strips.append(strip)
        yield start, strips


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
