"""Progress bars on the error stream, removed when the work is done."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress, ProgressColumn


def bar(*columns: str | ProgressColumn, shown: bool = True) -> Progress:
    """A bar of these columns, by default rich's own; hidden in pipes and logs, and unless `shown`."""
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))
