"""How long calls take, side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch


def seconds(calls: Sequence[Callable[[], object]], device: torch.device, runs: int) -> list[list[float]]:
    """The times of several runs of each call, in turn: a busy machine then slows all of them."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(runs):
        for call, spent in zip(calls, times, strict=True):
            wait(device)
            started = time.perf_counter()
            call()
            wait(device)
            spent.append(time.perf_counter() - started)
    return times
