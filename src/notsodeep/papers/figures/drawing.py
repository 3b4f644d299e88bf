"""A figure with its caption, and the parts that the experiments' figures share: looks, means over seeds, axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, Formatter, FuncFormatter, LogLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from notsodeep.figures.style import CLOSEST, DEQ, EXPLICIT, FLOOR, RESCALED, UNDESIGNED
from notsodeep.papers.statistics import mean


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure with its caption and the name of its files."""

    name: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Look:
    """Colour, dash and mark of a curve, so that curves differ in more than one way."""

    label: str
    colour: str
    dash: str
    marker: str
    width: float = 2.0
    size: float = 6.0

    @property
    def line(self) -> dict[str, Any]:
        """Keywords of matplotlib's `plot`."""
        names = ("color", "linestyle", "marker", "linewidth", "markersize")
        return dict(zip(names, (self.colour, self.dash, self.marker, self.width, self.size), strict=True))

    def handle(self, **changes: Any) -> Line2D:
        """Its entry in a legend."""
        return Line2D([], [], label=self.label, **{**self.line, **changes})


# The DEQ is a broad pale line: a network that coincides with it is seen on top of it.
NETWORKS = {
    "deq": Look("DEQ", DEQ, "-", "o", 5.0, 9.0),
    "matched": Look("matched", EXPLICIT, "-", "D", 1.8, 5.0),
    "closest": Look("closest twin", CLOSEST, "-.", "v", 1.8, 6.0),
    "plain": Look("plain", UNDESIGNED, "--", "s", 1.8, 5.0),
    "rescaled": Look("plain rescaled", RESCALED, ":", "^", 2.2, 6.0),
    "deq_again": Look("two draws of the DEQ", FLOOR, "-", "", 5.0),
}

_TITLES = {
    "gmm": "Gaussian mixture",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10-vgg19": "CIFAR-10 features",
    "relu": "ReLU",
    "elu": "ELU",
    "cpu": "CPU",
    "cuda": "GPU",
}
_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def title(name: str) -> str:
    """Name of a data set, an activation or a device, as people write it."""
    kind, _, setting = name.partition(":")
    if kind == "leaky_relu":
        return f"leaky ReLU{f' {setting}' * bool(setting)}"
    return _TITLES.get(name, name)


def in_order(found: Iterable[Any], order: Sequence[Any]) -> list[Any]:
    """The distinct items, those of `order` first, the others sorted after them."""
    there = set(found)
    return [item for item in order if item in there] + sorted(there - set(order))


def number(values: Mapping[str, Any], *path: str) -> float | None:
    """The finite number at values[path[0]][path[1]]…, or None."""
    found: Any = values
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def positive(points: Mapping[float, Sequence[float]]) -> dict[float, list[float]]:
    """The points whose mean is positive, which a logarithmic axis can show."""
    return {x: list(values) for x, values in points.items() if mean(values).value > 0}


def draw_means(axes: Axes, points: Mapping[float, Sequence[float]], look: Look, **changes: Any) -> None:
    """Draw a line through the means, with their intervals; a bar ends a decade below its mean, for logarithmic axes."""
    if not points:
        return
    means = [mean(values) for values in points.values()]
    up = [m.half_width for m in means]
    down = [min(u, 0.9 * abs(m.value)) for u, m in zip(up, means, strict=True)]
    bars = {"elinewidth": 1.3, "ecolor": look.colour}
    axes.errorbar(list(points), [m.value for m in means], [down, up], **{**look.line, **bars, **changes})


def panels(rows: int, columns: int, width: float, height: float, **shared: Any) -> tuple[Figure, NDArray[np.object_]]:
    """A figure of rows × columns panels, `width` × `height` inches each."""
    figure = Figure(figsize=(columns * width, rows * height + 0.6), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    return figure, np.asarray(axes)


def outer_labels(axes: NDArray[np.object_], left: str, below: str) -> None:
    """Label the left column and the bottom row of panels."""
    for panel in axes[:, 0]:
        panel.set_ylabel(left)
    for panel in axes[-1]:
        panel.set_xlabel(below)


def legend_below(figure: Figure, handles: Sequence[Any], columns: int | None = None) -> None:
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=columns or len(handles))


def power_of_two(width: float) -> str:
    """2⁵ for 32, 100 for 100."""
    power = math.log2(width)
    return f"2{str(round(power)).translate(_SUPERSCRIPTS)}" if power == round(power) else f"{width:g}"


def width_axis(axes: Axes, widths: Iterable[float], most: int = 8, infinite: bool = False) -> float:
    """Make a logarithmic axis with the widths as ticks, thinned to `most`; returns the place of infinity, right of all."""
    ticks = sorted(set(widths)) or [1.0]
    end = ticks[-1] * 2.8
    shown = ticks[:: -(-len(ticks) // most)]
    labels = [power_of_two(tick) for tick in shown]
    if infinite:
        shown, labels = [*shown, end], [*labels, "∞"]
    _log_ticks(axes, shown, labels)
    axes.set_xlim(ticks[0] / 1.5, (end if infinite else ticks[-1]) * 1.5)
    return end


def sample_axis(axes: Axes, counts: Iterable[float], most: int = 6) -> None:
    """Make a logarithmic axis with the numbers of samples as ticks."""
    ticks = sorted(set(counts))
    shown = ticks[:: -(-len(ticks) // most)]
    _log_ticks(axes, shown, [f"{tick:g}" for tick in shown])


def plain_log(axis: Axis, formatter: Formatter | None = None) -> None:
    """Set ticks of a logarithmic axis with fixed limits: 1, 2, 5, 10 … over a short span, powers of ten over a long one."""
    across = axis is axis.axes.xaxis
    low, high = axis.axes.get_xlim() if across else axis.axes.get_ylim()
    decades = math.log10(high / low)
    subs: tuple[float, ...] = (1.0, 2.0, 5.0) if decades > 0.5 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    if decades > (1.8 if across else 2.3):
        subs = (1.0,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(formatter or FuncFormatter(lambda value, _: _plain(value)))
    axis.set_minor_formatter(NullFormatter())


def _plain(value: float) -> str:
    """0.02, 500, 10⁻⁴, 5·10⁻⁴."""
    if 1e-3 <= value < 1e4:
        return f"{value:g}"
    digits, power = f"{value:.1e}".split("e")
    times = "" if digits == "1.0" else f"{float(digits):g}·"
    return f"{times}10{str(int(power)).translate(_SUPERSCRIPTS)}"


def _log_ticks(axes: Axes, ticks: Sequence[float], labels: Sequence[str]) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(list(ticks), list(labels))
