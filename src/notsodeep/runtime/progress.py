"""Progress bars on the error stream, removed when the work is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn


def bar(*columns: str | ProgressColumn, shown: bool = True) -> Progress:
    """A bar of these columns, by default rich's own; hidden in pipes and logs, and unless `shown`."""
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))


@contextmanager
def phases(shown: bool = True) -> Iterator[Callable[[str], None]]:
    """A line with the time for work of unknown length, and a function that names the part under way."""
    with bar(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), shown=shown) as line:
        task = line.add_task("", total=None)
        yield lambda name: line.update(task, description=name)
