"""The learning curve beyond the labels there are, from leave-one-out errors with n/8, n/4, n/2 and n of them.

Between those sizes it is what leave-one-out measured; beyond n it is continued (`kontrast.learnability.continued`).
Its 95 % interval has two parts. Over samples: each has an error at every size, so the covariance between sizes is
known; it is raised by the factor by which the means over parts vary more than those of independent errors, as the
errors of one training set are not. Of the continuation: the same lines through the smaller sizes alone predict the
error with all n labels; by what factor they miss it, per doubling of their labels, is charged for every doubling.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kontrast.checks import is_number, require_finite_not_negative, require_generator, require_whole
from kontrast.errors import InputError
from kontrast.learnability.continued import Array, Lines, lines_through
from kontrast.learnability.left_out import NORMAL, LeftOut, labels_or_targets, regressions_without, wilson
from kontrast.learnability.transfer import checked_kernel
from kontrast.linalg import Estimate, eigenvalue_rounding

PARTS = (8, 4, 2)  # into which the labels are split, beside all of them
LEAST = 40  # labels: 5 in the smallest part
FURTHEST = 16  # times the labels
WIDEST = 2.0  # factor to either side of an error, of a 95 % interval that still tells something
STEPS = 16  # of the search for `reach`
GRID = 64  # sizes that `samples_needed` looks at before it bisects


@dataclass(frozen=True)
class SamplesNeeded:
    """The number of labels that brings the error down, None where none does, and a sentence that says why.

    At `low` and `high` labels the ends of the error's 95 % interval reach it; None where they do not, or where there is
    no interval.
    """

    n_samples: int | None
    sentence: str
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, eq=False)
class CalibratedCurve:
    """Kernel regression from any number of labels between n/8 and `reach`; s sizes, c targets.

    Errors are mean squares at new samples, as shares of the targets' variance: 1 is that of predicting their mean.
    """

    sizes: Array  # (s,), ascending; the last is n
    errors: Array  # (s,), by leave-one-out
    errors_by_target: Array  # (s, c), of each target's own variance
    accuracies: Array | None  # (s,), by leave-one-out; None for real targets
    kappas: Array  # (s,)
    overfitting: Array  # (s,), E_0
    covariance: Array  # (s, s), of log errors, over the samples
    missed: float  # |log(predicted/measured)| of the error with n labels from fewer, per doubling
    accuracy_missed: float  # likewise |predicted − measured| of the accuracy
    rank: float  # of the kernel of all samples there may be; infinite where that is not known
    left_out: LeftOut  # with all n labels
    reach: int  # the largest number of labels that has an answer
    why: str  # not more

    @property
    def n_samples(self) -> int:
        """The labels there are, n."""
        return int(self.sizes[-1])

    @property
    def least(self) -> int:
        """The smallest number of labels that has an answer."""
        return math.ceil(float(self.sizes[0]))

    def error(self, n_samples: int) -> Estimate:
        """The error with this many labels and its 95 % interval."""
        value, deviation = self._error(self._checked(n_samples))
        width = math.exp(NORMAL * deviation)
        return Estimate(value, value / width, value * width)

    def error_by_target(self, n_samples: int) -> Array:
        """That of each target as a share of its own variance, (c,), each continued by itself and all made to add up."""
        n = self._checked(n_samples)
        total = self._error(n)[0]
        found = np.array([replace(self, errors=errors)._error(n)[0] for errors in self.errors_by_target.T])
        weights = self.left_out.variance.cpu().numpy()
        shares: Array = found * (total * weights.sum() / (found @ weights))
        return shares

    def accuracy(self, n_samples: int) -> Estimate | None:
        r"""How often the largest output is that of the label, with a 95 % interval; None for real targets.

        Beyond n every residual is taken to shrink by one factor, $\sqrt{E(n')/E(n)}$. It is a rougher guess than the
        error, and mostly too high: see docs/learnability.md.
        """
        n = self._checked(n_samples)
        if self.accuracies is None:
            return None
        if n <= self.n_samples:
            return wilson(float(self._between(n) @ self.accuracies), self.n_samples)
        error = self.error(n)
        scales = [math.sqrt(end / float(self.errors[-1])) for end in (error.high, error.value, error.low)]
        least, value, most = (self.left_out.accuracy_where(scale) for scale in scales)
        sampled = wilson(value, self.n_samples)
        missed = NORMAL * self.accuracy_missed * math.log2(n / self.n_samples)
        low, high = (
            math.hypot(value - least, value - sampled.low, missed),
            math.hypot(most - value, sampled.high - value, missed),
        )
        return Estimate(value, max(0.0, value - low), min(1.0, value + high))

    def kappa(self, n_samples: int) -> float:
        """κ with this many labels."""
        n = self._checked(n_samples)
        return math.exp(self._between(n) @ np.log(self.kappas) if n <= self.n_samples else self._lines.log_kappa(n))

    def samples_needed(self, error: float) -> SamplesNeeded:
        """The smallest number of labels up to `reach` whose error is at most this."""
        if not is_number(error) or not 0 < error < 1:
            raise InputError(f"error must be a share of the targets' variance between 0 and 1, got {error!r}")
        low, found, high = (self._first(error, deviations) for deviations in (-NORMAL, 0.0, NORMAL))
        if found is not None:
            return SamplesNeeded(found, self._needed(error, low, found, high), low, high)
        text = (
            f"no number of labels up to {self.reach} brings the error down to {error:.3g}: with the {self.n_samples} "
        )
        text += f"there are it is {self.error(self.n_samples)}"
        if self.reach > self.n_samples:
            text += f", with {self.reach} about {self.error(self.reach)}"
        return SamplesNeeded(None, f"{text}; there is no answer for more, as {self.why}", low)

    def _needed(self, error: float, low: int | None, found: int, high: int | None) -> str:
        if found <= self.least:
            return f"an error of {error:.3g} needs at most {self.least} of the {self.n_samples} labels"
        interval = f"{low} to {high}" if high is not None else f"{low} to more than {self.reach}"
        many = f"of the {self.n_samples} there are" if found <= self.n_samples else f"and there are {self.n_samples}"
        return f"an error of {error:.3g} needs about {found} labels ({interval}), {many}"

    def _first(self, error: float, deviations: float) -> int | None:
        """The smallest number of labels whose error, so many deviations higher, is at most `error`."""

        def reached(n: int) -> bool:
            value, deviation = self._error(n)
            return value * math.exp(deviations * deviation) <= error

        below = self.least - 1
        for n in sorted({round(float(n)) for n in np.geomspace(self.least, self.reach, GRID)}):
            if reached(n):
                while n - below > 1:
                    middle = (below + n) // 2
                    below, n = (below, middle) if reached(middle) else (middle, n)
                return n
            below = n
        return None

    def _checked(self, n_samples: int) -> int:
        n = require_whole("n_samples", n_samples, least=self.least)
        if n > self.reach:
            raise InputError(f"n_samples must be at most {self.reach}, as {self.why}, got {n}")
        return n

    @property
    def _lines(self) -> Lines:
        ridge = self.left_out.ridge
        return lines_through(self.sizes, self.errors, self.kappas, self.overfitting, ridge=ridge, rank=self.rank)

    def _between(self, n: int) -> Array:
        """The weights of the sizes at n, on a logarithmic axis, (s,)."""
        return np.array([np.interp(math.log(n), np.log(self.sizes), row) for row in np.eye(len(self.sizes))])

    def _error(self, n: int) -> tuple[float, float]:
        """The error with n labels and the deviation of its logarithm."""
        if n <= self.n_samples:
            weights = self._between(n)
            return math.exp(weights @ np.log(self.errors)), math.sqrt(weights @ self.covariance @ weights)
        value, weights = self._lines.error(n)
        sampled = math.sqrt(weights @ self.covariance @ weights)
        return value, math.hypot(sampled, self.missed * math.log2(n / self.n_samples))


def calibrated_curve(
    K: Tensor,
    targets: Tensor,
    *,
    ridge: float,
    rank: float | None = None,
    n_draws: int = 3,
    generator: torch.Generator,
) -> CalibratedCurve:
    """The learning curve of kernel regression with up to 16 times the labels there are.

    With n of them it is leave-one-out error. Costs some three inverses of (n, n) matrices, and without `rank` the
    eigenvalues of one.

    Args:
        K: The kernel of the n labelled samples, (n, n), 40 of them or more.
        targets: Class labels (n,), whole numbers; or real targets, floating-point (n,) or (n, c).
        ridge: δ of (K + δI)⁻¹, the same with any number of labels.
        rank: Of the kernel of all samples that there may be: of a linear kernel the number of features, plus one for an
            intercept; infinite where it is not known. By default that of K where it is below n. With a small ridge the
            error rises up to as many labels as features and then falls, which only their number tells.
        n_draws: Random partitions into 8, 4 and 2 parts.
        generator: Draws them.
    """
    given = checked_kernel(K)
    y, labels = labels_or_targets(targets, given)
    require_finite_not_negative(ridge=ridge)
    require_generator(generator)
    n_draws, n, ridge = require_whole("n_draws", n_draws), len(y), float(ridge)
    if n < LEAST:
        raise InputError(f"a learning curve needs {LEAST} labelled samples, got {n}; left_out tells the error with {n}")
    limit = _rank(given) if rank is None else rank if rank == math.inf else float(require_whole("rank", rank))
    K = given.double()
    whole = regressions_without(K, y, labels, ridge=ridge)
    parts = [_split(K, y, labels, ridge, number, n_draws, generator) for number in PARTS]
    levels = [*parts, _Level(float(n), whole.residuals[None], whole.kappa, whole.overfitting)]
    return _with_reach(_measured(levels, whole, limit))


@dataclass(frozen=True, eq=False)
class _Level:
    """Leave-one-out at every sample within its part of the labels, for some partitions into parts of one size."""

    size: float
    residuals: Tensor  # (partitions, n, c)
    kappa: float
    overfitting: float
    means: Tensor | None = None  # of the squared residuals of each part, (partitions, parts)

    @property
    def spread(self) -> float:
        """By how much the means of the parts vary more than those of independent samples would, at least 1."""
        assert self.means is not None
        number = self.means.shape[1]
        independent = self.squares.sum(1).var() / (len(self.squares) / number)
        return max(1.0, float(self.means.var(1).mean() / independent))

    @property
    def squares(self) -> Tensor:
        """(n, c)."""
        return self.residuals.square().mean(0)

    def accuracy(self, whole: LeftOut, scale: float) -> float:
        """With all residuals `scale` times as large."""
        draws = [replace(whole, residuals=residuals).accuracy_where(scale) for residuals in self.residuals]
        return sum(draws) / len(draws)


def _split(
    K: Tensor, y: Tensor, labels: Tensor | None, ridge: float, number: int, n_draws: int, generator: torch.Generator
) -> _Level:
    residuals = y.new_empty(n_draws, *y.shape)
    logs, overfitting, means = [], [], []
    for draw, rows in _parts(len(y), number, n_draws, generator):
        rows = rows.to(K.device)
        found = regressions_without(K[rows][:, rows], y[rows], None if labels is None else labels[rows], ridge=ridge)
        residuals[draw, rows] = found.residuals
        logs.append(math.log(found.kappa))
        overfitting.append(found.overfitting)
        means.append(found.residuals.square().sum(1).mean())
    means_of_parts = torch.stack(means).view(n_draws, number)
    kappa = math.exp(float(np.mean(logs)))
    return _Level(len(y) / number, residuals, kappa, float(np.mean(overfitting)), means_of_parts)


def _parts(n: int, number: int, n_draws: int, generator: torch.Generator) -> Iterator[tuple[int, Tensor]]:
    for draw in range(n_draws):
        for rows in torch.randperm(n, generator=generator, device=generator.device).tensor_split(number):
            yield draw, rows


def _measured(levels: list[_Level], whole: LeftOut, rank: float) -> CalibratedCurve:
    """The curve, without a limit yet."""
    n, variance = len(whole.targets), whole.variance
    by_sample = torch.stack([level.squares.sum(1) / variance.sum() for level in levels]).cpu().numpy()  # (s, n)
    by_target = torch.stack([level.squares.mean(0) / variance for level in levels]).cpu().numpy()
    sizes, errors = np.array([level.size for level in levels]), by_sample.mean(1)
    if not (by_target > 0).all():
        raise InputError("a target is predicted without any error, so there is no curve to continue; leave it out")
    kappas, overfitting = np.array([one.kappa for one in levels]), np.array([one.overfitting for one in levels])
    labeled = whole.labels is not None
    missed, accuracy_missed = [], [0.0]
    for k in (1, 2):  # from n/2 and n/4 labels and fewer
        lines = lines_through(sizes[:-k], errors[:-k], kappas[:-k], overfitting[:-k], ridge=whole.ridge, rank=rank)
        missed.append(abs(math.log(lines.error(n)[0] / errors[-1])) / k)
        if labeled:
            guess = levels[-1 - k].accuracy(whole, math.sqrt(errors[-1] / errors[-1 - k]))
            accuracy_missed.append(abs(guess - whole.accuracy_where(1.0)) / k)
    return CalibratedCurve(
        sizes=sizes,
        errors=errors,
        errors_by_target=by_target,
        accuracies=np.array([level.accuracy(whole, 1.0) for level in levels]) if labeled else None,
        kappas=kappas,
        overfitting=overfitting,
        covariance=_covariance(by_sample / errors[:, None], [level.spread for level in levels[:-1]]),
        missed=max(missed),
        accuracy_missed=max(accuracy_missed),
        rank=rank,
        left_out=whole,
        reach=FURTHEST * n,
        why=f"{FURTHEST} times the labels there are is as far as a curve is continued",
    )


def _covariance(by_sample: Array, spreads: list[float]) -> Array:
    """Of the logarithms of errors at all sizes, from those of every sample over their mean, (s, n).

    Halves are few, so that their spread counts as much as it is sure beside that of quarters; it stands for n as well.
    """
    eighths, quarters, halves = spreads
    last = (3 * quarters + halves) / 4
    factors = np.sqrt([eighths, quarters, last, last])
    covariance: Array = np.cov(by_sample) * factors * factors[:, None] / by_sample.shape[1]
    return covariance


def _with_reach(curve: CalibratedCurve) -> CalibratedCurve:
    """The curve up to where its interval tells something."""
    n = curve.n_samples
    half, whole = (f"{error:.3g}" for error in curve.errors[-2:])
    rise = np.zeros(len(curve.sizes))
    rise[-2:] = -1, 1
    noise = NORMAL * math.sqrt(rise @ curve.covariance @ rise)
    if not math.isfinite(curve.rank) and rise @ np.log(curve.errors) > noise:
        why = f"the error rises with the labels, from {half} with {n // 2} to {whole} with {n}, and how far only the "
        return replace(curve, reach=n, why=f"{why}number of features tells: pass it as rank, or raise the ridge")
    most = FURTHEST * n
    if curve.left_out.ridge == 0 and curve.rank <= most:
        most, why = int(curve.rank) - 1, f"more determine all {curve.rank:g} modes without a ridge: pass one"
        curve = replace(curve, reach=max(n, most), why=why)
    reach = n
    for size in np.geomspace(n, max(n, most), STEPS + 1)[1:]:
        if NORMAL * curve._error(round(float(size)))[1] > math.log(WIDEST):
            missed = f"{math.expm1(curve.missed):.0%} per doubling"
            why = (
                f"the 95 % interval beyond is wider than a factor of {WIDEST:g}: from half or a quarter of the labels, "
            )
            return replace(curve, reach=reach, why=f"{why}the error with all of them is missed by {missed}; label more")
        reach = round(float(size))
    return curve


def _rank(K: Tensor) -> float:
    """That of the kernel where it is below the number of samples, and else infinite: it may be anything."""
    values = torch.linalg.eigvalsh(K.double())
    rank = int((values > eigenvalue_rounding(K, torch.finfo(K.dtype).eps)).sum())
    return float(rank) if rank < len(K) else math.inf
