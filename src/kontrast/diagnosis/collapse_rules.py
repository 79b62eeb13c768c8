"""When an embedding counts as collapsed: one rule for a diagnosis and for a monitor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Collapse = Literal["none", "dimensional", "complete"]

LEAST_SPREAD = 0.01  # of unit-length embeddings: below it, and below half of the start's, all samples look the same
NO_SPREAD = 1e-12  # rounding alone, in single precision: the same point whatever the start was
LEAST_RANK, LEAST_RANK_SHARE = 1.5, 0.1  # of the centred rank: a number, and a share of what n and d allow
LEAST_PARTICIPATION = 1.1  # one direction carries everything
OF_START = 0.5


def collapse_of(now: Mapping[str, float], start: Mapping[str, float], *, n: int, d: int) -> Collapse:
    """Whether n embeddings of d dimensions have collapsed, by `spread`, `centered_rank` and `participation_ratio`.

    Complete: the spread of unit-length embeddings is below 0.01 and below half of the start's (a random deep network
    may begin with little spread), or nothing but rounding. Dimensional: the centred rank is below max(1.5, 10 % of
    min(n − 1, d)) and below half of the start's, or the participation ratio is below 1.1. A number that is missing or
    NaN says nothing, and one dimension, or two samples, cannot lose any.
    """
    spread = now.get("spread", float("nan"))
    if spread < NO_SPREAD or (spread < LEAST_SPREAD and spread < OF_START * start.get("spread", float("nan"))):
        return "complete"
    most = min(n - 1, d)
    if most < 2:
        return "none"
    rank, first_rank = (numbers.get("centered_rank", float("nan")) for numbers in (now, start))
    fallen = rank < max(LEAST_RANK, LEAST_RANK_SHARE * most) and rank < OF_START * first_rank
    if fallen or now.get("participation_ratio", float("nan")) < LEAST_PARTICIPATION:
        return "dimensional"
    return "none"
