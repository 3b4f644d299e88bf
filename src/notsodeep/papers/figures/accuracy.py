"""L5: test accuracy against width, and distances between networks of equal accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator
from numpy.typing import ArrayLike, NDArray

from notsodeep.figures.style import DEQ_LINE
from notsodeep.papers.figures import drawing
from notsodeep.papers.figures.drawing import NETWORKS, Drawing, draw_means, in_order, number, panels, title
from notsodeep.papers.ling2024.l5_claims import ACCURACY, LARGEST_WIDTH, SMALLEST_WIDTH, comparable
from notsodeep.papers.records import Record, where
from notsodeep.papers.statistics import mean, over_seeds

Value = Callable[..., float | None]
"""(record, net) → a number of the record for one network, or None."""

DATA = ("mnist", "fashion-mnist", "cifar10-vgg19")
ACTIVATIONS = ("tanh", "relu")
_FEATURES = "cifar10-vgg19"
# Round numbers first: a tick gives way to a rounder one nearby.
_ROUND_LEVELS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.1, 0.6, 0.7)
_LEVELS = (*_ROUND_LEVELS, 0.85, 0.93, 0.97, 0.75, 0.65, 0.88, 0.92, 0.94, 0.96, 0.3)
_LEAST_ERROR, _TICKS_APART, _MARGIN = 1e-4, 0.1, 0.07


def accuracy_drawings(records: Sequence[Record]) -> list[Drawing]:
    finite, infinite, trained = (comparable(where(records, kind=kind)) for kind in ("width", "infinite", "trained"))
    return [*_readouts(finite, infinite), *_apart(finite, infinite), *_trained(trained)]


def setting(record: Record) -> tuple[str, str]:
    return str(record.config["data"]), str(record.config["activation"])


def width(record: Record) -> float:
    return float(record.config["width"])


def settings(records: Iterable[Record]) -> list[tuple[str, str]]:
    """The pairs (data, activation) of the records, in the paper's order."""
    there = {setting(record) for record in records}
    data = in_order((d for d, _ in there), DATA)
    activations = in_order((a for _, a in there), ACTIVATIONS)
    return [(d, a) for d in data for a in activations if (d, a) in there]


def accuracy_axis(axes: Axes) -> None:
    """Scale the axis by the logarithm of the error: .90 and .92 lie as far apart as .80 and .84."""
    low, high = (float(_to_error(end)) for end in axes.dataLim.intervaly)
    span = max(high - low, 0.02)
    low, high = low - _MARGIN * span, high + _MARGIN * span
    ticks: list[float] = []
    for level in _LEVELS:
        place = float(_to_error(level))
        if low <= place <= high and all(abs(place - _to_error(t)) > _TICKS_APART * (high - low) for t in ticks):
            ticks.append(level)
    axes.set_yscale("function", functions=(_to_error, _from_error))
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda level, _: f"{level:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(*(float(_from_error(end)) for end in (low, high)))


def _to_error(accuracy: ArrayLike) -> NDArray[np.float64]:
    return -np.log10(np.maximum(1.0 - np.asarray(accuracy, dtype=float), _LEAST_ERROR))


def _from_error(value: ArrayLike) -> NDArray[np.float64]:
    return 1.0 - 10.0 ** -np.asarray(value, dtype=float)


def _readouts(finite: Sequence[Record], infinite: Sequence[Record]) -> list[Drawing]:
    """Accuracy against width, with either readout."""
    drawn = []
    runs: list[tuple[str, str, Sequence[Record]]] = [("L5-accuracy", "sgd", []), ("L5-ridge", "ridge", infinite)]
    for name, readout, limits in runs:
        own = [record for record in finite if record.values.get("accuracy", {}).get(readout)]
        if own:
            drawn.append(Drawing(name, _readout_caption(own, readout, limits), _readout(own, readout, limits)))
    return drawn


def _readout(records: Sequence[Record], readout: str, infinite: Sequence[Record]) -> Figure:
    order = ("deq", "matched", "closest", "plain", "rescaled")
    nets = [net for net in order if any(_accuracy(r, readout, net) for r in records)]
    figure, axes, at = _panel_of_each(records)
    for (data, activation), panel in at.items():
        own = [record for record in records if setting(record) == (data, activation)]
        for net in nets:
            draw_means(panel, over_seeds(own, width, partial(_accuracy, readout=readout, net=net)), NETWORKS[net])
        if readout == "sgd":
            _draw_paper(panel, data, activation)
        widths = [width(record) for record in own] + [SMALLEST_WIDTH, LARGEST_WIDTH] * (readout == "sgd")
        limits = [record for record in infinite if setting(record) == (data, activation)]
        end = drawing.width_axis(panel, widths, infinite=bool(limits))
        for net in nets:
            _draw_limit(panel, net, end, [number(r.values, "accuracy", net) for r in limits])
        panel.set_title(f"{title(data)}, {title(activation)}")
        accuracy_axis(panel)
    drawing.outer_labels(axes, "test accuracy", "width m")
    handles = [NETWORKS[net].handle() for net in nets]
    if readout == "sgd":
        hollow: dict[str, Any] = {"color": "black", "linestyle": "", "marker": "o", "mfc": "none", "ms": 10}
        handles.append(Line2D([], [], label="the paper's (hollow)", **hollow))
    drawing.legend_below(figure, handles)
    return figure


def _accuracy(record: Record, readout: str, net: str) -> float | None:
    return number(record.values, "accuracy", readout, net)


def _draw_paper(axes: Axes, data: str, activation: str) -> None:
    """Draw the paper's accuracies as larger hollow marks."""
    for net, found in ACCURACY.get((data, activation), {}).items():
        look = NETWORKS[net]
        mark: dict[str, Any] = {"color": DEQ_LINE if net == "deq" else look.colour, "mfc": "none", "ms": 11, "mew": 1.5}
        axes.plot([SMALLEST_WIDTH, LARGEST_WIDTH], found, look.marker, gid=f"paper-{net}", **mark)


def _draw_limit(axes: Axes, net: str, where: float, found: Sequence[float | None]) -> None:
    """Draw the values at infinite width at the right edge; zero, which a logarithmic axis lacks, hollow at its foot."""
    look = NETWORKS[net]
    mark: dict[str, Any] = {"color": look.colour, "marker": look.marker, "linestyle": "", "markersize": look.size + 1}
    values = [value for value in found if value]
    axes.plot([where] * len(values), values, **mark)
    if 0.0 in found:
        axes.plot([where], [0.0], **mark, mfc="white", clip_on=False, zorder=5, transform=axes.get_xaxis_transform())


def _readout_caption(records: Sequence[Record], readout: str, infinite: Sequence[Record]) -> str:
    data = {setting(record)[0] for record in records}
    if readout == "sgd":
        what = (
            "readout trained by SGD on fixed random features; larger hollow marks are the paper's values at widths 2⁵ and 2¹². "
            "The learning rate is the same for all, so the scale of a network's features counts: 'plain rescaled' is the plain "
            "network times its best factor."
        )
        if _FEATURES in data:
            what += " The CIFAR-10 features are not the paper's: compare the gaps between the networks there, not the levels."
    else:
        what = (
            "readout in closed form (ridge), so that the scale of the features no longer counts: where the plain network "
            "reaches the DEQ here, its gap under SGD was a matter of scale."
        )
        if infinite:
            counts = sorted({str(record.config["train"]) for record in infinite if record.config.get("train")})
            trained = f", from {' or '.join(counts)} training samples, so compare the networks there and not the level"
            what += f" At ∞: kernel regression with the kernels of infinite width{trained * bool(counts)}."
    how = f"{_averaged(records)}, on a scale of the error's logarithm"
    return f"Test accuracy against width, {how}: {what}"


def _apart(finite: Sequence[Record], infinite: Sequence[Record]) -> list[Drawing]:
    """Distances between the networks."""
    rows = [row for row in _measures() if any(row[1](r, net) is not None for r in finite for net in NETWORKS)]
    if not rows:
        return []
    columns = settings(finite)
    figure, axes = panels(len(rows), len(columns), max(2.25, 6.0 / len(columns)), 2.3, sharey="row", sharex="col")
    order = ("deq_again", "matched", "plain", "rescaled", "closest")
    nets = [net for net in order if any(value(r, net) for _, value, _ in rows for r in finite)]
    for column, key in enumerate(columns):
        own, limits = ([r for r in part if setting(r) == key] for part in (finite, infinite))
        for row, (_, value, limit) in enumerate(rows):
            panel = axes[row, column]
            panel.set_yscale("log")
            end = drawing.width_axis(panel, [width(r) for r in own], most=3, infinite=bool(limits))
            for net in nets:
                points = drawing.positive(over_seeds(own, width, partial(value, net=net)))
                draw_means(panel, points, NETWORKS[net])
                _draw_limit(panel, net, end, [limit(r, net) for r in limits])
        axes[0, column].set_title(f"{title(key[0])}\n{title(key[1])}", fontsize=11)
        axes[-1, column].set_xlabel("width m")
    for row, (text, _, _) in enumerate(rows):
        axes[row, 0].set_ylabel(text)
        drawing.plain_log(axes[row, 0].yaxis)
        axes[row, 0].yaxis.set_minor_locator(NullLocator())
    drawing.legend_below(figure, [NETWORKS[net].handle() for net in nets])
    return [Drawing("L5-apart", _apart_caption(finite), figure)]


def _measures() -> list[tuple[str, Value, Value]]:
    """Each measure that is drawn: its name, its value at a width, and its value at infinite width."""

    def at(*path: str) -> Value:
        return lambda record, net: number(record.values, *path, net)

    def apart(*path: str) -> Value:
        return lambda record, net: None if (x := number(record.values, *path, net)) is None else 1.0 - x

    return [
        ("kernel gap", at("kernel_gap"), at("kernel_gap")),
        ("prediction gap,\nridge", at("prediction_gap"), at("prediction_gap")),
        ("other answers,\nridge", apart("agreement", "ridge"), apart("agreement")),
        ("other answers,\nSGD", apart("agreement", "sgd"), lambda *_, **__: None),
    ]


def _apart_caption(records: Sequence[Record]) -> str:
    return (
        "How far a network is from the DEQ, by width: the relative gap of the feature kernels, the relative distance of ridge "
        "predictions, and the share of test samples that get another answer, with either readout; "
        f"{_averaged(records)}, marks at ∞ for infinite width, from fewer samples (hollow at the foot: zero). "
        "The broad grey line is the noise floor, a second draw of the same DEQ: a network at that line cannot be told from the "
        "DEQ at that width."
    )


def _trained(records: Sequence[Record]) -> list[Drawing]:
    """All weights trained."""
    nets = [net for net in ("deq", "matched", "closest", "plain") if any(number(r.values, "accuracy", net) for r in records)]
    if not nets:
        return []
    data = in_order((setting(r)[0] for r in records), DATA)
    order = in_order((setting(r)[1] for r in records), ACTIVATIONS)
    figure, axes = panels(1, len(data), max(4.0, 2.8 * len({(setting(r)[1], width(r)) for r in records})), 4.0)
    for panel, name in zip(axes[0], data, strict=True):
        own = [record for record in records if setting(record)[0] == name]
        groups = sorted({(setting(r)[1], width(r)) for r in own}, key=lambda g: (order.index(g[0]), g[1]))
        for place, group in enumerate(groups):
            runs = [record for record in own if (setting(record)[1], width(record)) == group]
            for index, net in enumerate(nets):
                _draw_trained(panel, net, place + 0.22 * (index - (len(nets) - 1) / 2), runs)
        panel.set_xticks(range(len(groups)), [f"{title(a)}\nm = {drawing.power_of_two(m)}" for a, m in groups])
        panel.set(xlim=(-0.6, len(groups) - 0.4), title=title(name))
        panel.margins(y=0.25)
        panel.grid(visible=False, axis="x")
    axes[0, 0].set_ylabel("test accuracy, all weights trained")
    drawing.legend_below(figure, [NETWORKS[net].handle(linestyle="") for net in nets])
    caption = (
        f"Test accuracy with all weights trained, not the readout alone: {_averaged(records)}. The "
        "equivalence is one of networks at random weights; nothing promises that it survives training."
    )
    return [Drawing("L5-trained", caption, figure)]


def _draw_trained(axes: Axes, net: str, where: float, records: Sequence[Record]) -> None:
    values = [value for r in records if (value := number(r.values, "accuracy", net)) is not None]
    if values:
        draw_means(axes, {where: values}, NETWORKS[net], linestyle="", markersize=9)
        found = mean(values)
        top = (where, found.value + found.half_width)
        axes.annotate(f"{found.value:.3f}", top, (0, 8), textcoords="offset points", ha="center")


def _panel_of_each(records: Sequence[Record]) -> tuple[Figure, NDArray[np.object_], dict[tuple[str, str], Axes]]:
    """A panel for each (data, activation): a column per data set, a row per activation."""
    there = settings(records)
    data, activations = list(dict.fromkeys(d for d, _ in there)), in_order((a for _, a in there), ACTIVATIONS)
    figure, axes = panels(len(activations), len(data), 4.5 if len(data) > 1 else 6.0, 3.4)
    at = {(d, a): axes[row, column] for row, a in enumerate(activations) for column, d in enumerate(data)}
    for key in set(at) - set(there):
        at.pop(key).set_visible(False)
    return figure, axes, at


def _averaged(records: Iterable[Record]) -> str:
    count = len({record.config.get("seed") for record in records})
    return f"mean over {count} seeds and 95 % interval" if count > 1 else "one seed"
