"""A run's results on disk: figures, claims, tables and the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from notsodeep.errors import BadInput
from notsodeep.experiments.claims import Claim
from notsodeep.experiments.store import Store
from notsodeep.report.content import gather
from notsodeep.report.page import page as as_page
from notsodeep.report.tables import markdown
from notsodeep.runtime.files import output_folder, write_whole


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
    _write(target, as_page(content))
    figures = tuple(path for picture in content.pictures for path in (picture.png, picture.svg))
    return Results(folder, target, figures, content.claims, content.verdicts, content.left_out)


def claims_json(claims: Sequence[Claim]) -> str:
    """A list of {id, claim, paper, ours, spread, verdict, command}."""
    return json.dumps([claim.to_dict() for claim in claims], indent=2, ensure_ascii=False)


def _write(path: Path, text: str) -> Path:
    return write_whole(path, lambda to: to.write_text(text.rstrip("\n") + "\n", "utf-8"))
