"""The style of every figure, readable in grey, at half size and on screen, and the files of a figure."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from notsodeep.runtime.files import write_whole

# Colours differ in lightness, which survives a grey printer; lines differ in dash as well.
DEQ, EXPLICIT, UNDESIGNED = "#9db4cc", "#b3261e", "#333333"
DEQ_LINE, RESCALED, FLOOR, REFERENCE, CLOSEST = "#5b7fa6", "#b07d12", "#c8c8c8", "#8a8a8a", "#2e7d4f"

_RC: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "notsodeep",
}

style = partial(mpl.rc_context, _RC)
"""The context in which figures are drawn: this package's settings of matplotlib."""


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `name`.png and `name`.svg into the folder; without a date, so the same figure gives the same bytes."""

    def write(kind: str) -> Path:
        options: dict[str, Any] = {"format": kind, "dpi": 150} | ({"metadata": {"Date": None}} if kind == "svg" else {})
        return write_whole(folder / f"{name}.{kind}", lambda to: figure.savefig(to, **options))

    with style():
        return [write(kind) for kind in ("png", "svg")]
