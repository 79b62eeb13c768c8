"""How the benchmarks time what is short enough to repeat."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Stopwatch:
    """Medians over repeats; `clock` is seconds on the wall, or of this process's cores on a busy machine."""

    clock: Callable[[], float]
    repeats: int

    def seconds(self, compute: Callable[[], object]) -> float:
        """Of one warm call."""
        compute()
        times = []
        for _ in range(self.repeats):
            begin = self.clock()
            compute()
            times.append(self.clock() - begin)
        return statistics.median(times)

    def of_a_step(self, run: Callable[[int], object], n_steps: int) -> tuple[float, float]:
        """Of what comes before the first step, and of one step."""
        run(1)  # warm
        before = self.seconds(lambda: run(1))
        step = (self.seconds(lambda: run(1 + n_steps)) - before) / n_steps
        return max(0.0, before - step), step
