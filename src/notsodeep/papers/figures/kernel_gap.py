"""L1: how the gap between the exact kernel and its equivalents falls with the number of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from notsodeep.figures.style import REFERENCE
from notsodeep.papers.figures.drawing import (
    Drawing,
    Look,
    draw_means,
    in_order,
    number,
    panels,
    plain_log,
    positive,
    sample_axis,
    title,
)
from notsodeep.papers.ling2024.l1_kernel_gap import has_ratio, ratios
from notsodeep.papers.records import Record
from notsodeep.papers.statistics import mean, over_seeds, slope

_KERNELS = {"conjugate": "conjugate kernel", "tangent": "tangent kernel (NTK)", "preactivation": "the paper's kernel K"}
_FORMS: dict[str, Any] = {"equivalent": "-", "sharp": "--"}
_LOOKS = {
    "tanh": ("#16324f", "o"),
    "relu": ("#b3261e", "s"),
    "leaky_relu:0.01": ("#3f8f5f", "^"),
    "elu": ("#c98a1b", "D"),
    "swish": ("#8fa9c9", "v"),
}
_OTHER = ("#777777", "P")


def kernel_gap_drawings(records: Sequence[Record]) -> list[Drawing]:
    kernels = [kernel for kernel in _KERNELS if any(_gap(r, kernel, form) for r in records for form in _FORMS)]
    if not kernels:
        return []
    ratio, *others = ratios(records)
    figure, axes = panels(1, len(kernels), 4.9, 6.4)
    for panel, kernel in zip(axes[0], kernels, strict=True):
        _draw(panel, kernel, records, ratio)
    axes[0, 0].set_ylabel("relative gap to the exact kernel, operator norm")
    lines = [Line2D([], [], color="black", linestyle=dash, label=form) for form, dash in _FORMS.items()]
    figure.legend(handles=lines, loc="outside upper center", ncols=2)
    return [Drawing("L1-kernel-gap", _caption(records, ratio, others), figure)]


def _gap(record: Record, kernel: str, form: str) -> float | None:
    return number(record.values, kernel, form)


def _draw(axes: Axes, kernel: str, records: Sequence[Record], ratio: float) -> None:
    handles: list[Any] = []
    first: list[float] = []
    counts = [float(r.config["n"]) for r in records]
    for activation in in_order((str(r.config["activation"]) for r in records), list(_LOOKS)):
        colour, marker = _LOOKS.get(activation, _OTHER)
        slopes = []
        for form, dash in _FORMS.items():
            look = Look("", colour, dash, marker, 1.8, 6.0)
            points, others = _points(records, activation, kernel, form, ratio)
            draw_means(axes, points, look, markerfacecolor=colour if form == "equivalent" else "white")
            axes.plot(list(others), [mean(v).value for v in others.values()], marker, color=colour, mfc="none", ms=3)
            slopes.append(_slope(points))
            first += [mean(v).value for v in list(points.values())[:1] if form == "equivalent"]
        text = f"{title(activation)}:  {slopes[0]},  {slopes[1]}"
        handles.append(Line2D([], [], color=colour, marker=marker, label=text))
    if first:
        _reference(axes, min(counts), max(counts), max(first))
    axes.set(yscale="log", xlabel="samples n", title=_KERNELS[kernel])
    sample_axis(axes, counts)
    plain_log(axes.yaxis)
    head = "slope of equivalent, of sharp"
    axes.legend(handles=handles, title=head, loc="upper center", bbox_to_anchor=(0.5, -0.14))


def _points(
    records: Sequence[Record], activation: str, kernel: str, form: str, ratio: float
) -> tuple[dict[float, list[float]], dict[float, list[float]]]:
    """The gaps by n: at the ratio p/n that has the lines, and at the others."""
    own = [r for r in records if r.config["activation"] == activation]
    found = [
        positive(over_seeds(part, lambda r: float(r.config["n"]), lambda r: _gap(r, kernel, form)))
        for part in ([r for r in own if has_ratio(r, ratio)], [r for r in own if not has_ratio(r, ratio)])
    ]
    return found[0], found[1]


def _slope(points: dict[float, list[float]]) -> str:
    if len(points) < 2:
        return "—"
    found = slope(list(points), [mean(values).value for values in points.values()])
    spread = f" ± {found.spread:.2f}" if found.count > 2 else ""
    return f"{found.value:.2f}{spread}".replace("-", "−")


def _reference(axes: Axes, low: float, high: float, start: float) -> None:
    if low == high:
        return
    end = 1.9 * start * (high / low) ** -0.5
    axes.plot([low, high], [1.9 * start, end], color=REFERENCE, linewidth=1.0)
    axes.annotate("n⁻¹ᐟ²", (low, 1.9 * start), (14, 2), textcoords="offset points", color="#555555", va="bottom")


def _caption(records: Sequence[Record], ratio: float, others: list[float]) -> str:
    seeds = len({r.config["seed"] for r in records})
    small = f" Small open marks: p/n = {', '.join(f'{other:g}' for other in others)}." if others else ""
    return (
        "Relative gap between a DEQ's exact kernel and the equivalent (solid) and sharp (dashed) kernels against the number "
        f"of samples n at p/n = {ratio:g}: mean of {seeds} seed{'s' * (seeds > 1)} and 95 % interval, and the slope fitted to "
        f"the means on logarithmic axes; a slope of −½ or below is what the paper's theorem promises.{small}"
    )
