"""Kernel ridge regression and Gaussian-process posteriors: (K + ridge I) α = targets and what follows from α."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Required, TypedDict, Unpack

import torch
from torch import Tensor

from kontrast import checks
from kontrast.errors import ConvergenceError, InputError
from kontrast.linalg.conjugate_gradients import NotPositiveError, Preconditioner, conjugate_gradients, product_in_double
from kontrast.linalg.eigen import entry_rounding, extreme_eigenvalues
from kontrast.linalg.operators import OfFunction, Operator, OperatorLike, as_operator, require_symmetric

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
METHODS = ("auto", "cholesky", "cg")
LABELS = "for class labels pass one column per class, torch.nn.functional.one_hot(labels).double()"
POINTS = 100  # whose errors conjugate gradients find when told no number
BLOCK = 256  # right-hand sides of conjugate gradients at a time
STRIP = 2**22  # pairs of rows that are compared at a time


@dataclass(frozen=True, eq=False)
class RidgeSolution:
    """α with (K + ridge I) α = targets, and ‖(K + ridge I) α − targets‖ / ‖targets‖ for each target."""

    weights: Tensor  # the shape and number type of targets
    residuals: Tensor  # (c,), or () for a single target
    n_steps: int  # conjugate-gradient steps; 0 for Cholesky


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Errors of a regression at points it was not trained on: at all points, or at some drawn at random."""

    points: Tensor  # (m,), their rows, ascending
    residuals: Tensor  # (m,) or (m, c): the target less what the other n − 1 points predict
    mean_square: Tensor  # () or (c,), over `points`; unbiased for that over all
    standard_error: Tensor  # of `mean_square`, from drawing m of n points; 0 where all are there


@dataclass(frozen=True, eq=False)
class Posterior:
    """A Gaussian process given its training targets, at m test points."""

    mean: Tensor  # (m,) or (m, c)
    variance: Tensor  # (m,), of the noise-free function; the same for every target


class RidgeSystem:
    """K + ridge I for many questions: factorised once, or solved by conjugate gradients; see `ridge_solve`."""

    def __init__(
        self,
        K: OperatorLike,
        *,
        ridge: float,
        method: str = "auto",
        preconditioner: Preconditioner | None = None,
        tolerance: float | None = None,
        max_steps: int = 1000,
        **of_function: Unpack[OfFunction],
    ) -> None:
        self.operator = as_operator(K, **of_function, name="K")
        checks.require_choice("method", method, METHODS)
        checks.require_finite_not_negative(ridge=ridge)
        if preconditioner is not None:
            checks.require_callable("preconditioner", preconditioner, "pass a function of (n, b) blocks")
        if tolerance is not None:
            checks.require_between("tolerance", tolerance, 0, 1, low_included=False, high_included=False)
        self.ridge, self.preconditioner = float(ridge), preconditioner
        self.max_steps = checks.require_whole("max_steps", max_steps)
        self.tolerance = TOLERANCE[self.operator.dtype] if tolerance is None else float(tolerance)
        self.is_exact = method == "cholesky" or (method == "auto" and self.operator.tensor is not None)
        self._factor: Tensor | None = None

    def solve(self, targets: Tensor) -> RidgeSolution:
        """Weights for targets (n,) or (n, c) of the kernel's number type, or of float64."""
        A = self.operator
        B = _checked_targets(A, targets)
        weights, error, n_steps = self._solve(B)
        if self.is_exact:
            error = B.double() - (product_in_double(A, weights.double()) + self.ridge * weights.double())
        size = B.double().norm(dim=0)
        residuals = (error.norm(dim=0) / torch.where(size > 0, size, 1.0)).to(B.dtype)
        return RidgeSolution(weights.reshape(targets.shape), residuals.detach().reshape(targets.shape[1:]), n_steps)

    def leave_one_out(
        self, weights: Tensor, *, n_points: int | None = None, generator: torch.Generator | None = None
    ) -> LeaveOneOut:
        r"""Errors at points left out, $\alpha_i / (G^{-1})_{ii}$, from the weights of `solve`.

        Rasmussen & Williams 2006, (5.12), with $G = K + \rho I$: exactly those of n regressions on n − 1 points each.
        With Cholesky at all points by default. Conjugate gradients solve for the unit vector of each point, by default
        for 100 points, drawn with `generator`.
        """
        A = self.operator
        columns = _checked_targets(A, weights, name="weights")
        points = _some_points(A.n, n_points if n_points is not None or self.is_exact else min(POINTS, A.n), generator)
        points = points.to(A.device)
        inverse = self._inverse_diagonal(points, weights.dtype)
        residuals = columns[points] / inverse[:, None]
        squares, m = residuals.square(), len(points)
        spread = squares.std(0) if m > 1 else torch.zeros_like(squares[0])
        shape = weights.shape[1:]
        return LeaveOneOut(
            points,
            residuals.reshape(m, *shape),
            squares.mean(0).reshape(shape),
            (spread * math.sqrt((1 - m / A.n) / m)).reshape(shape),
        )

    def inverse(self) -> Tensor:
        """(K + ridge I)⁻¹ itself, in float64, where it is factorised; its diagonal and norm tell what ridges leave."""
        if not self.is_exact:
            raise InputError("the inverse needs a Cholesky factor; pass a torch matrix with method='cholesky'")
        inverse: Tensor = torch.cholesky_inverse(self._cholesky(torch.float64))
        return inverse

    def reduction(self, K_cross: Tensor) -> Tensor:
        r"""$k_*^\top G^{-1} k_*$ for each row of K_cross (m, n): by how much the variance falls at that point.

        From conjugate gradients it is never above the true one, up to rounding, and its error is theirs squared.
        """
        A = self.operator
        _check_cross(A, K_cross, "K")
        if self.is_exact:
            half: Tensor = torch.linalg.solve_triangular(self._cholesky(K_cross.dtype), K_cross.mT, upper=False)
            return half.square().sum(0)
        parts = [part.mT for part in torch.split(K_cross, BLOCK)]
        return torch.cat([_quadratic(part, *self._solve(part)[:2]) for part in parts])

    def _inverse_diagonal(self, points: Tensor, dtype: torch.dtype) -> Tensor:
        if self.is_exact:
            return torch.cholesky_inverse(self._cholesky(dtype)).diagonal()[points]
        values = []
        for part in torch.split(points, BLOCK):
            units = torch.zeros(self.operator.n, len(part), dtype=dtype, device=part.device)
            units[part, torch.arange(len(part), device=part.device)] = 1
            # `_quadratic` errs by the square of the residual, so that the root of the tolerance is enough.
            values.append(_quadratic(units, *self._solve(units, goal=math.sqrt(self.tolerance))[:2]))
        return torch.cat(values)

    def _solve(self, B: Tensor, *, goal: float | None = None) -> tuple[Tensor, Tensor, int]:
        """X, its residual (of conjugate gradients alone) and their steps."""
        if self.is_exact:
            return torch.cholesky_solve(B, self._cholesky(B.dtype)), B.new_zeros(B.shape), 0
        goal = self.tolerance if goal is None else goal
        try:
            return conjugate_gradients(
                self.operator, B, self.ridge, goal=goal, max_steps=self.max_steps, preconditioner=self.preconditioner
            )
        except NotPositiveError:
            raise _not_positive(self.operator, self.ridge, "ridge") from None
        except ConvergenceError:
            if self.ridge == 0 and _equal_rows(self.operator) is not None:
                raise _not_positive(self.operator, self.ridge, "ridge") from None
            raise

    def _cholesky(self, dtype: torch.dtype) -> Tensor:
        if self._factor is None or self._factor.dtype != dtype:
            self._factor = _cholesky(self.operator, self.ridge, dtype=dtype)
        return self._factor


class RidgeOptions(TypedDict, total=False):
    """The options of `ridge_solve`, by which a `RidgeSystem` is made."""

    ridge: Required[float]  # at least 0
    method: str  # "cholesky", "cg" or "auto", the default: Cholesky for a torch matrix
    # Of conjugate gradients: a function of (n, b) blocks close to (K + ridge I)^-1, symmetric and positive definite,
    # as `nystrom_preconditioner` makes it; the largest relative residual; the most steps, all starts together.
    preconditioner: Preconditioner | None
    tolerance: float | None
    max_steps: int
    dtype: torch.dtype | str | None  # of a function, like the next; see `OfFunction`
    device: torch.device | str | None


def ridge_solve(K: OperatorLike, targets: Tensor, **options: Unpack[RidgeOptions]) -> RidgeSolution:
    """Weights α of kernel ridge regression, (K + ridge I) α = targets for targets (n,) or (n, c).

    A torch matrix is factorised by Cholesky (n³/3 multiplications), which needs one more matrix of its size. Everything
    else that `top_eigenpairs` takes (memory maps, objects with `@`, functions), and a torch matrix with `method="cg"`,
    is solved by conjugate gradients, all targets at once, until every relative residual is at most `tolerance` (1e-10
    in float64, 1e-5 in float32). It is the true residual, in float64 where the entries of K are known.

    With a float32 kernel and float64 targets the weights are float64: the kernel still multiplies in float32, but its
    weights are not rounded, which alone may cost more than the tolerance.

    Args:
        K: Positive semidefinite.
        targets: Of the kernel's number type, or float64.
        **options: `RidgeOptions`.

    Raises:
        InputError: K + ridge I is not positive definite; the text says which rows of K coincide, if two do, and which
            ridge makes it so.
        ConvergenceError: Conjugate gradients did not reach the tolerance.
    """
    return _system_for(K, targets, options).solve(targets)


def leave_one_out(
    K: OperatorLike,
    targets: Tensor,
    *,
    n_points: int | None = None,
    generator: torch.Generator | None = None,
    **options: Unpack[RidgeOptions],
) -> LeaveOneOut:
    """Errors of kernel ridge regression at points it was not trained on, without training it again.

    See `RidgeSystem.leave_one_out`; the other arguments are those of `ridge_solve`.
    """
    system = _system_for(K, targets, options)
    return system.leave_one_out(system.solve(targets).weights, n_points=n_points, generator=generator)


def gp_posterior(
    K_train: Tensor, K_cross: Tensor, k_test: Tensor, targets: Tensor, *, noise_variance: float
) -> Posterior:
    r"""Mean and variance at m test points of a Gaussian process seen through noise of variance `noise_variance`.

    With $G = K + \sigma^2 I$: mean $k_*^\top G^{-1} y$, variance $k_{**} - k_*^\top G^{-1} k_*$ (Rasmussen & Williams
    2006, Eqs. 2.25 and 2.26).

    Args:
        K_train: (n, n), the kernel among training points.
        K_cross: (m, n), test points in rows, training points in columns.
        k_test: (m,), the kernel of each test point with itself.
        targets: (n,) or (n, c).
        noise_variance: The variance σ², at least 0.
    """
    L, B, half = _factors(K_train, K_cross, targets, noise_variance)
    checks.require_floating("k_test", k_test)
    fix = "pass the diagonal of the test kernel, or call gp_covariance for a full covariance"
    checks.require_shape("k_test", k_test, (K_cross.shape[0],), fix)
    mean = half.mT @ torch.linalg.solve_triangular(L, B, upper=False)
    variance = k_test - half.square().sum(0)
    _check_variance(variance, k_test)
    return Posterior(mean.reshape(K_cross.shape[0], *targets.shape[1:]), variance.clamp(min=0))


def gp_covariance(K_train: Tensor, K_cross: Tensor, K_test: Tensor, *, noise_variance: float) -> Tensor:
    """The posterior covariance (m, m) of the noise-free function at the test points.

    `gp_covariance(k(x, x), k(new, x), k(new, new), noise_variance=0.1)`; the arguments are those of `gp_posterior`.
    """
    _, _, half = _factors(K_train, K_cross, K_train[:, :1], noise_variance)
    checks.require_shape("K_test", K_test, (K_cross.shape[0],) * 2)
    covariance = K_test - half.mT @ half
    _check_variance(covariance.diagonal(), K_test.diagonal())
    return covariance


def log_marginal_likelihood(K: Tensor, targets: Tensor, *, noise_variance: float) -> Tensor:
    r"""$\log p(y) = -\tfrac12 y^\top G^{-1} y - \tfrac12 \log\det G - \tfrac n2 \log 2\pi$, one value per target.

    G = K + noise_variance·I (Rasmussen & Williams 2006, Eq. 2.30). The shape is () for targets (n,), (c,) for (n, c).
    """
    A = as_operator(K, name="K")
    B = _checked_targets(A, targets, wider=False)
    checks.require_finite_not_negative(noise_variance=noise_variance)
    L = _cholesky(A, noise_variance, name="noise_variance")
    fit = torch.linalg.solve_triangular(L, B, upper=False).square().sum(0)
    value: Tensor = -0.5 * fit - L.diagonal().log().sum() - 0.5 * A.n * math.log(2 * math.pi)
    return value.reshape(targets.shape[1:])


def _factors(K_train: Tensor, K_cross: Tensor, targets: Tensor, noise_variance: float) -> tuple[Tensor, Tensor, Tensor]:
    """L with L L^T = K + noise_variance·I, the targets as (n, c), and L^-1 K_cross^T."""
    A = as_operator(K_train, name="K_train")
    B = _checked_targets(A, targets, wider=False)
    checks.require_finite_not_negative(noise_variance=noise_variance)
    _check_cross(A, K_cross, "K_train", wider=False)
    L = _cholesky(A, noise_variance, name="noise_variance")
    return L, B, torch.linalg.solve_triangular(L, K_cross.mT, upper=False)


def _check_variance(variance: Tensor, prior: Tensor) -> None:
    lowest, size = float(variance.min()), float(prior.abs().max())
    if lowest < -1e3 * torch.finfo(prior.dtype).eps ** 0.5 * size:
        raise InputError(
            f"the posterior variance reaches {lowest:.3g}: the kernels of train, cross and test do not belong "
            f"to one kernel; compute all three with the same function and settings"
        )


def _system_for(K: OperatorLike, targets: Tensor, options: RidgeOptions) -> RidgeSystem:
    checks.require_floating("targets", targets, LABELS)
    return RidgeSystem(K, n=None if hasattr(K, "shape") else len(targets), **options)


def _checked_targets(A: Operator, targets: Tensor, *, name: str = "targets", wider: bool = True) -> Tensor:
    """The targets as (n, c), on the kernel's device and in its number type (`wider`: or float64), or a refusal."""
    checks.require_floating(name, targets, LABELS)
    if targets.ndim not in (1, 2) or targets.shape[0] != A.n or targets.numel() == 0:
        raise InputError(f"{name} must be ({A.n},) or ({A.n}, c) like the kernel, got {tuple(targets.shape)}")
    if targets.dtype not in (A.dtype, torch.float64 if wider else A.dtype) or targets.device != A.device:
        raise InputError(
            f"{name} are {targets.dtype} on {targets.device} and the kernel is {A.dtype} on {A.device}; "
            f"convert them with {name}.to(...)"
        )
    checks.require_finite(name, targets, "leave those rows out")
    return targets.detach().reshape(A.n, -1)


def _check_cross(A: Operator, K_cross: Tensor, name: str, *, wider: bool = True) -> None:
    checks.require_floating("K_cross", K_cross)
    fix = "put test points in rows and training points in columns: is it transposed?"
    checks.require_shape("K_cross", K_cross, ("m", A.n), fix)
    checks.require_finite("K_cross", K_cross)
    if K_cross.dtype not in (A.dtype, torch.float64 if wider else A.dtype) or K_cross.device != A.device:
        raise InputError(
            f"K_cross must be like {name}, {A.dtype} on {A.device}, got {K_cross.dtype} on {K_cross.device}"
        )


def _some_points(n: int, n_points: int | None, generator: torch.Generator | None) -> Tensor:
    """All n rows, or some drawn without replacement."""
    if n_points is None or n_points == n:
        return torch.arange(n)
    n_points = checks.require_whole("n_points", n_points, least=2, most=n)
    if generator is None:
        raise InputError(
            f"{n_points} of {n} points are drawn at random: pass generator=torch.Generator().manual_seed(0)"
        )
    checks.require_generator(generator)
    return torch.randperm(n, generator=generator, device=generator.device)[:n_points].sort().values


def _quadratic(B: Tensor, X: Tensor, R: Tensor) -> Tensor:
    r"""$b^\top G^{-1} b$ of each column from $G x = b - r$: $b^\top x + x^\top r = b^\top G^{-1}b - r^\top G^{-1}r$."""
    return ((B.double() + R.double()) * X.double()).sum(0).to(B.dtype)


def _cholesky(A: Operator, ridge: float, *, name: str = "ridge", dtype: torch.dtype | None = None) -> Tensor:
    if A.tensor is None:
        raise InputError(
            f"{A.name} must be a torch matrix here, which is factorised; convert it with torch.tensor(...)"
        )
    require_symmetric(A.tensor, A.name)
    shifted = A.tensor.detach().to(A.dtype if dtype is None else dtype, copy=True)
    shifted.diagonal().add_(ridge)
    L: Tensor
    L, info = torch.linalg.cholesky_ex(shifted)
    # Rounding of the entries moves eigenvalues by this much, so that half of all singular matrices are factorised.
    rounding = entry_rounding(shifted, torch.finfo(A.dtype).eps)
    if int(info) != 0 or not bool(torch.isfinite(L.diagonal()).all()):
        raise _not_positive(A, ridge, name)
    if ridge <= rounding and _smallest_eigenvalue(L) <= rounding:
        raise _not_positive(A, ridge, name)
    return L


def _smallest_eigenvalue(L: Tensor) -> float:
    """Of L L^T, by three steps of inverse iteration: close where it is far below the others, and never below it."""
    v = torch.randn(len(L), 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(L)
    for _ in range(3):
        v = torch.cholesky_solve(v / v.norm(), L)
    return 1 / float(v.norm())


def _not_positive(A: Operator, ridge: float, name: str) -> InputError:
    """The refusal: which rows coincide, or else the smallest eigenvalue, and a ridge that is large enough."""
    pair = _equal_rows(A)
    if pair is not None and A.tensor is not None:
        needed = 2 * entry_rounding(A.tensor, torch.finfo(A.dtype).eps)
        return InputError(
            f"{A.name} + {name}·I is not positive definite with {name}={ridge:g}: rows {pair[0]} and {pair[1]} of "
            f"{A.name} coincide, as when a sample occurs twice; leave one out or pass {name}="
            f"{_rounded_up(needed):.2g} or more"
        )
    try:
        ends = extreme_eigenvalues(A, tolerance=max(1e-7, 100 * torch.finfo(A.dtype).eps), max_steps=300)
    except ConvergenceError:
        ends = extreme_eigenvalues(A, tolerance=1e-3)
    size = max(abs(ends.largest), abs(ends.smallest))
    needed = max(0.0, ends.error - ends.smallest) + 4 * A.n * torch.finfo(A.dtype).eps * size
    return InputError(
        f"{A.name} + {name}·I is not positive definite with {name}={ridge:g}: the smallest eigenvalue of {A.name} is "
        f"about {ends.smallest:.2g} and the largest {ends.largest:.2g}; pass {name}={_rounded_up(needed):.2g} or more"
    )


def _equal_rows(A: Operator) -> tuple[int, int] | None:
    """The first two rows i < j of a kernel that are equal to rounding, by k_ii + k_jj − 2 k_ij = ‖φ_i − φ_j‖²."""
    K = A.tensor
    if K is None:
        return None
    eps, diagonal, height = torch.finfo(A.dtype).eps, K.diagonal(), max(1, STRIP // A.n)
    for top in range(0, A.n, height):
        strip = K[top : top + height]
        sums = diagonal[top : top + height, None] + diagonal
        close = (sums - 2 * strip).abs() <= 64 * eps * sums.abs()
        for i, j in torch.triu(close, diagonal=top + 1).nonzero().tolist():
            if bool((strip[i] - K[j]).abs().max() <= 64 * math.sqrt(eps) * strip[i].abs().max()):
                return top + i, j
    return None


def _rounded_up(value: float) -> float:
    """The next number of two digits, so that the ridge that is printed is not below the one that is needed."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1) if value > 0 else 1e-300
    return math.ceil(value / step) * step
