"""Ctrl-C during imports: importing torch takes seconds, and a traceback out of it helps nobody."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from pathlib import Path
from types import FrameType


def started() -> None:
    """Make Ctrl-C a KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def stopping_at_once() -> Iterator[None]:
    """While this is open, Ctrl-C prints "stopped" and ends the program, in the program's own process alone."""
    _stop_at_once()
    yield
    started()


def _stop_at_once() -> None:
    ordinary = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if _is_the_program() and ordinary and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _stop)


def _is_the_program() -> bool:
    """Whether this process is the command line, `notsodeep` or `python -m notsodeep.cli`, and not one that imports it."""
    by_name = bool(sys.argv) and Path(sys.argv[0]).stem == "notsodeep"
    as_module = sys.argv[:1] == ["-m"] and "notsodeep.cli" in sys.orig_argv
    as_main = Path(sys.argv[0]).parts[-2:] == ("cli", "__main__.py") if sys.argv else False
    return (by_name or as_module or as_main) and parent_process() is None  # a child has its name too


def _stop(_signal: int, _frame: FrameType | None) -> None:
    # At once: an exception raised inside an import may come out as another one, and there is nothing to tidy up yet.
    os.write(2, b"stopped\n")
    os._exit(130)


_stop_at_once()
