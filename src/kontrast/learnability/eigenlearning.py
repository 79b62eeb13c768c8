r"""Predictions of what a kernel learns from n samples, by its eigenvalues and κ (paper D, Sec. 2.2; Simon et al. 2021).

Regression with the kernel of eigenvalues $\lambda_i$ and ridge δ learns the share $L_i = \lambda_i/(\lambda_i + κ)$ of
eigenfunction i, where κ solves $\sum_i L_i + δ/κ = n$. Samples compete: the shares sum to n without a ridge.

Drawn without replacement from M points, ridge regression is ridgeless regression with $K + δI$, whose eigenvalues are
$\lambda_i + δ/M$, times $\lambda_i/(\lambda_i + δ/M)$, as $T = Λ(Λ + δ/M)^{-1} T'$ exactly. So κ comes from the shifted
eigenvalues and $L_i = \lambda_i/(\lambda_i + δ/M + κ)$ (claims D.kappa). The ridgeless regression errs only at unseen
points, which gives their error. Drawn with replacement from M points, a point that was drawn c times counts as one with
ridge δ/c; c is binomial, and κ follows from its mean (`_with_repeats`). From a continuous domain no point is drawn
twice, and the printed equation is right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import gammaln, xlog1py, xlogy
from torch import Tensor

from kontrast import checks
from kontrast.errors import InputError

MOST_SAMPLES = 10**12


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The eigenvalues of a kernel over a domain: of $g ↦ E_x[k(·, x)g(x)]$, which is K/M on M points (paper D, (31)).

    `remainder` is, for a continuous domain, the part of the mean of k(x, x) in levels that are not listed. It acts as a
    ridge, and a target's power there acts as noise.
    """

    eigenvalues: Tensor  # (r,), one per level, in float64
    multiplicities: Tensor | None = None  # (r,), the number of eigenfunctions per level; ones if not given
    size: float | None = None  # M, the number of points, infinite for a continuous domain; by default that of modes
    remainder: float = 0.0

    def __post_init__(self) -> None:
        values = _levels("eigenvalues", self.eigenvalues)
        counts = torch.ones_like(values) if self.multiplicities is None else self.multiplicities
        counts = _levels("multiplicities", counts).to(values.device)
        if counts.shape != values.shape or not bool((counts > 0).all()):
            raise InputError(
                f"multiplicities must be positive, one for each of the {len(values)} eigenvalues, got "
                f"{tuple(counts.shape)} with a smallest of {float(counts.min())}"
            )
        n_modes = float(counts.sum())
        size = n_modes if self.size is None else self.size
        if not checks.is_number(size) or (size != n_modes and size != math.inf):
            raise InputError(
                f"size must be infinite or the {n_modes:g} modes listed, as M points have M modes, got {size!r}; list "
                "eigenvalues of 0 too"
            )
        checks.require_not_negative(remainder=self.remainder)
        if not 1e-290 < float(values.max()) + self.remainder < 1e290:
            raise InputError(f"eigenvalues reach {float(values.max()):.3g}, outside 1e-290 to 1e290; scale the kernel")
        if self.remainder > 0 and size < math.inf:
            raise InputError(f"all {n_modes:g} modes of a finite domain are listed, so remainder must be 0")
        object.__setattr__(self, "eigenvalues", values)
        object.__setattr__(self, "multiplicities", counts)
        object.__setattr__(self, "size", float(size))

    @property
    def counts(self) -> Tensor:
        """The multiplicities (r,)."""
        assert self.multiplicities is not None
        return self.multiplicities

    @property
    def n_points(self) -> float:
        """M, or infinity."""
        assert self.size is not None
        return self.size

    @property
    def rank(self) -> float:
        """The number of modes with an eigenvalue above 0."""
        return float(self.counts[self.eigenvalues > 0].sum())

    @property
    def trace(self) -> float:
        """The mean of k(x, x)."""
        return float((self.counts * self.eigenvalues).sum()) + self.remainder


@dataclass(frozen=True, eq=False)
class Prediction:
    r"""The expected result of regression from n samples, averaged over the samples.

    Errors are mean squares, () for one target and (c,) for c of them, including any noise: for a target of mean square
    1, an error of 0.1 means that a tenth is not learned. `overfitting` is $E_0 = n/(n - \sum L_i^2)$, the factor by
    which the error exceeds its bias, infinite where n is the rank. Without replacement it belongs to the interpolating
    regression with K + δI.
    """

    n_samples: int  # n
    kappa: float  # κ; 0 where n samples determine every mode (n is at least the rank, without a ridge)
    learnabilities: Tensor  # L_i of each level, (r,)
    overfitting: float
    learnability: Tensor  # of the target, Σ L_i v_i²/Σ v_i² (paper D, (34))
    test_error: Tensor  # over the whole domain
    unseen_error: Tensor  # over the points that were not drawn; NaN where all were
    train_error: Tensor  # over the n samples; NaN without any


def kappa(spectrum: Spectrum, n_samples: int, *, ridge: float = 0.0, replacement: bool = True) -> float:
    r"""κ with $\sum_i λ_i/(λ_i + κ) + δ/κ = n$; without replacement, of the eigenvalues $λ_i + δ/M$ and no ridge.

    Infinite for n = 0; 0 where the samples determine every mode, without a ridge. With replacement from a finite domain
    repeated points count less in $\sum_i λ_i/(λ_i + κ)$, and κ without a ridge is that of a ridge of 1e-11 of the mean
    of k(x, x). It is found between bounds that the equation itself gives, on a logarithmic axis, so it is right at any
    scale of the kernel.
    """
    draw = _checked(spectrum, n_samples, ridge, replacement)
    return _with_repeats(draw).kappa if draw.repeats else _solve(draw).kappa


def predict_learning(
    spectrum: Spectrum,
    powers: Tensor,
    n_samples: int,
    *,
    ridge: float = 0.0,
    noise_variance: float = 0.0,
    replacement: bool = True,
) -> Prediction:
    r"""Learnabilities and errors of kernel regression from n samples, before any is drawn (paper D, Sec. 2.2).

    From a continuous domain the error is $E_0(\sum_i (1 - L_i)^2 v_i^2 + σ^2)$ with $E_0 = n/(n - \sum_i L_i^2)$, and
    on the samples $(1 - \sum_i L_i/n)^2$ times that. Without replacement this is the error E' of the regression with
    K + δI, all of it at unseen points, and the ridge adds none. With its factors $c_i = λ_i/(λ_i + δ/M)$ the error over
    the domain is $\sum_i (1 - c_i L'_i)^2 v_i^2 + \sum_i (c_i L'_i)^2 E'/n$.

    Args:
        spectrum: of the kernel over the domain.
        powers: $v^2$ of the target summed over each level, (r,), or (r, c) for c targets; see `Eigensystem.powers`.
        n_samples: n.
        ridge: δ of $(K + δI)^{-1}$.
        noise_variance: σ², of noise on the labels of a continuous domain; on a finite one noise is part of the target.
        replacement: whether a point may be drawn twice; from a continuous domain none is.
    """
    draw = _checked(spectrum, n_samples, ridge, replacement)
    v2 = _checked_powers(spectrum, powers)
    checks.require_not_negative(noise_variance=noise_variance)
    if math.isfinite(spectrum.n_points) and noise_variance > 0:
        raise InputError(
            f"noise_variance must be 0 on a finite domain, where noise is part of the target, got {noise_variance:g}; "
            "add noise_variance * multiplicities / number of points to powers, or use Spectrum(…, size=math.inf)"
        )
    if draw.repeats:
        return _predict_with_repeats(draw, v2, powers.shape[1:])
    solved = _solve(draw)
    n, nan = draw.n, torch.full_like(v2[0], math.nan)
    bias = ((1 - solved.interpolating)[:, None] ** 2 * v2).sum(0) + noise_variance
    error = _times(solved.overfitting, bias)
    learned = solved.learnabilities
    test, unseen, train, M = error, error, nan, spectrum.n_points
    if draw.finite:
        missed = ((1 - learned)[:, None] ** 2 * v2).sum(0)
        spread = float((spectrum.counts * learned**2).sum())
        test = missed + _times(spread / n, error) if n else missed
        unseen = error * (M / (M - n)) if n < M else nan
        train = ((test - error) * (M / n)).clamp(min=0) if n else nan
    elif n:
        train = _times((1 - float((spectrum.counts * learned).sum()) / n) ** 2, error)
    share = (learned[:, None] * v2).sum(0) / v2.sum(0)
    shape = powers.shape[1:]
    return Prediction(
        n_samples=n,
        kappa=solved.kappa,
        learnabilities=learned,
        overfitting=solved.overfitting,
        learnability=share.reshape(shape),
        test_error=test.reshape(shape),
        unseen_error=unseen.reshape(shape),
        train_error=train.reshape(shape),
    )


@dataclass(frozen=True, eq=False)
class _Draw:
    """A draw of n samples; `shift` is added to every eigenvalue of a finite domain by a ridge."""

    spectrum: Spectrum
    n: int
    ridge: float  # of the equation for κ
    shift: float
    finite: bool  # drawn without replacement
    repeats: bool = False  # drawn with replacement from a finite domain


@dataclass(frozen=True, eq=False)
class _Shares:
    """κ, the L of each level, and the L' and E_0 that determine the error.

    Without replacement `interpolating` is the L' of the ridgeless regression with K + δI; else it is L.
    """

    kappa: float
    interpolating: Tensor
    learnabilities: Tensor
    overfitting: float


def _checked(spectrum: Spectrum, n_samples: int, ridge: float, replacement: bool) -> _Draw:
    checks.require_type(
        "spectrum", spectrum, Spectrum, "use Spectrum(eigenvalues), eigensystem(K).spectrum or hypercube_spectrum"
    )
    n_samples = checks.require_whole("n_samples", n_samples, least=0, most=MOST_SAMPLES)
    checks.require_finite_not_negative(ridge=ridge)
    M = spectrum.n_points
    finite = not replacement and math.isfinite(M)
    if finite and n_samples > M:
        raise InputError(
            f"n_samples must be at most the {M:g} points of the domain without replacement, got {n_samples}; lower it, "
            "or pass replacement=True"
        )
    if finite:
        return _Draw(spectrum, n_samples, 0.0, ridge / M, finite=True)
    if math.isfinite(M) and n_samples > 0:
        return _Draw(spectrum, n_samples, ridge, 0.0, finite=False, repeats=True)
    return _Draw(spectrum, n_samples, ridge + spectrum.remainder, 0.0, finite=False)


def _solve(draw: _Draw) -> _Shares:
    spectrum, n = draw.spectrum, draw.n
    counts, values = spectrum.counts, spectrum.eigenvalues + draw.shift
    rank = float(counts[values > 0].sum())
    if n == 0:
        zeros = torch.zeros_like(values)
        return _Shares(math.inf, zeros, zeros, 1.0)
    if draw.ridge / n < np.finfo(float).tiny and n >= rank:
        return _saturated(draw, rank)
    k = _root(values.cpu().numpy(), counts.cpu().numpy(), n, draw.ridge)
    shares = values / (values + k)
    squares = float((counts * shares**2).sum())
    return _Shares(k, shares, spectrum.eigenvalues / (values + k), _overfitting(n, squares))


def _saturated(draw: _Draw, rank: float) -> _Shares:
    """κ = 0: every mode of an eigenvalue above 0 is learned.

    Without replacement this is the limit δ → 0: the other M − r modes share the remaining n − r samples, so
    L' = (n − r)/(M − r) there, though nothing of them is learned.
    """
    spectrum, n, M = draw.spectrum, draw.n, draw.spectrum.n_points
    positive = (spectrum.eigenvalues > 0).double()
    if not draw.finite:
        return _Shares(0.0, positive, positive, _overfitting(n, rank))
    if draw.shift > 0 or rank == M:  # all M points were drawn: n = M
        ones = torch.ones_like(positive)
        learned = spectrum.eigenvalues / (spectrum.eigenvalues + draw.shift) if draw.shift > 0 else ones
        return _Shares(0.0, ones, learned, 1.0)
    others = (n - rank) / (M - rank)
    interpolating = torch.where(positive > 0, 1.0, others)
    return _Shares(0.0, interpolating, positive, _overfitting(n, rank + (M - rank) * others**2))


@dataclass(frozen=True, eq=False)
class _Repeats:
    """κ and L of a draw with replacement, and means over the number c of times that a point is drawn."""

    kappa: float
    learnabilities: Tensor
    residual: float  # E[ρ²], ρ = δ/(δ + cγ): the factor left of the error at a point that was drawn c times
    scatter: float  # E[(ρ − τ c/(δ + cγ))²]: the factor of that error in the errors of other points
    on_samples: float  # E[cρ²]/E[c]
    unseen: float  # P(c = 0)


def _with_repeats(draw: _Draw) -> _Repeats:
    r"""κ where each point is drawn c ~ Binomial(n, 1/M) times, each time with noise of the size of the ridge.

    Let γ be the variance that the other samples leave at a point, and g their error there. With its own c samples the
    error is ρg, ρ = δ/(δ + cγ), and its weight αg, α = c/(δ + cγ). As in `kontrast.learnability.pointwise`, κ = τ/M
    with τ = E[ρ]/E[α], and $\sum_i λ_i/(λ_i + κ) = M(1 - E ρ)$ determines γ. For c of 0 or 1 this is the shift by δ/M;
    for M → ∞ it is the printed equation. Without a ridge it is the limit of a small one.
    """
    spectrum, n, M = draw.spectrum, draw.n, draw.spectrum.n_points
    values, counts = spectrum.eigenvalues.cpu().numpy(), spectrum.counts.cpu().numpy()
    ridge = draw.ridge or 1e-11 * spectrum.trace
    c = np.arange(min(n, int(n / M + 20 * math.sqrt(n / M) + 40)) + 1)
    chance = np.exp(gammaln(n + 1) - gammaln(c + 1) - gammaln(n - c + 1) + xlogy(c, 1 / M) + xlog1py(n - c, -1 / M))

    def parts(log_gamma: float) -> tuple[np.ndarray, np.ndarray, float]:
        rho = ridge / (ridge + c * math.exp(log_gamma))
        alpha = c / (ridge + c * math.exp(log_gamma))
        return rho, alpha, float((chance * rho).sum() / (chance * alpha).sum())

    def excess(log_gamma: float) -> float:
        rho, _, tau = parts(log_gamma)
        return float((counts * (values / (values + tau / M))).sum() - M * (chance * (1 - rho)).sum())

    low = high = math.log(spectrum.trace)
    while excess(low) < 0:
        low -= 1.0
    while excess(high) > 0:
        high += 1.0
    rho, alpha, tau = parts(brentq(excess, low, high, xtol=1e-14) if low < high else low)
    learned = spectrum.eigenvalues / (spectrum.eigenvalues + tau / M)
    return _Repeats(
        kappa=tau / M,
        learnabilities=learned,
        residual=float((chance * rho**2).sum()),
        scatter=float((chance * (rho - tau * alpha) ** 2).sum()),
        on_samples=float((chance * c * rho**2).sum() / (chance * c).sum()),
        unseen=float(chance[0]),
    )


def _predict_with_repeats(draw: _Draw, v2: Tensor, shape: torch.Size) -> Prediction:
    r"""All from q = E[g²]: $q\,E[ρ^2] = \sum_i (1 - L_i)^2 v_i^2 + \frac1M \sum_i L_i^2\,q\,E[(ρ - τα)^2]$."""
    spectrum, found = draw.spectrum, _with_repeats(draw)
    L = found.learnabilities
    bias = ((1 - L)[:, None] ** 2 * v2).sum(0)
    passed = float((spectrum.counts * L**2).sum()) / spectrum.n_points * found.scatter
    factor = found.residual / (found.residual - passed) if found.residual > passed else math.inf
    test = _times(factor, bias)
    q = test / found.residual
    return Prediction(
        n_samples=draw.n,
        kappa=found.kappa,
        learnabilities=L,
        overfitting=factor,
        learnability=((L[:, None] * v2).sum(0) / v2.sum(0)).reshape(shape),
        test_error=test.reshape(shape),
        unseen_error=(q if found.unseen > 0 else torch.full_like(q, math.nan)).reshape(shape),
        train_error=(found.on_samples * q).reshape(shape),
    )


def _overfitting(n: int, squares: float) -> float:
    return n / (n - squares) if n - squares > 1e-12 * n else math.inf


def _times(factor: float, values: Tensor) -> Tensor:
    """The product, with infinity times 0 = 0: a target without bias is learned even at the interpolation peak."""
    return torch.where(values > 0, factor * values, torch.zeros_like(values))


def _root(values: np.ndarray, counts: np.ndarray, n: int, ridge: float) -> float:
    r"""κ of Σ m λ/(λ + κ) + δ/κ = n, for n below the rank or δ > 0.

    As λ/(λ + κ) ≤ λ/κ, κ ≤ (trace + δ)/n. As λ/(λ + κ) ≥ 1 − κ/λ, κ ≥ (r − n)/Σ(m/λ), and with a ridge κ ≥ δ/n.
    """
    kept = values > 0
    values, counts = values[kept], counts[kept]

    def excess(log_kappa: float) -> float:
        k = math.exp(log_kappa)
        return float((counts * (values / (values + k))).sum()) + ridge / k - n

    most = (float((counts * values).sum()) + ridge) / n
    least = ridge / n
    if counts.sum() > n:
        least = max(least, (float(counts.sum()) - n) / float((counts / values).sum()))
    low, high = math.log(least) - 1e-9, math.log(most) + 1e-9  # a little wider, for rounding
    if low >= high:
        return math.exp((low + high) / 2)
    while excess(low) < 0:  # rounding of the sums
        low -= 1.0
    while excess(high) > 0:
        high += 1.0
    return math.exp(brentq(excess, low, high, xtol=1e-15, rtol=4 * np.finfo(float).eps))


def _levels(name: str, values: Tensor) -> Tensor:
    if not isinstance(values, Tensor) or values.ndim != 1 or len(values) == 0 or values.is_complex():
        raise InputError(f"{name} must be a tensor (r,) of at least one number, got {checks.in_words(values)}")
    levels = values.detach().double()
    if not bool(torch.isfinite(levels).all()) or float(levels.min()) < 0:
        raise InputError(
            f"{name} must be finite and at least 0, got {float(levels.min()):.3g} to {float(levels.max()):.3g}; "
            "eigensystem(K) sets eigenvalues within rounding of 0 to 0"
        )
    return levels


def _checked_powers(spectrum: Spectrum, powers: Tensor) -> Tensor:
    """The powers as (r, c) in float64."""
    r = len(spectrum.eigenvalues)
    if not isinstance(powers, Tensor) or powers.ndim not in (1, 2) or len(powers) != r or powers.is_complex():
        raise InputError(
            f"powers must be a tensor ({r},) or ({r}, c), squared coefficients summed over each of the {r} levels, got "
            f"{checks.in_words(powers)}"
        )
    v2 = powers.detach().to(spectrum.eigenvalues).reshape(r, -1)
    if not bool(torch.isfinite(v2).all()) or bool((v2 < 0).any()):
        raise InputError("powers must be finite and at least 0: they are squares of coefficients")
    if bool((v2.sum(0) == 0).any()):
        raise InputError("a target is zero at every mode, so there is nothing to learn; leave it out")
    return v2
