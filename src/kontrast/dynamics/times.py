"""The times at which a flow is asked for."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kontrast.errors import InputError


def increasing_times(times: ArrayLike) -> NDArray[np.float64]:
    """The times as an array; refuses what is not a list of finite, increasing numbers from 0 on."""
    try:
        array = np.asarray(times, dtype=float)
    except (TypeError, ValueError):
        array = np.empty(0)
    in_order = array.ndim == 1 and len(array) > 0 and array[0] >= 0 and bool((np.diff(array) > 0).all())
    if not (in_order and np.isfinite(array).all()):
        given = array.tolist() if array.size else times
        raise InputError(
            f"times must be finite, increasing and start at 0 or later, got {given}; pass a list such as [0, 0.5, 1]"
        )
    return array
