"""The README and the pages of docs/, with the blocks of code in them."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if not page.is_relative_to(RESULTS)  # written by the program, without code
]

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]+?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    not_run: str | None
    """Why not, where an HTML comment before the block says so."""


def blocks(page: Path, language: str) -> list[Block]:
    found = (Block(m["language"], m["text"], m["why"]) for m in _BLOCK.finditer(page.read_text()))
    return [block for block in found if block.language == language]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def resolve(path: str) -> object:
    """What a dotted path names: of a module and a function of one name, the module only where nothing follows."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise ImportError(path)
