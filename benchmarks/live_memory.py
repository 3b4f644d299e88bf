"""The most memory that a call has at once, by what torch's own allocator gave and took back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.profiler import ProfilerActivity, profile


def peak_memory(call: Callable[[], object]) -> float:
    """MiB above what was allocated before `call`, at its highest.

    The profiler records every allocation and release of the CPU allocator, temporaries inside of operations included; their
    running sum has a maximum. Unlike the process's size it does not depend on what was run before, nor on what the system's
    allocator keeps for later.
    """
    call()
    with _silent_errors(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        highest = max(highest, now)
    return highest / 2**20


@contextmanager
def _silent_errors() -> Iterator[None]:
    """Without the lines that the profiler writes of each beginning and end, past Python, whatever its log level."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
