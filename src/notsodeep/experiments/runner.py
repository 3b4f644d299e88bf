"""Running experiments: what is on disk is not computed again, and what is computed is on disk at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from notsodeep.errors import BadInput
from notsodeep.experiments.experiment import Experiment
from notsodeep.experiments.record import Record, key, provenance
from notsodeep.experiments.store import Store


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


@dataclass(frozen=True)
class _Pending:
    experiment: Experiment
    unit: Any
    cost: float


def run(
    experiments: Iterable[tuple[Experiment, Any]],
    store: Store,
    device: torch.device,
    show: Callable[[Progress], None] = lambda _: None,
) -> Outcome:
    """Compute what the store lacks of each (experiment, config). Data that cannot be had leave their units out, and the rest
    is computed all the same."""
    pending, found = _pending(experiments, store)
    left_out: dict[str, str] = {}
    clock, computed = _Clock(), 0
    for index, item in enumerate(pending):
        name, config = item.experiment.name, item.experiment.record_config(item.unit)
        rest = pending[index:]
        show(Progress(name, config, found + index, found + len(pending), clock.remaining(rest)))
        began = time.perf_counter()
        try:
            values = item.experiment.run(item.unit, device)
        except BadInput as error:
            if "missing" not in error.data:
                raise
            left_out.setdefault(name, str(error))
            continue
        seconds = time.perf_counter() - began
        clock.learn(item, seconds)
        store.add(Record(name, config, values, round(seconds, 3), provenance(device)))
        computed += 1
    show(Progress("", None, found + len(pending), found + len(pending), 0.0))
    return Outcome(found, computed, left_out)


def _pending(experiments: Iterable[tuple[Experiment, Any]], store: Store) -> tuple[list[_Pending], int]:
    pending, found = [], 0
    for experiment, config in experiments:
        there = {record.key for record in store.records(experiment.name)}
        for unit in experiment.units(config):
            if key(experiment.name, experiment.record_config(unit)) in there:
                found += 1
            else:
                pending.append(_Pending(experiment, unit, experiment.cost(unit)))
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
