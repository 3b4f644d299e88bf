"""Runs experiments: recorded units are not computed again, and computed ones are recorded at once."""

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
class RunProgress:
    """State of a run: the config of the unit that comes next, and the `remaining` seconds by the units done so far."""

    experiment: str
    doing: dict[str, Any] | None
    done: int
    total: int
    remaining: float


@dataclass(frozen=True)
class Outcome:
    """How many units were found and computed, and the experiments with units left out, with the reason."""

    found: int
    computed: int
    left_out: dict[str, str]


@dataclass(frozen=True, eq=False)
class _Pending:
    experiment: Experiment
    unit: Any
    cost: float

    @property
    def sent(self) -> tuple[Any, ...]:
        """What a worker needs to compute it."""
        return self.experiment.name, self.experiment.record_config(self.unit), self.experiment.run, self.unit


def run(
    experiments: Iterable[tuple[Experiment, Any]],
    store: Store,
    device: torch.device | None,
    show: Callable[[RunProgress], None] = lambda _: None,
    scheduler: Any = None,
) -> Outcome:
    """Compute the units of each (experiment, config) that the store lacks.

    Units whose data are missing are left out; all others are computed.

    Args:
        experiments: experiments with their configs.
        store: where records are read and added.
        device: the device to compute on; None for CUDA where there is one, for each worker.
        show: called with the progress before each unit, and at the end.
        scheduler: a Dask client or its address tcp://host:port, whose workers compute; units are recorded as they finish.

    Returns:
        How many units were found, computed and left out.
    """
    pending, found = _pending(experiments, store)
    ledger = _Ledger(store, show, pending, found)
    if scheduler is None:
        for item in pending:
            ledger.show()
            ledger.enter(item, partial(_compute, device, *item.sent))
    elif pending:
        with connected(scheduler) as client:
            sent = [item.sent for item in pending]
            ledger.workers = len(client.nthreads())
            ledger.show()
            with closing(finished(client, _on_worker, enumerate(sent), device)) as done:  # type: ignore[type-var]
                for (index, _), future in done:
                    ledger.enter(pending[index], partial(_received, future))
                    ledger.show()
    show(RunProgress("", None, found + len(pending), found + len(pending), 0.0))
    return Outcome(found, ledger.computed, ledger.left_out)


def _pending(experiments: Iterable[tuple[Experiment, Any]], store: Store) -> tuple[list[_Pending], int]:
    """The units that the store lacks, and how many it has."""
    pending, found = [], 0
    for experiment, config in experiments:
        there = {record.key for record in store.records(experiment.name)}
        for unit in experiment.units(config):
            if key(experiment.name, experiment.record_config(unit)) in there:
                found += 1
            else:
                pending.append(_Pending(experiment, unit, unit.cost))
    return pending, found


def _compute(device: torch.device | None, name: str, config: dict[str, Any], compute: Callable[..., Any], unit: Any) -> Record:
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    began = time.perf_counter()
    values = compute(unit, device)
    return Record(name, config, values, round(time.perf_counter() - began, 3), provenance(device))


def _on_worker(device: torch.device | None, sent: tuple[int, Any]) -> tuple[Record, list[str]]:
    """A unit's numbers, and the package's warnings, which would be lost on a worker."""
    keep_freed_memory()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NumericsWarning)
        found = _compute(device, *sent[1])
    return found, [str(w.message) for w in caught if issubclass(w.category, NumericsWarning)]


def _received(future: Any) -> Record:
    """A worker's numbers; its warnings are issued here."""
    found: Record
    found, texts = result_of(future)
    for text in texts:
        warnings.warn(text, NumericsWarning, stacklevel=4)
    return found


class _Ledger:
    """Account of a run: units done, units to do, and units left out."""

    def __init__(self, store: Store, show: Callable[[RunProgress], None], pending: list[_Pending], found: int) -> None:
        self._store, self._show, self._total = store, show, found + len(pending)
        self._rest, self._clock, self.workers, self.computed = list(pending), _Clock(), 1, 0
        self.left_out: dict[str, str] = {}

    def show(self) -> None:
        """Show the state of the run and the first unit that is not done."""
        rest = self._rest
        if rest:
            experiment = rest[0].experiment
            remaining = self._clock.remaining(rest) / min(self.workers, len(rest))
            config = experiment.record_config(rest[0].unit)
            self._show(RunProgress(experiment.name, config, self._total - len(rest), self._total, remaining))

    def enter(self, item: _Pending, compute: Callable[[], Record]) -> None:
        """Compute a unit and record it, or note that its data are missing."""
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
        self._store.add(found)
        self.computed += 1


class _Clock:
    """Seconds that units will take, a + b·cost for each experiment, learnt from the units done.

    a is the overhead of a unit. b is 1, as estimated, until units of different sizes are done. An experiment without a unit
    done is rated like the others on average.
    """

    def __init__(self) -> None:
        self._done: dict[str, list[tuple[float, float]]] = {}

    def learn(self, item: _Pending, seconds: float) -> None:
        self._done.setdefault(item.experiment.name, []).append((item.cost, seconds))

    def remaining(self, rest: list[_Pending]) -> float:
        """Seconds of all units in `rest`, one after another."""
        lines = {name: _line(done) for name, done in self._done.items()}
        cost, spent = _means([pair for done in self._done.values() for pair in done]) if self._done else (1.0, 1.0)
        fits = [(item, *lines.get(item.experiment.name, (0.0, spent / cost))) for item in rest]
        return sum(overhead + rate * item.cost for item, overhead, rate in fits)


def _line(done: list[tuple[float, float]]) -> tuple[float, float]:
    """(a, b) through the means of the cheaper and of the dearer half."""
    done = sorted(done)
    cheaper, dearer = done[: len(done) // 2], done[len(done) // 2 :]
    cost, seconds = _means(done)
    rate = 1.0
    if cheaper and done[-1][0] >= 2.0 * done[0][0]:
        (c0, s0), (c1, s1) = _means(cheaper), _means(dearer)
        rate = max(0.0, (s1 - s0) / (c1 - c0))
    return max(0.0, seconds - rate * cost), rate


def _means(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    costs, seconds = zip(*pairs, strict=True)
    return sum(costs) / len(pairs), sum(seconds) / len(pairs)
