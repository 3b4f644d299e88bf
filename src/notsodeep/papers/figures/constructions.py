"""W1 and W2: DEQs that are the function by construction. W3: the largest weights of networks that fit the steep function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from notsodeep.figures.style import DEQ, DEQ_LINE, EXPLICIT, REFERENCE, RESCALED, UNDESIGNED
from notsodeep.papers.figures.drawing import Drawing, Look, draw_means, panels, plain_log, power_of_two, sample_axis
from notsodeep.papers.records import Record, where
from notsodeep.papers.wu2024 import w3_weights
from notsodeep.papers.wu2024.contest import layers
from notsodeep.papers.wu2024.w2_steep import PAPER_ERRORS
from notsodeep.papers.wu2024.w3_weights import NETWORKS, PAPER_FNN, at_level, built, built_weights, weights
from notsodeep.separation.bounds import max_pieces_deq, max_pieces_fnn, min_weight_fnn
from notsodeep.separation.constructions import sawtooth_deq

_CURVES = (1, 3, 5)  # units of the DEQs whose curves are drawn
# Colour and dash of the bound of feed-forward networks, by their hidden layers.
_BOUNDS: dict[int, tuple[str, Any]] = {1: (UNDESIGNED, "--"), 2: (RESCALED, ":"), 3: (EXPLICIT, "-.")}
_PAPER_DIMENSION = 20
_STEEP = (
    "The largest error of a DEQ of 4N + 2 units that is the steep function by construction, without training, on a grid that "
    "is fine in the steep part as well. It falls like 1/(2N) however steep the function is; the squares are the paper's values."
)
_LOOKS = {"deq": Look("DEQ", DEQ_LINE, "-", "o", 2.4, 8.0), "fnn": Look("feed-forward", EXPLICIT, "--", "D", 1.8, 6.0)}
_ASIDE = {"deq": -0.15, "fnn": 0.15}  # so that intervals do not hide one another
_PAPER_DEQ = (1.4, 2.15)
_DEPTH = 3
_WIDEST = f"2^(d/{2 * _DEPTH})"  # units of a layer in the theorem: as many as its least weight


def sawtooth_drawings(records: Sequence[Record]) -> list[Drawing]:
    own = where(records, kind="constructed")
    pieces = {int(r.config["pieces_log2"]): int(r.values["pieces"]) for r in own}
    if not pieces:
        return []
    figure, axes = panels(1, 2, 5.4, 4.4)
    _draw_curves(axes[0, 0], [m for m in _CURVES if m <= max(pieces)])
    _draw_pieces(axes[0, 1], dict(sorted(pieces.items())))
    return [Drawing("W1-construction", _pieces_caption(own), figure)]


def _draw_curves(axes: Axes, units: Sequence[int]) -> None:
    """Draw the curves one above the other, each through its kinks, which makes the lines exact."""
    for place, m in enumerate(units):
        x = torch.linspace(0.0, 1.0, 2**m + 1, dtype=torch.float64)
        with torch.no_grad():
            y = sawtooth_deq(m)(x[:, None])[:, 0]
        axes.plot(x.tolist(), (y + 1.3 * place).tolist(), color=DEQ_LINE, linewidth=1.8, gid=f"curve-{m}")
        axes.axhline(1.3 * place, color="#e6e6e6", linewidth=0.8, zorder=0)
    axes.set_yticks([1.3 * p + 0.5 for p in range(len(units))], [f"m = {m}\n{2**m} pieces" for m in units])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.set(xlabel="x", title="the DEQ's output, each from 0 to 1")


def _draw_pieces(axes: Axes, pieces: dict[int, int]) -> None:
    axes.set_yscale("log", base=2)
    every = range(1, max(pieces) + 1)
    most = [max_pieces_deq(m) for m in every]
    axes.plot(every, most, color=DEQ, linewidth=6, label="most of any DEQ, 2ᵐ", gid="bound")
    for hidden, (colour, dash) in _BOUNDS.items():
        # Where the units divide evenly among the layers.
        there = {m: max_pieces_fnn(hidden + 1, m // hidden) for m in every if m % hidden == 0}
        text = f"most with {hidden} hidden layer{'s' * (hidden > 1)}"
        axes.plot(list(there), list(there.values()), color=colour, linestyle=dash, label=text, gid=f"bound-{hidden}")
    label = "the construction, counted"
    axes.plot(list(pieces), list(pieces.values()), "o", color="black", ms=5, label=label, gid="counted")
    axes.yaxis.set_major_locator(FixedLocator([2.0**p for p in range(0, max(pieces) + 2, 1 + max(pieces) // 8)]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: power_of_two(value)))
    axes.xaxis.set_major_locator(FixedLocator(list(every)[:: 1 + max(pieces) // 8]))
    axes.set(xlabel="units m, in all layers together", ylabel="linear pieces", title="pieces of m units")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend([handles[-1], *handles[:-1]], [labels[-1], *labels[:-1]], loc="upper left", fontsize=10)


def _pieces_caption(records: Sequence[Record]) -> str:
    worst = max(float(r.values["error"]) for r in records)
    return (
        "A DEQ of m units that is the sawtooth of 2ᵐ linear pieces, without training. Left: its output for small m. Right: "
        f"its pieces, counted, which are the most that m units can have (largest error on a grid: {worst:g}), and the most "
        "that a feed-forward network of as many units in one, two or three hidden layers can have. One unit in each of m "
        "layers would be allowed 2ᵐ as well: the bounds set the DEQ apart from networks of fixed depth."
    )


def steep_drawings(records: Sequence[Record]) -> list[Drawing]:
    found = where(records, kind="constructed")
    errors = {(int(r.config["dimension"]), int(r.config["N"])): float(r.values["error"]) for r in found}
    if not errors:
        return []
    figure, axes = panels(1, 1, 6.4, 4.2)
    panel: Axes = axes[0, 0]
    panel.set_yscale("log")
    sizes = sorted({N for _, N in errors})
    panel.plot(sizes, [0.5 / N for N in sizes], "--", color=REFERENCE, linewidth=1.4, label="1/(2N)")
    dimensions = sorted({d for d, _ in errors})
    for d, marker in zip(dimensions, "ov^DP" * len(dimensions), strict=False):
        own = {N: error for (dimension, N), error in sorted(errors.items()) if dimension == d}
        line: dict[str, Any] = {"color": DEQ, "lw": 4, "ms": 11, "label": f"ours, d = {d}", "gid": f"error-{d}"}
        panel.plot(list(own), list(own.values()), f"{marker}-", **line)
    if _PAPER_DIMENSION in dimensions:
        theirs = {N: error for N, error in PAPER_ERRORS.items() if (_PAPER_DIMENSION, N) in errors}
        text = f"the paper's, d = {_PAPER_DIMENSION}"
        mark: dict[str, Any] = {"color": "black", "mfc": "none", "mew": 1.5, "label": text, "gid": "paper"}
        panel.plot(list(theirs), list(theirs.values()), "s", **mark)
    sample_axis(panel, sizes, most=8)
    plain_log(panel.yaxis)
    panel.yaxis.set_minor_locator(NullLocator())
    panel.set(xlabel="N; the DEQ has 4N + 2 units", ylabel="largest error")
    panel.legend(loc="upper right")
    return [Drawing("W2-construction", _STEEP, figure)]


def weight_drawings(records: Sequence[Record]) -> list[Drawing]:
    """Largest weights of trained networks, in a panel for each loss at which they are compared."""
    levels = at_level(w3_weights.comparable(records)) if records else {}
    kinds = [(network, of) for network in NETWORKS for of in ("weight_at_level", "largest_weight")]
    levels = {level: own for level, own in levels.items() if any(weights(own, *kind) for kind in kinds)}
    if not levels:
        return []
    figure, axes = panels(1, len(levels), 5.2 if len(levels) > 1 else 8.6, 4.8)
    for panel, (level, own) in zip(axes[0], levels.items(), strict=True):
        _draw_level(panel, own)
        panel.set_title(f"at a loss of {level:g}")
    axes[0, 0].set_ylabel("largest weight")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    where = {"loc": "outside lower center", "ncols": 2} if len(levels) > 1 else {"loc": "outside right center"}
    figure.legend(handles, labels, fontsize=10, **where)
    return [Drawing("W3-weights", _weights_caption([record for own in levels.values() for record in own]), figure)]


def _draw_level(panel: Axes, own: Sequence[Record]) -> None:
    panel.set_yscale("log")
    dimensions = sorted({int(r.config["dimension"]) for r in own})
    for network in NETWORKS:
        _draw_weights(panel, own, network)
    _draw_paper_weights(panel, dimensions)
    bound = [min_weight_fnn(d, _DEPTH) for d in dimensions]
    text = f"the theorem's least weight of a\nnarrow feed-forward network of\ndepth {_DEPTH}, within 1/16 everywhere"
    panel.plot(dimensions, bound, ":", color="black", linewidth=2.2, label=text, gid="bound")
    _dimension_axis(panel, dimensions)


def _dimension_axis(panel: Axes, dimensions: Sequence[int]) -> None:
    panel.set_xticks(dimensions)
    panel.set(xlabel="dimension d: the function rises within 2⁻ᵈ")
    panel.set_xlim(dimensions[0] - 1.0, dimensions[-1] + 1.0)
    plain_log(panel.yaxis)
    panel.yaxis.set_minor_locator(NullLocator())


def _draw_weights(axes: Axes, records: Sequence[Record], network: str) -> None:
    look, aside = _LOOKS[network], _ASIDE[network]
    level = {d + aside: values for d, values in weights(records, network).items()}
    draw_means(axes, level, look, capsize=3, label=f"{look.label}, at equal loss", gid=network, zorder=4)
    if min(float(record.config["level"]) for record in records) < w3_weights.RESOLVED:
        return  # training ends at the level
    end = {d + 2.2 * aside: values for d, values in weights(records, network, "largest_weight").items()}
    changes = {"alpha": 0.45, "linewidth": 1.0, "markersize": 5, "markerfacecolor": "white", "gid": f"{network}-end"}
    draw_means(axes, end, look, label=f"{look.label}, at the end of training", **changes)


def _draw_paper_weights(axes: Axes, dimensions: Sequence[int]) -> None:
    theirs = {d: weight for d, weight in PAPER_FNN.items() if d in dimensions}
    if theirs:
        line: dict[str, Any] = {"color": UNDESIGNED, "linewidth": 1.0, "mfc": "white", "mew": 1.5}
        axes.plot(list(theirs), list(theirs.values()), "s-", label="the paper's feed-forward", gid="paper-fnn", **line)
        band: dict[str, Any] = {"color": DEQ, "alpha": 0.35, "linewidth": 0, "zorder": 0.5}
        axes.axhspan(*_PAPER_DEQ, label="the paper's DEQs", gid="paper-deq", **band)


def _wider(config: Mapping[str, Any], records: Sequence[Record]) -> str:
    """A clause for the caption where all feed-forward networks are too wide for the theorem."""
    largest = max(int(r.config["dimension"]) for r in records)
    rival = config.get("rival")
    return f", and {rival} is wider than that" if rival and layers(rival)[0] > min_weight_fnn(largest, _DEPTH) else ""


def _weights_caption(records: Sequence[Record]) -> str:
    config = records[-1].config
    levels = " or ".join(f"{level:g}" for level in at_level(records))
    never = sum(weight is None for r in records for weight in r.values["weight_at_level"])
    without = f" {never} that never reached it {'are' if never > 1 else 'is'} left out." * bool(never)
    return (
        "The largest weight of a DEQ and of a feed-forward network when the test loss first reaches "
        f"{levels} on the steep function: mean of {config['seeds']} seeds and 95 % interval, paler at "
        f"the end of training.{without} The theorem is about networks of at most {_WIDEST} units a layer that are within "
        f"1/16 of the function everywhere{_wider(config, records)}; a low mean loss does not ask for that, so that a weight "
        "below its line contradicts nothing. Where intervals overlap, the sizes of weights do not tell the networks apart."
    )


def built_drawings(records: Sequence[Record]) -> list[Drawing]:
    """Largest weights of networks without training, and the least that a feed-forward network can have."""
    own = built(records)
    if not own:
        return []
    figure, axes = panels(1, 1, 7.4, 4.2)
    panel: Axes = axes[0, 0]
    panel.set_yscale("log")
    dimensions = sorted({int(r.config["dimension"]) for r in own})
    rival, level = own[-1].config["rival"], own[-1].config["level"]
    units = max((int(r.values["width"]) for r in own if r.config["network"] == "deq"), default=0)
    for network, text in (("fnn", f"feed-forward, {rival}"), ("deq", f"DEQ of {units} units")):
        found = built_weights(own, network)
        if found:
            line = _LOOKS[network].line
            panel.plot(list(found), list(found.values()), **line, label=text, gid=f"built-{network}", zorder=4)
    least = built_weights(own, "fnn", "least_weight")
    if least and min(least.values()) > 0.0:
        text = f"least largest weight\nof any {rival} (proven)"
        panel.plot(list(least), list(least.values()), ":", color="black", lw=2.2, label=text, gid="least", zorder=3)
    _draw_paper_weights(panel, dimensions)
    _dimension_axis(panel, dimensions)
    panel.set(ylabel="largest weight", title=f"without training, at a loss of {level:g} at most")
    figure.legend(*panel.get_legend_handles_labels(), fontsize=10, loc="outside right center")
    return [Drawing("W3-construction", _built_caption(rival, level), figure)]


def _built_caption(rival: str, level: float) -> str:
    return (
        "The largest weight, biases included, of networks that resolve the steep part at every d, made without training for a "
        f"loss of {level:g} at most. The DEQ's is the 1 of its read-out, however steep the function is; the feed-forward "
        f"network's grows like 2^(d/{len(layers(rival)) + 1}), and must: no network of its shape and loss, trained or not, has "
        "all its weights below the dotted line (proven). For small d the DEQ's is the larger one. The paper's networks were "
        "trained."
    )
