"""The most memory that a call has at once, by what torch's own allocator gave and took back."""

from __future__ import annotations

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def peak_memory(call: Callable[[], object]) -> float:
    """MiB above what was allocated before `call`, at its highest.

    The profiler records every allocation and release of the CPU allocator, temporaries inside of operations included; their
    running sum has a maximum. Unlike the process's size it does not depend on what was run before, nor on what the system's
    allocator keeps for later.
    """
    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        highest = max(highest, now)
    return highest / 2**20
