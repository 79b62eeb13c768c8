"""How the benchmarks of the kernels show what they measured: plain columns, and what was asked for beside it."""

from __future__ import annotations

import json
import math
import os
import platform
import resource
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Requirement:
    """A number to reach: `reached` must be at least, or at most, `asked`."""

    what: str
    reached: float
    asked: float
    at_least: bool

    @property
    def met(self) -> bool:
        """Whether the number was reached in this run."""
        return self.reached >= self.asked if self.at_least else self.reached <= self.asked


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their longest text, the first to the left and the others to the right.

    A row of fewer cells has no numbers: its words run across the other columns.
    """
    whole = [columns, *(row for row in rows if len(row) == len(columns))]
    widths = [max(len(row[i]) for row in whole) for i in range(len(columns))]
    widths[0] = max(len(row[0]) for row in (columns, *rows))
    print(f"\n{title}")
    for row in (columns, ["-" * width for width in widths], *rows):
        first, *others = row
        if len(row) == len(columns):
            others = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *others]).rstrip())


def print_requirements(requirements: Sequence[Requirement]) -> None:
    """The last table of a run: what was asked for, and whether this run reached it."""
    rows = []
    for r in requirements:
        met = "not measured" if math.isnan(r.reached) else "yes" if r.met else "NO"
        rows.append((r.what, f"{r.reached:.3g}", f"{'≥' if r.at_least else '≤'} {r.asked:.3g}", met))
    print_table("numbers to reach", ("", "reached", "asked for", "met"), rows)
    print(f"{sum(r.met for r in requirements)} of {len(requirements)} met")


def write_json(
    file: Path, about: dict[str, str], measurements: list[dict[str, Any]], requirements: Sequence[Requirement]
) -> None:
    """Every number of a run; what was not measured is null, since JSON has no nan."""
    reached = [asdict(r) | {"met": r.met} for r in requirements]
    rows = [
        {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}
        for row in (*measurements, *reached)
    ]
    n = len(measurements)
    file.write_text(json.dumps({"about": about, "measurements": rows[:n], "requirements": rows[n:]}, indent=2))


def machine() -> dict[str, str]:
    """What the numbers were measured on, and when (UTC)."""
    cpu = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
    }


def conclude(
    requirements: Sequence[Requirement], results: Sequence[Any], work: OtherWork, json_file: Path | None, **about: str
) -> None:
    """The end of a run: the numbers to reach, the machine, and all of it in a file where one was asked for."""
    print_requirements(requirements)
    described = machine() | about
    words = ", ".join(f"{key} {value}" for key, value in described.items())
    print(f"{words}; {work.share():.0%} of the machine went to other work")
    if json_file is not None:
        write_json(json_file, described, [asdict(result) for result in results], requirements)


class OtherWork:
    """How much of the machine went to something else since the start: times taken on a busy one mislead."""

    def __init__(self) -> None:
        self._wall, self._busy, self._own = time.monotonic(), _busy_seconds(), _own_seconds()

    def share(self) -> float:
        """Of all cores; nan where the system does not tell. Children count as own once they have ended."""
        others = (_busy_seconds() - self._busy) - (_own_seconds() - self._own)
        return max(0.0, others) / ((time.monotonic() - self._wall) * (os.cpu_count() or 1))


def _busy_seconds() -> float:
    stat = Path("/proc/stat")
    if not stat.exists():
        return math.nan
    user, nice, system, _idle, _waiting, irq, softirq, steal = map(int, stat.read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
