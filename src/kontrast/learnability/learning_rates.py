"""The largest learning rates, from both ends of the tangent kernel's spectrum (claim D.eta)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kontrast.checks import require_type
from kontrast.dynamics import flat_kernel
from kontrast.errors import InputError
from kontrast.kernels import NTKOperator
from kontrast.linalg import ExtremeEigenvalues, as_operator, as_symmetric, top_eigenpairs

DIRECT = 4000  # rows up to which all eigenvalues of a matrix are computed, in at most 10 s
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5}  # of Lanczos at the large end, relative to it
# At the small end, relative to the largest too: their sum matters, and more digits take Lanczos 100 times as long.
TOLERANCE_BELOW = 1e-3


@dataclass(frozen=True)
class LearningRates:
    r"""Rates for ½‖f − Y‖², summed over samples, whose residual one step multiplies by $1 - \eta\Theta$.

    `stable` is $2/\lambda_{max}$: below it every residual of the linearised network shrinks or, in the kernel's null
    space, stays; above it one grows. `critical` is $2/(\lambda_{min} + \lambda_{max})$, paper D's $\eta_{critical}$,
    which its (80), $\|1 - \eta\Theta\|_{op} \le 1 - \eta\lambda_{min}$, needs. It is never above `stable`.
    """

    largest: float
    smallest: float
    stable: float
    critical: float
    error: float  # a bound on the error of `largest` and `smallest`; that of `critical` is error / largest, relative


def learning_rates(kernel: Tensor | NTKOperator) -> LearningRates:
    """The rates for a kernel: (n, n), (n, n, z, z) as `empirical_ntk` returns it, or an `NTKOperator`.

    The eigenvalues of a matrix of up to 4000 rows are computed; beyond, and for operators, Lanczos finds both ends.
    `smallest` is then exact only to a thousandth of `largest`, and never below the true one, so `critical` is not too
    large. For a loss that is a mean over n samples multiply the rates by n.
    """
    ends = _ends(kernel)
    noise = 10 * max(ends.error, torch.finfo(torch.float64).tiny)
    if not ends.largest > 0 or ends.smallest < -noise:
        raise InputError(
            f"kernel must be positive semi-definite and not zero, but its eigenvalues are {ends.smallest:.3g} to "
            f"{ends.largest:.3g}; check that it is a kernel matrix"
        )
    # A smallest eigenvalue below zero is rounding.
    critical = 2 / (ends.largest + max(ends.smallest, 0.0))
    return LearningRates(ends.largest, ends.smallest, 2 / ends.largest, critical, ends.error)


def _ends(kernel: Tensor | NTKOperator) -> ExtremeEigenvalues:
    require_type("kernel", kernel, (Tensor, NTKOperator), "convert a matrix with torch.as_tensor(kernel)")
    if not isinstance(kernel, Tensor):
        return _by_lanczos(kernel, torch.float32 if kernel.dtype == np.float32 else torch.float64)
    matrix = flat_kernel(kernel.detach())
    if matrix.ndim == 2 and len(matrix) > DIRECT:
        return _by_lanczos(matrix, matrix.dtype)
    values = torch.linalg.eigvalsh(as_symmetric(matrix, "kernel"))
    largest, smallest = float(values[-1]), float(values[0])
    return ExtremeEigenvalues(largest, smallest, len(values) * torch.finfo(matrix.dtype).eps * abs(largest))


def _by_lanczos(kernel: Tensor | NTKOperator, dtype: torch.dtype) -> ExtremeEigenvalues:
    A = as_operator(kernel, dtype=dtype, name="kernel")
    top = top_eigenpairs(A, 1, tolerance=TOLERANCE.get(dtype))
    low = top_eigenpairs(A.negative(), 1, tolerance=TOLERANCE_BELOW)
    largest, smallest = float(top.values[0]), -float(low.values[0])
    error = max(float(top.residuals[0]), float(low.residuals[0])) * max(abs(largest), abs(smallest))
    return ExtremeEigenvalues(largest, smallest, error)
