"""Measure claims and store the results in a folder, from which an interrupted verification resumes."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xarray as xr

import kontrast
from kontrast.claims.evidence import Evidence, Verdict, judged
from kontrast.claims.registry import Claim, select
from kontrast.claims.setting import Setting
from kontrast.data import data_digest, load_data, require_contrast
from kontrast.errors import KontrastError, StoreError
from kontrast.runs import Store, run_cells

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Record:
    """One measured claim; `command` is the command line that measured it, empty if there was none."""

    claim: Claim
    evidence: Evidence
    seconds: float
    command: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict that follows from the evidence."""
        return self.evidence.verdict

    @property
    def as_recorded(self) -> bool:
        """Whether the verdict is the one in the project's own table."""
        return self.verdict is self.claim.recorded

    def as_dict(self) -> dict[str, Any]:
        """The record in JSON types; intervals become NAME_low and NAME_high, non-finite numbers None."""
        measured: dict[str, float | None] = {}
        for name, number in self.evidence.measured.items():
            measured[name] = _finite(number.value)
            if not number.is_plain:
                measured |= {f"{name}_low": _finite(number.low), f"{name}_high": _finite(number.high)}
        return {
            "id": self.claim.id,
            "title": self.claim.title,
            "source": self.claim.source,
            "file": self.claim.file,
            "verdict": self.verdict.value,
            "recorded": self.claim.recorded.value,
            "measured": measured,
            "expected": self._expected(),
            "setting": dict(self.evidence.setting),
            "warnings": list(self.evidence.warnings),
            "seconds": round(self.seconds, 2),
        }

    def _expected(self) -> dict[str, dict[str, Any]]:
        """Every criterion, by its role and the number that it tests."""
        found: dict[str, dict[str, Any]] = {}
        for c in self.evidence.criteria:
            found.setdefault(c.role, {})[c.name] = {
                "low": _finite(c.low),
                "high": _finite(c.high),
                "statement": c.statement,
                "holds": c.holds(self.evidence.measured),
                "sure": c.is_sure(self.evidence.measured),
            }
        return found


def verification_spec(setting: Setting) -> dict[str, Any]:
    """Everything that decides the numbers, in JSON types: the setting, the content of the data, and the code."""
    for name in setting.data_names:
        require_contrast(load_data(name, "all", None), name)
    spec = {
        "kind": "claims",
        "format": FORMAT,
        **asdict(setting),
        "data": list(setting.data_names),
        "data_digests": [data_digest(load_data(name, "all", None)) for name in setting.data_names],
        "code": _code_digest(),
    }
    return json.loads(json.dumps(spec))  # type: ignore[no-any-return]


def verification_name(spec: dict[str, Any]) -> str:
    """A short folder name for a verification."""
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    return f"{spec['scale']}-{digest[:8]}"


def verify(
    ids: Sequence[str],
    setting: Setting,
    folder: Path | str,
    *,
    workers: int = 0,
    command: str = "",
    on_start: Callable[[list[str], list[str]], None] = lambda done, missing: None,
    on_done: Callable[[str], None] = lambda claim_id: None,
) -> list[Record]:
    """Measure the claims that `folder` does not hold yet, and return the records of all `ids`, in order.

    `command` is the command line behind this call; it is stored with the results.
    """
    claims = select(ids)
    store = Store(folder, command="verify")
    store.claim(verification_spec(setting))
    with store.lock():
        store.clear_temporary()
        by_cost = sorted(claims, key=lambda claim: -claim.cost)
        missing = [claim.id for claim in by_cost if not store.has(claim.id)]
        on_start([claim.id for claim in claims if claim.id not in missing], missing)
        work = functools.partial(_measure_and_store, setting, Path(folder), command)
        try:
            run_cells(work, missing, workers=workers, on_done=on_done)
        finally:
            store.clear_temporary()
    return [_record(claim, store.read(claim.id)) for claim in claims]


def stored_records(folder: Path | str) -> list[Record]:
    """The records of all undamaged claims in a folder, in the order of the papers."""
    store = Store(folder, command="verify")
    return [_record(claim, store.read(claim.id)) for claim in select(()) if store.has(claim.id)]


def reservations(folder: Path | str) -> list[str]:
    """Reasons to doubt `stored_records`: results of other code, and claims that had to be left out."""
    store = Store(folder, command="verify")
    spec = store.spec()
    if spec["format"] != FORMAT:
        raise StoreError(
            f"{folder} was written by another version of kontrast (format {spec['format']}, here {FORMAT}); "
            "open it with that version, or run `kontrast verify` again into a new folder"
        )
    known = {claim.id for claim in select(())}
    said = [f"{cell} is left out: this kontrast has no such claim" for cell in store.cells() if cell not in known]
    said += [
        f"{cell} is left out: its file is damaged; run the same `kontrast verify` again to repair it"
        for cell in store.cells()
        if cell in known and not store.has(cell)
    ]
    if spec["code"] != _code_digest():
        said.append("measured by other code; statements and recorded verdicts are those of the installed kontrast")
    return said


def measure_claim(claim: Claim, setting: Setting) -> Record:
    """Measure one claim without storing it."""
    start = time.perf_counter()
    found = claim.measure(setting)
    return Record(claim, found, time.perf_counter() - start)


def _measure_and_store(setting: Setting, folder: Path, command: str, claim_id: str) -> None:
    (claim,) = (claim for claim in select((claim_id,)) if claim.id == claim_id)
    try:
        record = measure_claim(claim, setting)
    except KontrastError as error:  # the data cannot answer this claim: undecided, and the report says why
        record = Record(claim, judged(warnings=[f"not measured: {error}"]), 0.0)
    data = record.evidence.to_dataset().assign_attrs(seconds=record.seconds, command=json.dumps(command))
    Store(folder, command="verify").write(claim_id, data)


def _record(claim: Claim, stored: xr.Dataset) -> Record:
    command = json.loads(stored.attrs.get("command", '""'))
    return Record(claim, Evidence.from_dataset(stored), float(stored.attrs["seconds"]), command)


@functools.cache
def _code_digest() -> str:
    """A hash of the package's source, so that results of other code are never resumed."""
    root = Path(kontrast.__file__).parent
    content = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        content.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return content.hexdigest()[:16]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
