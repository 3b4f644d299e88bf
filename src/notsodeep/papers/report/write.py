"""The report as one HTML file that needs nothing else."""

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
from notsodeep.papers.claims import Claim
from notsodeep.papers.records import Store
from notsodeep.papers.report.content import Content, Picture, gather
from notsodeep.papers.report.tables import markdown
from notsodeep.runtime.files import output_folder, write_whole

# In bytes, for all figures together: base64 makes them a third longer, and the page is to stay under 5 MB.
_ROOM = 3_300_000
_PLACES = re.compile(rb' (?:d|x|y|points)="[^"]*"')
_DIGITS = re.compile(rb"(\.\d\d)\d+")


def render(content: Content) -> str:
    share = _ROOM // max(1, len(content.pictures))
    sources = {picture.number: _source(picture, share) for picture in content.pictures}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = files("notsodeep.papers.report").joinpath("template.html.j2").read_text("utf-8")
    return environment.from_string(template).render(content=content, sources=sources)


def _source(picture: Picture, share: int) -> str:
    """The figure as a data URI: lines where they fit into its share of the page or are shorter than dots, dots otherwise."""
    lines, dots = _shortened(picture.svg.read_bytes()), picture.png.read_bytes()
    found, kind = (lines, "svg+xml") if len(lines) <= max(share, len(dots)) else (dots, "png")
    return f"data:image/{kind};base64,{base64.b64encode(found).decode()}"


def _shortened(svg: bytes) -> bytes:
    """Places to a hundredth of a point, which nobody sees: half of such a file are the digits after that."""
    return _PLACES.sub(lambda found: _DIGITS.sub(rb"\1", found[0]), svg)


@dataclass(frozen=True)
class Results:
    """What was written where; `verdicts` counts them, `left_out` names records that have no part in it."""

    folder: Path
    page: Path
    figures: tuple[Path, ...]
    claims: tuple[Claim, ...]
    verdicts: str
    left_out: tuple[str, ...]


def write_results(store: Store, folder: Path, page: Path | None = None) -> Results:
    """FOLDER/figures, claims.json, README.md and report.html (or `page`, where one is named), from the records of a store."""
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
