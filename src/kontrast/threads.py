"""How many threads help while other programs use the cores.

torch's threads wait for each other in busy loops. Where there are more of them than idle cores, one that waits takes
the core of the one it waits for: many short steps then take ten times the time, and more processor time still.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

PROC = Path("/proc")
SAMPLES, APART = 3, 1e-3  # looks at the machine, and the seconds between them: a program may just have woken up


@contextmanager
def as_many_threads_as_cores_are_idle() -> Iterator[None]:
    """Let torch use no more threads than there are cores that no other program wants now."""
    threads = torch.get_num_threads()
    fewer = min(threads, max(1, (os.cpu_count() or threads) - wanted_by_others())) if threads > 1 else threads
    if fewer == threads:
        yield
        return
    torch.set_num_threads(fewer)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def wanted_by_others() -> int:
    """Cores that other programs use or wait for: the least of a few looks, 0 where the system does not say."""
    least = _wanted_now()
    for _ in range(SAMPLES - 1):
        if least == 0:
            break
        time.sleep(APART)
        least = min(least, _wanted_now())
    return least


def _wanted_now() -> int:
    table = PROC / "loadavg"  # Linux: "0.20 0.18 0.12 2/94 4311", of which 2 threads are running
    if not table.exists():
        return 0
    running = int(table.read_text().split()[3].partition("/")[0])
    return max(0, running - (_own() if running > 1 else 1))


def _own() -> int:
    """This process's running threads."""
    states = []
    for status in PROC.glob("self/task/*/stat"):
        try:
            states.append(status.read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
    return states.count("R")
