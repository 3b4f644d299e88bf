"""The links of a built site."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What an HTML file links to (`links`) and what can be linked to in it (`anchors`)."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key in ("href", "src") and value:
                self.links.append(value)
            elif value and (key == "id" or (key == "name" and tag == "a")):
                self.anchors.append(value)


def broken(site: Path) -> list[str]:
    """Every link that leads nowhere, as "page → link"; of links that leave the site only the form is looked at."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in page.links:
            if not _leads_somewhere(link, path, site, pages):
                found.append(f"{path.relative_to(site)} → {link}")
    return found


def _leads_somewhere(link: str, path: Path, site: Path, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return parts.scheme == "data" or (parts.scheme == "https" and "." in parts.netloc and " " not in link)
    # A path from the root, as the page for missing pages has them, is one from the site's.
    base = site if parts.path.startswith("/") else path.parent
    target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return False
    if not parts.fragment or target not in pages:
        return True
    return unquote(parts.fragment) in pages[target].anchors
