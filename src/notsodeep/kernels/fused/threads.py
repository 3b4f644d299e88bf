"""Work shared by threads, each of which computes alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def shared(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """work(item) of every item, in order, on as many threads as torch has, with torch's own parallelism off in each of them.

    A product that is spread over cores and then waited for leaves threads that spin, and values in the wrong cache.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(items) < 2:
        return [work(item) for item in items]
    try:
        return list(_pool(os.getpid(), threads).map(work, items))
    finally:
        # A new thread begins with the number that was set last, by whichever thread.
        torch.set_num_threads(threads)


@lru_cache(maxsize=2)
def _pool(_process: int, threads: int) -> ThreadPoolExecutor:
    """Threads that wait for the next call: starting them takes as long as a thousand samples. A fork has none of them."""
    return ThreadPoolExecutor(threads, "notsodeep", torch.set_num_threads, (1,))
