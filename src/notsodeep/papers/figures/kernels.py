"""L1: the gap between the exact kernel and its equivalents against n. L2 to L4: spectra, eigenvectors and activations."""

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

from notsodeep.figures.style import CLOSEST, DEQ, DEQ_LINE, EXPLICIT, REFERENCE, RESCALED, UNDESIGNED
from notsodeep.papers.figures import drawing
from notsodeep.papers.figures.drawing import Drawing, Look, in_order, legend_below, number, panels, plain_log, title
from notsodeep.papers.ling2024.comparison import TWIN
from notsodeep.papers.ling2024.l1_kernel_gap import has_ratio, ratios
from notsodeep.papers.records import Record
from notsodeep.papers.statistics import format_number, mean, over_seeds, slope

Array = NDArray[np.float64]

_TITLES = {"conjugate": "conjugate kernel", "tangent": "tangent kernel (NTK)", "preactivation": "the paper's kernel K"}
_FORMS: dict[str, Any] = {"equivalent": "-", "sharp": "--"}
_ACTIVATIONS = {
    "tanh": ("#16324f", "o"),
    "relu": ("#b3261e", "s"),
    "leaky_relu:0.01": ("#3f8f5f", "^"),
    "elu": ("#c98a1b", "D"),
    "swish": ("#8fa9c9", "v"),
}
_OTHER = ("#777777", "P")

_DATA = ("gmm", "mnist")
_KERNELS = ("conjugate", "tangent")
_RIVALS = {
    "equivalent": Look("equivalent", EXPLICIT, "-", "D", 1.6, 5.5),
    "designed": Look("designed", EXPLICIT, "-", "D", 1.6, 5.5),
    "sharp": Look("sharp", UNDESIGNED, "-", "s", 1.6, 5.0),
    "one layer": Look("one layer", RESCALED, "-", "v", 1.6, 6.0),
    TWIN: Look("closest twin", CLOSEST, "-", "P", 1.6, 6.0),
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
_LAYERS = (
    "The DEQ's activation (broad, pale) and the activations of the explicit network designed for it, layer by layer, and "
    "of its closest twin where there is one. They need not resemble it: what is matched is the kernel, not the function."
)


def kernel_gap_drawings(records: Sequence[Record]) -> list[Drawing]:
    kernels = [kernel for kernel in _TITLES if any(number(r.values, kernel, form) for r in records for form in _FORMS)]
    if not kernels:
        return []
    ratio, *others = ratios(records)
    figure, axes = panels(1, len(kernels), 4.9, 6.4)
    for panel, kernel in zip(axes[0], kernels, strict=True):
        _draw_gaps(panel, kernel, records, ratio)
    axes[0, 0].set_ylabel("relative gap to the exact kernel, operator norm")
    lines = [Line2D([], [], color="black", linestyle=dash, label=form) for form, dash in _FORMS.items()]
    figure.legend(handles=lines, loc="outside upper center", ncols=2)
    return [Drawing("L1-kernel-gap", _gap_caption(records, ratio, others), figure)]


def _draw_gaps(axes: Axes, kernel: str, records: Sequence[Record], ratio: float) -> None:
    handles: list[Any] = []
    first: list[float] = []
    counts = [float(r.config["n"]) for r in records]
    for activation in in_order((str(r.config["activation"]) for r in records), list(_ACTIVATIONS)):
        colour, marker = _ACTIVATIONS.get(activation, _OTHER)
        slopes = []
        for form, dash in _FORMS.items():
            look = Look("", colour, dash, marker, 1.8, 6.0)
            points, others = _gap_points(records, activation, kernel, form, ratio)
            drawing.draw_means(axes, points, look, markerfacecolor=colour if form == "equivalent" else "white")
            axes.plot(list(others), [mean(v).value for v in others.values()], marker, color=colour, mfc="none", ms=3)
            slopes.append(_slope(points))
            first += [mean(v).value for v in list(points.values())[:1] if form == "equivalent"]
        text = f"{title(activation)}:  {slopes[0]},  {slopes[1]}"
        handles.append(Line2D([], [], color=colour, marker=marker, label=text))
    if first:
        _reference(axes, min(counts), max(counts), max(first))
    axes.set(yscale="log", xlabel="samples n", title=_TITLES[kernel])
    drawing.sample_axis(axes, counts)
    plain_log(axes.yaxis)
    head = "slope of equivalent, of sharp"
    axes.legend(handles=handles, title=head, loc="upper center", bbox_to_anchor=(0.5, -0.14))


def _gap_points(
    records: Sequence[Record], activation: str, kernel: str, form: str, ratio: float
) -> tuple[dict[float, list[float]], dict[float, list[float]]]:
    """The gaps by n, at the ratio p/n of the lines and at the others."""
    own = [r for r in records if r.config["activation"] == activation]
    found = [
        drawing.positive(over_seeds(part, lambda r: float(r.config["n"]), lambda r: number(r.values, kernel, form)))
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


def _gap_caption(records: Sequence[Record], ratio: float, others: list[float]) -> str:
    seeds = len({r.config["seed"] for r in records})
    small = f" Small open marks: p/n = {', '.join(f'{other:g}' for other in others)}." if others else ""
    return (
        "Relative gap between a DEQ's exact kernel and the equivalent (solid) and sharp (dashed) kernels against the number "
        f"of samples n at p/n = {ratio:g}: mean of {seeds} seed{'s' * (seeds > 1)} and 95 % interval, and the slope fitted to "
        f"the means on logarithmic axes; a slope of −½ or below is what the paper's theorem promises.{small}"
    )


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
        drawn.append(Drawing(f"{experiment}-activations", _LAYERS, _activations(with_curves)))
    return drawn


def aligned(vector: Array, reference: Array) -> Array:
    """The eigenvector or its negative, whichever is closer to the reference."""
    return -vector if float(vector @ reference) < 0 else vector


def outside(eigenvalues: Array) -> int:
    """The number of leading eigenvalues that stand apart: up to the last of twelve that exceeds the next by a fifth."""
    head = eigenvalues[: _MOST_APART + 1]
    apart = np.flatnonzero(head[:-1] > _APART * np.maximum(head[1:], 0.0))
    return int(apart[-1]) + 1 if len(apart) else 1


def _largest(records: Sequence[Record], *names: str) -> list[Record]:
    """The record with most samples for each value of these settings; samples as they are come before those of norm one."""
    best: dict[tuple[str, ...], Record] = {}
    for record in sorted(records, key=lambda record: (_norm_one(record), -record.config["n"])):
        best.setdefault(tuple(str(record.config.get(name, False)) for name in names), record)
    order = in_order((str(record.config["data"]) for record in best.values()), _DATA)
    return sorted(best.values(), key=lambda record: (order.index(record.config["data"]), _norm_one(record)))


def _norm_one(record: Record) -> bool:
    return bool(record.config.get("unit_norm"))


def _kernels(records: Sequence[Record]) -> list[str]:
    """The kernels whose spectra were kept."""
    return [kernel for kernel in _KERNELS if any(_pictured(record, kernel) for record in records)]


def _pictured(record: Record, kernel: str) -> bool:
    found = record.values.get("kernels", {}).get(kernel, {})
    return bool(found.get("eigenvalues") and any(rival.get("eigenvalues") for rival in found["rivals"].values()))


def _heading(record: Record, kernel: str) -> str:
    config = record.config
    norm = ", norm 1" * _norm_one(record)
    return f"{title(config['data'])}{norm}, {title(config['activation'])}, n = {config['n']}: {kernel} kernel"


def _spectra(records: Sequence[Record]) -> Figure:
    """Spectra: the DEQ's is pale and filled, a rival's is an outline or a mark on it, with one row for each rival."""
    kernels = _kernels(records)
    rows = [max(len(r.values["kernels"][k]["rivals"]) for k in kernels if _pictured(r, k)) for r in records]
    heights = [1.5 + 0.72 * n for n in rows]
    figure = Figure(figsize=(6.8 * len(kernels), sum(heights) + 0.5), layout="constrained")
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
    highest, theirs = float(ours.max()), max((float(h.max()) for h in heights.values()), default=0.0)
    top = max(1.0, highest, min(1.4 * highest, theirs))
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
    gaps = {name: [format_number(kernel["rivals"][name][k]) for k in ("absolute", "relative")] for name in names}
    labels = [f"{name}\n{absolute} ({relative})" for name, (absolute, relative) in gaps.items()]
    bulk.set_yticks([0.41 - row for row in range(len(names))], labels)


def _draw_vernier(axes: Axes, deq: Array, rival: Array, base: float, look: Look) -> None:
    """Draw the DEQ's lines above the rival's, as on a vernier: lines that continue each other are the same number."""
    axes.vlines(deq, base + 0.42, base + 0.80, color=DEQ_LINE, linewidth=2.2)
    axes.plot(deq, np.full(len(deq), base + 0.80), "o", color=DEQ_LINE, markersize=4.5)
    axes.vlines(rival, base + 0.04, base + 0.42, color=look.colour, linewidth=2.2)
    axes.plot(rival, np.full(len(rival), base + 0.04), look.marker, color=look.colour, markersize=4.5)
    axes.axhline(base + 0.42, color="#bbbbbb", linewidth=0.6, zorder=0.5)


def _widen(axes: Axes) -> None:
    """Widen an axis to at least a factor of three, so that a small gap is not drawn as a large one."""
    low, high = axes.get_xlim()
    if high < _SPAN * low:
        middle = (low * high) ** 0.5
        axes.set_xlim(middle / _SPAN**0.5, middle * _SPAN**0.5)


def _edges(parts: Sequence[Array]) -> Array:
    """Edges of bins of equal width in the logarithm, over at most 4½ decades; smaller values count in the first bin."""
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
    spans = [f"{what} {_span(found)}" for what, found in ((own, ours), ("the others", others)) if found]
    return (
        "Eigenvalues of the DEQ's exact kernel (pale) and of its rivals (one row each, outlined, with marks): left in each "
        "panel the bulk as a histogram (peaks far above the DEQ's are cut), right the eigenvalues that stand apart, the DEQ's "
        "above and the rival's below, as on a vernier. Spectra coincide where the outline is the edge of the "
        "pale area and the lines below continue those above. "
        f"Relative gap of the conjugate kernel, in operator norm: {'; '.join(spans)}."
    )


def _span(values: Sequence[float]) -> str:
    low, high = format_number(values[0]), format_number(values[-1])
    return low if low == high else f"{low} to {high}"


def _vectors(records: Sequence[Record], own: str) -> Figure:
    """Eigenvectors, entry by entry, the samples sorted by class."""
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
    names = [f"class {label}" if len(labels) < 5 else f"{label}" for label in labels]
    axes.set_xticks([part.mean() for part in parts], names)
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


def _activations(records: Sequence[Record]) -> Figure:
    figure, axes = panels(1, len(records), 5.4, 4.0)
    for panel, record in zip(axes[0], records, strict=True):
        x = record.values["activations"]["x"]
        curves = dict(record.values["activations"]["curves"])
        if "DEQ" in curves:
            text = f"DEQ: {title(record.config['activation'])}, centred"
            panel.plot(x, curves.pop("DEQ"), color=DEQ, linewidth=6, label=text)
        twin = {name: curve for name, curve in curves.items() if name.startswith(TWIN)}
        designed = {f"designed, {name}": curve for name, curve in curves.items() if name not in twin}
        for colour, drawn in ((EXPLICIT, designed), (CLOSEST, twin)):
            for index, (name, curve) in enumerate(drawn.items()):
                panel.plot(x, curve, color=colour, linestyle=_LAYER_DASHES[index % 4], label=name)
        panel.set(xlabel="pre-activation", title=f"{title(record.config['data'])}, n = {record.config['n']}")
        panel.legend(loc="upper left")
    axes[0, 0].set_ylabel("activation")
    return figure
