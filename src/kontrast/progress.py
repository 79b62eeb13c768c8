"""A progress bar on stderr for long work in the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kontrast.errors import InputError

Advance = Callable[[int, int], None]
"""A function that is called with the amount done and the total."""


@contextmanager
def progress_bar(label: str, progress: bool | Advance) -> Iterator[Advance]:
    """Yield the function to call as work advances: for True it moves a bar, for False it does nothing.

    A function given as `progress` is called instead.
    """
    if not isinstance(progress, bool):
        if not callable(progress):
            raise InputError(
                f"progress must be True, False or a function of the amount done and the total, got {progress!r}"
            )
        yield progress
    elif not progress:
        yield lambda done, total: None
    else:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (TextColumn(label), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
