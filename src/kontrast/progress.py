"""One progress bar on stderr for long work in the library: silent where nobody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, int], None]
"""Called with how much is done and how much there is."""


@contextmanager
def progress_bar(label: str, progress: bool | Advance) -> Iterator[Advance]:
    """What to call as work advances: nothing for False, a bar with the time left for True, or the caller's own."""
    if not isinstance(progress, bool):
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
