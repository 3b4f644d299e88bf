"""Words of records as one clean line. Records come from disks: their strings may hold anything."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from notsodeep.papers.records import Record

_LONGEST = 2000
_FEW, _SOME = 3, 8
# They turn the direction of what follows, and so can make a text read as another.
_TURNING = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C])
_SPELT = {None: "none", True: "yes", False: "no"}
_ABSENT = "–"


def plain(text: Any, longest: int = _LONGEST) -> str:
    """On one line, without control characters, halves of characters and turns of direction; cut where it never ends."""
    kept = (_seen(letter) for letter in str(text)[: 4 * longest].translate(_TURNING))
    line = " ".join("".join(kept).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def _seen(letter: str) -> str:
    kind = unicodedata.category(letter)
    return " " if kind in ("Cc", "Zl", "Zp") else "\N{REPLACEMENT CHARACTER}" if kind == "Cs" else letter


def is_number(value: Any) -> bool:
    """A finite one; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 if isinstance(value, int) else math.isfinite(value)


def spelt(value: Any) -> str:
    """A setting as a reader writes it; a list's items stand between slashes, as on the command line."""
    if isinstance(value, list | tuple):
        return plain("/".join(map(spelt, value)), 80)
    if value is None or isinstance(value, bool):
        return _SPELT[value]
    return f"{value:g}" if isinstance(value, float) else plain(value, 80)


def collapsed(values: Sequence[Any]) -> str:
    """Few values one by one, many numbers as "200 … 3200 (5 values)", many words as "a, b, c … (12 values)"."""
    if values and all(map(is_number, values)):
        numbers = [spelt(value) for value in sorted(set(values))]
        if len(numbers) <= _FEW:
            return ", ".join(numbers)
        return f"{numbers[0]} … {numbers[-1]} ({len(numbers)} values)"
    return listed(map(spelt, values))


def listed(words: Iterable[str]) -> str:
    """Each once, in the order of their first appearance."""
    distinct = list(dict.fromkeys(words))
    if len(distinct) <= _SOME:
        return ", ".join(distinct)
    return f"{', '.join(distinct[:_FEW])} … ({len(distinct)} values)"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def duration(seconds: float) -> str:
    """0.4 s, 12 s, 3 min 20 s, 2 h 5 min, with spaces at which no line breaks."""
    if seconds < 59.5:
        return f"{seconds:.1f}\N{NO-BREAK SPACE}s" if seconds < 9.95 else f"{seconds:.0f}\N{NO-BREAK SPACE}s"
    # Past ten minutes nobody counts seconds.
    whole = round(seconds) if seconds < 599.5 else 60 * round(seconds / 60)
    parts = zip((whole // 3600, whole // 60 % 60, whole % 60), ("h", "min", "s"), strict=True)
    return "\N{NO-BREAK SPACE}".join(f"{count}\N{NO-BREAK SPACE}{unit}" for count, unit in parts if count)


@dataclass(frozen=True)
class Paper:
    """`shows` has a place for {deq}, which the first of a text spells out."""

    command: str
    anchor: str
    heading: str
    shows: str


PAPERS = (
    Paper(
        "reproduce",
        "equivalence",
        "Equivalence (Ling et al. 2024)",
        "Ling et al. (ICML 2024) show that a wide {deq} has nearly the same kernels as an explicit network of one or two "
        "hidden layers with a designed activation.",
    ),
    Paper(
        "separate",
        "separation",
        "Separation (Wu et al. 2024)",
        "Wu et al. (NeurIPS 2024) show where a {deq} is worth its cost: functions that it expresses with fewer units or "
        "smaller weights than a feed-forward network, and unseen inputs on which it errs less.",
    ),
)


def title(papers: Sequence[Paper]) -> str:
    return (
        f"Implicit against explicit networks: the {'papers’' if len(papers) > 1 else 'paper’s'} claims, computed anew"
    )


def about(papers: Sequence[Paper]) -> str:
    """What the papers show, and how to read what follows."""
    names = ("deep equilibrium model (DEQ)", *("DEQ",) * len(papers))
    shown = " ".join(paper.shows.format(deq=name) for paper, name in zip(papers, names, strict=False))
    return (
        f"{shown} Here each number of theirs stands beside the same number computed by notsodeep, with its spread, and a "
        "verdict. “Sharper” means: found, and better than they say by more than the spread. Where the paper has no number "
        "(“—”), the claim is ours, and the verdict says whether it holds."
    )


def commands() -> str:
    """ "`notsodeep reproduce` or `notsodeep separate`"."""
    return " or ".join(f"`notsodeep {paper.command}`" for paper in PAPERS)


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
