"""Figures that many claims share: numbers against the width or the step, with power laws beside them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from kontrast.claims.evidence import Curve, Panel, curve
from kontrast.claims.setting import seed_mean


def width_panel(
    title: str,
    series: Mapping[str, xr.DataArray],
    y_label: str = "max |K(t) − K(0)|",
    *,
    guides: Collection[float] = (-0.5, -1.0),
    dashed: Collection[str] = (),
    y_log: bool = True,
    letter: str = "M",
) -> Panel:
    """Means over seeds against the width, and power laws with the exponents `guides` through the first series."""
    first = next(iter(series.values()))
    names = {-0.5: f"{letter}^−1/2", -1.0: f"1/{letter}"}
    curves = (
        *(
            curve(name.replace("_", " "), values.width, seed_mean(values), "dashed" if name in dashed else "line")
            for name, values in series.items()
        ),
        *(guide(first.width, seed_mean(first), exponent, names[exponent]) for exponent in guides),
    )
    return Panel(title, f"width {letter}", y_label, curves, y_log=y_log)


def step_panel(
    title: str, values: xr.DataArray, y_label: str = "max |K(t) − K(0)|", *, step: str = "step t", letter: str = "M"
) -> Panel:
    """Means over seeds against the step, one line per width."""
    later = values.sel(t=values.t > 0)
    curves = tuple(
        curve(f"{letter} = {width}", later.t, seed_mean(later.sel(width=width)), "plain")
        for width in later.width.values
    )
    return Panel(title, step, y_label, curves)


def accuracy_panel(title: str, accuracy: xr.DataArray) -> Panel:
    """Test accuracies over (width, seed, embedding), averaged over seeds; embeddings of the raw pixels are dashed."""
    series = {str(name): accuracy.sel(embedding=name) for name in accuracy.embedding.values}
    dashed = [name for name in series if "pixel" in name]
    return width_panel(title, series, "test accuracy", guides=(), dashed=dashed, y_log=False)


def guide(x: ArrayLike, y: ArrayLike, exponent: float, label: str) -> Curve:
    """A dashed power law through the first point."""
    x_, y_ = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    return curve(label, x_, y_[0] * (x_ / x_[0]) ** exponent, "dashed")


def log_steps(last: int, count: int = 16) -> list[int]:
    """Step 0, then about `count` steps from 1 to `last`, evenly spaced on a logarithmic axis."""
    return [0, *sorted({round(step) for step in np.geomspace(1, last, count)})]
