"""One worker, as the server sees it."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from notsodeep.app.budget import Budget, Departed, Stopped
from notsodeep.app.worker import DONE, FAILED, TOO_LARGE, serve

_LOOK = 0.1  # seconds between looks at the clock, and whether somebody still waits
_GRACE = (
    1.0  # seconds after which a call that nobody waits for is ended: a shorter one is over before a new process begins
)
_GROWN = 48 * 2**20  # bytes more than at its beginning, with which a process does not stay idle
_STARTING = threading.Lock()  # multiprocessing keeps its children in one set


class Process:
    """A process that answers one call at a time, and is of no use once it was ended."""

    def __init__(self, context: Any, budget: Budget) -> None:
        self._budget = budget
        self._line, theirs = context.Pipe()
        arguments = theirs, budget.memory, _threads()
        self._process = context.Process(target=serve, args=arguments, name="explorer-worker", daemon=True)
        with _STARTING:
            self._process.start()
        theirs.close()
        self.pid: int | None = self._process.pid
        self.ended, self._first, self._now = False, 0, 0

    @property
    def grown(self) -> bool:
        """Whether it holds so much more memory than at its beginning that a new one should take its place."""
        return self._now - self._first > _GROWN

    def wait(self) -> None:
        """Until it has begun; what a computation may take does not count from before."""
        _, _, self._first = self._received()

    def ask(self, work: Callable[..., Any], arguments: tuple[Any, ...], abandoned: Callable[[], bool]) -> Any:
        """work(*arguments), or what it raises.

        Raises:
            Stopped: It went over the budget, or the process died.
            Departed: Nobody waits for it any more.
        """
        self._line.send_bytes(pickle.dumps((work, arguments)))
        began = time.monotonic()
        while not self._line.poll(_LOOK):
            took = time.monotonic() - began
            if took > self._budget.seconds:
                self.end()
                raise self._budget.too_long
            if took > _GRACE and abandoned():
                self.end()
                raise Departed
        how, found, self._now = self._received()
        if how == TOO_LARGE:
            self.end()  # what could not be made has left holes
            raise self._budget.too_large
        if how == FAILED:
            raise found
        assert how == DONE
        return found

    def end(self) -> None:
        """At once, whatever it does."""
        self.ended, self.pid = True, None
        with suppress(ValueError, OSError):  # closed already
            self._process.kill()
        with suppress(OSError):
            self._line.close()

    def _received(self) -> Any:
        try:
            return pickle.loads(self._line.recv_bytes())
        except (EOFError, OSError) as error:
            self.end()
            raise Stopped(
                "The process that computed this ended before its answer, as where the machine has no memory left. Choose less "
                "and try again."
            ) from error


def _threads() -> int:
    """Of each worker: all cores, as mostly one of them computes; what the environment says holds."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(asked)) if asked.isdigit() else max(1, os.cpu_count() or 1)
