"""The report in Markdown. Every word of a record is escaped: none of it becomes a link, an image or HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence

from notsodeep.papers.claims import Claim, Verdict
from notsodeep.papers.report.content import Content, Section

MARKS = {Verdict.reproduced: "✓", Verdict.not_reproduced: "✗", Verdict.sharper: "▲"}

_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# What has a meaning anywhere; underscores that are not inside a word; addresses; what starts a list or a line.
_MEANT = re.compile(
    r"[\\`*\[\]|~$#!]|(?<![^\W_])_|_(?![^\W_])|(?<=:)/(?=/)|(?<=www)\.|^[-+=](?=\s|$|[-+=])|(?<=^\d)[.)](?=\s|$)"
)


def markdown(content: Content, page: str | None = None) -> str:
    """README.md of a run; `page` is where the page lies, relative to it."""
    told = [f"# {escaped(content.title)}", escaped(content.about)]
    if page is not None:
        told.append(f"The same as one page, which opens offline: [{escaped(page)}]({page}).")
    summary = content.summary
    facts = [f"computed: {summary.when}"] * (summary.when is not None)
    facts += [f"computing time: {summary.time}, {summary.count}", f"machines: {'; '.join(summary.machines)}"]
    facts += [f"versions: {', '.join(summary.versions)}"] * bool(summary.versions)
    told.append(_bullets([*facts, *content.left_out]))
    told += ["## Claims", f"**{content.verdicts}.**"]
    for part in content.parts:
        if part.claims:
            told += [f"**{escaped(part.paper.heading)}**, {part.verdicts}."] * (len(content.parts) > 1)
            told.append(_claims(part.claims))
    for part in content.parts:
        told.append(f"## {escaped(part.paper.heading)}")
        for section in part.sections:
            told += _section(section)
    return "\n\n".join(told) + "\n"


def escaped(text: str) -> str:
    """Text that reads as it is, in a paragraph or a cell of a table."""
    return _MEANT.sub(lambda found: "\\" + found[0], " ".join(text.split()).translate(_ENTITIES))


def code(text: str) -> str:
    """A span of code, in a cell of a table too, between more backticks than it holds in a row."""
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
    told = [f"### {section.name}: {escaped(section.title)}", escaped(section.shows)]
    if section.notes:
        told.append(_bullets(section.notes))
    for picture in section.pictures:
        caption = escaped(picture.caption)
        told += [
            f"![{caption}](figures/{picture.png.name})",
            f"Figure {picture.number}. {caption} ([SVG](figures/{picture.svg.name}))",
        ]
    rows = [(code(name), *map(escaped, values)) for name, values in section.settings.rows]
    if rows:
        told.append(table(("setting", *map(escaped, section.settings.columns)), rows))
    summary = section.summary
    told.append(f"{summary.extent}, {summary.time} on {escaped('; '.join(summary.machines))}. Again:")
    return [*told, f"    {section.command}"]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Of cells that are Markdown already."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {escaped(sentence)}" for sentence in sentences)
