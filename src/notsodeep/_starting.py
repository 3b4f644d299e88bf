"""Ctrl-C while the program starts: to import torch takes seconds, and a traceback out of it tells nobody anything."""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing import parent_process
from pathlib import Path
from types import FrameType


def _is_the_program() -> bool:
    """Whether this process is the command line, `notsodeep` or `python -m notsodeep.cli`, and not somebody's own."""
    by_name = bool(sys.argv) and Path(sys.argv[0]).stem == "notsodeep"
    as_module = sys.argv[:1] == ["-m"] and "notsodeep.cli" in sys.orig_argv
    return (by_name or as_module) and parent_process() is None  # a child of it has its name too


def _stop(_signal: int, _frame: FrameType | None) -> None:
    # At once: an exception raised inside of an import may come out as another one, and there is nothing to tidy up yet.
    os.write(2, b"stopped\n")
    os._exit(130)


def stop_without_a_word() -> None:
    """In the program's own process, Ctrl-C says that it was stopped and ends it, until `started` is called."""
    ordinary = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if _is_the_program() and ordinary and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _stop)


def started() -> None:
    """Ctrl-C is a KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


stop_without_a_word()
