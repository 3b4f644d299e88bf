"""A figure with its caption, and the parts that figures of experiments share: looks, means over seeds, axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, Formatter, FuncFormatter, LogLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from notsodeep.figures.style import DEQ, EXPLICIT, FLOOR, RESCALED, UNDESIGNED
from notsodeep.papers.statistics import mean


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure with the name of its files and what to see in it."""

    name: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Look:
    """How one of several curves is told from the others: each in more than one way."""

    label: str
    colour: str
    dash: str
    marker: str
    width: float = 2.0
    size: float = 6.0

    @property
    def line(self) -> dict[str, Any]:
        return {
            "color": self.colour,
            "linestyle": self.dash,
            "marker": self.marker,
            "linewidth": self.width,
            "markersize": self.size,
        }


# The DEQ is a broad pale line, so that a network that coincides with it is seen on top of it.
NETWORKS = {
    "deq": Look("DEQ", DEQ, "-", "o", 5.0, 9.0),
    "matched": Look("matched", EXPLICIT, "-", "D", 1.8, 5.0),
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
    """A data set's, an activation's or a device's name, as people write it."""
    kind, _, setting = name.partition(":")
    if kind == "leaky_relu":
        return f"leaky ReLU{f' {setting}' * bool(setting)}"
    return _TITLES.get(name, name)


def in_order(found: Iterable[Any], order: Sequence[Any]) -> list[Any]:
    """Those of `order` first, the others after them."""
    there = set(found)
    return [item for item in order if item in there] + sorted(there - set(order))


def number(values: Mapping[str, Any], *path: str) -> float | None:
    """The number at values[path[0]][path[1]]…; None where there is none."""
    found: Any = values
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def positive(points: Mapping[float, Sequence[float]]) -> dict[float, list[float]]:
    """Those whose mean a logarithmic axis can show."""
    return {x: list(values) for x, values in points.items() if mean(values).value > 0}


def draw_means(axes: Axes, points: Mapping[float, Sequence[float]], look: Look, **changes: Any) -> None:
    """A line through the means, with their intervals. A bar ends a decade below its mean, where the axis may be logarithmic."""
    if not points:
        return
    means = [mean(values) for values in points.values()]
    up = [m.spread if math.isfinite(m.spread) else 0.0 for m in means]
    down = [min(u, 0.9 * abs(m.value)) for u, m in zip(up, means, strict=True)]
    bars = {"elinewidth": 1.3, "ecolor": look.colour}
    axes.errorbar(list(points), [m.value for m in means], [down, up], **{**look.line, **bars, **changes})


def panels(rows: int, columns: int, width: float, height: float, **shared: Any) -> tuple[Figure, NDArray[np.object_]]:
    """A figure of rows × columns panels, `width` × `height` inches each."""
    figure = Figure(figsize=(columns * width, rows * height + 0.6), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    return figure, np.asarray(axes)


def legend_below(figure: Figure, handles: Sequence[Any], columns: int | None = None) -> None:
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=columns or len(handles))


def power_of_two(width: float) -> str:
    """2⁵ for 32, 100 for 100."""
    power = math.log2(width)
    return f"2{str(round(power)).translate(_SUPERSCRIPTS)}" if power == round(power) else f"{width:g}"


def width_axis(axes: Axes, widths: Iterable[float], most: int = 8, infinite: bool = False) -> float:
    """A logarithmic axis with the widths themselves as ticks, thinned to `most`; where infinity stands, right of all."""
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
    """A logarithmic axis with the numbers of samples themselves as ticks."""
    ticks = sorted(set(counts))
    shown = ticks[:: -(-len(ticks) // most)]
    _log_ticks(axes, shown, [f"{tick:g}" for tick in shown])


def plain_log(axis: Axis, formatter: Formatter | None = None) -> None:
    """Ticks of a logarithmic axis whose limits stand: 1, 2, 5, 10 … over a short span, powers of ten over a long one."""
    across = axis is axis.axes.xaxis
    low, high = axis.axes.get_xlim() if across else axis.axes.get_ylim()
    decades = math.log10(high / low)
    subs = (
        (1.0,)
        if decades > (1.8 if across else 2.3)
        else (1.0, 2.0, 5.0)
        if decades > 0.5
        else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    )
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
