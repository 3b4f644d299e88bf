"""L2, L3, L4: spectra, eigenvectors and activations of a DEQ and its rivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from notsodeep.figures.style import DEQ, DEQ_LINE, EXPLICIT, RESCALED, UNDESIGNED
from notsodeep.papers.figures.drawing import Drawing, Look, in_order, legend_below, panels, plain_log, title
from notsodeep.papers.records import Record
from notsodeep.papers.statistics import format_number

Array = NDArray[np.float64]

_DATA = ("gmm", "mnist")
_KERNELS = ("conjugate", "tangent")
_RIVALS = {
    "equivalent": Look("equivalent", EXPLICIT, "-", "D", 1.6, 5.5),
    "designed": Look("designed", EXPLICIT, "-", "D", 1.6, 5.5),
    "sharp": Look("sharp", UNDESIGNED, "-", "s", 1.6, 5.0),
    "one layer": Look("one layer", RESCALED, "-", "v", 1.6, 6.0),
    "measured τ0": Look("measured τ0", RESCALED, "-", "v", 1.6, 6.0),
    "plain": Look("plain", UNDESIGNED, "-", "s", 1.6, 5.0),
    "plain rescaled": Look("plain rescaled", UNDESIGNED, "-", "^", 1.6, 6.0),
}
_BINS, _DECADES, _SPAN = 64, 4.5, 3.0
_APART, _MOST_APART = 1.2, 12
_DOTS = 320
_RIVAL_MEAN: dict[str, Any] = {
    "color": "white",
    "linewidth": 1.5,
    "linestyle": (0, (4, 3)),
    "path_effects": [withStroke(linewidth=3.5, foreground="black")],
}
_LAYER_DASHES = ("-", "--", ":", "-.")


def spectra_drawings(experiment: str, records: Sequence[Record]) -> list[Drawing]:
    own = "equivalent" if experiment == "L2" else "designed"
    drawn = []
    pictured = [record for record in records if _kernels([record])]
    if pictured:
        shown = _largest(pictured, "data", "unit_norm")
        drawn.append(Drawing(f"{experiment}-spectra", _spectra_caption(shown, own), _spectra(shown)))
        drawn.append(Drawing(f"{experiment}-vectors", _vectors_caption(own), _vectors(_largest(pictured, "data"), own)))
    with_curves = _largest([r for r in records if r.values.get("activations", {}).get("curves")], "data")
    if with_curves:
        drawn.append(Drawing(f"{experiment}-activations", _activations_caption(), _activations(with_curves)))
    return drawn


def aligned(vector: Array, reference: Array) -> Array:
    """An eigenvector or its negative, whichever lies closer to the reference."""
    return -vector if float(vector @ reference) < 0 else vector


def outside(eigenvalues: Array) -> int:
    """How many leading eigenvalues stand apart: up to the last of a dozen that exceeds the next by a fifth; at least one."""
    head = eigenvalues[: _MOST_APART + 1]
    apart = np.flatnonzero(head[:-1] > _APART * np.maximum(head[1:], 0.0))
    return int(apart[-1]) + 1 if len(apart) else 1


def _largest(records: Sequence[Record], *names: str) -> list[Record]:
    """For each value of these settings, the record with most samples; as they are before those of norm one."""
    best: dict[tuple[str, ...], Record] = {}
    for record in sorted(records, key=_norm_one):
        key = tuple(str(record.config.get(name, False)) for name in names)
        if key not in best or (_norm_one(record), -record.config["n"]) < (_norm_one(best[key]), -best[key].config["n"]):
            best[key] = record
    order = in_order((str(record.config["data"]) for record in best.values()), _DATA)
    return sorted(best.values(), key=lambda record: (order.index(record.config["data"]), _norm_one(record)))


def _norm_one(record: Record) -> bool:
    return bool(record.config.get("unit_norm"))


def _kernels(records: Sequence[Record]) -> list[str]:
    """Those whose spectra were kept."""
    return [kernel for kernel in _KERNELS if any(_pictured(record, kernel) for record in records)]


def _pictured(record: Record, kernel: str) -> bool:
    found = record.values.get("kernels", {}).get(kernel, {})
    return bool(found.get("eigenvalues") and any(rival.get("eigenvalues") for rival in found["rivals"].values()))


def _heading(record: Record, kernel: str) -> str:
    config = record.config
    norm = ", norm 1" * _norm_one(record)
    return f"{title(config['data'])}{norm}, {title(config['activation'])}, n = {config['n']}: {kernel} kernel"


# Spectra: the DEQ's is pale and filled, a rival's is an outline or a mark on it, one row each.


def _spectra(records: Sequence[Record]) -> Figure:
    kernels = _kernels(records)
    rows = [max(len(r.values["kernels"][k]["rivals"]) for k in kernels if _pictured(r, k)) for r in records]
    figure = Figure(figsize=(6.8 * len(kernels), sum(1.5 + 0.72 * n for n in rows) + 0.5), layout="constrained")
    heights = [1.5 + 0.72 * n for n in rows]
    parts = np.asarray(figure.subfigures(len(records), len(kernels), squeeze=False, height_ratios=heights))
    for line, record in zip(parts, records, strict=True):
        for part, kernel in zip(line, kernels, strict=True):
            if _pictured(record, kernel):
                part.suptitle(_heading(record, kernel), fontsize=12)
                bulk, apart = part.subplots(1, 2, sharey=True, width_ratios=(1, 1))
                _draw_cell(bulk, apart, record.values["kernels"][kernel])
    handles = [
        Patch(color=DEQ, label="the DEQ's"),
        Line2D([], [], color=DEQ_LINE, marker="o", ms=5, label="the DEQ's, upper half"),
        Line2D([], [], color=EXPLICIT, marker="D", ms=5, label="the rival's, outline and lower half"),
        Line2D([], [], linestyle="", label="left: the rival and its gap, absolute (relative)"),
    ]
    legend_below(figure, handles)
    return figure


def _draw_cell(bulk: Axes, apart: Axes, kernel: Mapping[str, Any]) -> None:
    deq = np.asarray(kernel["eigenvalues"], dtype=float)
    names = in_order((name for name, rival in kernel["rivals"].items() if rival.get("eigenvalues")), list(_RIVALS))
    rivals = {name: np.asarray(kernel["rivals"][name]["eigenvalues"], dtype=float) for name in names}
    count = outside(deq)
    edges = _edges([values[count:] for values in (deq, *rivals.values())])
    heights = {name: _heights(values[count:], edges) for name, values in rivals.items()}
    ours = _heights(deq[count:], edges)
    top = max(
        1.0,
        min(1.4 * float(ours.max()), max((float(h.max()) for h in heights.values()), default=0.0)),
        float(ours.max()),
    )
    for row, name in enumerate(names):
        height = np.minimum(heights[name] / top, 1.0)
        look = _RIVALS.get(name, _RIVALS["plain"])
        base = float(-row)
        bulk.stairs(base + 0.82 * ours / top, edges, baseline=base, fill=True, color=DEQ)
        bulk.stairs(base + 0.82 * height, edges, baseline=base, color=look.colour, linewidth=look.width)
        _draw_vernier(apart, deq[:count], rivals[name][:count], base, look)
    for axes, text in ((bulk, "eigenvalue (the bulk, how many)"), (apart, f"eigenvalue (the {count} largest)")):
        axes.set(xscale="log", xlabel=text, ylim=(0.86 - len(names), 0.95))
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        _widen(axes)
        plain_log(axes.xaxis)
    labels = [f"{name}\n{_gaps(kernel['rivals'][name])}" for name in names]
    bulk.set_yticks([0.41 - row for row in range(len(names))], labels)


def _draw_vernier(axes: Axes, deq: Array, rival: Array, base: float, look: Look) -> None:
    """Lines of the DEQ above those of the rival, as on a vernier: one that continues the other is the same number."""
    axes.vlines(deq, base + 0.42, base + 0.80, color=DEQ_LINE, linewidth=2.2)
    axes.plot(deq, np.full(len(deq), base + 0.80), "o", color=DEQ_LINE, markersize=4.5)
    axes.vlines(rival, base + 0.04, base + 0.42, color=look.colour, linewidth=2.2)
    axes.plot(rival, np.full(len(rival), base + 0.04), look.marker, color=look.colour, markersize=4.5)
    axes.axhline(base + 0.42, color="#bbbbbb", linewidth=0.6, zorder=0.5)


def _widen(axes: Axes) -> None:
    """At least a factor of three from end to end, so that a small gap is not drawn as a large one."""
    low, high = axes.get_xlim()
    if high < _SPAN * low:
        middle = (low * high) ** 0.5
        axes.set_xlim(middle / _SPAN**0.5, middle * _SPAN**0.5)


def _gaps(rival: Mapping[str, Any]) -> str:
    return f"{format_number(rival['absolute'])} ({format_number(rival['relative'])})"


def _edges(parts: Sequence[Array]) -> Array:
    """Bins of equal width in the logarithm, over at most 4½ decades; what lies below counts in the first."""
    values = np.concatenate(parts)
    high = float(values.max()) if values.size else 1.0
    high = high if high > 0 else 1.0
    low = max(float(values.min()) if values.size else high, high * 10**-_DECADES)
    return np.geomspace(low / 1.05, high * 1.05, _BINS + 1)


def _heights(values: Array, edges: Array) -> Array:
    return np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0].astype(float)


def _spectra_caption(records: Sequence[Record], own: str) -> str:
    gaps = [
        (name == own, rival["relative"])
        for record in records
        for name, rival in record.values["kernels"].get("conjugate", {"rivals": {}})["rivals"].items()
    ]
    ours, others = (sorted(gap for is_own, gap in gaps if is_own is wanted) for wanted in (True, False))
    told = [f"{what} {_span(found)}" for what, found in ((own, ours), ("the others", others)) if found]
    return (
        "Eigenvalues of the DEQ's exact kernel (pale) and of its rivals (one row each, outlined, with marks): left in each "
        "panel the bulk as a histogram (peaks far above the DEQ's are cut), right the eigenvalues that stand apart, the DEQ's "
        "above and the rival's below, as on a vernier. Spectra coincide where the outline is the edge of the "
        "pale area and the lines below continue those above. "
        f"Relative gap of the conjugate kernel, in operator norm: {'; '.join(told)}."
    )


def _span(values: Sequence[float]) -> str:
    low, high = format_number(values[0]), format_number(values[-1])
    return low if low == high else f"{low} to {high}"


# Eigenvectors, entry by entry, the samples sorted by class.


def _vectors(records: Sequence[Record], own: str) -> Figure:
    cells = [(record, kernel) for record in records for kernel in _kernels([record])]
    figure, axes = panels(len(cells), 2, 6.2, 2.5, sharex="row")
    for line, (record, kernel) in zip(axes, cells, strict=True):
        for order, panel in enumerate(line):
            _draw_vector(panel, record, kernel, own, order)
    for panel in axes[:, 0]:
        panel.set_ylabel("entry")
    handles = [
        Line2D([], [], color=DEQ, linestyle="", marker="o", ms=8, label="DEQ"),
        Line2D([], [], color=EXPLICIT, linestyle="", marker=".", ms=5, label=own),
        Line2D([], [], color="black", linewidth=3.5, label="class mean, DEQ"),
        Line2D([], [], label=f"class mean, {own}", **_RIVAL_MEAN),
    ]
    legend_below(figure, handles)
    return figure


def _draw_vector(axes: Axes, record: Record, name: str, own: str, order: int) -> None:
    kernel = record.values["kernels"][name]
    rivals = kernel["rivals"]
    rival = rivals.get(own) or next(iter(rivals.values()), None)
    if order >= len(kernel["vectors"]) or rival is None or order >= len(rival["vectors"]):
        axes.set_visible(False)
        return
    deq = np.asarray(kernel["vectors"][order], dtype=float)
    other = aligned(np.asarray(rival["vectors"][order], dtype=float), deq)
    classes = np.asarray(record.values["shown"]["classes"])
    where = np.arange(len(deq))
    some = where[:: -(-len(where) // _DOTS)]
    axes.scatter(some, deq[some], s=30, color=DEQ, linewidths=0, rasterized=True)
    axes.scatter(some, other[some], s=5, color=EXPLICIT, linewidths=0, rasterized=True)
    labels = np.unique(classes)
    parts = [where[classes == label] for label in labels]
    for part in parts:
        ends = [part[0], part[-1]]
        axes.plot(ends, [deq[part].mean()] * 2, color="black", linewidth=3.5)
        axes.plot(ends, [other[part].mean()] * 2, **_RIVAL_MEAN)
        if part[0] > 0:
            axes.axvline(part[0] - 0.5, color="#888888", linewidth=1.0)
    axes.set_xticks(
        [part.mean() for part in parts], [f"class {label}" if len(labels) < 5 else f"{label}" for label in labels]
    )
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False)
    cosine = f": cosine {rival['cosines'][order]:.4f}" if order < len(rival["cosines"]) else ""
    head = f"{title(record.config['data'])}, {name}"
    axes.set_title(f"{head}, eigenvector {order + 1}{cosine}", fontsize=11)


def _vectors_caption(own: str) -> str:
    return (
        f"The two leading eigenvectors of the DEQ's kernel (large pale dots) and of the {own} one's (small dark dots), entry "
        "by entry, samples sorted by class, signs aligned; a rival's dot at the centre of a pale one is the same entry. The "
        "cosine is over all samples; where two eigenvalues nearly coincide, their vectors may turn within the plane they span."
    )


# Activations.


def _activations(records: Sequence[Record]) -> Figure:
    figure, axes = panels(1, len(records), 5.4, 4.0)
    for panel, record in zip(axes[0], records, strict=True):
        x = record.values["activations"]["x"]
        curves = dict(record.values["activations"]["curves"])
        if "DEQ" in curves:
            panel.plot(
                x,
                curves.pop("DEQ"),
                color=DEQ,
                linewidth=6,
                label=f"DEQ: {title(record.config['activation'])}, centred",
            )
        for index, (name, curve) in enumerate(curves.items()):
            panel.plot(x, curve, color=EXPLICIT, linestyle=_LAYER_DASHES[index % 4], label=f"designed, {name}")
        panel.set(xlabel="pre-activation", title=f"{title(record.config['data'])}, n = {record.config['n']}")
        panel.legend(loc="upper left")
    axes[0, 0].set_ylabel("activation")
    return figure


def _activations_caption() -> str:
    return (
        "The DEQ's activation (broad, pale) and the activations of the explicit network designed for it, layer by layer. They "
        "need not resemble it: what is matched is the kernel, not the function."
    )
