"""W6: sizes of the features of networks that learnt the same function. W7: saliency maps of a DEQ and a ResNet."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from notsodeep.data.image_sets import image_set
from notsodeep.figures.style import DEQ, DEQ_LINE, EXPLICIT, UNDESIGNED
from notsodeep.papers.figures.drawing import Drawing, Look, legend_below, panels
from notsodeep.papers.records import Record, where
from notsodeep.papers.statistics import mean
from notsodeep.papers.wu2024 import w6_features, w7_saliency
from notsodeep.papers.wu2024.w7_images import SIDE, map_entropy

_SIZES = {
    "diagonal": Look("diagonal DEQ", UNDESIGNED, ":", "^", 2.4, 5.0),
    "deq": Look("DEQ", DEQ_LINE, "-", "o", 3.2, 6.0),
    "fnn": Look("feed-forward", EXPLICIT, "--", "D", 2.2, 5.0),
}
_MAPS = {"deq": Look("DEQ", DEQ_LINE, "-", "o"), "resnet": Look("ResNet", EXPLICIT, "--", "D")}
_TIMES = {"untrained": "before training", "trained": "trained"}
_DIM = 0.18  # of an image's light, where a map is zero
_BINS = 24


def feature_drawings(records: Sequence[Record]) -> list[Drawing]:
    every = w6_features.comparable(records)
    found = {name: every[name] for name in w6_features.NETWORKS if name in every}
    if not found:
        return []
    figure = Figure(figsize=(2.4 * len(found) + 4.6, 4.6), layout="constrained")
    axes = figure.subplots(1, len(found) + 1, squeeze=False, width_ratios=[*(1.0 for _ in found), 1.6])[0]
    for panel, (name, record) in zip(axes, found.items(), strict=False):
        image = _draw_heat(panel, record)
        panel.set(title=_SIZES[name].label, xlabel="sample")
    axes[0].set_ylabel("feature, the largest on average first")
    bar = figure.colorbar(image, ax=list(axes[:-1]), location="bottom", shrink=0.6, aspect=40)
    bar.set_label("magnitude over the network's largest")
    _draw_sizes(axes[-1], found)
    return [Drawing("W6-features", _features_caption(found), figure)]


def _draw_heat(axes: Axes, record: Record) -> AxesImage:
    sizes = np.nan_to_num(np.asarray(record.values["map"], dtype=float))
    image = axes.imshow(sizes / max(float(sizes.max()), 1e-12), cmap="Greys", vmin=0.0, vmax=1.0, aspect="auto")
    axes.grid(visible=False)
    for side, count in ((axes.yaxis, sizes.shape[0]), (axes.xaxis, sizes.shape[1])):
        ticks = sorted({1, *range(5 if count < 25 else 8, count + 1, 5 if count < 25 else 8)})
        side.set_ticks([tick - 1 for tick in ticks], [str(tick) for tick in ticks])
    return image


def _draw_sizes(axes: Axes, found: Mapping[str, Record]) -> None:
    """Draw each network's sizes over their average, which shows how alike they are, not how large."""
    for name, record in found.items():
        look = _SIZES[name]
        every = np.asarray(record.values["magnitudes"], dtype=float)
        rows = every[np.isfinite(every).all(1)]  # without networks that diverged
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


def _features_caption(found: Mapping[str, Record]) -> str:
    one = next(iter(found.values()))
    seeds = max(len(record.values["magnitudes"]) for record in found.values())
    return (
        f"The features of networks that learnt {one.config['target']}. Left: magnitudes on some samples of the seen part, "
        "in one network of each kind, darker where larger. Right: each feature's mean magnitude over the average of "
        f"all, sorted; thin lines are single networks of {seeds}, the thick one their mean. A flat line at 1 means features "
        "alike in size, for which the number in the legend is 1 as well; a unit that is never active counts as one of size 0."
    )


def saliency_drawings(records: Sequence[Record]) -> list[Drawing]:
    own = w7_saliency.comparable(records)
    return [*_maps(own), *_breadths(own)]


def _maps(records: Sequence[Record]) -> list[Drawing]:
    """The maps of one seed: a row of images, and a row for each network."""
    shown = {str(r.config["network"]): r for r in records if "shown" in r.values}
    if set(shown) != set(w7_saliency.NETWORKS):
        return []
    first = next(iter(shown.values())).values["shown"]
    count = len(first["labels"])
    pixels = np.frombuffer(base64.b64decode(first["images"]), np.uint8).reshape(count, SIDE, SIDE, 3) / 255.0
    figure, axes = panels(1 + len(w7_saliency.NETWORKS), count, 1.25, 1.35)
    for column in range(count):
        _bare(axes[0, column], pixels[column])
        axes[0, column].set_title(_class_name(records[0], first["labels"][column]), fontsize=11)
    for row, name in enumerate(w7_saliency.NETWORKS, start=1):
        values = shown[name].values["shown"]
        maps = np.asarray(values["maps"])
        entropies = map_entropy(torch.from_numpy(maps)).tolist()
        for column in range(count):
            _lit(axes[row, column], pixels[column], maps[column])
            guess = values["predicted"][column]
            wrong = guess != values["labels"][column]
            text = f"\n“{_class_name(records[0], guess)}”" if wrong else ""
            axes[row, column].set_xlabel(f"{entropies[column]:.2f}{text}", fontsize=10, labelpad=2)
    for row, text in enumerate(["image", *(_MAPS[name].label for name in w7_saliency.NETWORKS)]):
        axes[row, 0].set_ylabel(text, fontsize=12)
    return [Drawing("W7-maps", _maps_caption(shown), figure)]


def _bare(axes: Axes, picture: NDArray[Any]) -> None:
    axes.imshow(picture.clip(0.0, 1.0), interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _lit(axes: Axes, picture: NDArray[Any], found: NDArray[Any]) -> None:
    """Draw the image as bright as the map is, which survives a grey printer, and a line where the map is half its largest."""
    fine = torch.nn.functional.interpolate(
        torch.from_numpy(found)[None, None], (SIDE, SIDE), mode="bilinear", align_corners=False
    )[0, 0].numpy()
    _bare(axes, picture * (_DIM + (1.0 - _DIM) * fine / max(float(fine.max()), 1e-12))[:, :, None])
    if fine.max() > 0.0 and fine.min() < 0.5 * fine.max():
        axes.contour(fine, levels=[0.5 * fine.max()], colors="white", linewidths=1.0)


def _class_name(record: Record, label: int) -> str:
    known = image_set("cifar10").classes if record.config.get("data") == "cifar10" else ()
    return known[label] if label < len(known) else str(label)


def _maps_caption(shown: Mapping[str, Record]) -> str:
    accuracies = ", ".join(f"{_MAPS[name].label} {record.values['accuracy']:.0%}" for name, record in shown.items())
    return (
        "Grad-CAM of both networks for the first test images, each for the class that the network gives (in quotes where it is "
        "wrong): an image is lit where its map is large, and the white line is where it falls to half of its largest value. "
        f"The number is the map's entropy over its largest possible value. Test accuracy: {accuracies}."
    )


def _breadths(records: Sequence[Record]) -> list[Drawing]:
    own = {name: where(records, network=name) for name in w7_saliency.NETWORKS}
    pooled = {
        when: {name: [float(v) for r in found for v in r.values[when]["entropies"]] for name, found in own.items()}
        for when in _TIMES
    }
    every = [value for by_name in pooled.values() for values in by_name.values() for value in values]
    if not every:
        return []
    figure, axes = panels(1, 3, 4.0, 3.6)
    bins = np.linspace(min(every), min(1.0, max(every) + 1e-6), _BINS + 1).tolist()
    top = 0.0
    for panel, (when, words) in zip(axes[0], _TIMES.items(), strict=False):
        for name, values in pooled[when].items():
            _histogram(panel, values, bins, name)
        panel.set(title=f"single maps, {words}", xlabel="entropy / log(pixels)")
        top = max(top, panel.get_ylim()[1])
    for panel in axes[0, :2]:
        panel.set_ylim(0.0, top)
    axes[0, 0].set_ylabel("share of maps")
    _seeds(axes[0, 2], records)
    filled = Patch(facecolor=DEQ, edgecolor=DEQ_LINE, label=_MAPS["deq"].label)
    outlined = Patch(facecolor="none", edgecolor=EXPLICIT, linewidth=2.0, linestyle="--", label=_MAPS["resnet"].label)
    legend_below(figure, [filled, outlined])
    return [Drawing("W7-breadth", _breadth_caption(records), figure)]


def _histogram(axes: Axes, values: Sequence[float], bins: list[float], name: str) -> None:
    """Draw the DEQ as a pale area and the ResNet as a line over it: both are seen where they coincide."""
    if not values:
        return
    weights = np.full(len(values), 1.0 / len(values))
    if name == "deq":
        axes.hist(values, bins, weights=weights, histtype="stepfilled", facecolor=DEQ, edgecolor=DEQ_LINE)
    else:
        axes.hist(values, bins, weights=weights, histtype="step", color=EXPLICIT, linewidth=2.0, linestyle="--")


def _seeds(axes: Axes, records: Sequence[Record]) -> None:
    """Draw each seed's mean, and their mean with its interval."""
    ticks, labels, every = [], [], []
    for group, (when, words) in enumerate(_TIMES.items()):
        for side, name in enumerate(w7_saliency.NETWORKS):
            own = (record.values[when]["entropy"] for record in where(records, network=name))
            found = [value for value in own if value is not None]
            if not found:
                continue
            every += found
            look, at, estimate = _MAPS[name], group + 0.36 * (side - 0.5), mean(found)
            axes.plot([at - 0.07] * len(found), found, look.marker, color=look.colour, mfc="white", ms=5)
            axes.errorbar(at + 0.05, estimate.value, estimate.half_width, fmt=look.marker, color=look.colour, capsize=5)
        ticks.append(group)
        labels.append(words)
    axes.set_xticks(ticks, labels)
    if every:  # the frame shows all seeds; an interval of two seeds may be wider than that
        room = max(0.02, max(every) - min(every))
        axes.set_ylim(max(0.0, min(every) - room), min(1.0, max(every) + room))
    axes.set(xlim=(-0.5, len(ticks) - 0.5), title="means of seeds", ylabel="entropy / log(pixels)")
    axes.grid(visible=False, axis="x")


def _breadth_caption(records: Sequence[Record]) -> str:
    seeds = len({record.config["seed"] for record in records})
    return (
        "How broad the Grad-CAM maps are: the entropy of a map over its largest possible value, 0 where it is one pixel and 1 "
        f"where all are alike. Left and middle: all maps of {seeds} seed{'s' * (seeds != 1)}; right: each seed's mean (open), "
        "and the mean of seeds with its 95 % interval (filled; one that leaves the frame tells little). Untrained networks are "
        "the control: what the architecture does alone."
    )
