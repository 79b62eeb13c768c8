"""Errors that a user can mend, each with the fix in its text; everything else is a bug and keeps its traceback."""

from __future__ import annotations


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
    """A results folder cannot be used: it holds another study, is locked, or holds no results."""


class ConvergenceError(KontrastError, ArithmeticError):
    """An iteration stopped before its result was as exact as asked for; the text says how far it came."""
