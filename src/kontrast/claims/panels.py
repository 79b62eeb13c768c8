"""Figures that many claims share: numbers against the width or the step, with power laws beside them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from kontrast.claims.evidence import Curve, Panel, curve
from kontrast.claims.setting import seed_mean


def width_panel(title: str, series: Mapping[str, xr.DataArray], y_label: str = "max |K(t) − K(0)|") -> Panel:
    """Means over seeds against the width, with guides M^−1/2 and 1/M through the first series."""
    first = next(iter(series.values()))
    widths, means = first.width.values, seed_mean(first)
    return Panel(
        title,
        "width M",
        y_label,
        (
            *(curve(name.replace("_", " "), values.width, seed_mean(values)) for name, values in series.items()),
            guide(widths, means, -0.5, "M^−1/2"),
            guide(widths, means, -1.0, "1/M"),
        ),
    )


def step_panel(title: str, values: xr.DataArray, y_label: str = "max |K(t) − K(0)|") -> Panel:
    """Means over seeds against the step, one line per width."""
    later = values.sel(t=values.t > 0)
    curves = tuple(
        curve(f"M = {width}", later.t, seed_mean(later.sel(width=width)), "plain") for width in later.width.values
    )
    return Panel(title, "step t", y_label, curves)


def accuracy_panel(title: str, accuracy: xr.DataArray) -> Panel:
    """Test accuracies over (width, seed, embedding), averaged over seeds; embeddings of the raw pixels are dashed."""
    means = accuracy.mean("seed", skipna=False)
    curves = tuple(
        curve(str(name), means.width, means.sel(embedding=name), "dashed" if "pixel" in str(name) else "line")
        for name in means.embedding.values
    )
    return Panel(title, "width M", "test accuracy", curves, y_log=False)


def guide(x: ArrayLike, y: ArrayLike, exponent: float, label: str) -> Curve:
    """A dashed power law through the first point."""
    x_, y_ = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    return curve(label, x_, y_[0] * (x_ / x_[0]) ** exponent, "dashed")


def log_steps(last: int, count: int = 16) -> list[int]:
    """Step 0, then about `count` steps from 1 to `last`, evenly spaced on a logarithmic axis."""
    return [0, *sorted({round(step) for step in np.geomspace(1, last, count)})]
