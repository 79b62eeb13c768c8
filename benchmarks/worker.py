"""A process that computes on request, and the end of the line that asks it: how both sides of a benchmark are run.

Either side has its own process, its own interpreter if need be, and the same two threads; they are asked in turns.
A request is one line of JSON, {"task", "arguments", "inputs": {name: .npy file}, "save": .npy file or null, "memory"},
and so is the reply, {"seconds", "result_bytes", "peak_bytes"} or {"error"}. Inputs are read, and what can be prepared
is prepared, once and outside the measured time. This file needs the standard library and numpy alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Ready = Callable[[], Any]  # computes, waits for the result and returns it: what is measured
Task = Callable[..., Ready]  # takes the arrays and arguments of a request


def restrict_threads(n_threads: int) -> None:
    """Keep this process, and every pool of threads it starts, on `n_threads` of the cores it may use."""
    os.environ["OMP_NUM_THREADS"] = str(n_threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:n_threads])


def serve(tasks: Mapping[str, Task], about: Mapping[str, str]) -> None:
    """Answer requests from stdin until it closes; whatever a library prints goes to stderr."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    prepared: dict[str, Ready] = {}

    def reply(message: Mapping[str, Any]) -> None:
        print(json.dumps(message), file=replies, flush=True)

    reply(about)
    for line in sys.stdin:
        request = json.loads(line)
        key = json.dumps([request["task"], request["arguments"], request["inputs"]])
        try:
            if key not in prepared:
                arrays = {name: np.load(file) for name, file in request["inputs"].items()}
                prepared[key] = tasks[request["task"]](**arrays, **request["arguments"])
            reply(_measure(prepared[key], save=request["save"], memory=request["memory"]))
        except Exception as error:  # noqa: BLE001  a side that cannot do a case is a line in the table, not the end
            reply({"error": _reason(error)})


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "out of memory"
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _measure(compute: Ready, *, save: str | None, memory: bool) -> dict[str, Any]:
    gc.collect()
    before = start_of_peak() if memory else 0
    begin = time.perf_counter()
    result = compute()
    seconds = time.perf_counter() - begin
    peak = peak_bytes() - before if memory else None
    if save is not None:
        np.save(save, np.asarray(result))
    return {"seconds": seconds, "result_bytes": int(result.nbytes), "peak_bytes": peak}


def start_of_peak() -> int:
    """Give freed memory back to the system, start the record of the peak anew, and return what is held now."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    with contextlib.suppress(OSError):  # not on every system; the peak is then that of the process so far
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS") or peak_bytes()


def peak_bytes() -> int:
    return _status("VmHWM") or 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _status(name: str) -> int:
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith(name + ":"):
                return 1024 * int(line.split()[1])
    return 0


class CannotError(Exception):
    """A side refused a request; the text says why."""


class Worker:
    """A running `serve`, as a context manager."""

    def __init__(
        self,
        python: str | os.PathLike[str],
        script: Path,
        *,
        n_threads: int,
        log: Path,
        memory: int | None = None,
        **environment: str,
    ) -> None:
        """Start `script` with `environment` added to the caller's; its messages are added to the file `log`.

        Of more than `memory` bytes an allocation fails, in place of the whole machine.
        """
        self._command = [os.fspath(python), os.fspath(script), str(n_threads)]
        self._log, self._memory, self._environment = log, memory, environment
        self.about = self._start()

    def _start(self) -> dict[str, str]:
        with self._log.open("a") as messages:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                env=os.environ | self._environment,
            )
        if self._memory is not None and hasattr(resource, "prlimit"):
            resource.prlimit(self._process.pid, resource.RLIMIT_DATA, (self._memory, self._memory))
        return self._read()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def run(
        self,
        task: str,
        inputs: Mapping[str, Path],
        *,
        save: Path | None = None,
        memory: bool = False,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Run one task to its end; raises `CannotError` if it failed there, or if the system killed the process.

        A killed process is started anew for the next task.
        """
        if self._process.poll() is not None:
            self._start()
        request = {
            "task": task,
            "arguments": arguments,
            "inputs": {name: os.fspath(file) for name, file in inputs.items()},
            "save": None if save is None else os.fspath(save),
            "memory": memory,
        }
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        reply = self._read()
        if "error" in reply:
            raise CannotError(reply["error"])
        return reply

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            if status == -signal.SIGKILL:
                raise CannotError("out of memory: the system killed the process")
            last = "\n".join(self._log.read_text().splitlines()[-15:])
            raise RuntimeError(f"a side of the benchmark ended with status {status}:\n{last}")
        return json.loads(line)
