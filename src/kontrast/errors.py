"""What can go wrong through input, each with the fix in its text; everything else is a bug and keeps its traceback."""

from __future__ import annotations

import math


class KontrastError(Exception):
    """An error a user can mend: one line that says what was wrong, what was given and how to fix it."""


class InputError(KontrastError, ValueError):
    """An argument or option has a value that cannot work."""


class DataError(KontrastError, ValueError):
    """A data set or data file is unknown, missing, corrupt or of the wrong shape."""


class StoreError(KontrastError):
    """A results folder cannot be used: it holds another study, is locked, or has nothing to report."""


class ConvergenceError(KontrastError, ArithmeticError):
    """An iteration stopped before its result was as exact as asked for; the text says how far it came."""


def require_positive(**values: float) -> None:
    """Raise `InputError` unless every named value is a finite number above zero."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} must be a positive number, got {value}; pass a value above 0")
