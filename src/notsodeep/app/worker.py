"""A process that computes for the explorer: one call after another, until it is ended."""

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
_NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "can't start new thread",
)  # torch's and Python's words for it
_LOOK = 0.1  # seconds between looks at the clock, and whether somebody still waits
_GRACE = (
    1.0  # seconds after which a call that nobody waits for is ended: a shorter one is over before a new process begins
)
_GROWN = 48 * 2**20  # bytes more than at its beginning, with which a process does not stay idle
_STARTING = threading.Lock()  # multiprocessing keeps its children in one set


@dataclass(frozen=True)
class Budget:
    """Seconds of one computation, from when it begins, and the bytes that it may add to the memory of its process."""

    seconds: float = 30.0
    memory: int = 2 * 2**30

    @property
    def too_long(self) -> OverBudget:
        return OverBudget(
            f"This took longer than the {self.seconds:g} s that one computation may take here, and was stopped.",
            "--seconds",
        )

    @property
    def too_large(self) -> OverBudget:
        megabytes = f"{self.memory / 2**20:.0f} MiB"
        return OverBudget(
            f"This needs more than the {megabytes} that one computation may take here, and was stopped.", "--memory"
        )


class Stopped(Exception):
    """A computation that has no answer though nothing is wrong with its numbers: the sentence says what happened to it."""


class OverBudget(Stopped):
    """Stopped as it took too much; `option` of `notsodeep explore` allows more."""

    def __init__(self, sentence: str, option: str) -> None:
        super().__init__(sentence, option)
        self.sentence, self.option = sentence, option

    def __str__(self) -> str:
        return self.sentence


class Departed(Exception):
    """Nobody waits for this answer any more."""


def serve(line: Connection, memory: int, threads: int) -> None:
    """Answer every (work, arguments) of the line with (how it went, result or error, bytes in use). Pickled here, not by the
    line: torch would share its tensors' memory with whoever is at the other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's, which then ends this process
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    warnings.simplefilter("ignore", NumericsWarning)  # the page says it beside the field
    torch.set_num_threads(threads)
    if hasattr(os, "nice"):
        os.nice(5)  # whoever asks for the page comes first
    if (
        "fork" in multiprocessing.get_all_start_methods()
    ):  # so that locks which libraries make leave nothing behind when it ends
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
        if isinstance(error, MemoryError) or (
            isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)
        ):
            return pickle.dumps((TOO_LARGE, None, in_use()))
        error.add_note("".join(traceback.format_exception(error)))  # which a pickle leaves behind
        try:
            sent = pickle.dumps((FAILED, error, in_use()))
            pickle.loads(sent)
            return sent
        except Exception:  # an error may hold what cannot be sent, or want more than its message to be made again
            return pickle.dumps((FAILED, RuntimeError(f"{type(error).__name__}: {error}"), in_use()))


def _end_with_the_server() -> None:
    server = multiprocessing.parent_process()
    if server is not None:
        server.join()
        os._exit(1)


def in_use() -> int:
    """Bytes of memory that belong to this process and no file; 0 where the system does not tell."""
    try:
        _, resident, of_files, *_ = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(of_files)) * os.sysconf("SC_PAGE_SIZE")


def _limit(memory: int) -> None:
    """Let what is asked for beyond what there is and `memory` more be refused; on Linux alone, others have no such limit."""
    try:
        import resource

        told = Path("/proc/self/status").read_text()
        now = next(int(row.split()[1]) for row in told.splitlines() if row.startswith("VmData:")) * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (now + memory, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    except (ImportError, OSError, ValueError, StopIteration):
        return


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
