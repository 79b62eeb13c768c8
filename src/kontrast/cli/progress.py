"""Long runs of many cells on the command line: workers, a bar on standard error, and a clean stop at Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kontrast.cli.program import say
from kontrast.errors import InputError


def n_workers(asked: int | None, n_cells: int, *, most: int | None = None) -> int:
    """The number of processes: as asked for, or one per core and at most `most`; 0 where one alone would have work."""
    from kontrast.runs import default_workers

    if asked is not None and asked < 1:
        raise InputError(f"--workers must be at least 1, got {asked}")
    workers = min(asked or min(default_workers(), most or default_workers()), n_cells)
    return workers if workers > 1 else 0


@contextmanager
def stopped_by_ctrl_c(then: str) -> Iterator[None]:
    """End the program with exit code 130 and the words `then` when the user stops the run inside."""
    from kontrast.runs import Interrupted

    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        say(f"stopped; {then}")
        sys.exit(130)


class Bar:
    """A bar that starts when it is known what is left to do, over cells of different cost."""

    def __init__(self, label: str, unit: str, cost: Callable[[str], int] = lambda cell: 1) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.label, self.unit, self.cost = label, unit, cost
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
        )

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        if self.progress.live.is_started:  # stopping a bar that never started would print an empty line
            self.progress.stop()

    def start(self, n_done: int, missing: list[str]) -> None:
        """Show how many cells are stored already, and what is left."""
        self.n_done, self.n_cells = n_done, n_done + len(missing)
        self.progress.start()
        total = sum(map(self.cost, missing))
        self.task = self.progress.add_task(
            self.label, total=total or 1, completed=0 if missing else 1, count=self._count()
        )

    def advance(self, cell: str) -> None:
        """Count one more cell."""
        self.n_done += 1
        self.progress.update(self.task, advance=self.cost(cell), count=self._count())

    def _count(self) -> str:
        return f"{self.n_done}/{self.n_cells} {self.unit}"
