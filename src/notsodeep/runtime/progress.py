"""Progress bars: on the error stream, where a person looks, and gone when the work is done."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress, ProgressColumn


def bar(*columns: str | ProgressColumn, shown: bool = True) -> Progress:
    """A bar of these columns (rich's own without any); none in a pipe, a log or where it is not wanted."""
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))
