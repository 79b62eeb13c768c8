"""Sides of a benchmark measured in turns, each in a process of its own: what one side did, and the tables of it all."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from inputs import pictures
from largest import Largest, largest_that_fits
from tables import Requirement, print_table
from torch import Tensor
from worker import CannotError, Worker

from kontrast.memory import free_bytes

HERE = Path(__file__).parent
SHARE = 0.8  # of the memory that was free at the start: what one side in torch may take
PAUSE = 0.05  # seconds between turns, so that the other side's idle threads have stopped spinning


@dataclass(frozen=True)
class Side:
    """One way to compute a case: a task of `torch_side.py`, or of `peers.py` when `peer`."""

    task: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    peer: bool = False


@dataclass
class Measurement:
    """What one side did in one case; numbers that were not measured, or could not be, are nan."""

    case: str
    side: str
    network: str = ""
    n: int = 0
    seconds: list[float] = field(default_factory=list)
    first_call: float = math.nan
    peak_bytes: float = math.nan
    result_bytes: float = math.nan
    errors: dict[str, float] = field(default_factory=dict)
    cannot: str = ""  # why the side has no numbers
    result: Tensor | None = None

    @property
    def median(self) -> float:
        """Seconds of a warm call."""
        return statistics.median(self.seconds) if self.seconds else math.nan

    @property
    def peak(self) -> float:
        """Peak memory as a multiple of the result."""
        return self.peak_bytes / self.result_bytes

    def as_row(self) -> dict[str, Any]:
        """What a file of the run keeps."""
        return {key: value for key, value in asdict(self).items() if key != "result"} | {"median": self.median}


class Bench:
    """The two long-lived workers, and how a case is measured with them."""

    def __init__(self, folder: Path, stack: ExitStack, *, peers: Path | None, repeats: int, n_threads: int) -> None:
        """Start both sides; with `peers=None` kontrast's alone."""
        self.folder, self.repeats, self._n_threads, self._peers = folder, repeats, n_threads, peers
        self._n_started, self._memory = 0, int(SHARE * free_bytes(torch.device("cpu")))
        self._warm = {False: stack.enter_context(self._worker(peer=False))}
        if peers is not None:
            self._warm[True] = stack.enter_context(self._worker(peer=True))
        self.versions = {key: value for worker in self._warm.values() for key, value in worker.about.items()}
        self.measurements: list[Measurement] = []
        self.requirements: list[Requirement] = []
        self.largest: list[Largest] = []

    def save(self, name: str, array: Tensor) -> Path:
        """An input as a file that either side can read."""
        file = self.folder / f"{name}.npy"
        np.save(file, array.numpy())
        return file

    def require(
        self, what: str, reached: float, *, at_least: float | None = None, at_most: float | None = None
    ) -> None:
        """Put a number beside what was asked for; nan, not measured, stays in the list and is not met."""
        asked = at_least if at_least is not None else at_most
        assert asked is not None
        self.requirements.append(Requirement(what, reached, asked, at_least is not None))

    def measure(
        self,
        case: str,
        inputs: Mapping[str, Path],
        sides: Mapping[str, Side],
        *,
        cold: bool = True,
        repeats: int = 0,
        seconds_each: float = math.inf,
    ) -> dict[str, Measurement]:
        """Run every side that there is; results are in `Measurement.result`. `cold`: in fresh processes as well.

        A side that has taken `seconds_each` is not asked again.
        """
        there = {name: side for name, side in sides.items() if side.peer in self._warm}
        measured = {name: Measurement(case, name) for name in there}
        for name, side in there.items():
            print(f"… {case}: {name}", file=sys.stderr, flush=True)
            try:
                if cold:
                    self._cold(measured[name], side, inputs)
                self._check_out(measured[name], side, inputs)
            except CannotError as error:
                measured[name].cannot = str(error)
        for _ in range(repeats or self.repeats):
            for name, side in there.items():
                if measured[name].cannot or sum(measured[name].seconds) > seconds_each:
                    continue
                time.sleep(PAUSE)
                try:
                    measured[name].seconds.append(self._ask(self._warm[side.peer], side, inputs)["seconds"])
                except CannotError as error:
                    measured[name].cannot = str(error)
        self.measurements += measured.values()
        return measured

    def result(self, inputs: Mapping[str, Path], side: Side) -> Tensor | None:
        """What a side computes, unmeasured; None if it cannot or is not there."""
        measurement = Measurement("", "")
        if side.peer not in self._warm:
            return None
        try:
            self._check_out(measurement, side, inputs)
        except CannotError:
            return None
        return measurement.result

    def find_largest(
        self, network: str, name: str, side: Side, *, within_bytes: int, seconds: float, **options: Any
    ) -> None:
        """How many pictures a side takes in a fresh process of so much memory; `options`: for the side."""
        print(f"… largest n, {network}: {name}", file=sys.stderr, flush=True)

        def attempt(n: int) -> float:
            inputs = {"x": self.save(f"largest{n}", pictures(n)[0])}
            return worker.run(side.task, inputs, **side.arguments, **options)["seconds"]

        with self._worker(peer=False, memory=within_bytes) as worker:
            self.largest.append(largest_that_fits(network, name, attempt, seconds=seconds))

    def _worker(self, *, peer: bool, memory: int | None = None) -> Worker:
        python, script = (self._peers, "peers.py") if peer else (sys.executable, "torch_side.py")
        assert python is not None
        self._n_started += 1
        return Worker(
            python,
            HERE / script,
            n_threads=self._n_threads,
            log=self.folder / "messages.txt",
            memory=None if peer else memory or self._memory,
            # A cache of its own for every process: a first call compiles.
            TORCHINDUCTOR_CACHE_DIR=str(self.folder / f"cache-{self._n_started}"),
        )

    def _cold(self, measurement: Measurement, side: Side, inputs: Mapping[str, Path]) -> None:
        with self._worker(peer=side.peer) as worker:
            measurement.first_call = self._ask(worker, side, inputs)["seconds"]
            reply = self._ask(worker, side, inputs, memory=True)
            measurement.peak_bytes, measurement.result_bytes = reply["peak_bytes"], reply["result_bytes"]

    def _check_out(self, measurement: Measurement, side: Side, inputs: Mapping[str, Path]) -> None:
        file = self.folder / "result.npy"
        self._ask(self._warm[side.peer], side, inputs, save=file)
        measurement.result = torch.from_numpy(np.load(file))

    @staticmethod
    def _ask(worker: Worker, side: Side, inputs: Mapping[str, Path], **options: Any) -> dict[str, Any]:
        return worker.run(side.task, inputs, **options, **side.arguments)


def faster(measured: Mapping[str, Measurement], side: str, than: str) -> float:
    """How many times as fast `side` is as `than`; nan if either is missing."""
    return measured[than].median / measured[side].median if {side, than} <= measured.keys() else math.nan


def forget(measured: Mapping[str, Measurement]) -> None:
    """Let go of the results: the next case needs the memory."""
    for m in measured.values():
        m.result = None


def show(measurements: Sequence[Measurement]) -> None:
    """One table a case; times are also given as multiples of the first row's, errors as found against float64."""
    for case in dict.fromkeys(m.case for m in measurements):
        group = [m for m in measurements if m.case == case]
        kinds = list(dict.fromkeys(kind for m in group for kind in m.errors))
        columns = ["", "ms, median", "min", "max", "× first row", "first call, s", "peak, MB", "peak / result"]
        rows = []
        for m in group:
            if m.cannot:
                rows.append([m.side, f"cannot: {m.cannot}"])
                continue
            low, high = (min(m.seconds), max(m.seconds)) if m.seconds else (math.nan, math.nan)
            times = [_text(1e3 * t, ",.1f") for t in (m.median, low, high)]
            memory = [_text(m.peak_bytes / 1e6, ",.0f"), _text(m.peak, ",.2f")]
            row = [m.side, *times, _text(m.median / group[0].median, ".2f"), _text(m.first_call, ".2f"), *memory]
            rows.append(row + [_text(m.errors.get(kind, math.nan), ".1e") for kind in kinds])
        print_table(case, columns + [kind.replace("_", " ") for kind in kinds], rows)


def _text(number: float, form: str) -> str:
    return "–" if math.isnan(number) else f"{number:{form}}"
