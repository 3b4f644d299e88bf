"""Tasks on the workers of a Dask cluster (extra ``[dask]``): the connection, and results in the order in which they finish."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from notsodeep.errors import BadInput, NotSoDeepError, first_line

Item = TypeVar("Item")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_KEPT = 128 << 20
_ANSWER = 5.0  # seconds for a scheduler to answer, and then to have a worker
_PORT = 8786  # Dask's default
_GREETING = 1 << 20  # bytes, at most; a greeting has a few hundred
_AHEAD = 3  # tasks sent per thread: enough to keep the cluster busy, few enough for lists of a million tasks


@contextmanager
def connected(scheduler: Any) -> Iterator[Any]:
    """A client of `scheduler`: of a `distributed.Client`, which stays open, a Dask cluster, or an address tcp://host:port."""
    try:
        from distributed import Client
    except ImportError:
        raise BadInput("A scheduler needs Dask: pip install 'notsodeep[dask]'.") from None
    if isinstance(scheduler, Client):
        _check_workers(scheduler)
        yield scheduler
        return
    if not isinstance(scheduler, str) and not hasattr(scheduler, "scheduler_address"):
        raise BadInput(
            f"scheduler is a {type(scheduler).__name__}; expected an address (tcp://host:port), a Client or a cluster of Dask."
        )
    _check_alive(getattr(scheduler, "scheduler_address", scheduler))
    try:
        client = Client(scheduler, timeout=_ANSWER, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise _no_scheduler(scheduler, error) from error
    with client:
        _check_workers(client)
        yield client


def _check_alive(address: str) -> None:
    """Raises BadInput if nothing, or something other than a Dask scheduler, listens at tcp://host:port; Dask's client would
    retry or wait forever. A scheduler greets each connection, with the length of its greeting first."""
    from distributed import Security
    from distributed.comm.addressing import parse_address, parse_host_port
    from distributed.comm.registry import get_backend

    try:
        scheme, place = parse_address(address)
        backend = get_backend(scheme)  # a client of what is unknown, not installed or misspelt would take 10 s to be gone
        backend.get_connector()
        backend.get_address_host(place)
        host, port = parse_host_port(place, _PORT)
    except (ValueError, TypeError, ImportError) as error:
        raise _no_scheduler(address, error) from error
    if scheme in ("tls", "wss") and Security().get_connection_args("client").get("ssl_context") is None:
        raise _no_scheduler(address, "Dask's configuration has no certificate for it")
    if scheme != "tcp":
        return
    try:
        with socket.create_connection((host, port), timeout=_ANSWER) as line:
            said = line.recv(8, socket.MSG_WAITALL)
    except TimeoutError as error:
        raise _no_scheduler(address, "what is there does not answer as one") from error
    except (OSError, ValueError, OverflowError) as error:
        raise _no_scheduler(address, error) from error
    if len(said) < 8 or int.from_bytes(said, "little") > _GREETING:
        raise _no_scheduler(address, "what is there answers otherwise")


def _no_scheduler(address: Any, why: BaseException | str) -> BadInput:
    reason = why if isinstance(why, str) else getattr(why, "strerror", None) or first_line(why)
    return BadInput(
        f"There is no Dask scheduler at {address!r} ({reason}). `dask scheduler` starts one, and prints its tcp://host:port."
    )


def _check_workers(client: Any) -> None:
    if client.asynchronous:
        raise BadInput("The Client is asynchronous, and this call is not; give one made with asynchronous=False.")
    try:
        client.wait_for_workers(1, timeout=_ANSWER)
    except (TimeoutError, OSError, ValueError) as error:
        address = _address(client)
        raise BadInput(
            f"The Dask scheduler at {address} has no workers ({first_line(error)}). `dask worker {address}` starts one."
        ) from error


def finished(client: Any, function: Callable[..., Any], tasks: Iterable[Item], *shared: Any) -> Iterator[tuple[Item, Any]]:
    """(task, future) of each function(*shared, task), as they finish; `result_of(future)` is the result.

    A task whose worker dies is given to another one. When the iterator is closed, waiting tasks are cancelled.
    """
    from distributed import as_completed
    from distributed.comm.core import CommClosedError

    todo, waiting, done = iter(tasks), {}, as_completed(loop=client.loop)

    def send() -> None:
        threads = sum(client.nthreads().values())
        for task in todo:
            future = client.submit(function, *shared, task, pure=False)
            waiting[future.key] = (task, future)
            done.add(future)
            if len(waiting) >= _AHEAD * max(threads, 1):
                return

    try:
        send()
        for future in done:
            task, _ = waiting.pop(future.key)
            yield task, future
            send()
    except CommClosedError as error:
        raise _gone(client) from error
    finally:
        with suppress(OSError, TimeoutError):
            client.cancel([future for _, future in waiting.values()], force=True)


def result_of(future: Any) -> Any:
    """The result of a task; an error of the task is raised here."""
    from concurrent.futures import CancelledError

    from distributed import KilledWorker
    from distributed.comm.core import CommClosedError

    try:
        return future.result()
    except KilledWorker as error:
        raise NotSoDeepError(
            f"A task ended its worker again and again ({first_line(error)}): most often it takes more memory than a worker "
            "has. What was finished is kept."
        ) from error
    except (CancelledError, CommClosedError) as error:
        raise _gone(future.client) from error


def _gone(client: Any) -> NotSoDeepError:
    return NotSoDeepError(
        f"The Dask scheduler at {_address(client)} stopped, or lost the work. The same call goes on from what was finished."
    )


def on_every_worker(client: Any, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """The result of function(*arguments) on each worker, by address; workers where it fails are left out."""
    found: dict[str, Any] = client.run(function, *arguments, on_error="ignore")
    return found


def keep_freed_memory() -> None:
    """Make this worker reuse the memory of temporaries, as any other process does.

    Dask starts workers with MALLOC_TRIM_THRESHOLD_ = 64 KiB, which returns freed memory to the system at once; each temporary
    then gets new pages, and a kernel takes three times as long.
    """
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ or sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):  # of a C library other than GNU's
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _KEPT // 4)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)


def _address(client: Any) -> str:
    return str(client.scheduler.address) if client.scheduler is not None else "an unknown address"
