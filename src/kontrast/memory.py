"""How much memory a device has, and how many rows of a computation fit in a budget."""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch

from kontrast.checks import is_number
from kontrast.errors import InputError

SHARE = 0.5  # of the free memory: the result, and the user's other programs, need room too


def total_bytes(device: torch.device) -> int:
    """All memory of the device."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_bytes(device: torch.device) -> int:
    """The memory that can be allocated on the device now, torch's own unused cache included."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_stats(device)
        return int(free + held.get("reserved_bytes.all.current", 0) - held.get("allocated_bytes.all.current", 0))
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return total_bytes(device)  # no such table (macOS): an upper bound


def budget_bytes(memory: float | None, device: torch.device) -> int:
    """The user's budget in bytes, or a share of the free memory."""
    if memory is None:
        return int(SHARE * free_bytes(device))
    if not is_number(memory) or not 0 < memory < math.inf:
        raise InputError(
            f"memory must be a number of bytes above 0, got {memory!r}; leave it out to use half of what is free"
        )
    return int(memory)


def rows_that_fit(bytes_per_row: int, n: int, *, memory: float | None, device: torch.device, what: str) -> int:
    """How many of `n` rows fit in the budget; refuses a budget too small for one."""
    budget = budget_bytes(memory, device)
    if bytes_per_row > budget:
        raise InputError(
            f"memory is too small: one row of {what} needs {bytes_per_row:,} bytes and the budget is {budget:,}; "
            f"pass memory={bytes_per_row} or more"
        )
    return max(1, min(n, budget // max(1, bytes_per_row)))
