"""Many seeds as one number a width, and many widths as one law; a run that is missing is never averaged away."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import xarray as xr

from kontrast.linalg import PowerLaw, fit_power_law


def whole_steps(
    result: xr.Dataset, measures: Sequence[str], diverged: np.ndarray, stopped_at: np.ndarray
) -> np.ndarray:
    """(step,): whether every run's `measures` are finite there, and no run is within half its way to divergence."""
    measured = np.isfinite(result[list(measures)].to_dataarray().transpose("step", ...).values)
    usable = measured.reshape(len(result.step), -1).all(axis=1)
    if diverged.any():
        usable &= result.step.values <= stopped_at[diverged].min() / 2
    return np.asarray(usable)


def last_step(result: xr.Dataset, usable: np.ndarray) -> int | None:
    """The last of the usable steps."""
    return int(result.step.values[usable][-1]) if usable.any() else None


def seed_means(values: xr.DataArray) -> tuple[float, ...]:
    """The mean over the seeds, a width; NaN where one seed is."""
    return tuple(float(value) for value in values.mean("seed", skipna=False).transpose("width").values)


def seed_deviations(values: xr.DataArray) -> tuple[float, ...]:
    """The standard deviation over the seeds, a width; NaN where one seed is, or where there is one seed only."""
    if values.sizes["seed"] < 2:
        return (math.nan,) * values.sizes["width"]
    return tuple(float(value) for value in values.std("seed", ddof=1, skipna=False).transpose("width").values)


def fit_in_width(widths: tuple[int, ...], values: tuple[float, ...] | None) -> PowerLaw | None:
    """The law in the width, where there are two widths or more and every value is finite and positive."""
    if values is None or len(widths) < 2 or not all(math.isfinite(v) and v > 0 for v in values):
        return None
    return fit_power_law(widths, values)
