"""Where cells run: here, in processes with one thread each, or in any `concurrent.futures` executor."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from kontrast.errors import KontrastError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Interrupted(Exception):  # noqa: N818 (not an error: the user asked to stop)
    """The run was stopped by the user; what is stored stays."""


def default_workers() -> int:
    """One process per core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_cells(
    work: Callable[[str], None],
    cells: Sequence[str],
    *,
    workers: int,
    on_done: Callable[[str], None] = lambda cell: None,
    executor: Executor | None = None,
) -> None:
    """Call `work(cell)` for every cell, in `workers` processes with one thread each; 0 workers run them here.

    Every number comes from one-threaded work, so it does not depend on how many workers there are. `work` stores its
    own result, so an interruption (`Interrupted`) or the first failure loses only the cells under way.
    """
    if workers == 0 and executor is None:
        for cell in cells:
            with _interruptible(), _one_thread():
                work(cell)
            on_done(cell)
        return
    with _capped_threads(), executor or _processes(workers) as pool, _interruptible(pool):
        futures: dict[Future[None], str] = {pool.submit(work, cell): cell for cell in cells}
        for future in as_completed(futures):
            try:
                future.result()
            except BrokenProcessPool:
                raise KontrastError(
                    "a worker process died, most likely for want of memory; stored cells are kept: "
                    "run it again with one worker or with smaller widths"
                ) from None
            on_done(futures[future])


def _processes(workers: int) -> ProcessPoolExecutor:
    # spawn, not fork: torch's thread pools do not survive a fork.
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=spawn, initializer=_start_worker, initargs=(os.getpid(),))


def _start_worker(parent: int) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    threading.Thread(target=_die_with_parent, args=(parent,), daemon=True).start()


def _die_with_parent(parent: int) -> None:
    """End this worker when its parent was killed: it would wait for work for ever."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread inside, torch's and BLAS's, as in a worker: sums over several threads round differently."""
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    before = torch.get_num_threads()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@contextmanager
def _capped_threads() -> Iterator[None]:
    """One BLAS thread in processes started inside; this process has its threads already and keeps them."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextmanager
def _interruptible(pool: Executor | None = None) -> Iterator[None]:
    """Turn Ctrl-C, and any failure, into a prompt stop: queued cells are dropped, running workers ended."""
    try:
        yield
    except BaseException as error:
        if isinstance(pool, ProcessPoolExecutor):
            processes = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
            for process in processes:
                process.join()  # so that nothing is written after this
        elif pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted from None
        raise
