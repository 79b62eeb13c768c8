"""What a diagnosis measures: each number declared once, with its words and the convention it follows.

The stored result, the tables of the terminal and of the page, `--json` and the rules read these declarations. Every
stored number has a last dimension, `bound`: its value, and the ends of its interval, which are NaN where it has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from kontrast.linalg import Estimate

BOUNDS = ("value", "low", "high")
MISSING = Estimate(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Quantity:
    """One number of a diagnosis.

    Attributes:
        name: of its variable in the stored result.
        words: its name in tables, with its convention where several go by one name.
        definition: what is computed, in one or two sentences.
        percent: whether it is a share, which tables write in per cent.
    """

    name: str
    words: str
    definition: str
    percent: bool = False

    def write(self, estimate: Estimate) -> str:
        """The number and its interval, as tables show them; a dash where there is none."""
        scale, sign = (100.0, " %") if self.percent else (1.0, "")
        if not math.isfinite(estimate.value):
            return "–"
        text = f"{_short(scale * estimate.value)}{sign}"
        if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
            return text
        return f"{text} [{_short(scale * estimate.low)}, {_short(scale * estimate.high)}]"


def _short(value: float) -> str:
    """Three digits."""
    return f"{0.0 if abs(value) < 1e-12 else value:.3g}"


def stacked(estimates: Iterable[Estimate]) -> np.ndarray:
    """Estimates as an array (…, bound)."""
    return np.array([[it.value, it.low, it.high] for it in estimates], dtype=float)


def plain(value: float) -> Estimate:
    """A number without an interval."""
    return Estimate(float(value), math.nan, math.nan)


def variables(
    quantities: Sequence[Quantity], rows: Sequence[Mapping[str, Estimate]], along: str
) -> dict[str, tuple[tuple[str, ...], np.ndarray, dict[str, str]]]:
    """The quantities that any row has, over the rows, as xarray takes them; NaN where a row has none."""
    return {
        it.name: ((along, "bound"), stacked(row.get(it.name, MISSING) for row in rows), described(it))
        for it in quantities
        if any(it.name in row for row in rows)
    }


def described(quantity: Quantity) -> dict[str, str]:
    """The attributes of its variable."""
    return {"long_name": quantity.words, "definition": quantity.definition}


def estimate_in(result: xr.Dataset, name: str, **at: str | int) -> Estimate:
    """A stored number, by labels; missing where the result has none."""
    if name not in result or any(str(value) not in map(str, result[dim].values) for dim, value in at.items()):
        return MISSING
    value, low, high = (float(part) for part in result[name].sel(at).values)
    return Estimate(value, low, high)
