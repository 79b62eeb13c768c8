"""95 % intervals over samples: metrics of embeddings whose rows are weighed anew, as a resample would weigh them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kontrast.checks import require_positive, require_whole, resolve_generator
from kontrast.diagnosis.metrics.lidar import DELTA, EPSILON, ViewGroups
from kontrast.diagnosis.metrics.rows import as_rows, as_views, centered_rows, norm_of, unit_rows
from kontrast.diagnosis.metrics.scatter import sized
from kontrast.diagnosis.metrics.spectra import SPECTRAL_METRICS, Moments, entropy_rank_of, rounding_of, spectrum_of
from kontrast.linalg import Estimate

QUANTILE = 1.959963984540054  # of the normal distribution, for 95 %
STEP = 0.2  # how far weights go from 1, all the same, to the counts of a resample
BLOCK = 2**23  # numbers that resamples computed together may hold, 64 MiB


def bootstrapped(z: Tensor, *, n_resamples: int = 50, generator: torch.Generator | None = None) -> dict[str, Estimate]:
    """Every spectral metric of the embeddings (n, d) with a 95 % interval over samples.

    The interval is normal: the number ± 1.96 deviations. A resample draws row i m_i times; it leaves out 37 % of the
    rows and with them, where n < d, as many directions: its RankMe is too low, and varies 5 times too much. So rows
    weigh 1 + (m_i − 1)/5 and the deviation counts five times, which is between the bootstrap and its limit for small
    steps, the infinitesimal jackknife (Jaeckel 1972; Efron 1982). What the interval covers is the number that n
    such rows give on average; most of these numbers grow with n. A metric that is missing is NaN, as is its interval.

    Args:
        z: embeddings (n, d).
        n_resamples: at least 2; an interval's width is known to 10 % from 50.
        generator: of the draws; seed 0 by default.
    """
    require_whole("n_resamples", n_resamples, least=2)
    rows = as_rows("z", z)
    spectrum = spectrum_of(z)
    values = spectrum.compute()
    if len(rows) < 2:
        return {name: _interval(value, rows[:0, 0]) for name, value in values.items()}
    most = max(1, BLOCK // (min(rows.shape) * max(rows.shape)))
    parts = [
        torch.stack([metric.of(moments) for metric in SPECTRAL_METRICS.values()], 1)
        for moments in _resampled(rows, torch.finfo(z.dtype).eps, _weights(len(rows), n_resamples, most, generator))
    ]
    resamples = torch.cat(parts)
    return {name: _interval(values[name], resamples[:, i]) for i, name in enumerate(SPECTRAL_METRICS)}


def bootstrapped_lidar(
    views: Tensor | Sequence[Tensor],
    *,
    n_resamples: int = 50,
    generator: torch.Generator | None = None,
    delta: float = DELTA,
) -> Estimate:
    """LiDAR of embeddings (n, v, d), or one tensor (n, d) per view, with a 95 % interval over samples.

    Samples are resampled with all their views; the interval is as in `bootstrapped`.
    """
    require_whole("n_resamples", n_resamples, least=2)
    require_positive(delta=delta)
    groups = ViewGroups(delta=delta)
    groups.update(views)
    value = groups.compute()["lidar"]
    grouped = as_views(views)
    n, v, d = grouped.shape
    if math.isnan(value):
        return _interval(value, grouped[:0, 0, 0])
    if n * v < d:  # a rotation into the span of all rows
        grouped = torch.linalg.qr(grouped.reshape(n * v, d).mT, mode="r").R.mT.reshape(n, v, -1)
    means = grouped.mean(1)
    residuals = grouped - means[:, None]
    means = centered_rows(means)
    drawn = [
        _lidar_of(residuals, means, weights, delta, d)
        for block in _weights(n, n_resamples, n_resamples, generator)
        for weights in block.to(means)
    ]
    return _interval(value, torch.stack(drawn))


def _interval(value: float, resamples: Tensor) -> Estimate:
    """The number ± 1.96 deviations of those resamples that have it."""
    known = resamples[torch.isfinite(resamples)]
    if math.isnan(value) or len(known) < 2:
        return Estimate(value, math.nan, math.nan)
    half = QUANTILE * float(known.std()) / STEP
    return Estimate(value, value - half, value + half)


def _weights(n: int, n_resamples: int, most: int, generator: torch.Generator | None) -> Iterator[Tensor]:
    """What n rows weigh, n in all, in at most `most` resamples at a time (r, n)."""
    random = resolve_generator(generator)
    for start in range(0, n_resamples, most):
        drawn = torch.randint(n, (min(most, n_resamples - start), n), generator=random, device=random.device)
        times = torch.zeros(drawn.shape, dtype=torch.float64, device=random.device)
        times.scatter_add_(1, drawn, torch.ones_like(times))
        yield 1 + STEP * (times - 1)


def _resampled(rows: Tensor, epsilon: float, blocks: Iterator[Tensor]) -> Iterator[Moments]:
    """The moments of resamples, block by block."""
    n, d = rows.shape
    rows = rows / torch.where(rows.any(), rows.abs().max(), 1.0)  # no metric depends on scale, squares overflow
    centered, unit_centered = centered_rows(rows), centered_rows(unit_rows(rows))
    not_zero = rows.any(1).double()
    for block in blocks:
        weights = block.to(rows)
        uncentered = _singular_values(rows, weights, None)
        mean = weights @ unit_centered / n
        yield Moments(
            uncentered,
            _singular_values(centered, weights, weights @ centered / n),
            # Eigenvalues are exact to rounding of the largest, so singular values to its square root.
            rounding_of(norm_of(uncentered), n, d, epsilon)
            + math.sqrt(max(n, d) * torch.finfo(rows.dtype).eps) * uncentered[:, 0],
            (weights @ unit_centered.square() / n - mean.square()).clamp(min=0),
            weights @ not_zero / n,
            n,
        )


def _singular_values(rows: Tensor, weights: Tensor, mean: Tensor | None) -> Tensor:
    """Singular values (r, min(n, d)) of rows that weigh `weights` (r, n), less the means (r, d) if given."""
    n, d = rows.shape
    if d < n:
        gram = (rows * weights[..., None]).mT @ rows
        if mean is not None:
            gram = gram - n * mean[:, :, None] * mean[:, None]
    else:
        gram = rows @ rows.mT
        if mean is not None:
            across = mean @ rows.mT
            gram = gram - across[:, :, None] - across[:, None] + mean.square().sum(1)[:, None, None]
        gram = gram * weights.sqrt()[:, :, None] * weights.sqrt()[:, None]
    values: Tensor = torch.linalg.eigvalsh(gram).flip(-1)
    return values.clamp(min=0).sqrt()


def _lidar_of(residuals: Tensor, means: Tensor, weights: Tensor, delta: float, d: int) -> Tensor:
    """LiDAR of samples that weigh `weights` (n,), from their centred means and their views around them."""
    n, v = residuals.shape[:2]
    W = ((weights / (n * v)).sqrt()[:, None, None] * residuals).flatten(0, 1)
    B = (weights / n).sqrt()[:, None] * (means - weights @ means / n)
    within = W.mT @ W
    within.diagonal().add_(delta)
    whitened = torch.linalg.solve_triangular(torch.linalg.cholesky(within), B.mT, upper=False)
    gram = whitened.mT @ whitened if whitened.shape[0] > whitened.shape[1] else whitened @ whitened.mT
    return entropy_rank_of(sized(torch.linalg.eigvalsh(gram).flip(-1).clamp(min=0), d), EPSILON)
