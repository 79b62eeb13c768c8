from __future__ import annotations

import os
import select
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kontrast.errors import KontrastError
from kontrast.runs import Interrupted, run_cells
from kontrast.runs.execute import THREAD_VARIABLES, _start_worker
from tests.runs.kills import in_a_fork


def test_any_executor_will_do_and_a_failure_is_raised() -> None:
    done: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        run_cells(lambda cell: None, ["a", "b"], workers=1, on_done=done.append, executor=pool)
    assert sorted(done) == ["a", "b"]
    with pytest.raises(ZeroDivisionError), ThreadPoolExecutor(1) as pool:
        run_cells(lambda cell: 1 // 0, ["a"], workers=1, executor=pool)


def check_threads(cell: str) -> None:
    told = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    if set(told.values()) != {"1"} or torch.get_num_threads() != 1:
        raise AssertionError(f"{told}, torch has {torch.get_num_threads()} threads")


def test_workers_have_one_thread_and_the_environment_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    run_cells(check_threads, ["a"], workers=1)
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


def interrupt(cell: str) -> None:
    raise KeyboardInterrupt


def die(cell: str) -> None:
    os._exit(9)


def test_ctrl_c_is_told_apart_from_failure() -> None:
    with pytest.raises(Interrupted):
        run_cells(interrupt, ["a"], workers=0)


def test_a_worker_that_dies_says_what_to_do() -> None:
    with pytest.raises(KontrastError, match=r"a worker process died.*one worker"):
        run_cells(die, ["a", "b"], workers=1)


def test_a_worker_ends_when_its_parent_is_killed() -> None:
    """The pipe closes when the last process that holds its end is gone: the killed parent, and then its worker."""
    reading, writing = os.pipe()

    def parent() -> None:
        me = os.getpid()
        if os.fork() == 0:
            _start_worker(me)
            time.sleep(60)
            os._exit(0)
        time.sleep(60)

    assert in_a_fork(parent, kill_after=0.3)
    os.close(writing)
    with open(reading, "rb") as pipe:
        assert select.select([pipe], [], [], 20)[0], "the worker outlived its parent"
        assert pipe.read() == b""
