"""Running experiments: what is on disk is not computed again, and what is computed is on disk at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from notsodeep.errors import BadInput
from notsodeep.experiments.experiment import Experiment, settings
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
        name, config = item.experiment.name, settings(item.unit)
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
            if key(experiment.name, settings(unit)) in there:
                found += 1
            else:
                pending.append(_Pending(experiment, unit, experiment.cost(unit)))
    return pending, found


class _Clock:
    """Seconds a unit of estimated cost really takes: learnt for each experiment, and for all where one has none done yet."""

    def __init__(self) -> None:
        self._spent: dict[str, tuple[float, float]] = {}

    def learn(self, item: _Pending, seconds: float) -> None:
        cost, spent = self._spent.get(item.experiment.name, (0.0, 0.0))
        self._spent[item.experiment.name] = (cost + item.cost, spent + seconds)

    def remaining(self, rest: list[_Pending]) -> float:
        cost, spent = (sum(column) for column in zip(*self._spent.values(), strict=True)) if self._spent else (1.0, 1.0)
        rates = {name: s / c for name, (c, s) in self._spent.items()}
        return sum(item.cost * rates.get(item.experiment.name, spent / cost) for item in rest)
