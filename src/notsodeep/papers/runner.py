"""Running experiments: what is on disk is not computed again, and what is computed is on disk at once."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from notsodeep.errors import BadInput, NumericsWarning
from notsodeep.papers.experiment import Experiment
from notsodeep.papers.records import Record, Store, key, provenance
from notsodeep.runtime.dask import connected, finished, keep_freed_memory, result_of


@dataclass(frozen=True)
class Progress:
    """Where a run stands; `remaining` in seconds, by the units done so far."""

    experiment: str
    doing: dict[str, Any] | None
    done: int
    total: int
    remaining: float


@dataclass(frozen=True)
class Outcome:
    """How many units were there already, how many were computed, and which experiments had to leave some out, with why."""

    found: int
    computed: int
    left_out: dict[str, str]


@dataclass(frozen=True, eq=False)
class _Pending:
    experiment: Experiment
    unit: Any
    cost: float


def run(
    experiments: Iterable[tuple[Experiment, Any]],
    store: Store,
    device: torch.device | None,
    show: Callable[[Progress], None] = lambda _: None,
    scheduler: Any = None,
) -> Outcome:
    """Compute what the store lacks of each (experiment, config). Data that cannot be had leave their units out, and the rest
    is computed all the same.

    With `scheduler`, a Dask client or its address tcp://host:port, units are computed by its workers, and recorded here as they
    finish. `device` None is CUDA where there is one, for each worker.
    """
    pending, found = _pending(experiments, store)
    ledger = _Ledger(store, show, pending, found)
    if scheduler is None:
        for item in pending:
            ledger.tell()
            ledger.enter(item, partial(_computed, item.experiment.run, item.unit, device))
    elif pending:
        with connected(scheduler) as client:
            sent = [(item.experiment.run, item.unit) for item in pending]
            ledger.workers = len(client.nthreads())
            ledger.tell()
            with closing(finished(client, _on_worker, enumerate(sent), device)) as done:  # type: ignore[type-var]
                for (index, _), future in done:
                    ledger.enter(pending[index], partial(_told, future))
                    ledger.tell()
    show(Progress("", None, found + len(pending), found + len(pending), 0.0))
    return Outcome(found, ledger.computed, ledger.left_out)


@dataclass(frozen=True)
class _Computed:
    values: dict[str, Any]
    seconds: float
    provenance: dict[str, Any]


def _computed(
    compute: Callable[[Any, torch.device], dict[str, Any]], unit: Any, device: torch.device | None
) -> _Computed:
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    began = time.perf_counter()
    values = compute(unit, device)
    return _Computed(values, time.perf_counter() - began, provenance(device))


def _on_worker(device: torch.device | None, sent: tuple[int, Any]) -> tuple[_Computed, list[str]]:
    """With the package's warnings, which would be lost on a worker."""
    keep_freed_memory()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NumericsWarning)
        compute, unit = sent[1]
        found = _computed(compute, unit, device)
    return found, [str(w.message) for w in caught if issubclass(w.category, NumericsWarning)]


def _told(future: Any) -> _Computed:
    found: _Computed
    found, texts = result_of(future)
    for text in texts:
        warnings.warn(text, NumericsWarning, stacklevel=4)
    return found


class _Ledger:
    """What is done, what is left, and what has to be left out."""

    def __init__(self, store: Store, show: Callable[[Progress], None], pending: list[_Pending], found: int) -> None:
        self._store, self._show, self._found, self._total = store, show, found, found + len(pending)
        self._rest, self._clock, self.workers, self.computed = list(pending), _Clock(), 1, 0
        self.left_out: dict[str, str] = {}

    def tell(self) -> None:
        """Where the run stands, and the first unit that is not done."""
        rest = self._rest
        if rest:
            item = rest[0]
            remaining = self._clock.remaining(rest) / min(self.workers, len(rest))
            config = item.experiment.record_config(item.unit)
            self._show(Progress(item.experiment.name, config, self._total - len(rest), self._total, remaining))

    def enter(self, item: _Pending, compute: Callable[[], _Computed]) -> None:
        name = item.experiment.name
        self._rest.remove(item)
        try:
            found = compute()
        except BadInput as error:
            if "missing" not in error.data:
                raise
            self.left_out.setdefault(name, str(error))
            return
        self._clock.learn(item, found.seconds)
        config = item.experiment.record_config(item.unit)
        self._store.add(Record(name, config, found.values, round(found.seconds, 3), found.provenance))
        self.computed += 1


def _pending(experiments: Iterable[tuple[Experiment, Any]], store: Store) -> tuple[list[_Pending], int]:
    pending, found = [], 0
    for experiment, config in experiments:
        there = {record.key for record in store.records(experiment.name)}
        for unit in experiment.units(config):
            if key(experiment.name, experiment.record_config(unit)) in there:
                found += 1
            else:
                pending.append(_Pending(experiment, unit, unit.cost))
    return pending, found


class _Clock:
    """Seconds a unit will take, by the units done: a + b·cost for each experiment, as a unit has its own overhead beside what
    grows with its size. b is 1, as estimated, until units of different sizes are done; an experiment that has none done yet
    goes by what the others took for their costs."""

    def __init__(self) -> None:
        self._done: dict[str, list[tuple[float, float]]] = {}

    def learn(self, item: _Pending, seconds: float) -> None:
        self._done.setdefault(item.experiment.name, []).append((item.cost, seconds))

    def remaining(self, rest: list[_Pending]) -> float:
        lines = {name: _line(done) for name, done in self._done.items()}
        cost, spent = _sums([pair for done in self._done.values() for pair in done]) if self._done else (1.0, 1.0)
        usual = (0.0, spent / cost)
        total = 0.0
        for item in rest:
            overhead, rate = lines.get(item.experiment.name, usual)
            total += overhead + rate * item.cost
        return total


def _line(done: list[tuple[float, float]]) -> tuple[float, float]:
    """(a, b) through the means of the cheaper and of the dearer half."""
    done = sorted(done)
    halves = [done[: len(done) // 2], done[len(done) // 2 :]]
    cost, seconds = (total / len(done) for total in _sums(done))
    rate = 1.0
    if halves[0] and done[-1][0] >= 2.0 * done[0][0]:
        (c0, s0), (c1, s1) = ([total / len(half) for total in _sums(half)] for half in halves)
        rate = max(0.0, (s1 - s0) / (c1 - c0))
    return max(0.0, seconds - rate * cost), rate


def _sums(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    return sum(cost for cost, _ in pairs), sum(seconds for _, seconds in pairs)
