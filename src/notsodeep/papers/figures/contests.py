"""W1, W2, W4 and W5: final losses of trained DEQs and feed-forward networks, and the cost of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from notsodeep.figures.style import DEQ_LINE, EXPLICIT, UNDESIGNED
from notsodeep.papers.figures.drawing import Drawing, Look, draw_means, panels, plain_log, power_of_two
from notsodeep.papers.records import Record
from notsodeep.papers.statistics import mean
from notsodeep.papers.wu2024 import contest, w1_w4_sawtooth, w2_steep, w5_unseen

LOOKS = {
    "rivals": Look("feed-forward", UNDESIGNED, "", "s", 1.8, 6.0),
    "deq": Look("DEQ", DEQ_LINE, "", "o", 1.8, 9.0),
    "paired": Look("feed-forward, of the DEQ's FLOPs", EXPLICIT, "", "D", 1.8, 6.0),
}
_BAND = "#edf1f6"  # behind networks of equal FLOPs
_LINE = "#555555"
_TOLD_APART = 0.0025  # W2: the loss of a network that gives all of the steep part one value
_SHORT = 4.0  # ratio of the ends of an axis below which it gets more ticks
_GAP = 0.5  # between groups of networks; networks are 1 apart
_ABOUT = {
    "W1": (
        "Test losses on the sawtooth",
        "A loss at the dashed line, the best constant's, means that nothing of the sawtooth was learnt, and differences there "
        "tell nothing. Unshaded: networks of the paper's sizes. The paper trains for 1000 batches.",
    ),
    "W2": (
        "Test losses on the steep function",
        "A network that tells the steep part from the flat one, and gives all of it one value, has a loss of 0.0025, the "
        "dotted line: only below it is the steep part resolved. Unshaded: networks of the paper's sizes.",
    ),
    "W4": (
        "Test losses on the sawtooth in many dimensions",
        "Where all networks lie at the dashed line, the best constant's, or above it, none of them learnt the function, and "
        "a lower loss is that of a network that follows the noise less. Unshaded: networks of the paper's sizes.",
    ),
    "W5": (
        "Loss on the part of the cube that was never seen",
        "The dashed line is the best constant of the unseen part. The paper has one value for its feed-forward network, whose "
        "size it leaves open: it stands beside each of them.",
    ),
}


@dataclass(frozen=True)
class _Group:
    """A DEQ with the networks of equal FLOPs, or networks of the paper's sizes, and the paper's losses by name."""

    deq: bool
    parts: list[tuple[str, str, Mapping[str, Any]]]  # look, name, values
    paper: Mapping[str, float]


@dataclass(frozen=True)
class _Panel:
    """A panel at (row, column), with the losses of the best constant (of `record`) and of `floor` as lines."""

    row: int
    column: int
    title: str
    record: Record
    groups: list[_Group]
    floor: float | None = None

    @property
    def constant(self) -> float:
        return float(self.record.values["best_constant"])

    @property
    def places(self) -> int:
        return sum(len(group.parts) for group in self.groups)


def contest_drawings(name: str, records: Sequence[Record]) -> list[Drawing]:
    apart, _ = contest.RUNS[name]
    own = list({tuple(str(r.config.get(key)) for key in apart): r for r in contest.of_runs(name, records)}.values())
    if not own:
        return []
    found = {"W1": _w1, "W2": _w2, "W4": _w4, "W5": _w5}[name](own)
    rows, columns = (1 + max(getattr(panel, side) for panel in found) for side in ("row", "column"))
    width = min(12.0 / columns, max(2.4, 1.2 + 0.34 * max(panel.places for panel in found)))
    width = max(width, 6.4 / columns)
    figure, axes = panels(rows, columns, width, 3.6 if rows > 1 else 4.6)
    for empty in {(r, c) for r in range(rows) for c in range(columns)} - {(p.row, p.column) for p in found}:
        axes[empty].set_visible(False)
    for panel in found:
        _draw(axes[panel.row, panel.column], panel)
    loss = "loss on the unseen part" if name == "W5" else "test loss"
    for row in {panel.row for panel in found}:
        axes[row, min(panel.column for panel in found if panel.row == row)].set_ylabel(loss)
    handles, below = _handles(found), "below the panels: the network, and FLOPs a sample of both passes of training"
    figure.legend(handles=handles, title=below, loc="outside lower center", ncols=2 if columns * width < 8.0 else 4)
    return [Drawing(f"{name}-trained", _caption(name, own), figure)]


def _pieces(record: Record) -> int:
    return w1_w4_sawtooth.pieces_log2(str(record.config["target"]))


def _w1(records: Sequence[Record]) -> list[_Panel]:
    rows = sorted({int(r.config["steps"]) for r in records})
    columns = sorted({_pieces(r) for r in records})
    found = []
    for r in records:
        row, column = rows.index(int(r.config["steps"])), columns.index(_pieces(r))
        # The paper trains for 1000 batches.
        paper = w1_w4_sawtooth.W1_PAPER.get(_pieces(r), {}) if r.config["steps"] == 1000 else {}
        title = f"{power_of_two(2 ** _pieces(r))} pieces\n{r.config['steps']} batches"
        found.append(_Panel(row, column, title, r, [_rivals(r, paper), _deq(r, paper.get("DEQ"))]))
    return found


def _w2(records: Sequence[Record]) -> list[_Panel]:
    found = []
    for column, d in enumerate(sorted({int(r.config["dimension"]) for r in records})):
        own = sorted((r for r in records if r.config["dimension"] == d), key=lambda r: int(r.config["width"]))
        deqs, others = w2_steep.PAPER.get(d, ({}, {}))
        # The feed-forward networks of a dimension were trained together with one of its DEQs.
        rivals = [_rivals(r, others) for r in own if r.values.get("rivals")][-1:]
        groups = [*rivals, *(_deq(r, deqs.get(int(r.config["width"]))) for r in own)]
        found.append(_Panel(0, column, f"d = {d}", own[-1], groups, _TOLD_APART))
    return found


def _w4(records: Sequence[Record]) -> list[_Panel]:
    r, paper = records[-1], w1_w4_sawtooth.W4_PAPER
    title = f"{power_of_two(2 ** _pieces(r))} pieces, {r.config['dimension']} inputs"
    return [_Panel(0, 0, title, r, [_rivals(r, paper), _deq(r, paper["DEQ"])])]


def _w5(records: Sequence[Record]) -> list[_Panel]:
    found = []
    for column, r in enumerate(sorted(records, key=lambda r: str(r.config["target"]))):
        deq, other = w5_unseen.PAPER.get(str(r.config["target"]), (None, None))
        paper = {} if other is None else dict.fromkeys(r.values.get("rivals", {}), other)
        found.append(_Panel(0, column, str(r.config["target"]), r, [_rivals(r, paper), _deq(r, deq)]))
    return found


def _rivals(record: Record, paper: Mapping[str, float]) -> _Group:
    return _Group(False, [("rivals", name, values) for name, values in record.values.get("rivals", {}).items()], paper)


def _deq(record: Record, paper: float | None) -> _Group:
    name = f"DEQ W{record.config['width']}"
    others = [("paired", other, values) for other, values in record.values.get("paired", {}).items()]
    return _Group(True, [("deq", name, record.values["deq"]), *others], {} if paper is None else {name: paper})


def _draw(axes: Axes, panel: _Panel) -> None:
    axes.set_yscale("log")
    seen = [panel.constant / 1.5, panel.constant * 1.5]  # noise about the constant must not fill the panel
    ticks: list[float] = []
    labels: list[str] = []
    at = 0.0
    for group in (group for group in panel.groups if group.parts):
        if group.deq:
            axes.axvspan(at - 0.6, at + len(group.parts) - 0.4, color=_BAND, zorder=0, linewidth=0)
        for kind, name, values in group.parts:
            seen += _draw_network(axes, at, kind, values, group.paper.get(name))
            ticks.append(at)
            labels.append(_label(name, values))
            at += 1.0
        at += _GAP
    if panel.floor is not None:
        axes.axhline(panel.floor, color=_LINE, linestyle=":", linewidth=1.4, zorder=1.5, gid="told-apart")
        seen.append(panel.floor)
    axes.axhline(panel.constant, color=_LINE, linestyle="--", linewidth=1.4, zorder=1.5, gid="best-constant")
    axes.set_xticks(ticks, labels, rotation=90, fontsize=10)
    axes.set(xlim=(-0.9, at - _GAP - 0.1), ylim=(min(seen) / 1.2, max(seen) * 1.2))
    axes.set_title(panel.title, fontsize=11)
    axes.grid(visible=False, axis="x")
    axes.tick_params(axis="x", length=0)
    plain_log(axes.yaxis)
    if axes.get_ylim()[1] < _SHORT * axes.get_ylim()[0]:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.3, 1.6, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)))
    axes.yaxis.set_tick_params(which="minor", length=0)


def _draw_network(axes: Axes, at: float, kind: str, values: Mapping[str, Any], paper: float | None) -> list[float]:
    """Draw the mean with its interval, single networks next to it, and the paper's value; returns the values to be in view."""
    look = LOOKS[kind]
    known = [float(value) for value in values["test"] if value is not None]
    found: list[float] = []
    if known and mean(known).value > 0.0:
        dots = [value for value in known if value > 0.0]
        axes.plot([at + 0.3] * len(dots), dots, ".", color=look.colour, ms=4, alpha=0.6, gid=f"seeds-{kind}")
        draw_means(axes, {at: known}, look, capsize=3, elinewidth=1.8, gid=kind)
        estimate = mean(known)
        found += [*dots, estimate.value, estimate.value + estimate.half_width]
    if paper is not None:
        axes.plot([at - 0.28], [paper], look.marker, color=look.colour, mfc="white", mew=1.5, ms=6, gid=f"paper-{kind}")
        found.append(paper)
    return found


def _label(name: str, values: Mapping[str, Any]) -> str:
    """Name, FLOPs (142, 1.04k, 150k, 2.1M), and how many networks diverged."""
    flops, lost = values["forward_flops"] + values["backward_flops"], contest.diverged(dict(values))
    short = f"{flops / 1e3:.3g}k" if flops < 999_500 else f"{flops / 1e6:.3g}M"
    return f"{name}  {f'{flops:.0f}' if flops < 999.5 else short}{f' ({lost} diverged)' * bool(lost)}"


def _handles(found: Sequence[_Panel]) -> list[Any]:
    groups = [group for panel in found for group in panel.groups]
    kinds = {kind for group in groups for kind, _, _ in group.parts}
    handles = [look.handle() for kind, look in LOOKS.items() if kind in kinds]
    if any(name in group.paper for group in groups for _, name, _ in group.parts):
        hollow: dict[str, Any] = {"ls": "", "marker": "o", "color": "black", "mfc": "white", "mew": 1.5}
        handles.append(Line2D([], [], label="the paper's value", **hollow))
    handles.append(Line2D([], [], ls="", marker=".", color="black", ms=5, label="single networks"))
    handles.append(Line2D([], [], color=_LINE, linestyle="--", linewidth=1.4, label="best constant"))
    if any(panel.floor is not None for panel in found):
        handles.append(Line2D([], [], color=_LINE, linestyle=":", linewidth=1.4, label="steep part not resolved"))
    return handles


def _caption(name: str, records: Sequence[Record]) -> str:
    seeds = max(int(r.config["seeds"]) for r in records)
    averaged = f"mean of {seeds} networks and 95 % interval" if seeds > 1 else "one network"
    lost = sum(
        contest.diverged(part)
        for r in records
        for part in (r.values["deq"], *r.values.get("rivals", {}).values(), *r.values.get("paired", {}).values())
    )
    without = f" {lost} network{'s' * (lost != 1)} diverged and {'are' if lost != 1 else 'is'} left out." * bool(lost)
    shared = (
        f"{averaged}; the shaded networks cost as many FLOPs to train as the DEQ among them.{without} "
        "L3W50 has depth 3, so two hidden layers, of 50 units. An interval that leaves the frame tells little."
    )
    return f"{_ABOUT[name][0]}: {shared} {_ABOUT[name][1]}"
