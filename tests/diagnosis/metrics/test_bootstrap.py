"""Intervals over samples: they hold what they say, come from the same numbers, and are absent where there are none."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kontrast.diagnosis.metrics import (
    SPECTRAL_METRICS,
    bootstrap,
    bootstrapped,
    bootstrapped_lidar,
    lidar,
    metrics_of,
)
from kontrast.errors import InputError
from tests.cases import generator, randn

N_DRAWS = 40


def power_law(n: int, d: int, random: torch.Generator, decay: float = 0.5) -> Tensor:
    scales = torch.arange(1, d + 1, dtype=torch.float64) ** -decay
    return torch.randn(n, d, generator=random, dtype=torch.float64) * scales


def share_inside(intervals: list[tuple[float, float]], number: float) -> float:
    return sum(low <= number <= high for low, high in intervals) / len(intervals)


@pytest.mark.parametrize("n, d", [(100, 20), (48, 96)])
def test_intervals_cover_the_number_of_so_many_rows(n: int, d: int) -> None:
    random = generator(1)
    found = [bootstrapped(power_law(n, d, random), n_resamples=30, generator=random) for _ in range(N_DRAWS)]
    others = [metrics_of(power_law(n, d, random)) for _ in range(200)]
    for name in SPECTRAL_METRICS:
        values = torch.tensor([other[name] for other in others], dtype=torch.float64)
        intervals = [(one[name].low, one[name].high) for one in found]
        assert share_inside(intervals, float(values.mean())) >= 0.85, name
        width = sum(high - low for low, high in intervals) / N_DRAWS / 2 / bootstrap.QUANTILE
        assert 0.7 < width / float(values.std()) < (4 if name == "alpha_req" else 2), name


def test_intervals_of_lidar_cover() -> None:
    random = generator(1)

    def views() -> Tensor:
        noise = torch.randn(60, 3, 10, generator=random, dtype=torch.float64)
        return power_law(60, 10, random)[:, None] + 0.3 * noise

    found = [bootstrapped_lidar(views(), n_resamples=30, generator=random) for _ in range(N_DRAWS)]
    values = torch.tensor([lidar(views()) for _ in range(200)], dtype=torch.float64)
    assert share_inside([(one.low, one.high) for one in found], float(values.mean())) >= 0.85


def with_weights(monkeypatch: pytest.MonkeyPatch, weights: Tensor) -> None:
    monkeypatch.setattr(bootstrap, "_weights", lambda *_: iter([weights]))


@pytest.mark.parametrize("n, d", [(40, 20), (20, 40)])
def test_weights_are_copies_of_rows(n: int, d: int) -> None:
    """Whole weights, and as many rows copied: every metric is the same."""
    z = randn(n, d) * torch.arange(1, d + 1, dtype=torch.float64) ** -0.5 + 0.4
    z[2] = 0
    times = torch.ones(n, dtype=torch.float64)
    times[:6] = torch.tensor([3.0, 2, 1, 0, 0, 0])
    (moments,) = bootstrap._resampled(z, 2e-16, iter([times[None]]))
    copied = metrics_of(z.repeat_interleave(times.long(), 0))
    for name, metric in SPECTRAL_METRICS.items():
        assert float(metric.of(moments)) == pytest.approx(copied[name], rel=1e-5, nan_ok=True), name


@pytest.mark.parametrize("d", [6, 60])
def test_weights_of_samples_are_copies_of_samples(d: int) -> None:
    views = randn(12, 1, d) + 0.3 * randn(12, 3, d, seed=1)
    times = torch.ones(12, dtype=torch.float64)
    times[:4] = torch.tensor([2.0, 2, 0, 0])
    means = views.mean(1)
    found = bootstrap._lidar_of(views - means[:, None], means - means.mean(0), times, 1e-4, d)
    assert float(found) == pytest.approx(lidar(views.repeat_interleave(times.long(), 0)), rel=1e-8)


def test_blocks_and_repeats_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    z = power_law(40, 20, generator(3))
    whole = bootstrapped(z, n_resamples=7)
    assert bootstrapped(z, n_resamples=7) == whole
    assert bootstrapped(z, n_resamples=7, generator=generator(5)) != whole
    monkeypatch.setattr(bootstrap, "BLOCK", 2000)
    parts = bootstrapped(z, n_resamples=7)
    for name in SPECTRAL_METRICS:
        assert (parts[name].low, parts[name].high) == pytest.approx((whole[name].low, whole[name].high), rel=1e-6)


def test_the_number_is_the_metric_itself() -> None:
    z = power_law(40, 20, generator(3)).float()
    assert {name: one.value for name, one in bootstrapped(z).items()} == metrics_of(z)
    views = randn(20, 3, 8)
    assert bootstrapped_lidar(views).value == lidar(views)
    assert bootstrapped_lidar(list(views.unbind(1))) == bootstrapped_lidar(views)
    assert bootstrapped_lidar(views, delta=1.0).value == lidar(views, delta=1.0)


def test_more_dimensions_than_views() -> None:
    views = randn(6, 1, 50) + 0.1 * randn(6, 2, 50, seed=1)
    one = bootstrapped_lidar(views)
    assert one.value == lidar(views)
    assert one.low < one.value < one.high


def test_what_is_missing_has_no_interval() -> None:
    few = bootstrapped(randn(5, 30))
    assert math.isnan(few["alpha_req"].value)
    assert math.isnan(few["alpha_req"].low)
    assert few["rankme"].low < few["rankme"].value < few["rankme"].high
    equal = bootstrapped(torch.full((30, 20), 0.1))
    assert math.isnan(equal["centered_rank"].value)
    assert (equal["spread"].low, equal["spread"].value, equal["spread"].high) == (0, 0, 0)
    assert all(math.isnan(one.value) and math.isnan(one.low) for one in bootstrapped(randn(1, 3)).values())
    assert math.isnan(bootstrapped_lidar(torch.ones(4, 2, 3)).value)
    assert math.isnan(bootstrapped_lidar(randn(1, 2, 3)).high)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="n_resamples must be a whole number of at least 2, got 1"):
        bootstrapped(randn(5, 3), n_resamples=1)
    with pytest.raises(InputError, match=r"generator must be a torch\.Generator"):
        bootstrapped(randn(5, 3), generator=0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="z holds NaN"):
        bootstrapped(math.nan * randn(5, 3))
    with pytest.raises(InputError, match="at least 2 views"):
        bootstrapped_lidar(randn(5, 1, 3))
    with pytest.raises(InputError, match="delta must be a positive number"):
        bootstrapped_lidar(randn(5, 2, 3), delta=-1)
