"""A pool of worker processes that compute within a budget, for as long as somebody waits."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import queue
import sys
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from notsodeep.app.worker import Budget, Departed, Process, Stopped

Result = TypeVar("Result")
NOW, SOON, LATER, IDLE = range(4)
"""Urgency of a call: an answer, a file, a secondary figure, work that nobody waits for."""
_LOOK = 0.25  # seconds between checks whether a visitor is still there
_REST = 10.0  # seconds after which an idle process that has grown is replaced
_OVER = "The explorer was stopped."
_FORKED = "notsodeep.app.warmed"


@dataclass(eq=False)
class Job:
    """A call, shared by all who asked for the same key."""

    key: Hashable
    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    urgency: int
    alike: Hashable
    number: int
    waiting: int = 0
    outcome: Future[Any] = field(default_factory=Future)


class Pool:
    """Processes that each compute one call at a time.

    A call over its budget, or that nobody waits for, is ended with its process. That is replaced, as is an idle one that grew.

    Args:
        budget: Budget of each call.
        workers: Number of processes; by default that of the cores, but at least 4, as some calls are long, and at most 8.
        most_waiting: How many may wait for calls; more get `Stopped` at once.
        preload: Module imported by the process that workers are forked from.
    """

    def __init__(
        self,
        budget: Budget = Budget(),  # noqa: B008 (a frozen value)
        workers: int | None = None,
        most_waiting: int = 96,
        preload: str = _FORKED,
    ) -> None:
        self.budget = budget
        self._most_waiting, self._waiting, self.closed = most_waiting, 0, False
        self._lock, self._numbers = threading.Lock(), itertools.count()
        self._queue: list[Job] = []
        self._asked: dict[Hashable, Job] = {}
        count = min(max(4, os.cpu_count() or 1), 8) if workers is None else workers
        # Threads that spin while they wait take cores from other workers: with two computing, that tripled the time.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        # Forked, where that is safe, from a process that has imported everything.
        context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        if sys.platform == "linux":
            context.set_forkserver_preload(["__main__", preload])
        self._places = [_Place(self, context) for _ in range(count)]
        self._idle = list(self._places)
        for place in self._places:
            place.start()

    def run(
        self,
        key: Hashable,
        work: Callable[..., Result],
        *arguments: Any,
        urgency: int = NOW,
        alike: Hashable = None,
        departed: Callable[[], bool] = lambda: False,
    ) -> Result:
        """work(*arguments), computed once for all who ask for `key`, preferably where the last call was `alike`.

        Raises:
            Stopped: It went over the budget, its process died, or too many wait already.
            Departed: `departed` says that this visitor has left; the call is ended when the last one has.
            Exception: What `work` raises.
        """
        with self._lock:
            if self._waiting >= self._most_waiting:
                raise Stopped(f"{self._waiting} computations are asked for already; try again in a moment.")
            job = self._asked.get(key) or self._ask(key, work, arguments, urgency, alike)
            self._waiting, job.waiting = self._waiting + 1, job.waiting + 1
        try:
            while not job.outcome.done():
                if departed():
                    raise Departed
                wait((job.outcome,), _LOOK)
            result: Result = job.outcome.result()
            return result
        finally:
            with self._lock:
                self._waiting, job.waiting = self._waiting - 1, job.waiting - 1
                if not job.waiting and job in self._queue:
                    self._queue.remove(job)
                    del self._asked[key]

    def when_idle(self, key: Hashable, work: Callable[..., Result], *arguments: Any, alike: Hashable) -> Future[Result]:
        """work(*arguments), when nothing else is to be done; it can be cancelled until it begins."""
        with self._lock:
            job = self._ask(key, work, arguments, IDLE, alike)
            job.waiting += 1
            return job.outcome

    def close(self) -> None:
        """End all processes at once; whoever waits gets `Stopped`. Takes no lock: a signal may come while it is held."""
        self.closed = True
        for place in self._places:
            place.end()
        for job in list(self._asked.values()):
            _settle(job, Stopped(_OVER))

    def pids(self) -> list[int]:
        """Ids of the living processes."""
        return [pid for place in self._places if (pid := place.pid) is not None]

    def _ask(self, key: Hashable, work: Callable[..., Any], arguments: tuple[Any, ...], urgency: int, alike: Hashable) -> Job:
        job = Job(key, work, arguments, urgency, alike, next(self._numbers))
        if self.closed:
            raise Stopped(_OVER)
        self._queue.append(job)
        self._asked[key] = job
        self._assign()
        return job

    def _assign(self) -> None:
        """Give calls to idle places: the one with the last call alike, else the one that worked last."""
        while self._queue and self._idle:
            job = self._pick()
            self._queue.remove(job)
            place = next((p for p in reversed(self._idle) if p.alike == job.alike), self._idle[-1])
            self._idle.remove(place)
            place.alike = job.alike
            place.jobs.put(job)

    def _pick(self) -> Job:
        """The most urgent call, of equals the first."""
        return min(self._queue, key=lambda job: (job.urgency, job.number))

    def done(self, place: _Place, job: Job) -> None:
        """Forget a finished call, and give its place the next one."""
        with self._lock:
            self._forget(job)
            self._idle.append(place)
            self._assign()

    def abandoned(self, job: Job) -> bool:
        """Whether nobody waits for a call; if so, nobody can join it from now on."""
        with self._lock:
            if not job.waiting:
                self._forget(job)
            return not job.waiting

    def _forget(self, job: Job) -> None:
        if self._asked.get(job.key) is job:
            del self._asked[job.key]


class _Place(threading.Thread):
    """The thread that gives calls to one process, and replaces it."""

    def __init__(self, pool: Pool, context: Any) -> None:
        super().__init__(name="explorer-place", daemon=True)
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.alike: Hashable = None
        self._pool, self._context = pool, context
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def end(self) -> None:
        if self._process is not None:
            self._process.end()

    def run(self) -> None:
        with suppress(Stopped, OSError):  # the first call will report it
            self._begun()
        while not self._pool.closed:
            job = self._next()
            if job is None:  # idle for a while, and grown
                self.end()
            elif not job.outcome.done() and job.outcome.set_running_or_notify_cancel():
                self._do(job)
            with suppress(Stopped, OSError):  # the next call then finds a process that has started
                self._begun()
            if job is not None:
                self._pool.done(self, job)
        self.end()

    def _do(self, job: Job) -> None:
        try:
            _settle(job, self._begun().ask(job.work, job.arguments, lambda: self._pool.abandoned(job)))
        except BaseException as error:
            _settle(job, error)

    def _begun(self) -> Process:
        """The process, or a new one if it has ended."""
        if self._process is None or self._process.ended:
            if self._pool.closed:
                raise Stopped(_OVER)
            self._process = Process(self._context, self._pool.budget)
            self._process.wait()
            if self._pool.closed:
                self.end()
        return self._process

    def _next(self) -> Job | None:
        try:
            return self.jobs.get(timeout=_REST if self._process is not None and self._process.grown else None)
        except queue.Empty:
            return None


def _settle(job: Job, outcome: Any) -> None:
    with suppress(InvalidStateError):  # the pool was closed meanwhile
        if isinstance(outcome, BaseException):
            job.outcome.set_exception(outcome)
        else:
            job.outcome.set_result(outcome)
