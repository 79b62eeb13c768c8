"""The registry of claims: one measuring function per claim, found by id or prefix."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kontrast.claims.evidence import Evidence, Verdict
from kontrast.claims.papers import PAPERS, Paper
from kontrast.claims.setting import Setting
from kontrast.errors import InputError

Measurement = Callable[[Setting], Evidence]


@dataclass(frozen=True)
class Claim:
    """A statement of a paper and the function that measures it.

    `recorded` is the verdict in the project's own table: `kontrast verify` fails if a measurement gives another.
    """

    id: str
    source: str
    title: str
    printed: str
    corrected: str | None
    recorded: Verdict
    measure: Measurement
    cost: int = 1  # rough run time relative to other claims; long ones start first

    @property
    def paper(self) -> Paper:
        """The paper that the claim is about, by the letter that its id begins with."""
        return PAPERS[self.id.partition(".")[0]]

    @property
    def file(self) -> str:
        """The file that measures the claim, relative to the package: "claims/a/prop10.py"."""
        return self.measure.__module__.partition(".")[2].replace(".", "/") + ".py"


_CLAIMS: dict[str, Claim] = {}


def claim(
    id: str,
    *,
    source: str,
    title: str,
    printed: str,
    recorded: Verdict,
    corrected: str | None = None,
    cost: int = 1,
) -> Callable[[Measurement], Measurement]:
    """Register the decorated function as the measurement of claim `id`; `printed` and `corrected` are statements."""

    def register(measure: Measurement) -> Measurement:
        if id in _CLAIMS:
            raise ValueError(f"two functions measure {id}")
        _CLAIMS[id] = Claim(id, source, title, printed, corrected, recorded, measure, cost)
        return measure

    return register


def all_claims() -> tuple[Claim, ...]:
    """All claims, in the order of the papers."""
    return tuple(_CLAIMS.values())


def select(ids: Sequence[str]) -> tuple[Claim, ...]:
    """The claims with these ids or prefixes ("A", "B"); all of them if none is given. An unknown id is refused."""
    if not ids:
        return all_claims()
    chosen: dict[str, Claim] = {}
    for given in ids:
        found = [claim for claim in all_claims() if claim.id == given or claim.id.startswith(f"{given}.")]
        if not found:
            folded = {known.lower(): known for known in _CLAIMS}
            near = difflib.get_close_matches(given.lower(), folded, n=1, cutoff=0.4)
            hint = f"did you mean {folded[near[0]]}?" if near else f"the claims are {', '.join(_CLAIMS)}"
            raise InputError(f"no claim is called {given!r}; {hint}")
        chosen |= {claim.id: claim for claim in found}
    return tuple(claim for claim in all_claims() if claim.id in chosen)
