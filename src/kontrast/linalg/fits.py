"""Numbers with intervals; power laws y = c·x^p and logarithms y = a + b·ln x, each with one for its slope."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from kontrast.checks import require_between
from kontrast.errors import InputError


@dataclass(frozen=True)
class PowerLaw:
    """y ≈ prefactor · x^exponent; `low` and `high` bound the exponent at the level `confidence`.

    With two points the line is exact and says nothing about its error: the interval is then (−∞, ∞).
    """

    exponent: float
    prefactor: float
    low: float
    high: float
    confidence: float
    n_points: int

    def __call__(self, x: float) -> float:
        """The fitted value at `x`."""
        return float(self.prefactor * x**self.exponent)

    def solve(self, y: float) -> float:
        """The x at which the law reaches `y`; infinite when it overflows or the law is flat."""
        try:
            return float((y / self.prefactor) ** (1.0 / self.exponent))
        except (OverflowError, ZeroDivisionError):
            return math.inf

    def __str__(self) -> str:
        if math.isinf(self.low):
            return f"{self.exponent:+.2f} (two points, no interval)"
        return f"{self.exponent:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


@dataclass(frozen=True)
class LogLaw:
    """y ≈ intercept + slope · ln x; `low` and `high` bound the slope at the level `confidence`."""

    slope: float
    intercept: float
    low: float
    high: float
    confidence: float
    n_points: int

    def __call__(self, x: float) -> float:
        """The fitted value at `x`."""
        return self.intercept + self.slope * math.log(x)


@dataclass(frozen=True)
class Estimate:
    """A measured number with its confidence interval; the interval of a plain number is the number itself."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, number: float | PowerLaw | LogLaw | Estimate) -> Estimate:
        """An estimate from a power law (its exponent), a logarithmic law (its slope) or a plain number."""
        if isinstance(number, Estimate):
            return number
        if isinstance(number, PowerLaw):
            return cls(number.exponent, number.low, number.high)
        if isinstance(number, LogLaw):
            return cls(number.slope, number.low, number.high)
        return cls(float(number), float(number), float(number))

    @property
    def is_plain(self) -> bool:
        """Whether the number has no interval."""
        return self.low == self.value == self.high or math.isnan(self.value)

    def __str__(self) -> str:
        text = f"{self.value:.3g}"
        if self.is_plain or not (math.isfinite(self.low) and math.isfinite(self.high)):
            return text
        return f"{text} [{self.low:.3g}, {self.high:.3g}]"


def fit_power_law(x: ArrayLike, y: ArrayLike, *, confidence: float = 0.95) -> PowerLaw:
    """Least squares of log y on log x; the interval is Student's t with n − 2 degrees of freedom.

    The interval covers both noise and curvature, as both leave residuals. Points must be positive and finite: a fit
    never drops a diverged run; the caller leaves it out and says so.
    """
    log_x, y_ = _checked(x, y, confidence)
    if not (y_ > 0).all():
        raise InputError("a power law needs positive y; leave out points that are zero or negative, and say so")
    slope, intercept, half = _line(log_x, np.log(y_), confidence)
    factor = math.exp(intercept) if intercept < 709 else math.inf  # beyond the range of floats
    return PowerLaw(slope, factor, slope - half, slope + half, confidence, len(y_))


def fit_log_law(x: ArrayLike, y: ArrayLike, *, confidence: float = 0.95) -> LogLaw:
    """Least squares of y on ln x, its interval as in `fit_power_law`."""
    log_x, y_ = _checked(x, y, confidence)
    slope, intercept, half = _line(log_x, y_, confidence)
    return LogLaw(slope, intercept, slope - half, slope + half, confidence, len(y_))


def _checked(x: ArrayLike, y: ArrayLike, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    x_, y_ = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if x_.ndim != 1 or x_.shape != y_.shape or len(np.unique(x_)) < 2:
        raise InputError(
            f"a fit needs two 1-d arrays of one length with two different x, got shapes {x_.shape} and {y_.shape}"
        )
    if not (np.isfinite(x_).all() and np.isfinite(y_).all() and (x_ > 0).all()):
        raise InputError("a fit needs finite y and positive finite x; leave out diverged points and say so")
    require_between("confidence", confidence, 0, 1, low_included=False, high_included=False)
    return np.log(x_), y_


def _line(x: np.ndarray, y: np.ndarray, confidence: float) -> tuple[float, float, float]:
    """Slope, intercept and the half-width of the slope's interval."""
    n, centered = len(x), x - x.mean()
    slope = float(centered @ y / (centered @ centered))
    intercept = float(y.mean() - slope * x.mean())
    if n == 2:
        return slope, intercept, math.inf
    residual = y - (intercept + slope * x)
    error = math.sqrt(float(residual @ residual) / (n - 2) / float(centered @ centered))
    return slope, intercept, float(stats.t.ppf(0.5 + confidence / 2, n - 2)) * error
