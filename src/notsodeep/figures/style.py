"""One style for every figure: readable in grey, at half size, and on screen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from notsodeep.data.files import write_whole

# Told apart by lightness alone, so that they survive a grey printer; lines differ in dash as well.
DEQ, EXPLICIT, UNDESIGNED = "#9db4cc", "#b3261e", "#333333"

_RC: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "notsodeep",
}


@contextmanager
def style() -> Iterator[None]:
    with mpl.rc_context(_RC):
        yield


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """`name`.png and `name`.svg in the folder."""
    with style():
        return [
            write_whole(folder / f"{name}.{kind}", lambda to, kind=kind: figure.savefig(to, format=kind, dpi=150))  # type: ignore[misc]
            for kind in ("png", "svg")
        ]
