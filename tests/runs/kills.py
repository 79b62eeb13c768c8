"""Processes that end without warning, cheaply: forks of this one, which has everything imported already."""

from __future__ import annotations

import os
import pathlib
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any


def in_a_fork(work: Callable[[], Any], *, kill_after: float | None = None) -> bool:
    """Run `work` in a child; kill it after so many seconds, if asked. Whether the child ended before its work did."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: the child starts none
        child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)  # nothing of pytest's runs twice
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    ended = os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 9
    assert ended or os.WEXITSTATUS(status) == 0, "the work itself failed"
    return ended


def die_at(moment: int, work: Callable[[], Any]) -> None:
    """Do `work`, and end the process in front of its `moment`-th call that touches a file."""
    left = [moment]

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if left[0] == 0:
                os._exit(9)
            left[0] -= 1
            return function(*arguments, **options)

        return call

    os.fsync, os.open = deadly(os.fsync), deadly(os.open)
    for name in ("mkdir", "open", "replace", "unlink"):
        setattr(pathlib.Path, name, deadly(getattr(pathlib.Path, name)))
    work()
