"""A process that computes for the explorer: one call after another, until it is ended."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
import warnings
from collections.abc import Callable
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
