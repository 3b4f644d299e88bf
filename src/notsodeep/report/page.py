"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import re
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from notsodeep.report.content import Content, Picture

# In bytes, for all figures together: base64 makes them a third longer, and the page is to stay under 5 MB.
_ROOM = 3_300_000
_PLACES = re.compile(rb' (?:d|x|y|points)="[^"]*"')
_DIGITS = re.compile(rb"(\.\d\d)\d+")


def page(content: Content) -> str:
    share = _ROOM // max(1, len(content.pictures))
    sources = {picture.number: _source(picture, share) for picture in content.pictures}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = files("notsodeep.report").joinpath("template.html.j2").read_text("utf-8")
    return environment.from_string(template).render(content=content, sources=sources)


def _source(picture: Picture, share: int) -> str:
    """The figure as a data URI: lines where they fit into its share of the page or are shorter than dots, dots otherwise."""
    lines, dots = _shortened(picture.svg.read_bytes()), picture.png.read_bytes()
    found, kind = (lines, "svg+xml") if len(lines) <= max(share, len(dots)) else (dots, "png")
    return f"data:image/{kind};base64,{base64.b64encode(found).decode()}"


def _shortened(svg: bytes) -> bytes:
    """Places to a hundredth of a point, which nobody sees: half of such a file are the digits after that."""
    return _PLACES.sub(lambda found: _DIGITS.sub(rb"\1", found[0]), svg)
