"""Conjugate gradients for (K + ridge I) X = B with a Nyström preconditioner, exact to the residual they promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from kontrast.checks import in_words, require_not_negative, require_whole, resolve_generator
from kontrast.errors import ConvergenceError, InputError
from kontrast.linalg.operators import Matrix, OfFunction, Operator, OperatorLike, as_operator

RANK = 500  # of the preconditioner: 80 MB of vectors and some seconds at n = 20,000
STRIP = 2**24  # entries of a matrix that are converted to float64 at a time
WIDTH = 128  # columns of a sketch that are multiplied at a time

Preconditioner = Callable[[Tensor], Tensor]


class NotPositiveError(ArithmeticError):
    """Raised at a direction in which K + ridge I is not positive."""


@dataclass(frozen=True, eq=False)
class NystromPreconditioner:
    r"""$(\hat\lambda_r + \rho)\, U (\hat\Lambda + \rho)^{-1} U^\top + (I - U U^\top)$, for $(K + \rho I)^{-1}$.

    Frangella, Tropp & Udell 2023, (5.3): with $U \hat\Lambda U^\top$ a randomised Nyström approximation of K, whose top
    eigenvalues it removes. Always in float64, as the smallest eigenvalue may lie below float32's rounding.
    """

    vectors: Tensor  # U, (n, r), float64
    values: Tensor  # (r,), descending
    floor: float  # in place of the eigenvalues that are left
    ridge: float

    def __call__(self, block: Tensor) -> Tensor:
        """Its product with an (n, b) block."""
        shrink = (self.floor + self.ridge) / (self.values + self.ridge) - 1
        wide = block.to(self.vectors.dtype)
        return (wide + self.vectors @ (shrink[:, None] * (self.vectors.mT @ wide))).to(block.dtype)


def nystrom_preconditioner(
    K: OperatorLike,
    *,
    ridge: float,
    rank: int = RANK,
    generator: torch.Generator | None = None,
    **of_function: Unpack[OfFunction],
) -> NystromPreconditioner:
    """A preconditioner of K + ridge I for `ridge_solve`, from the product of K with `rank` random vectors.

    On kernels of 3000 MNIST digits rank 500 leaves an eighth (NTK, 3 layers) or a sixteenth (NNGP, 1 layer) of the
    steps, and costs as much time as some 20 steps for ten targets.

    Args:
        K: Any operator that `top_eigenpairs` takes; positive semidefinite.
        ridge: The ridge of the system.
        rank: How many eigenvalues are removed; at most n.
        generator: Draws the random vectors; seed 0 by default.
        **of_function: `n`, `dtype` and `device` of a function.
    """
    A = as_operator(K, **of_function, name="K")
    require_not_negative(ridge=ridge)
    rank, generator = require_whole("rank", rank), resolve_generator(generator)
    drawn = torch.randn(A.n, min(rank, A.n), generator=generator, dtype=torch.float64, device=generator.device)
    test = torch.linalg.qr(drawn.to(A.device)).Q
    sketch = torch.cat([A(part) for part in torch.split(test, WIDTH, dim=1)], 1)
    core, V = torch.linalg.eigh((test.mT @ sketch + sketch.mT @ test) / 2)
    # A product in K's number type errs by about eps·‖K‖: below that the core holds noise, and no positive numbers.
    noise = 8 * torch.finfo(A.dtype).eps * float(core[-1])
    kept = core > max(noise, torch.finfo(torch.float64).tiny)
    if not bool(kept.any()):
        raise InputError("K is zero or negative definite on random vectors; a kernel is positive semidefinite")
    U, roots, _ = torch.linalg.svd((sketch @ V[:, kept]) * core[kept].rsqrt(), full_matrices=False)
    values = roots.square()
    return NystromPreconditioner(U, values, float(values[-1]) if bool(kept.all()) else noise, float(ridge))


def conjugate_gradients(
    A: Operator, B: Tensor, ridge: float, *, goal: float, max_steps: int, preconditioner: Preconditioner | None
) -> tuple[Tensor, Tensor, int]:
    """X of B's number type, its residual B − (A + ridge) X in float64, and the number of products.

    The kernel multiplies in its own number type, so the residual that conjugate gradients carry along drifts from the
    true one: in float32 by some 1e-4 of B on kernels of images. So whenever it is small enough the true one is computed
    and, where that is too large, the iteration starts again from it (iterative refinement), which needs few steps.

    Raises:
        ConvergenceError: `max_steps` were not enough, or a new start did not halve the residual.
        NotPositiveError: a curvature is not positive.
    """
    wide = B.double()
    size = wide.norm(dim=0)
    X, R, n_steps, worst = torch.zeros_like(wide), wide, 0, float("inf")
    while True:
        last, worst = worst, float((R.norm(dim=0) / torch.where(size > 0, size, 1.0)).max())
        if worst <= goal:
            return X.to(B.dtype), R, n_steps
        if n_steps >= max_steps or not worst <= 0.5 * last:
            raise _not_reached(A, B, worst, goal, n_steps, max_steps, ridge)
        step, n_new = _cycle(A, R, ridge, 0.5 * goal * size, max_steps - n_steps, preconditioner)
        X, n_steps = (X + step).to(B.dtype).double(), n_steps + n_new
        R = wide - (product_in_double(A, X) + ridge * X)


def product_in_double(A: Operator, block: Tensor) -> Tensor:
    """A times a float64 block, without rounding in A's number type where A's entries are known."""
    matrix = A.matrix
    if A.dtype == torch.float64 or matrix is None or (isinstance(matrix, torch.Tensor) and A.tensor is None):
        return A(block)
    rows = max(1, STRIP // A.n)
    strips = (matrix[top : top + rows] for top in range(0, A.n, rows))
    return torch.cat([_double(strip).to(block.device) @ block for strip in strips])


def _double(strip: Matrix) -> Tensor:
    return strip.double() if isinstance(strip, torch.Tensor) else torch.from_numpy(strip.astype(np.float64))


def _cycle(
    A: Operator, R: Tensor, ridge: float, small: Tensor, most: int, preconditioner: Preconditioner | None
) -> tuple[Tensor, int]:
    """Conjugate gradients for all targets in lockstep, so that the kernel multiplies a block; vectors are float64."""
    X, R = torch.zeros_like(R), R.clone()
    Z = _preconditioned(preconditioner, R)
    P, rho = Z, (R * Z).sum(0)
    for step in range(most):
        active = R.norm(dim=0) > small
        if not bool(active.any()):
            return X, step
        Q = A(P) + ridge * P
        curvature = (P * Q).sum(0)
        if bool((curvature[active] <= 0).any()):
            raise NotPositiveError
        # Targets that are done stand still: their step is 0, not 0/0.
        length = torch.where(active, rho / torch.where(active, curvature, 1.0), 0.0)
        X, R = X + length * P, R - length * Q
        Z = _preconditioned(preconditioner, R)
        new = (R * Z).sum(0)
        P = Z + torch.where(active, new / torch.where(active, rho, 1.0), 0.0) * P
        rho = new
    return X, most


def _preconditioned(preconditioner: Preconditioner | None, R: Tensor) -> Tensor:
    if preconditioner is None:
        return R
    Z = preconditioner(R)
    if not isinstance(Z, torch.Tensor) or Z.shape != R.shape or not bool(torch.isfinite(Z).all()):
        raise InputError(f"preconditioner must map {tuple(R.shape)} to finite numbers of that shape, got {in_words(Z)}")
    if bool(((R * Z).sum(0) < 0).any()):
        raise InputError("preconditioner must be positive definite; build it with nystrom_preconditioner")
    return Z


def _not_reached(
    A: Operator, B: Tensor, worst: float, goal: float, n_steps: int, max_steps: int, ridge: float
) -> ConvergenceError:
    if n_steps >= max_steps:
        advice = f"raise ridge (now {ridge:g}) or max_steps, give a preconditioner"
    else:
        wider = "targets in float64" if B.dtype == torch.float32 and A.matrix is not None else "a kernel in float64"
        advice = f"rounding allows no less: give {wider}, raise ridge (now {ridge:g})"
    return ConvergenceError(
        f"conjugate gradients reached the relative residual {worst:.2g} in {n_steps} steps, not {goal:.2g}; "
        f"{advice}, or pass tolerance={2 * worst:.1g}"
    )
