"""What a report says, before it has a form: claims, and a section for each experiment."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from notsodeep.errors import BadInput, NotSoDeepError
from notsodeep.figures.style import save
from notsodeep.papers.claims import Claim, Verdict
from notsodeep.papers.experiment import Experiment, Records
from notsodeep.papers.figures.reproduce import drawings
from notsodeep.papers.records import Record, Store, key
from notsodeep.papers.registry import EXPERIMENTS
from notsodeep.papers.report.words import (
    PAPERS,
    Paper,
    Settings,
    Summary,
    about,
    commands,
    counted,
    plain,
    settings,
    summary,
    title,
)
from notsodeep.runtime.files import output_folder

_SIZES = ("quick", "full")
_PIXELS_PER_INCH = 96


@dataclass(frozen=True)
class Picture:
    """A figure on disk, numbered through the report; its size in pixels of a screen."""

    number: int
    name: str
    caption: str
    png: Path
    svg: Path
    size: tuple[int, int]


@dataclass(frozen=True)
class Section:
    """One experiment."""

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
    """One paper's experiments."""

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
    """All of it; `left_out` says which records have no part in it."""

    parts: tuple[Part, ...]
    summary: Summary
    left_out: tuple[str, ...]

    @property
    def title(self) -> str:
        return title([part.paper for part in self.parts])

    @property
    def about(self) -> str:
        return about([part.paper for part in self.parts])

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
    """Read the records, judge the claims, and draw the figures into their folder. `BadInput` where there is no record."""
    records, left_out = _known(store)
    if not any(records.values()):
        why = f" ({' '.join(left_out)})" if left_out else ""
        raise BadInput(
            f"There are no records in {str(store.folder / 'records')!r}{why}. Run {commands()} first, or name the folder of a "
            "run."
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
    """The records of each known experiment, in the registry's order, and a sentence on the others."""
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
    """The command that makes the records again, and what is to be said where it does not make just these."""
    there = {record.key for record in records}
    planned = {size: _planned(experiment, size) for size in _SIZES}
    size = max(_SIZES, key=lambda each: len(there & planned[each]))
    both, other, said = len(there & planned[size]), len(there - planned[size]), []
    if 0 < both < len(planned[size]):
        said.append(f"Not all of it was run: {both} of the {len(planned[size])} computations of the command below.")
    if other:
        these = f"{counted(other, 'computation')} {'is' if other == 1 else 'are'}"
        said.append(f"{these} not of the command below: with other settings, or on a device that is not here.")
    return f"notsodeep {experiment.command} {experiment.name} --{size}", said


def _planned(experiment: Experiment, size: str) -> set[str]:
    return {
        key(experiment.name, experiment.record_config(unit)) for unit in experiment.units(getattr(experiment, size))
    }


def _clean(claim: Claim) -> Claim:
    words = {name: plain(text) for name, text in claim.to_dict().items()}
    return Claim(**words | {"verdict": claim.verdict})  # type: ignore[arg-type]


def _pictures(name: str, records: Records, folder: Path, before: int) -> tuple[Picture, ...]:
    pictures = []
    for number, drawing in enumerate(drawings(name, records), start=before + 1):
        # A name may hold words of a record: never a path.
        file = re.sub(r"[^A-Za-z0-9_-]+", "-", drawing.name)[:80]
        png, svg = save(drawing.figure, folder, file)
        width, height = (round(_PIXELS_PER_INCH * inches) for inches in drawing.figure.get_size_inches())
        pictures.append(Picture(number, file, plain(drawing.caption), png, svg, (width, height)))
    return tuple(pictures)


@contextmanager
def _readable(store: Store, experiment: Experiment) -> Iterator[None]:
    """Records that a claim or a figure cannot be made of are bad input, whatever they trip over."""
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
