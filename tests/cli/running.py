"""Commands as a person types them: in a process of their own, or in this one, which has torch already."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kontrast import cli

Kontrast = Callable[..., "Ended"]


class Ended:
    """How a command ended, and what it said."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def words(self) -> str:
        return " ".join(self.out.split())

    @property
    def found(self) -> dict[str, Any]:
        return json.loads(self.out)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def refused(self) -> str:
        """The one line on standard error, below a bar where there is one, with which bad input ends."""
        assert self.code == 2, self.err
        assert self.out == ""
        assert "Traceback" not in self.err
        *bar, said = self.err.splitlines()
        assert said.startswith("error: ")
        assert all(line.startswith("fitting") for line in bar)
        return said


def in_this_process(arguments: tuple[object, ...]) -> int:
    """The exit code of `kontrast` with these arguments."""
    before, sys.argv = sys.argv, ["kontrast", *map(str, arguments)]
    try:
        cli.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.argv = before
        cli.program._debug["on"] = False
    return 0


def in_a_process(*arguments: object, **options: Any) -> Ended:
    command = [sys.executable, "-m", "kontrast", *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, **options)
    return Ended(done.returncode, done.stdout, done.stderr)


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kontrast", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def stopped_by_ctrl_c(*arguments: object, when: Callable[[], bool]) -> Ended:
    """A command that gets Ctrl-C as a terminal sends it, to the parent and its workers, as soon as `when` holds."""
    process = start(*arguments, process_group=0, preexec_fn=_listen_to_ctrl_c)
    wait_for(when, process)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=90)
    return Ended(process.returncode, out, err)


def wait_for(condition: Callable[[], bool], process: Any) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        ended = process.poll() if isinstance(process, subprocess.Popen) else process.exitcode
        assert ended is None, f"the process ended with {ended}"
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.005)


def _listen_to_ctrl_c() -> None:
    """A shell starts background jobs deaf to SIGINT, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
