"""Timings that a busy machine does not turn into nonsense: the calls take turns, and each keeps its best."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def best_times(calls: dict[str, Callable[[], object]], rounds: int = 15) -> dict[str, float]:
    """Milliseconds of each call: the best of `rounds`, all of them in turn in one run."""
    best = dict.fromkeys(calls, float("inf"))
    for turn in range(rounds + 1):
        for name, call in calls.items():
            _wait()
            started = time.perf_counter()
            call()
            _wait()
            if turn:  # the first round warms up
                best[name] = min(best[name], 1e3 * (time.perf_counter() - started))
    return best


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
