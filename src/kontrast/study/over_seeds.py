"""Many seeds as one number per width, and many widths as one law; a run that is missing is never averaged away."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from kontrast.linalg import PowerLaw, fit_power_law
from kontrast.study.quantities import Quantity

# Means below this share of a quantity's natural size have no law in the width. Runs in float32 and in float64 differ by
# up to 1e-6 of it after 200 steps, ten times float32's rounding, and a law needs its values to a per cent: 1e-4. In
# float64 the same would be 2e-13; the rest is room for runs that are many times longer.
ROUNDING = {"float64": 1e-10, "float32": 1e-4}


def whole_steps(result: xr.Dataset, names: Sequence[str], diverged: np.ndarray, stopped_at: np.ndarray) -> np.ndarray:
    """(step,): whether the quantities `names` are finite in every run, and no run is over half-way to divergence."""
    measured = np.isfinite(result[list(names)].to_dataarray().transpose("step", ...).values)
    usable = measured.reshape(len(result.step), -1).all(axis=1)
    if diverged.any():
        usable &= result.step.values <= stopped_at[diverged].min() / 2
    return np.asarray(usable)


def over_widths(
    result: xr.Dataset, quantities: Sequence[Quantity], usable: np.ndarray, diverged: np.ndarray, *, dtype: str
) -> dict[str, Any]:
    """The fields of `WidthFindings` that all sections compute alike, at the last of the usable steps."""
    step = int(result.step.values[usable][-1]) if usable.any() else None
    widths = tuple(int(width) for width in result.width)
    means = {} if step is None else {it.name: seed_means(result[it.name].sel(step=step)) for it in quantities}
    sizes = {it.name: seed_means(result[it.scale]) if it.scale else (1.0,) * len(widths) for it in quantities}
    return {
        "step": step,
        "widths": widths,
        "n_seeds": result.sizes["seed"],
        "means": means,
        "exponents": fits_in_width(quantities, widths, means, sizes, dtype=dtype),
        "diverged": tuple(int(row.sum()) for row in diverged),
    }


def seed_means(values: xr.DataArray) -> tuple[float, ...]:
    """The mean over the seeds, per width; NaN where one seed is."""
    return tuple(float(value) for value in values.mean("seed", skipna=False).transpose("width").values)


def seed_deviations(values: xr.DataArray) -> tuple[float, ...]:
    """The standard deviation over the seeds, per width; NaN where one seed is, or where there is one seed only."""
    if values.sizes["seed"] < 2:
        return (math.nan,) * values.sizes["width"]
    return tuple(float(value) for value in values.std("seed", ddof=1, skipna=False).transpose("width").values)


def fits_in_width(
    quantities: Sequence[Quantity],
    widths: tuple[int, ...],
    means: Mapping[str, tuple[float, ...]],
    sizes: Mapping[str, tuple[float, ...]],
    *,
    dtype: str,
) -> dict[str, PowerLaw]:
    """The laws in the width of the `fitted` quantities, where two means or more are all finite and above rounding.

    `sizes` are the quantities' natural sizes, per width: a sine of 1e-15 is zero, and no law goes through zeros.
    """
    laws = {}
    for quantity in quantities:
        values = means.get(quantity.name, ())
        pairs = zip(values, sizes[quantity.name], strict=bool(values))
        known = all(math.isfinite(value) and value > ROUNDING[dtype] * size for value, size in pairs)
        if quantity.fitted and len(values) > 1 and known:
            laws[quantity.name] = fit_power_law(widths, values)
    return laws


def trend(law: PowerLaw) -> str:
    """A verb for the law: "falls" or "grows", and "goes" where its interval holds both signs."""
    return "falls" if law.high < 0 else "grows" if law.low > 0 else "goes"


def about_width(width: float) -> str:
    """A width that an extrapolation asks for, in one digit."""
    return f"a width of about {float(f'{width:.1g}'):,.0f}" if width < 1e9 else "a width beyond reach"
