"""A process that computes for the explorer, one call after another, within a budget."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from notsodeep.errors import NumericsWarning

READY, DONE, FAILED, TOO_LARGE = "ready", "done", "failed", "too large"
# How torch and Python word a lack of memory.
_NO_MEMORY = ("can't allocate memory", "not enough memory", "can't start new thread")
_LOOK = 0.1  # seconds between checks of the time and of who still waits
_GRACE = 1.0  # seconds before an abandoned call is ended: a shorter one finishes before a new process could start
_GROWN = 48 * 2**20  # bytes of growth above which an idle process is replaced
_STARTING = threading.Lock()  # multiprocessing keeps its children in one global set


@dataclass(frozen=True)
class Budget:
    """Seconds that one computation may take, and bytes that it may add to the memory of its process."""

    seconds: float = 30.0
    memory: int = 2 * 2**30

    @property
    def too_long(self) -> OverBudget:
        """The error for a computation that takes too long."""
        most = f"{self.seconds:g} s"
        return OverBudget(f"This took longer than the {most} that one computation may take here, and was stopped.", "--seconds")

    @property
    def too_large(self) -> OverBudget:
        """The error for a computation that needs too much memory."""
        most = f"{self.memory / 2**20:.0f} MiB"
        return OverBudget(f"This needs more than the {most} that one computation may take here, and was stopped.", "--memory")


class Stopped(Exception):
    """A computation that was stopped from outside; the sentence says why."""


class OverBudget(Stopped):
    """Stopped because it took too much; `option` of `notsodeep explore` allows more."""

    def __init__(self, sentence: str, option: str) -> None:
        super().__init__(sentence, option)
        self.sentence, self.option = sentence, option

    def __str__(self) -> str:
        return self.sentence


class Departed(Exception):
    """Nobody waits for this answer any more."""


def serve(line: Connection, memory: int, threads: int) -> None:
    """Answer every (work, arguments) of the line with (outcome, result or error, bytes in use).

    Pickled here, not by the line: torch would share the memory of its tensors with the other end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then ends this process
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    warnings.simplefilter("ignore", NumericsWarning)  # the page shows a note at the field
    torch.set_num_threads(threads)
    if hasattr(os, "nice"):
        os.nice(5)  # the server comes first
    if "fork" in multiprocessing.get_all_start_methods():  # locks that libraries make then leave nothing behind
        multiprocessing.set_start_method("fork", force=True)
    _limit(memory)
    line.send_bytes(pickle.dumps((READY, None, in_use())))
    while True:
        try:
            work, arguments = pickle.loads(line.recv_bytes())
        except EOFError:
            return
        line.send_bytes(_outcome(work, arguments))


def _outcome(work: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps((DONE, work(*arguments), in_use()))
    except Exception as error:
        worded = isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)
        if worded or isinstance(error, MemoryError):
            return pickle.dumps((TOO_LARGE, None, in_use()))
        error.add_note("".join(traceback.format_exception(error)))  # a pickle leaves the traceback behind
        try:
            sent = pickle.dumps((FAILED, error, in_use()))
            pickle.loads(sent)
            return sent
        except Exception:  # some errors cannot be pickled, or not rebuilt from their message
            return pickle.dumps((FAILED, RuntimeError(f"{type(error).__name__}: {error}"), in_use()))


def _end_with_the_server() -> None:
    server = multiprocessing.parent_process()
    if server is not None:
        server.join()
        os._exit(1)


def in_use() -> int:
    """Bytes of memory of this process that are not mapped files; 0 where the system does not say."""
    try:
        _, resident, of_files, *_ = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(of_files)) * os.sysconf("SC_PAGE_SIZE")


def _limit(memory: int) -> None:
    """Limit this process to `memory` bytes more than it has now; only Linux has such a limit."""
    try:
        import resource

        status = Path("/proc/self/status").read_text().splitlines()
        now = next(int(row.split()[1]) for row in status if row.startswith("VmData:")) * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (now + memory, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    except (ImportError, OSError, ValueError, StopIteration):
        return


class Process:
    """A process that answers one call at a time, until it is ended."""

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
        """Whether it holds so much more memory than at its start that it should be replaced."""
        return self._now - self._first > _GROWN

    def wait(self) -> None:
        """Wait until it has started; budgets count from after that."""
        _, _, self._first = self._received()

    def ask(self, work: Callable[..., Any], arguments: tuple[Any, ...], abandoned: Callable[[], bool]) -> Any:
        """work(*arguments), computed by the process.

        Raises:
            Stopped: It went over the budget, or the process died.
            Departed: Nobody waits for it any more.
            Exception: What `work` raised.
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
            self.end()  # failed allocations leave holes
            raise self._budget.too_large
        if how == FAILED:
            raise found
        assert how == DONE
        return found

    def end(self) -> None:
        """Kill the process, whatever it does."""
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
                "The process that computed this ended before its answer, as where no memory is left. Choose less and try again."
            ) from error


def _threads() -> int:
    """Threads per worker: OMP_NUM_THREADS, or all cores, as mostly one worker computes."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(asked)) if asked.isdigit() else max(1, os.cpu_count() or 1)
