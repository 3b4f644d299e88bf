"""Work shared by threads, each of which computes alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from threading import Barrier
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def shared(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """work(item) of every item, in order, on as many threads as torch has, with torch's own parallelism off in each of them.

    A product that is spread over cores and then waited for leaves threads that spin, and values in the wrong cache.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(items) < 2:  # so does every thread of the pool: what it shares it does itself
        return [work(item) for item in items]
    return list(_pool(os.getpid(), threads).map(work, items))


def later(work: Callable[[], Result]) -> Future[Result]:
    """work(), begun on one of those threads in the order of the calls: so it may wait for what was asked for before it.

    Worth it for what computes for long outside the interpreter, while the caller goes on inside it.
    """
    threads = torch.get_num_threads()
    if threads > 1:
        return _pool(os.getpid(), threads).submit(work)
    done: Future[Result] = Future()
    try:
        done.set_result(work())
    except Exception as error:
        done.set_exception(error)
    return done


@lru_cache(maxsize=2)
def _pool(_process: int, threads: int) -> ThreadPoolExecutor:
    """Threads that wait for the next call: starting them takes as long as a thousand samples. A fork has none of them."""
    pool, all_here = ThreadPoolExecutor(threads, "notsodeep"), Barrier(threads)

    def alone(_: int) -> None:
        torch.get_num_threads()  # a thread's first question gives it the number that was set last; its own comes after
        torch.set_num_threads(1)
        all_here.wait()

    list(pool.map(alone, range(threads)))
    torch.set_num_threads(threads)  # for threads that are yet to come, which would else begin with 1
    return pool
