from __future__ import annotations

import math

import pytest

from kontrast.errors import InputError
from kontrast.study import Thresholds


@pytest.mark.parametrize("name", ["tolerance", "pca_tolerance"])
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, math.nan, math.inf, "0.1"])
def test_a_senseless_tolerance_is_refused(name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"^{name} must lie between 0 and 1, got .*; the default is 0"):
        Thresholds(**{name: value})


@pytest.mark.parametrize("value", [-0.01, 1.0, math.nan, math.inf])
def test_a_senseless_margin_is_refused(value: float) -> None:
    with pytest.raises(InputError, match="probe_margin must be at least 0 and below 1"):
        Thresholds(probe_margin=value)


def test_a_margin_of_zero_is_a_margin() -> None:
    assert Thresholds(probe_margin=0.0).probe_margin == 0
