"""The largest kernel that a way to compute it manages within a memory and a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tables import print_table
from worker import CannotError


@dataclass(frozen=True)
class Largest:
    """The most rows, in a doubling sequence, that one side took, the seconds they took, and what ended the sequence."""

    network: str
    side: str
    n: int
    seconds: float
    ended_by: str


def largest_that_fits(
    network: str, side: str, attempt: Callable[[int], float], *, seconds: float, start: int = 8, most: int = 1 << 16
) -> Largest:
    """Double n while `attempt(n)`, the seconds of one call, stays below `seconds` and raises no `CannotError`.

    Twice the rows take at least twice the time: what would take too long by that is not tried.
    """
    n, reached, taken = start, 0, math.nan
    while n <= most:
        if 2 * taken > seconds:
            return Largest(network, side, reached, taken, "time")
        try:
            now = attempt(n)
        except CannotError as error:
            return Largest(network, side, reached, taken, str(error))
        if now > seconds:
            return Largest(network, side, reached, taken, "time")
        n, reached, taken = 2 * n, n, now
    return Largest(network, side, reached, taken, "the benchmark")


def print_largest(found: Sequence[Largest], limits: str) -> None:
    """A table of them; "≥" where more rows may well have fitted."""
    rows = []
    for f in found:
        sign = "≥ " if f.ended_by in ("time", "the benchmark") else ""
        rows.append([f"{f.network}: {f.side}", f"{sign}{f.n:,}", f"{f.seconds:,.2f}", f.ended_by])
    print_table(f"largest n within {limits}", ["", "n", "s", "ended by"], rows)
