"""What records say of themselves: settings, seeds, machines, versions and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from notsodeep.experiments.record import Record
from notsodeep.report.text import collapsed, counted, duration, is_number, listed, plain

_ABSENT = "–"


@dataclass(frozen=True)
class Settings:
    """Each setting with its values; one column, or one for each kind of computation where there are several."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Summary:
    """Of some records: how many, over how many seeds, how long, on what (each with its time, where there are several), with
    what, and when (None where none says)."""

    records: int
    seeds: int
    seconds: float
    machines: tuple[str, ...]
    versions: tuple[str, ...]
    when: str | None

    @property
    def time(self) -> str:
        return duration(self.seconds)

    @property
    def count(self) -> str:
        return counted(self.records, "computation")

    @property
    def extent(self) -> str:
        return f"{self.count}, {counted(self.seeds, 'seed')}" if self.seeds else self.count


def settings(records: Sequence[Record]) -> Settings:
    """The configs of the records, without their seeds; apart for each "kind", where an experiment has kinds."""
    kinds = list(dict.fromkeys(plain(record.config.get("kind", "")) for record in records))
    groups = [[r.config for r in records if plain(r.config.get("kind", "")) == kind] for kind in kinds]
    names = list(dict.fromkeys(name for group in groups for config in group for name in config))
    names = [name for name in names if name not in ("seed", "kind")]
    rows = tuple((plain(name, 80), tuple(_values(group, name) for group in groups)) for name in names)
    return Settings(tuple(kind or "values" for kind in kinds), rows)


def _values(configs: list[dict[str, Any]], name: str) -> str:
    return collapsed([config[name] for config in configs if name in config]) or _ABSENT


def summary(records: Sequence[Record]) -> Summary:
    machines: dict[str, float] = {}
    versions: dict[str, dict[str, None]] = {}
    for record in records:
        machine = plain(record.provenance.get("machine", "a machine without a name"), 80)
        machines[machine] = machines.get(machine, 0.0) + _seconds(record)
        found = record.provenance.get("versions")
        for name, version in found.items() if isinstance(found, dict) else ():
            versions.setdefault(plain(name, 40), {})[plain(version, 40)] = None
    return Summary(
        records=len(records),
        seeds=_seeds(records),
        seconds=sum(machines.values()),
        machines=tuple(
            f"{name} ({duration(seconds)})" if len(machines) > 1 else name for name, seconds in machines.items()
        ),
        versions=tuple(f"{name} {listed(each)}" for name, each in versions.items()),
        when=_when(records),
    )


def _seeds(records: Sequence[Record]) -> int:
    """Of computations of one seed each, or of several at once."""
    single = {plain(record.config["seed"]) for record in records if "seed" in record.config}
    many = [record.config["seeds"] for record in records if is_number(record.config.get("seeds"))]
    return max(len(single), *(int(count) for count in many), 0)


def _seconds(record: Record) -> float:
    return float(record.seconds) if is_number(record.seconds) and record.seconds > 0 else 0.0


def _when(records: Sequence[Record]) -> str | None:
    times = sorted(time for record in records if (time := _time(record)) is not None)
    if not times:
        return None
    first, last = (f"{time:%Y-%m-%d %H:%M}" for time in (times[0], times[-1]))
    return f"{first} UTC" if first == last else f"{first} to {last} UTC"


def _time(record: Record) -> datetime | None:
    try:
        time = datetime.fromisoformat(record.provenance["time"])
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
