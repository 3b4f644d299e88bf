"""The report as files: one HTML page that needs nothing else, Markdown, and the claims as JSON.

In Markdown every word of a record is escaped: none of it becomes a link, an image or HTML.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from notsodeep.errors import BadInput
from notsodeep.papers.claims import Claim, Verdict
from notsodeep.papers.records import Store
from notsodeep.papers.report.content import Content, Picture, Section, gather
from notsodeep.runtime.files import output_folder, write_whole

MARKS = {Verdict.reproduced: "✓", Verdict.not_reproduced: "✗", Verdict.sharper: "▲"}

_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# Characters with a meaning anywhere; underscores outside of words; addresses; starts of a list or of a line.
_MEANT = re.compile(
    r"[\\`*\[\]|~$#!]|(?<![^\W_])_|_(?![^\W_])|(?<=:)/(?=/)|(?<=www)\.|^[-+=](?=\s|$|[-+=])|(?<=^\d)[.)](?=\s|$)"
)
# Bytes for all figures together: base64 makes them a third longer, and the page should stay under 5 MB.
_ROOM = 3_300_000
_PLACES = re.compile(rb' (?:d|x|y|points)="[^"]*"')
_DIGITS = re.compile(rb"(\.\d\d)\d+")


@dataclass(frozen=True)
class Results:
    """The files that were written, the claims and a count of their verdicts; `left_out` names records without a part in it."""

    folder: Path
    page: Path
    figures: tuple[Path, ...]
    claims: tuple[Claim, ...]
    verdicts: str
    left_out: tuple[str, ...]


def write_results(store: Store, folder: Path, page: Path | None = None) -> Results:
    """Write FOLDER/figures, claims.json, README.md and report.html (or `page`) from the records of a store."""
    target = folder / "report.html" if page is None else page
    if target.suffix != ".html" or target.is_dir() or not (page is None or target.parent.is_dir()):
        raise BadInput(f"{str(target)!r} cannot be written: name an .html file in a folder that exists.")
    content = gather(store, folder / "figures")
    output_folder(folder)
    _write(folder / "claims.json", claims_json(content.claims))
    _write(folder / "README.md", markdown(content, target.name if page is None else None))
    _write(target, render(content))
    figures = tuple(path for picture in content.pictures for path in (picture.png, picture.svg))
    return Results(folder, target, figures, content.claims, content.verdicts, content.left_out)


def claims_json(claims: Sequence[Claim]) -> str:
    """A list of {id, claim, paper, ours, spread, verdict, command}."""
    return json.dumps([claim.to_dict() for claim in claims], indent=2, ensure_ascii=False)


def _write(path: Path, text: str) -> Path:
    return write_whole(path, lambda to: to.write_text(text.rstrip("\n") + "\n", "utf-8"))


def render(content: Content) -> str:
    """The HTML page, with its figures inside."""
    share = _ROOM // max(1, len(content.pictures))
    sources = {picture.number: _source(picture, share) for picture in content.pictures}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = files("notsodeep.papers.report").joinpath("template.html.j2").read_text("utf-8")
    return environment.from_string(template).render(content=content, sources=sources)


def _source(picture: Picture, share: int) -> str:
    """The figure as a data URI: SVG if it fits into its share of the page or is shorter than the PNG, else the PNG."""
    svg, png = _shortened(picture.svg.read_bytes()), picture.png.read_bytes()
    found, kind = (svg, "svg+xml") if len(svg) <= max(share, len(png)) else (png, "png")
    return f"data:image/{kind};base64,{base64.b64encode(found).decode()}"


def _shortened(svg: bytes) -> bytes:
    """The SVG with coordinates to a hundredth of a point: the digits after that are half of the file."""
    return _PLACES.sub(lambda found: _DIGITS.sub(rb"\1", found[0]), svg)


def markdown(content: Content, page: str | None = None) -> str:
    """README.md of a run; `page` is the address of the HTML page, relative to it."""
    parts = [f"# {escaped(content.title)}", escaped(content.about)]
    if page is not None:
        parts.append(f"The same as one page, which opens offline: [{escaped(page)}]({page}).")
    summary = content.summary
    facts = [f"computed: {summary.when}"] * (summary.when is not None)
    facts += [f"computing time: {summary.time}, {summary.count}", f"machines: {'; '.join(summary.machines)}"]
    facts += [f"versions: {', '.join(summary.versions)}"] * bool(summary.versions)
    parts.append(_bullets([*facts, *content.left_out]))
    parts += ["## Claims", f"**{content.verdicts}.**"]
    for part in content.parts:
        if part.claims:
            parts += [f"**{escaped(part.paper.heading)}**, {part.verdicts}."] * (len(content.parts) > 1)
            parts.append(_claims(part.claims))
    for part in content.parts:
        parts.append(f"## {escaped(part.paper.heading)}")
        for section in part.sections:
            parts += _section(section)
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """The text escaped for a paragraph or a cell of a table."""
    return _MEANT.sub(lambda found: "\\" + found[0], " ".join(text.split()).translate(_ENTITIES))


def code(text: str) -> str:
    """The text as a span of code, between more backticks than it holds in a row; also for a cell of a table."""
    line = " ".join(text.split()).replace("|", "\\|")
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    edge = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{edge}{line}{edge}{ticks}"


def _claims(claims: Sequence[Claim]) -> str:
    header = ("id", "claim", "the paper", "ours", "spread", "verdict", "command")
    return table(
        header,
        [
            (
                *map(escaped, (claim.id, claim.claim, claim.paper, claim.ours, claim.spread)),
                f"{MARKS[claim.verdict]} {claim.verdict}",
                code(claim.command),
            )
            for claim in claims
        ],
    )


def _section(section: Section) -> list[str]:
    parts = [f"### {section.name}: {escaped(section.title)}", escaped(section.shows)]
    if section.notes:
        parts.append(_bullets(section.notes))
    for picture in section.pictures:
        caption = escaped(picture.caption)
        parts += [
            f"![{caption}](figures/{picture.png.name})",
            f"Figure {picture.number}. {caption} ([SVG](figures/{picture.svg.name}))",
        ]
    rows = [(code(name), *map(escaped, values)) for name, values in section.settings.rows]
    if rows:
        parts.append(table(("setting", *map(escaped, section.settings.columns)), rows))
    summary = section.summary
    parts.append(f"{summary.extent}, {summary.time} on {escaped('; '.join(summary.machines))}. Again:")
    return [*parts, f"    {section.command}"]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of cells that are Markdown already."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {escaped(sentence)}" for sentence in sentences)
