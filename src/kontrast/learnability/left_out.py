r"""The error of kernel regression at each labelled sample from all the others, exactly, and what its κ is there.

With $G = K + δI$ the regression without sample i errs at it by $(G^{-1}f)_i/(G^{-1})_{ii}$ (Rasmussen & Williams 2006,
(5.12)). It predicts the mean of its labels plus what the kernel adds, and the mean without sample i is
$m_i = (n\bar y - y_i)/(n - 1)$, so that the error is

$$r_i = \frac{(G^{-1}y)_i - m_i (G^{-1}1)_i}{(G^{-1})_{ii}}.$$

The same matrix has the κ of a continuous domain whose samples these are, $1/κ = \mathrm{Tr}\,G^{-1}$, and with
$D_2 = \sum_i L_i^2 = n - (\mathrm{Tr}\,G^{-1})^2/\mathrm{Tr}\,G^{-2}$ its overfitting $E_0 = n/(n - D_2)$. (Wei, Hu &
Steinhardt 2022, https://arxiv.org/abs/2203.06176, estimate the error itself from these traces, which is generalised
cross-validation.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kontrast.checks import in_words, require_finite, require_finite_not_negative
from kontrast.errors import InputError
from kontrast.learnability.transfer import checked_kernel
from kontrast.linalg import Estimate, RidgeSystem

NORMAL = 1.96  # deviations to either side of a 95 % interval


@dataclass(frozen=True, eq=False)
class LeftOut:
    """The n regressions that each leave one labelled sample out; c targets, in float64."""

    residuals: Tensor  # (n, c), the target less what the other n − 1 samples predict
    targets: Tensor  # (n, c); of class labels one column per class
    labels: Tensor | None  # (n,), the columns of the classes; None for real targets
    ridge: float
    kappa: float
    overfitting: float  # E_0

    @property
    def outputs(self) -> Tensor:
        """What the others predict at each sample, (n, c)."""
        return self.targets - self.residuals

    @property
    def variance(self) -> Tensor:
        """Of each target, (c,)."""
        return self.targets.var(0, correction=0)

    @cached_property
    def squares(self) -> Tensor:
        """The squared error of each sample as a share of the targets' variance, (n,)."""
        return self.residuals.square().sum(1) / self.variance.sum()

    @property
    def error(self) -> Estimate:
        """The mean squared error as a share of the targets' variance, with a 95 % interval over the samples."""
        value, half = float(self.squares.mean()), NORMAL * self.standard_error
        return Estimate(value, max(0.0, value - half), value + half)

    @property
    def standard_error(self) -> float:
        """Of `error`, as if the errors of different samples were independent."""
        return float(self.squares.std()) / math.sqrt(len(self.squares))

    @property
    def error_by_target(self) -> Tensor:
        """The mean squared error of each target as a share of its variance, (c,)."""
        return self.residuals.square().mean(0) / self.variance

    @property
    def accuracy(self) -> Estimate | None:
        """How often the largest output is that of the label, with Wilson's 95 % interval; None for real targets."""
        if self.labels is None:
            return None
        return wilson(self.accuracy_where(1.0), len(self.labels))

    def accuracy_where(self, scale: float) -> float:
        """How often the largest output would be that of the label if all residuals were `scale` times as large."""
        assert self.labels is not None
        hits = (self.targets - scale * self.residuals).argmax(1) == self.labels
        return float(hits.double().mean())


def left_out(K: Tensor, targets: Tensor, *, ridge: float) -> LeftOut:
    """The exact leave-one-out errors of kernel regression, at the cost of one inverse.

    Equal to n regressions on n − 1 samples each, which predict the mean of their own labels plus a function of the
    kernel. On four data sets it is 3 % off the error at new samples, 9 % at worst: docs/learnability.md.

    Args:
        K: The kernel of the labelled samples, (n, n).
        targets: Class labels (n,), whole numbers; or real targets, floating-point (n,) or (n, c).
        ridge: δ of (K + δI)⁻¹, not a share of the mean of k(x, x).
    """
    K = checked_kernel(K)
    y, labels = labels_or_targets(targets, K)
    require_finite_not_negative(ridge=ridge)
    return regressions_without(K.double(), y, labels, ridge=float(ridge))


def regressions_without(K: Tensor, y: Tensor, labels: Tensor | None, *, ridge: float) -> LeftOut:
    """`left_out` of what was checked: K in float64 and targets (n, c)."""
    n = len(y)
    inverse = RidgeSystem(K, ridge=ridge, method="cholesky").inverse()
    diagonal = inverse.diagonal()
    others = (n * y.mean(0) - y) / (n - 1)  # the mean of the other labels, (n, c)
    residuals = (inverse @ y - others * inverse.sum(1, keepdim=True)) / diagonal[:, None]
    trace, square = float(diagonal.sum()), float(inverse.square().sum())
    return LeftOut(residuals, y, labels, ridge, 1 / trace, n * square / trace**2)


def labels_or_targets(given: Tensor, K: Tensor) -> tuple[Tensor, Tensor | None]:
    """Targets (n, c) in float64 beside K, and the column of each class label; refuses what has nothing to learn."""
    n = len(K)
    if not isinstance(given, Tensor) or given.is_complex() or given.ndim not in (1, 2) or len(given) != n:
        raise InputError(
            f"targets must be class labels ({n},) or real targets ({n},) or ({n}, c), one for each of the {n} samples, "
            f"got {in_words(given)}"
        )
    if n < 3:
        raise InputError(f"leaving one of {n} samples out leaves too few; give 3 or more")
    if not given.is_floating_point():
        if given.ndim != 1:
            raise InputError(
                f"class labels must have shape ({n},), got {tuple(given.shape)}; pass real targets as floats"
            )
        labels = torch.unique(given, return_inverse=True)[1].to(K.device)
        y = torch.nn.functional.one_hot(labels).double()
    else:
        labels, y = None, given.detach().to(K.device).double().reshape(n, -1)
        require_finite("targets", y, "leave those samples out")
    if not bool((y.amax(0) > y.amin(0)).all()):
        raise InputError("a target is the same at every sample, so there is nothing to learn; give labels that vary")
    return y, labels


def wilson(share: float, n: int) -> Estimate:
    """A share of n with Wilson's 95 % interval, which is never empty: not even at 0 or 1."""
    square = NORMAL**2 / n
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(share * (1 - share) * square + square**2 / 4) / (1 + square)
    return Estimate(share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))
