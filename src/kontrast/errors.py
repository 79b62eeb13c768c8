"""What can go wrong through input, each with the fix in its text; everything else is a bug and keeps its traceback."""

from __future__ import annotations

import math
import numbers
from typing import Any


class KontrastError(Exception):
    """An error a user can mend: one line that says what was wrong, what was given and how to fix it."""


class InputError(KontrastError, ValueError):
    """An argument or option has a value that cannot work."""


class TooManyComponentsError(InputError):
    """More components were asked for than there are; `most` is how many there are."""

    def __init__(self, text: str, most: int) -> None:
        super().__init__(text)
        self.most = most


class DataError(KontrastError, ValueError):
    """A data set or data file is unknown, missing, corrupt or of the wrong shape."""


class StoreError(KontrastError):
    """A results folder cannot be used: it holds another study, is locked, or has nothing to report."""


class ConvergenceError(KontrastError, ArithmeticError):
    """An iteration stopped before its result was as exact as asked for; the text says how far it came."""


def require_positive(**values: float) -> None:
    """Raise `InputError` unless every named value is a finite number above zero."""
    for name, value in values.items():
        if not is_number(value) or not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} must be a positive number, got {value}; pass a value above 0")


def require_not_negative(**values: float) -> None:
    """Raise `InputError` unless every named value is a number of at least zero; NaN is none."""
    for name, value in values.items():
        if not is_number(value) or not value >= 0:
            raise InputError(f"{name} must be a number of 0 or more, got {value!r}")


def require_finite_not_negative(**values: float) -> None:
    """Raise `InputError` unless every named value is a finite number of at least zero, as a ridge is."""
    for name, value in values.items():
        if not is_number(value) or not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name} must be a finite number of at least 0, got {value!r}")


def require_whole(name: str, value: Any, *, least: int = 1, otherwise: str = "") -> int:
    """`value` as an int; raises `InputError` unless it is a whole number, numpy's too, of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}{otherwise}, got {value!r}")
    return int(value)


def is_number(value: Any) -> bool:
    """Whether it is a real number, of Python's or numpy's, and no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def features_not_finite() -> InputError:
    """What to say of features from which no moments can be taken."""
    return InputError("the features hold NaN, infinite or huge values; scale the samples, or look at the encoder")
