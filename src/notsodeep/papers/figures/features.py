"""W6: how large the features are of networks that learnt the same function."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from notsodeep.figures.style import DEQ_LINE, EXPLICIT, UNDESIGNED
from notsodeep.papers.figures.drawing import Drawing, Look
from notsodeep.papers.records import Record
from notsodeep.papers.statistics import mean
from notsodeep.papers.wu2024.w6_features import NETWORKS, comparable

_LOOKS = {
    "diagonal": Look("diagonal DEQ", UNDESIGNED, ":", "^", 2.4, 5.0),
    "deq": Look("DEQ", DEQ_LINE, "-", "o", 3.2, 6.0),
    "fnn": Look("feed-forward", EXPLICIT, "--", "D", 2.2, 5.0),
}


def feature_drawings(records: Sequence[Record]) -> list[Drawing]:
    every = comparable(records)
    found = {name: every[name] for name in NETWORKS if name in every}
    if not found:
        return []
    figure = Figure(figsize=(2.4 * len(found) + 4.6, 4.6), layout="constrained")
    axes = figure.subplots(1, len(found) + 1, squeeze=False, width_ratios=[*(1.0 for _ in found), 1.6])[0]
    for panel, (name, record) in zip(axes, found.items(), strict=False):
        image = _heat(panel, record)
        panel.set(title=_LOOKS[name].label, xlabel="sample")
    axes[0].set_ylabel("feature, the largest on average first")
    bar = figure.colorbar(image, ax=list(axes[:-1]), location="bottom", shrink=0.6, aspect=40)
    bar.set_label("magnitude over the network's largest")
    _sizes(axes[-1], found)
    return [Drawing("W6-features", _caption(found), figure)]


def _heat(axes: Axes, record: Record) -> AxesImage:
    sizes = np.nan_to_num(np.asarray(record.values["map"], dtype=float))
    image = axes.imshow(sizes / max(float(sizes.max()), 1e-12), cmap="Greys", vmin=0.0, vmax=1.0, aspect="auto")
    axes.grid(visible=False)
    for side, count in ((axes.yaxis, sizes.shape[0]), (axes.xaxis, sizes.shape[1])):
        ticks = sorted({1, *range(5 if count < 25 else 8, count + 1, 5 if count < 25 else 8)})
        side.set_ticks([tick - 1 for tick in ticks], [str(tick) for tick in ticks])
    return image


def _sizes(axes: Axes, found: Mapping[str, Record]) -> None:
    """Each network's sizes over their average: how alike they are, not how large."""
    for name, record in found.items():
        look = _LOOKS[name]
        every = np.asarray(record.values["magnitudes"], dtype=float)
        rows = every[np.isfinite(every).all(1)]  # without those that diverged
        if not len(rows):
            continue
        rows = rows / np.maximum(rows.mean(1, keepdims=True), 1e-12)
        ranks = np.arange(1, rows.shape[1] + 1)
        for row in rows if len(rows) > 1 else ():
            axes.plot(ranks, row, color=look.colour, linewidth=0.7, alpha=0.4, gid=f"seed-{name}")
        known = [value for value in record.values["spread_out"] if value is not None and math.isfinite(value)]
        text = f"{look.label}, m = {rows.shape[1]}: {mean(known).value:.2f}"
        axes.plot(ranks, rows.mean(0), **look.line, label=text, gid=name)
    axes.set_ylim(top=1.35 * axes.get_ylim()[1])  # room for the legend
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="feature, by size", ylabel="mean magnitude over the average")
    axes.legend(loc="upper right", fontsize=10, title="(Σ a)²/(m Σ a²)", title_fontsize=10)


def _caption(found: Mapping[str, Record]) -> str:
    one = next(iter(found.values()))
    seeds = max(len(record.values["magnitudes"]) for record in found.values())
    return (
        f"The features of networks that learnt {one.config['target']}. Left: magnitudes on some samples of the seen part, "
        "in one network of each kind, darker where larger. Right: each feature's mean magnitude over the average of "
        f"all, sorted; thin lines are single networks of {seeds}, the thick one their mean. A flat line at 1 means features "
        "alike in size, for which the number in the legend is 1 as well; a unit that is never active counts as one of size 0."
    )
