"""W3: the largest weights of networks that fit the steep function equally well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from notsodeep.figures.style import DEQ, DEQ_LINE, EXPLICIT, UNDESIGNED
from notsodeep.papers.figures.drawing import Drawing, Look, draw_means, panels, plain_log
from notsodeep.papers.records import Record
from notsodeep.papers.wu2024.contest import layers
from notsodeep.papers.wu2024.w3_weights import (
    NETWORKS,
    PAPER_FNN,
    RESOLVED,
    at_level,
    built,
    built_weights,
    comparable,
    weights,
)
from notsodeep.separation.bounds import min_weight_fnn

_LOOKS = {"deq": Look("DEQ", DEQ_LINE, "-", "o", 2.4, 8.0), "fnn": Look("feed-forward", EXPLICIT, "--", "D", 1.8, 6.0)}
_ASIDE = {"deq": -0.15, "fnn": 0.15}  # so that intervals do not hide one another
_PAPER_DEQ = (1.4, 2.15)
_DEPTH = 3
_WIDEST = f"2^(d/{2 * _DEPTH})"  # units of a layer, in the theorem: as many as its least weight


def weight_drawings(records: Sequence[Record]) -> list[Drawing]:
    """A panel for each loss at which networks are compared."""
    levels = at_level(comparable(records)) if records else {}
    levels = {level: own for level, own in levels.items() if _any_weight(own)}
    if not levels:
        return []
    figure, axes = panels(1, len(levels), 5.2 if len(levels) > 1 else 8.6, 4.8)
    for panel, (level, own) in zip(axes[0], levels.items(), strict=True):
        _panel(panel, own)
        panel.set_title(f"at a loss of {level:g}")
    axes[0, 0].set_ylabel("largest weight")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    where = {"loc": "outside lower center", "ncols": 2} if len(levels) > 1 else {"loc": "outside right center"}
    figure.legend(handles, labels, fontsize=10, **where)
    return [Drawing("W3-weights", _caption([record for own in levels.values() for record in own]), figure)]


def _any_weight(records: Sequence[Record]) -> bool:
    return any(weights(records, network, of) for network in NETWORKS for of in ("weight_at_level", "largest_weight"))


def _panel(panel: Axes, own: Sequence[Record]) -> None:
    panel.set_yscale("log")
    dimensions = sorted({int(r.config["dimension"]) for r in own})
    for network in NETWORKS:
        _draw(panel, own, network)
    _draw_paper(panel, dimensions)
    panel.set_xticks(dimensions)
    panel.set(xlabel="dimension d: the function rises within 2⁻ᵈ")
    panel.set_xlim(dimensions[0] - 1.0, dimensions[-1] + 1.0)
    plain_log(panel.yaxis)
    panel.yaxis.set_minor_locator(NullLocator())


def _draw(axes: Axes, records: Sequence[Record], network: str) -> None:
    look, aside = _LOOKS[network], _ASIDE[network]
    level = {d + aside: values for d, values in weights(records, network).items()}
    draw_means(axes, level, look, capsize=3, label=f"{look.label}, at equal loss", gid=network, zorder=4)
    if min(float(record.config["level"]) for record in records) < RESOLVED:
        return  # training ends at the level
    end = {d + 2.2 * aside: values for d, values in weights(records, network, "largest_weight").items()}
    changes = {"alpha": 0.45, "linewidth": 1.0, "markersize": 5, "markerfacecolor": "white", "gid": f"{network}-end"}
    draw_means(axes, end, look, label=f"{look.label}, at the end of training", **changes)


def _draw_paper(axes: Axes, dimensions: Sequence[int]) -> None:
    _draw_paper_weights(axes, dimensions)
    bound = [min_weight_fnn(d, _DEPTH) for d in dimensions]
    text = f"the theorem's least weight of a\nnarrow feed-forward network of\ndepth {_DEPTH}, within 1/16 everywhere"
    axes.plot(dimensions, bound, ":", color="black", linewidth=2.2, label=text, gid="bound")


def _draw_paper_weights(axes: Axes, dimensions: Sequence[int]) -> None:
    theirs = {d: weight for d, weight in PAPER_FNN.items() if d in dimensions}
    if theirs:
        style: dict[str, Any] = {
            "color": UNDESIGNED,
            "linewidth": 1.0,
            "markerfacecolor": "white",
            "markeredgewidth": 1.5,
        }
        axes.plot(list(theirs), list(theirs.values()), "s-", label="the paper's feed-forward", gid="paper-fnn", **style)
        axes.axhspan(
            *_PAPER_DEQ, color=DEQ, alpha=0.35, linewidth=0, zorder=0.5, label="the paper's DEQs", gid="paper-deq"
        )


def _wider(config: Mapping[str, Any], records: Sequence[Record]) -> str:
    """Said where the theorem is about none of the feed-forward networks."""
    largest = max(int(r.config["dimension"]) for r in records)
    rival = config.get("rival")
    return f", and {rival} is wider than that" if rival and layers(rival)[0] > min_weight_fnn(largest, _DEPTH) else ""


def _caption(records: Sequence[Record]) -> str:
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
    """Networks without training: largest weights, and the least that a feed-forward network can have."""
    own = built(records)
    if not own:
        return []
    figure, axes = panels(1, 1, 7.4, 4.2)
    panel: Axes = axes[0, 0]
    panel.set_yscale("log")
    dimensions = sorted({int(r.config["dimension"]) for r in own})
    rival, level = own[-1].config["rival"], own[-1].config["level"]
    for network, text in (("fnn", f"feed-forward, {rival}"), ("deq", f"DEQ of {_units(own, 'deq')} units")):
        found = built_weights(own, network)
        if found:
            line = _LOOKS[network].line
            panel.plot(list(found), list(found.values()), **line, label=text, gid=f"built-{network}", zorder=4)
    least = built_weights(own, "fnn", "least_weight")
    if least and min(least.values()) > 0.0:
        text = f"least largest weight\nof any {rival} (proven)"
        panel.plot(list(least), list(least.values()), ":", color="black", lw=2.2, label=text, gid="least", zorder=3)
    _draw_paper_weights(panel, dimensions)
    panel.set_xticks(dimensions)
    panel.set(xlabel="dimension d: the function rises within 2⁻ᵈ", ylabel="largest weight")
    panel.set_title(f"without training, at a loss of {level:g} at most")
    panel.set_xlim(dimensions[0] - 1.0, dimensions[-1] + 1.0)
    plain_log(panel.yaxis)
    panel.yaxis.set_minor_locator(NullLocator())
    figure.legend(*panel.get_legend_handles_labels(), fontsize=10, loc="outside right center")
    return [Drawing("W3-construction", _built_caption(rival, level), figure)]


def _units(records: Sequence[Record], network: str) -> int:
    return max((int(r.values["width"]) for r in records if r.config["network"] == network), default=0)


def _built_caption(rival: str, level: float) -> str:
    return (
        "The largest weight, biases included, of networks that resolve the steep part at every d, made without training for a "
        f"loss of {level:g} at most. The DEQ's is the 1 of its read-out, however steep the function is; the feed-forward "
        f"network's grows like 2^(d/{len(layers(rival)) + 1}), and must: no network of its shape and loss, trained or not, has "
        "all its weights below the dotted line (proven). For small d the DEQ's is the larger one. The paper's networks were "
        "trained."
    )
