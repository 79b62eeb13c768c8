"""What the spectrum of an embedding says: how many directions it uses, each convention under its own name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from kontrast.diagnosis.metrics.rows import as_rows, norm_of, unit_rows
from kontrast.diagnosis.metrics.scatter import Scatter

RANKME_EPSILON = 1e-7
ALPHA_RANGE = (11, 100)  # of the authors' own package
ALPHA_LEAST = 5  # eigenvalues that a slope is read from


@dataclass(frozen=True, eq=False)
class Moments:
    """What spectral metrics are computed from, of one set of embeddings or of many (all leading axes).

    Attributes:
        uncentered: singular values (…, min(n, d)) of the rows, largest first.
        centered: the same of the rows less their mean.
        rounding: (…), the size of singular values that are only rounding.
        unit_variances: (…, d), mean squared deviation of each dimension of the rows brought to unit length.
        unit_length: (…), mean squared length of those rows: 1, less the share of rows that are zero.
        n: how many rows there are.
    """

    uncentered: Tensor
    centered: Tensor
    rounding: Tensor
    unit_variances: Tensor
    unit_length: Tensor
    n: int


@dataclass(frozen=True)
class SpectralMetric:
    """One number of a spectrum.

    Attributes:
        name: of its variable everywhere.
        words: its heading in tables.
        definition: its convention (what is centred, squared and normalised), its formula and its source.
        of: the number from moments; NaN where it is not defined.
        least: how many samples it needs.
        undefined: why it is NaN where the samples suffice.
    """

    name: str
    words: str
    definition: str
    of: Callable[[Moments], Tensor]
    least: int = 2
    undefined: str = "all rows are equal, or differ by rounding only: there are no directions to count"


def entropy_rank_of(values: Tensor, epsilon: float = 0.0) -> Tensor:
    """exp(−Σ p log p) of p = values / Σ values + ε over the last axis; NaN where all are zero."""
    share = values / values.sum(-1, keepdim=True)
    return torch.exp(torch.special.entr(share + epsilon).sum(-1))


def _spread_out(moments: Moments) -> Tensor:
    """Centred singular values over the largest one; NaN where the rows differ by rounding only."""
    largest = moments.centered[..., :1]
    return moments.centered / torch.where(largest > moments.rounding[..., None], largest, math.nan)


def _rankme(moments: Moments) -> Tensor:
    return entropy_rank_of(moments.uncentered, RANKME_EPSILON)


def _centered_rank(moments: Moments) -> Tensor:
    return entropy_rank_of(_spread_out(moments))


def _participation_ratio(moments: Moments) -> Tensor:
    eigenvalues = _spread_out(moments).square()
    return eigenvalues.sum(-1).square() / eigenvalues.square().sum(-1)


def _sum_over_largest(moments: Moments) -> Tensor:
    """Stable rank and NESum are one number: Σσ²/σ₁² is Σλ/λ₁."""
    return _spread_out(moments).square().sum(-1)


def _alpha_req(moments: Moments) -> Tensor:
    """Least squares with weights 1/i, as Stringer et al. (2019) fit it: every octave of indices counts the same."""
    values = _spread_out(moments)
    index = torch.arange(1, values.shape[-1] + 1, dtype=values.dtype, device=values.device)
    first, last = ALPHA_RANGE
    used = (index >= first) & (index <= last) & (moments.centered > moments.rounding[..., None])
    w = used / index
    x, y = index.log(), torch.where(used, 2 * values.log(), 0.0)
    center = (w * x).sum(-1, keepdim=True) / w.sum(-1, keepdim=True)
    slope = (w * (x - center) * y).sum(-1) / (w * (x - center).square()).sum(-1)
    return torch.where(used.sum(-1) >= ALPHA_LEAST, -slope, math.nan)


def _std_sqrt_d(moments: Moments) -> Tensor:
    variances = moments.unit_variances * moments.n / (moments.n - 1)
    return variances.sqrt().mean(-1) * math.sqrt(variances.shape[-1])


def _spread(moments: Moments) -> Tensor:
    """Rows of zeros only have no spread, as equal rows have none."""
    length = moments.unit_length
    return moments.unit_variances.sum(-1) / torch.where(length > 0, length, 1.0)


_LEAST_ALPHA = ALPHA_RANGE[0] + ALPHA_LEAST - 1

SPECTRAL_METRICS: Mapping[str, SpectralMetric] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            SpectralMetric(
                "rankme",
                "RankMe",
                "exp(−Σ p log p) with p = σ/Σσ + 1e-7 over the min(n, d) singular values of the embeddings, neither "
                "centred nor squared: a mean counts as one direction (Garrido et al. 2023, eq. (1) and (2)).",
                _rankme,
                undefined="all rows are zero",
            ),
            SpectralMetric(
                "centered_rank",
                "centred entropy rank",
                "exp(−Σ p log p) with p = σ/Σσ over the singular values of the centred embeddings, not squared "
                "(effective rank, Roy & Vetterli 2007).",
                _centered_rank,
            ),
            SpectralMetric(
                "participation_ratio",
                "participation ratio",
                "(Σλ)²/Σλ² of the eigenvalues λ of the covariance (centred).",
                _participation_ratio,
            ),
            SpectralMetric(
                "stable_rank",
                "stable rank",
                "Σσ²/σ₁² of the singular values of the centred embeddings: squared Frobenius over squared spectral "
                "norm. With centring it is the same number as NESum.",
                _sum_over_largest,
            ),
            SpectralMetric(
                "alpha_req",
                "α-ReQ",
                "minus the slope of log λᵢ on log i, λᵢ the eigenvalues of the covariance (centred), for i = 11 to "
                "100 or as far as there are eigenvalues above rounding, least squares with weights 1/i (Agrawal et "
                "al. 2022; the weights of Stringer et al. 2019 and the range of the authors' package reptrix).",
                _alpha_req,
                _LEAST_ALPHA + 1,
                f"fewer than {_LEAST_ALPHA} eigenvalues of the covariance stand above rounding",
            ),
            SpectralMetric(
                "nesum",
                "NESum",
                "Σλ/λ₁ of the eigenvalues λ of the covariance (centred), in [1, d] (He & Ozay 2022).",
                _sum_over_largest,
            ),
            SpectralMetric(
                "std_sqrt_d",
                "std·√d",
                "mean over dimensions of the standard deviation (n − 1) of rows brought to unit length, times √d: "
                "about 1 for rows spread evenly, 0 for complete collapse, blind to dimensional collapse (Chen & He "
                "2021; lightly's collapse level is 1 minus it).",
                _std_sqrt_d,
            ),
            SpectralMetric(
                "spread",
                "spread",
                "share of the squared norm of rows brought to unit length that is not their mean: 1 for rows around "
                "the origin, 0 for complete collapse.",
                _spread,
            ),
        )
    }
)


class Spectrum:
    """All spectral metrics of embeddings that arrive in batches: the same numbers as all at once, to rounding.

    It keeps the number, the mean and a triangular factor of the rows in float64, never a covariance matrix, so small
    singular values stay exact; memory does not grow with the number of rows. It stays on the device of the first
    batch. A row of zeros counts as a row at the origin, also among the rows of unit length.
    """

    def __init__(self) -> None:
        self._rows = Scatter()
        self._unit_mean = torch.zeros(0, dtype=torch.float64)
        self._unit_squares = torch.zeros(0, dtype=torch.float64)  # Σ (u − mean)² for each dimension
        self._n_not_zero = 0
        self._epsilon = 0.0  # of the coarsest number type seen
        self._known: Moments | None = None

    @property
    def n(self) -> int:
        """How many rows it has seen."""
        return self._rows.n

    @property
    def d(self) -> int:
        """How many dimensions they have; 0 before the first."""
        return self._rows.d

    def update(self, z: Tensor) -> None:
        """Add a batch (b, d), b ≥ 1."""
        rows = as_rows("z", z)
        self._rows.require_width(rows.shape[1])
        if self.n:
            rows = rows.to(self._rows.mean.device)
        unit = unit_rows(rows)
        shifted = unit - unit[0]  # exactly zero where all rows are equal
        mean = shifted.mean(0)
        self._join_unit(unit[0] + mean, (shifted - mean).square().sum(0), len(rows))
        self._n_not_zero += int(rows.any(1).sum())
        self._rows.update(rows)
        self._epsilon = max(self._epsilon, torch.finfo(z.dtype).eps)
        self._known = None

    def merge(self, other: Spectrum) -> None:
        """Add all rows that another has seen; the other stays as it is."""
        if not other.n:
            return
        self._rows.require_width(other.d)
        self._join_unit(other._unit_mean, other._unit_squares, other.n)
        self._n_not_zero += other._n_not_zero
        self._rows.merge(other._rows)
        self._epsilon = max(self._epsilon, other._epsilon)
        self._known = None

    def singular_values(self, *, centered: bool) -> Tensor:
        """The min(n, d) singular values of the rows, largest first, less their mean or not."""
        return self._rows.singular_values(centered=centered)

    def compute(self) -> dict[str, float]:
        """Every metric by its name; NaN where it is missing, and `missing` says why."""
        return {
            name: math.nan if self.n < metric.least else float(metric.of(self._moments()))
            for name, metric in SPECTRAL_METRICS.items()
        }

    @property
    def missing(self) -> dict[str, str]:
        """Why a metric is missing, for those that are."""
        return {
            name: SPECTRAL_METRICS[name].undefined if self.n >= least else f"needs {least} samples, got {self.n}"
            for name, value in self.compute().items()
            if math.isnan(value)
            for least in [SPECTRAL_METRICS[name].least]
        }

    def _moments(self) -> Moments:
        if self._known is None:
            uncentered, centered = (self.singular_values(centered=it) for it in (False, True))
            self._known = Moments(
                uncentered,
                centered,
                rounding_of(norm_of(uncentered), self.n, self.d, self._epsilon),
                self._unit_squares / self.n,
                torch.tensor(self._n_not_zero / self.n, dtype=torch.float64, device=centered.device),
                self.n,
            )
        return self._known

    def _join_unit(self, mean: Tensor, squares: Tensor, n: int) -> None:
        """Add the mean and squared deviations of more rows of unit length (Chan, Golub & LeVeque 1983)."""
        if not self.n:
            self._unit_mean, self._unit_squares = mean, squares
            return
        gap = mean.to(self._unit_mean.device) - self._unit_mean
        self._unit_mean = self._unit_mean + gap * (n / (self.n + n))
        self._unit_squares = self._unit_squares + squares.to(gap.device) + gap.square() * (self.n * n / (self.n + n))


def rounding_of(norm: Tensor, n: int, d: int, epsilon: float) -> Tensor:
    """How large singular values of (n, d) embeddings of this Frobenius norm get that are only rounding.

    Entries rounded at `epsilon`, the number type's, add noise of spectral norm about ε ‖Z‖ (1/√n + 1/√d); the
    singular values themselves are computed in float64.
    """
    return norm * (epsilon * (1 / math.sqrt(n) + 1 / math.sqrt(d)) + max(n, d) * torch.finfo(torch.float64).eps)


def spectrum_of(z: Tensor) -> Spectrum:
    """The spectrum of embeddings (n, d) that are all there."""
    spectrum = Spectrum()
    spectrum.update(z)
    return spectrum


def metrics_of(z: Tensor) -> dict[str, float]:
    """Every spectral metric of embeddings (n, d); NaN where one is missing, `spectrum_of(z).missing` says why."""
    return spectrum_of(z).compute()


def rankme(z: Tensor) -> float:
    """RankMe of Garrido et al. (2023): exp(−Σ p log p), p = σ/Σσ + 1e-7, of the embeddings (n, d), not centred."""
    return metrics_of(z)["rankme"]


def centered_rank(z: Tensor) -> float:
    """Entropy rank of the centred embeddings (n, d), as `kontrast.linalg.effective_rank` has it."""
    return metrics_of(z)["centered_rank"]


def participation_ratio(z: Tensor) -> float:
    """(Σλ)²/Σλ² of the covariance of the embeddings (n, d); `kontrast.linalg` has it for kernels."""
    return metrics_of(z)["participation_ratio"]


def stable_rank(z: Tensor) -> float:
    """Squared Frobenius over squared spectral norm of the centred embeddings (n, d)."""
    return metrics_of(z)["stable_rank"]


def alpha_req(z: Tensor) -> float:
    """α-ReQ of Agrawal et al. (2022): the decay i^−α of the covariance's eigenvalues 11 to 100, weights 1/i."""
    return metrics_of(z)["alpha_req"]


def nesum(z: Tensor) -> float:
    """NESum of He & Ozay (2022): the sum of the covariance's eigenvalues over the largest one."""
    return metrics_of(z)["nesum"]


def std_sqrt_d(z: Tensor) -> float:
    """Mean standard deviation of the dimensions of rows brought to unit length, times √d."""
    return metrics_of(z)["std_sqrt_d"]


def spread(z: Tensor) -> float:
    """Share of the squared norm of rows brought to unit length that is not their mean."""
    return metrics_of(z)["spread"]
