"""L6: time, work and memory of a DEQ, of its matched network and of its closest twin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, Formatter

from notsodeep.figures.style import CLOSEST
from notsodeep.papers.figures import drawing
from notsodeep.papers.figures.accuracy import ACTIVATIONS, DATA, accuracy_axis, setting, settings, width
from notsodeep.papers.figures.drawing import NETWORKS, Drawing, Look, draw_means, in_order, number, panels, plain_log, title
from notsodeep.papers.ling2024.l5_claims import comparable
from notsodeep.papers.ling2024.l6_cost import NETWORKS as TIMED, comparable as comparable_timings
from notsodeep.papers.records import Record, where
from notsodeep.papers.statistics import mean, over_seeds

Value = Callable[[Record], float | None]

_DEVICES = ("cpu", "cuda")
_DASHES: dict[str, Any] = {"tanh": "-", "relu": "--"}
_SPEED_UPS = {
    ("inference", "matched"): Look("inference", "#16324f", "-", "o", 1.8),
    ("training", "matched"): Look("training", "#c98a1b", "-", "s", 1.8),
    ("inference", "closest"): Look("inference, closest twin", CLOSEST, "-", "v", 1.8),
}
_WORK = {
    "inference_flops": "inference,\nFLOPs per sample",
    "training_flops": "training,\nFLOPs per sample",
    "kept_bytes": "kept for the backward pass,\nper sample",
    "peak_bytes": "peak of a training step,\nwhole batch, GPU",
}
_FOR_THE_TIME = (
    "Test accuracy (readout by SGD, mean over seeds) against the time of one batch of inference, one point a width, the "
    "smallest and the largest named: further left at the same height is the same accuracy for less time. The vertical "
    "scale is the logarithm of the error."
)


def cost_drawings(records: Sequence[Record], accuracies: Sequence[Record]) -> list[Drawing]:
    own = comparable_timings(records)
    return [*_times(own), *_work(own), *_accuracy_cost(own, comparable(where(accuracies, kind="width")))]


def _devices(records: Sequence[Record]) -> list[str]:
    return in_order((str(r.config["device"]) for r in records), _DEVICES)


def _of(net: str, measure: str) -> Value:
    return lambda record: number(record.values, net, measure)


def _nets(records: Sequence[Record]) -> list[str]:
    """The networks that the records know."""
    return [net for net in TIMED if any(net in record.values for record in records)]


def _ratio(record: Record, measure: str, net: str) -> float | None:
    deq, other = (number(record.values, name, measure) for name in ("deq", net))
    return deq / other if deq and other else None


def _draw_nets(axes: Axes, records: Sequence[Record], measure: str) -> None:
    for activation, part in _by_activation(records).items():
        for net in _nets(part):
            points = drawing.positive(over_seeds(part, width, _of(net, measure)))
            draw_means(axes, points, NETWORKS[net], linestyle=_dash(activation), linewidth=3.5 if net == "deq" else 1.8)


def _by_activation(records: Sequence[Record]) -> dict[str, list[Record]]:
    names = in_order((str(r.config["activation"]) for r in records), ACTIVATIONS)
    return {name: [r for r in records if r.config["activation"] == name] for name in names}


def _dash(activation: str) -> Any:
    return _DASHES.get(activation, ":")


def _finish(axes: Axes, records: Sequence[Record], text: str, formatter: Formatter | None = None) -> None:
    drawing.width_axis(axes, [width(record) for record in records])
    axes.set(yscale="log", title=text)
    plain_log(axes.yaxis, formatter)


def _keys(records: Sequence[Record], looks: Sequence[Look]) -> list[Line2D]:
    """Entries of the legend: the meaning of colours and marks, then of dashes."""
    nets = [look.handle(linewidth=min(look.width, 3.5)) for look in looks]
    black: dict[str, Any] = {"color": "black", "linewidth": 1.5}
    return nets + [Line2D([], [], linestyle=_dash(name), label=title(name), **black) for name in _by_activation(records)]


def _times(records: Sequence[Record]) -> list[Drawing]:
    """The time of both networks, and their ratio."""
    if not any(number(r.values, net, "inference_ms") for r in records for net in TIMED):
        return []
    devices = _devices(records)
    figure, axes = panels(len(devices), 3, 4.3, 3.3, sharex=True)
    for row, device in zip(axes, devices, strict=True):
        own = [record for record in records if record.config["device"] == device]
        for panel, measure, text in ((row[0], "inference_ms", "inference"), (row[1], "training_ms", "training step")):
            _draw_nets(panel, own, measure)
            _finish(panel, own, f"{_processor(own, device)}: {text}")
        _draw_speed_up(row[2], own)
        _finish(row[2], own, f"{title(device)}: times faster")
        row[0].set_ylabel(f"ms per batch{_batch(own, 'inference')}")
        row[1].set_ylabel(f"ms per step{_batch(own, 'training')}")
        row[2].set_ylabel("DEQ's time / the network's")
    for panel in axes[-1]:
        panel.set_xlabel("width m")
    nets = _nets(records)
    ratios = [look for (_, net), look in _SPEED_UPS.items() if net in nets]
    drawing.legend_below(figure, _keys(records, [*(NETWORKS[net] for net in nets), *ratios]))
    return [Drawing("L6-cost", _times_caption(records), figure)]


def _draw_speed_up(axes: Axes, records: Sequence[Record]) -> None:
    for (name, net), look in _SPEED_UPS.items():
        for activation, part in _by_activation(records).items():
            points = over_seeds(part, width, partial(_ratio, measure=f"{name}_ms", net=net))
            draw_means(axes, drawing.positive(points), look, linestyle=_dash(activation))
    axes.axhline(1.0, color="black", linewidth=0.8)


def _processor(records: Sequence[Record], device: str) -> str:
    names = [str(r.values["processor"]) for r in records if r.values.get("processor")]
    return names[0] if names and device == "cuda" else title(device)


def _batch(records: Sequence[Record], use: str) -> str:
    config = records[0].config
    batch = config.get(f"{use}_batch", config.get("batch"))
    return f" of {batch}" if batch else ""


def _times_caption(records: Sequence[Record]) -> str:
    processors = sorted({str(r.values["processor"]) for r in records if r.values.get("processor")})
    data = f" on {title(str(records[0].config['data']))}" if records[0].config.get("data") else ""
    inference, training = (_batch(records, use) for use in ("inference", "training"))
    return (
        f"Time of inference on one batch{inference} and of one training step{training} (forward, backward, update){data}, "
        f"processor: {'; '.join(processors) or 'unknown'}; for the DEQ and for the explicit networks designed for it at the "
        "same width. Right, how many times faster these are (above 1: faster), the matched one unless another is named. Bars "
        "are 95 % intervals where there are several runs."
    )


def _work(records: Sequence[Record]) -> list[Drawing]:
    """Work and memory, which are counted."""
    shown = {m: t for m, t in _WORK.items() if any(number(r.values, net, m) for r in records for net in TIMED)}
    if not shown:
        return []
    figure, axes = panels(1, len(shown), 3.6, 3.6)
    for panel, (measure, text) in zip(axes[0], shown.items(), strict=True):
        _draw_nets(panel, records, measure)
        _finish(panel, records, text, EngFormatter(unit="B" if measure.endswith("bytes") else "", places=0))
        panel.set_xlabel("width m")
    drawing.legend_below(figure, _keys(records, [NETWORKS[net] for net in _nets(records)]))
    return [Drawing("L6-work", _work_caption(records), figure)]


def _work_caption(records: Sequence[Record]) -> str:
    counts = [x for r in records if (x := number(r.values, "deq", "evaluations")) is not None]
    solves = f" The DEQ evaluates its map {mean(counts).value:.1f} times a forward pass on average." if counts else ""
    return (
        "Floating-point operations and memory of the DEQ and of the explicit networks designed for it at the same width, "
        f"counted and not timed: a DEQ repeats its map until it converges, an explicit network runs once.{solves}"
    )


def _accuracy_cost(records: Sequence[Record], accuracies: Sequence[Record]) -> list[Drawing]:
    """Accuracy for the time it takes."""
    devices, nets = _devices(records), _nets(records)
    curves = {
        (device, key, net): _points(records, accuracies, device, key, net)
        for device in devices
        for key in settings(accuracies)
        for net in nets
    }
    columns = [key for key in settings(accuracies) if any(curves[d, key, n] for d in devices for n in nets)]
    columns = [key for key in columns if key[0] in DATA[:2]] or columns
    rows = [device for device in devices if any(curves[device, key, n] for key in columns for n in nets)]
    if not columns or not rows:
        return []
    figure, axes = panels(len(rows), len(columns), 3.5 if len(columns) > 1 else 6.0, 3.4, sharey="col", sharex="row")
    for line, device in zip(axes, rows, strict=True):
        for panel, key in zip(line, columns, strict=True):
            _draw_accuracy_cost(panel, {net: curves[device, key, net] for net in nets})
            panel.set_title(f"{title(key[0])}, {title(key[1])}\n{title(device)}", fontsize=11)
        line[0].set_ylabel("test accuracy")
    for panel in axes[0]:
        accuracy_axis(panel)
    for panel in axes[:, 0]:
        plain_log(panel.xaxis)
    for panel in axes[-1]:
        panel.set_xlabel(f"inference, ms per batch{_batch(records, 'inference')}")
    drawing.legend_below(figure, [NETWORKS[net].handle() for net in nets])
    return [Drawing("L6-accuracy-cost", _FOR_THE_TIME, figure)]


def _points(
    records: Sequence[Record], accuracies: Sequence[Record], device: str, key: tuple[str, str], net: str
) -> dict[float, tuple[float, float]]:
    """(time, accuracy) by width, where both are known."""
    timed = [r for r in records if r.config["device"] == device and r.config["activation"] == key[1]]
    scored = [record for record in accuracies if setting(record) == key]
    times = drawing.positive(over_seeds(timed, width, _of(net, "inference_ms")))
    found = over_seeds(scored, width, lambda r: number(r.values, "accuracy", "sgd", net))
    return {m: (mean(times[m]).value, mean(found[m]).value) for m in times if m in found}


def _draw_accuracy_cost(axes: Axes, curves: Mapping[str, Mapping[float, tuple[float, float]]]) -> None:
    for net, points in curves.items():
        axes.plot([t for t, _ in points.values()], [a for _, a in points.values()], **NETWORKS[net].line)
        right = net == "deq"
        for m in {min(points), max(points)} if points else ():
            place: dict[str, Any] = {"textcoords": "offset points", "ha": "left" if right else "right", "va": "center"}
            axes.annotate(drawing.power_of_two(m), points[m], (9 if right else -7, -6 if right else 6), **place)
    axes.set_xscale("log")
    axes.margins(x=0.18, y=0.08)
