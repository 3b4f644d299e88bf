"""Content of a report before it has a form: claims, notes, figures, settings and a summary for each experiment."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from notsodeep.errors import BadInput, NotSoDeepError
from notsodeep.figures.style import save
from notsodeep.papers.claims import Claim, Verdict
from notsodeep.papers.experiment import Experiment, Records, settings as unit_settings
from notsodeep.papers.figures.reproduce import drawings
from notsodeep.papers.records import Record, Store, key
from notsodeep.papers.registry import EXPERIMENTS
from notsodeep.papers.report import words
from notsodeep.papers.report.words import PAPERS, Paper, collapsed, counted, duration, is_number, listed, plain
from notsodeep.runtime.files import output_folder

_SIZES = ("quick", "full")
_PIXELS_PER_INCH = 96


@dataclass(frozen=True)
class Picture:
    """A figure on disk, numbered throughout the report; its size is in pixels of a screen."""

    number: int
    name: str
    caption: str
    png: Path
    svg: Path
    size: tuple[int, int]


@dataclass(frozen=True)
class Settings:
    """A table of settings and their values, with one column for each kind of computation."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Summary:
    """Facts on some records: how many, over how many seeds, their time, machines (each with its time, where there are several),
    versions of packages, and dates (None where no record has one)."""

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


@dataclass(frozen=True)
class Section:
    """One experiment in the report."""

    name: str
    title: str
    shows: str
    claims: tuple[Claim, ...]
    notes: tuple[str, ...]
    pictures: tuple[Picture, ...]
    settings: Settings
    summary: Summary
    command: str

    @property
    def anchor(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Part:
    """The experiments of one paper."""

    paper: Paper
    sections: tuple[Section, ...]

    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(claim for section in self.sections for claim in section.claims)

    @property
    def verdicts(self) -> str:
        return _verdicts(self.claims)


@dataclass(frozen=True)
class Content:
    """The whole report; `left_out` says which records have no part in it."""

    parts: tuple[Part, ...]
    summary: Summary
    left_out: tuple[str, ...]

    @property
    def title(self) -> str:
        return words.title([part.paper for part in self.parts])

    @property
    def about(self) -> str:
        return words.about([part.paper for part in self.parts])

    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(claim for part in self.parts for claim in part.claims)

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(picture for part in self.parts for section in part.sections for picture in section.pictures)

    @property
    def verdicts(self) -> str:
        return _verdicts(self.claims)


def _verdicts(claims: tuple[Claim, ...]) -> str:
    """ "7 claims: 4 reproduced, 2 sharper, 1 not reproduced"."""
    count = Counter(claim.verdict for claim in claims)
    order = (Verdict.reproduced, Verdict.sharper, Verdict.not_reproduced)
    parts = [f"{count[verdict]} {verdict}" for verdict in order if count[verdict]]
    return f"{counted(len(claims), 'claim')}{': ' * bool(parts)}{', '.join(parts)}"


def gather(store: Store, figures: Path) -> Content:
    """Read the records, judge the claims, and draw the figures into their folder; raises BadInput without any record."""
    records, left_out = _known(store)
    if not any(records.values()):
        why = f" ({' '.join(left_out)})" if left_out else ""
        raise BadInput(
            f"There are no records in {str(store.folder / 'records')!r}{why}. Run {words.commands()} first, or name the "
            "folder of a run."
        )
    output_folder(figures)
    parts: list[Part] = []
    before = 0
    for paper in PAPERS:
        sections = []
        for experiment in EXPERIMENTS.values():
            if experiment.command == paper.command and records[experiment.name]:
                with _readable(store, experiment):
                    sections.append(_section(experiment, records, figures, before))
                before += len(sections[-1].pictures)
        if sections:
            parts.append(Part(paper, tuple(sections)))
    everything = [record for mine in records.values() for record in mine]
    return Content(tuple(parts), summary(everything), left_out)


def _section(experiment: Experiment, records: Records, figures: Path, before: int) -> Section:
    mine = records[experiment.name]
    command, coverage = _command(experiment, mine)
    return Section(
        name=experiment.name,
        title=plain(experiment.title),
        shows=plain(experiment.shows),
        claims=tuple(_clean(claim) for claim in experiment.claims(records, command)),
        notes=(*map(plain, experiment.notes(records)), *coverage),
        pictures=_pictures(experiment.name, records, figures, before),
        settings=settings(mine),
        summary=summary(mine),
        command=command,
    )


def _known(store: Store) -> tuple[dict[str, list[Record]], tuple[str, ...]]:
    """The records of each known experiment, in the registry's order, and sentences on the other records."""
    known: dict[str, list[Record]] = {name: [] for name in EXPERIMENTS}
    others: Counter[tuple[str, str]] = Counter()
    for file in store.experiments():
        for record in store.records(file):
            if record.experiment == file and file in known:
                known[file].append(record)
            else:
                others[plain(f"records/{file}.jsonl", 80), plain(record.experiment, 80)] += 1
    left_out = tuple(
        f"{counted(count, 'record')} of “{name}” in {file} left out: no experiment of that name belongs there."
        for (file, name), count in others.items()
    )
    return known, left_out


def _command(experiment: Experiment, records: list[Record]) -> tuple[str, list[str]]:
    """The command that makes the records again, and notes where it does not make exactly these."""
    there = {key(experiment.name, _unrevised(record)) for record in records}
    planned = {
        size: {key(experiment.name, unit_settings(unit)) for unit in experiment.units(getattr(experiment, size))}
        for size in _SIZES
    }
    size = max(_SIZES, key=lambda each: len(there & planned[each]))
    both, other, said = len(there & planned[size]), len(there - planned[size]), []
    if 0 < both < len(planned[size]):
        said.append(f"Not all of it was run: {both} of the {len(planned[size])} computations of the command below.")
    if other:
        these = f"{counted(other, 'computation')} {'is' if other == 1 else 'are'}"
        said.append(f"{these} not of the command below: with other settings, or on a device that is not here.")
    if older := sum(record.config.get("revision", 1) < experiment.revision for record in records):
        said.append(f"{counted(older, 'computation')} of an earlier version of the experiment: the command makes them anew.")
    return f"notsodeep {experiment.command} {experiment.name} --{size}", said


def _unrevised(record: Record) -> dict[str, Any]:
    return {name: value for name, value in record.config.items() if name != "revision"}


def _clean(claim: Claim) -> Claim:
    texts = {name: plain(text) for name, text in claim.to_dict().items() if name != "verdict"}
    return replace(claim, **texts)  # type: ignore[arg-type]


def _pictures(name: str, records: Records, folder: Path, before: int) -> tuple[Picture, ...]:
    pictures = []
    for number, drawing in enumerate(drawings(name, records), start=before + 1):
        # A name may hold words of a record: it must never become a path.
        file = re.sub(r"[^A-Za-z0-9_-]+", "-", drawing.name)[:80]
        png, svg = save(drawing.figure, folder, file)
        width, height = (round(_PIXELS_PER_INCH * inches) for inches in drawing.figure.get_size_inches())
        pictures.append(Picture(number, file, plain(drawing.caption), png, svg, (width, height)))
    return tuple(pictures)


@contextmanager
def _readable(store: Store, experiment: Experiment) -> Iterator[None]:
    """Turn errors of claims and figures into BadInput: the records do not hold what they need."""
    name = experiment.name
    try:
        yield
    except NotSoDeepError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise BadInput(
            f"{str(store.path(name))!r} does not hold what {name} needs ({type(error).__name__}: {plain(error, 120)}). Move "
            f"the file away and run `notsodeep {experiment.command} {name}` again."
        ) from error


def settings(records: Sequence[Record]) -> Settings:
    """The configs of the records without their seeds; a column for each "kind" of computation."""
    kinds = list(dict.fromkeys(plain(record.config.get("kind", "")) for record in records))
    groups = [[r.config for r in records if plain(r.config.get("kind", "")) == kind] for kind in kinds]
    names = list(dict.fromkeys(name for group in groups for config in group for name in config))
    names = [name for name in names if name not in ("seed", "kind")]
    rows = tuple((plain(name, 80), tuple(_values(group, name) for group in groups)) for name in names)
    return Settings(tuple(kind or "values" for kind in kinds), rows)


def _values(configs: list[dict[str, Any]], name: str) -> str:
    return collapsed([config[name] for config in configs if name in config]) or "–"


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
        machines=tuple(f"{name} ({duration(seconds)})" if len(machines) > 1 else name for name, seconds in machines.items()),
        versions=tuple(f"{name} {listed(each)}" for name, each in versions.items()),
        when=_when(records),
    )


def _seeds(records: Sequence[Record]) -> int:
    """How many seeds: of computations of one seed each, or of several at once."""
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
