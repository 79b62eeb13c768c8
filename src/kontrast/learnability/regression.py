r"""Kernel ridge regression and Gaussian-process inference with any kernel of samples.

$f(x) = k(x, X)\,(K + \rho I)^{-1} Y$. With the NTK at ρ = 0 it is the prediction of an infinitely wide network trained
to the end, averaged over its starts (paper D, Sec. 2). With the NNGP kernel it is the posterior of the network's prior,
where ρ is the variance of the noise. By Cholesky for few points, by preconditioned conjugate gradients for many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from kontrast import checks
from kontrast.errors import InputError
from kontrast.kernels import KERNEL_TILE, Kernel, tiled
from kontrast.linalg import LeaveOneOut, Posterior, RidgeSystem, nystrom_preconditioner

RANK = 500  # of the preconditioner
DIAGONAL_ROWS = 128  # rows of a plain function's kernel that are computed at a time for the diagonal


@dataclass(frozen=True, eq=False)
class KernelRegression:
    """A fitted regression. Its weights are float64; its predictions have the number type of the samples."""

    kernel: Kernel
    x: Tensor  # (n, …), the training samples
    system: RidgeSystem  # K + ridge I
    weights: Tensor  # (n,) or (n, c), float64
    residuals: Tensor  # () or (c,), relative, of the linear system and not of the fit
    n_steps: int  # of conjugate gradients; 0 for Cholesky

    def predict(self, x: Tensor) -> Tensor:
        """f(x), (m,) or (m, c), without holding all of k(x, X)."""
        self._check(x)
        return torch.cat([cross @ self.weights for _, cross in self._strips(x)]).to(x.dtype)

    def posterior(self, x: Tensor) -> Posterior:
        """Mean and variance at m new samples of the Gaussian process with this kernel and noise of variance `ridge`.

        The variance is that of the function, without the noise. Per sample it costs n² multiplications after Cholesky,
        and one linear system by conjugate gradients, where it is never below the exact one except for rounding.
        """
        self._check(x)
        parts = []
        for rows, cross in self._strips(x):
            prior = self.kernel.diagonal(rows).to(x.dtype)
            variance = prior - self.system.reduction(cross).to(x.dtype)
            parts.append((cross @ self.weights, variance.clamp(min=0)))
        means, variances = zip(*parts, strict=True)
        return Posterior(torch.cat(means).to(x.dtype), torch.cat(variances))

    def leave_one_out(self, *, n_points: int | None = None, generator: torch.Generator | None = None) -> LeaveOneOut:
        """The errors at training samples of regressions without them; see `kontrast.linalg.RidgeSystem`.

        Exact for each sample: at all of them after Cholesky, and by conjugate gradients at `n_points` (default 100)
        drawn with `generator`, so that the mean square has a standard error.
        """
        return self.system.leave_one_out(self.weights, n_points=n_points, generator=generator)

    def _strips(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Some rows of x and their kernel with the training samples, in float64."""
        for rows in torch.split(x, max(1, KERNEL_TILE[x.device.type] // len(self.x))):
            with torch.no_grad():
                cross = self.kernel(rows, self.x)
            yield rows, _checked_kernel(cross, len(rows), len(self.x)).double()

    def _check(self, x: Tensor) -> None:
        _require_samples(x)
        if x.shape[1:] != self.x.shape[1:] or (x.dtype, x.device) != (self.x.dtype, self.x.device):
            raise InputError(
                f"x must be like the training samples, (m, {', '.join(map(str, self.x.shape[1:]))}) of {self.x.dtype} "
                f"on {self.x.device}, got {checks.in_words(x)} on {x.device}"
            )


def kernel_regression(
    kernel: Kernel | Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    targets: Tensor,
    *,
    ridge: float,
    exact_below: int = 8000,
    rank: int = RANK,
    tolerance: float | None = None,
    max_steps: int = 1000,
    generator: torch.Generator | None = None,
) -> KernelRegression:
    """Kernel ridge regression of targets (n,) or (n, c) on samples x (n, …).

    Below `exact_below` samples K + ridge I is factorised in float64. From there on it is solved by conjugate gradients
    with a Nyström preconditioner, which hold K once, in the samples' number type (1.6 GB for 20,000 of them in
    float32), and stop by a relative residual that is computed in float64.

    Args:
        kernel: A `Kernel` (`TangentKernel`, `NetworkKernel`, `FeatureKernel`, …) or a function k(x, y) → (n, m).
        x: Samples, float32 or float64.
        targets: Numbers, not class labels; for labels, one column per class.
        ridge: Added to the kernel's diagonal itself, not a share of it. The variance of a Gaussian process's noise.
            Without one, samples that coincide are refused by name.
        exact_below: The number of samples from which conjugate gradients are used.
        rank: Of the preconditioner; a larger one needs fewer steps.
        tolerance: Of conjugate gradients: the largest relative residual, 1e-10 for float64 and 1e-5 for float32.
        max_steps: Of conjugate gradients; if they do not reach the tolerance, a `ConvergenceError` says so.
        generator: Draws the preconditioner's random vectors; seed 0 if not given.
    """
    _require_samples(x)
    wide = _checked_targets(targets, x)
    checks.require_not_negative(ridge=ridge)
    exact_below = checks.require_whole("exact_below", exact_below, least=0)
    rank, max_steps = checks.require_whole("rank", rank), checks.require_whole("max_steps", max_steps)
    if tolerance is not None:
        checks.require_positive(tolerance=tolerance)
    checks.require_callable("kernel", kernel, "pass a Kernel or a function k(x, y)")
    k = cast("Kernel", kernel) if hasattr(kernel, "diagonal") else _PlainKernel(kernel)
    K = _checked_kernel(tiled(k, x), len(x), len(x))
    options = {"ridge": ridge, "tolerance": tolerance, "max_steps": max_steps}
    if len(x) < exact_below:
        system = RidgeSystem(K, method="cholesky", **options)  # type: ignore[arg-type]
    else:
        preconditioner = nystrom_preconditioner(K, ridge=ridge, rank=rank, generator=generator)
        system = RidgeSystem(K, method="cg", preconditioner=preconditioner, **options)  # type: ignore[arg-type]
    solution = system.solve(wide)
    return KernelRegression(k, x, system, solution.weights, solution.residuals, solution.n_steps)


@dataclass(frozen=True)
class _PlainKernel:
    """A function k(x, y) as a `Kernel`."""

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return self.function(x, x if y is None else y)

    def diagonal(self, x: Tensor) -> Tensor:
        return torch.cat([self(part).diagonal() for part in torch.split(x, DIAGONAL_ROWS)])


def _require_samples(x: Tensor) -> None:
    if not isinstance(x, Tensor) or x.dtype not in (torch.float32, torch.float64) or x.ndim < 2 or len(x) == 0:
        raise InputError(
            f"x must be samples (n, …) of float32 or float64, got {checks.in_words(x)}; convert it with "
            "torch.as_tensor(x)"
        )
    checks.require_finite("x", x, "leave those samples out")


def _checked_targets(targets: Tensor, x: Tensor) -> Tensor:
    """The targets in float64, in which the weights are found."""
    checks.require_floating("targets", targets, "for class labels pass torch.nn.functional.one_hot(labels).to(x)")
    if targets.ndim not in (1, 2) or len(targets) != len(x) or targets.numel() == 0:
        raise InputError(
            f"targets must have shape ({len(x)},) or ({len(x)}, c), one row per sample, got {tuple(targets.shape)}"
        )
    if targets.device != x.device:
        raise InputError(f"targets must be on {x.device} like x, got {targets.device}; move one with .to(…)")
    return targets.detach().double()


def _checked_kernel(K: Tensor, n: int, m: int) -> Tensor:
    if not isinstance(K, Tensor) or tuple(K.shape) != (n, m) or K.dtype not in (torch.float32, torch.float64):
        raise InputError(f"kernel must return ({n}, {m}) of float32 or float64, got {checks.in_words(K)}")
    checks.require_finite("the kernel matrix", K, "check the samples and the kernel function")
    return K.detach()
