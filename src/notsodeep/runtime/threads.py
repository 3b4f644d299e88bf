"""Work shared among threads, with torch's own parallelism off in each of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from threading import Barrier, Lock
from typing import TypeVar

import torch
from threadpoolctl import threadpool_limits

from notsodeep.errors import CALLER, caller

Item = TypeVar("Item")
Result = TypeVar("Result")


def shared(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """work(item) of every item, in order, on as many threads as torch has.

    Torch's own parallelism would leave threads that spin while they wait, and values in the wrong cache.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(items) < 2:  # threads of the pool have threads == 1, and work alone
        return [work(item) for item in items]
    return list(_pool(os.getpid(), threads).map(_warning_here(work), items))


def later(work: Callable[[], Result]) -> Future[Result]:
    """work(), started on one of those threads in the order of the calls, so it may wait for earlier ones.

    Worth it for long computations outside the interpreter.
    """
    threads = torch.get_num_threads()
    if threads > 1:
        return _pool(os.getpid(), threads).submit(_warning_here(lambda _: work()), None)
    done: Future[Result] = Future()
    try:
        done.set_result(work())
    except Exception as error:
        done.set_exception(error)
    return done


@contextmanager
def small_matrices() -> Iterator[None]:
    """While it lasts, numpy and scipy work on one thread a caller: on matrices of few columns others would only spin and wait,
    on the cores that threads of the pool need. It holds for the process, until the last of those who asked for it has left."""
    with _lock:
        if not _limits:
            _limits.append(threadpool_limits(1, user_api="blas"))
        _asking.append(None)
    try:
        yield
    finally:
        with _lock:
            _asking.pop()
            if not _asking:
                _limits.pop().restore_original_limits()


_lock, _asking, _limits = Lock(), list[None](), list[threadpool_limits]()


def _warning_here(work: Callable[[Item], Result]) -> Callable[[Item], Result]:
    """The work, its warnings at the line that called this package, as if that line's own thread did it."""
    here = caller()

    def placed(item: Item) -> Result:
        outer = CALLER.set(here)
        try:
            return work(item)
        finally:
            CALLER.reset(outer)

    return placed


@lru_cache(maxsize=2)
def _pool(_process: int, threads: int) -> ThreadPoolExecutor:
    """Threads that are kept for the next call, as starting them takes as long as a thousand samples; a fork starts its own."""
    pool, all_here = ThreadPoolExecutor(threads, "notsodeep"), Barrier(threads)

    def alone(_: int) -> None:
        torch.get_num_threads()  # the first call in a thread takes the number set last, and would undo what follows
        torch.set_num_threads(1)
        all_here.wait()

    list(pool.map(alone, range(threads)))
    torch.set_num_threads(threads)  # for other threads, which would start with 1
    return pool
