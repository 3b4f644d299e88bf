"""W1 and W2: DEQs that are the function by construction, without training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from notsodeep.figures.style import DEQ, DEQ_LINE, EXPLICIT, REFERENCE, RESCALED, UNDESIGNED
from notsodeep.papers.figures.drawing import Drawing, panels, plain_log, power_of_two, sample_axis
from notsodeep.papers.records import Record
from notsodeep.papers.wu2024.contest import constructed
from notsodeep.papers.wu2024.w2_steep import PAPER_ERRORS
from notsodeep.separation.bounds import max_pieces_deq, max_pieces_fnn
from notsodeep.separation.constructions import sawtooth_deq

_CURVES = (1, 3, 5)  # units of the DEQs whose curves are drawn
# A feed-forward network's units, in as many hidden layers: colour and dash of its bound.
_BOUNDS: dict[int, tuple[str, Any]] = {1: (UNDESIGNED, "--"), 2: (RESCALED, ":"), 3: (EXPLICIT, "-.")}
_PAPER_DIMENSION = 20
_STEEP = (
    "The largest error of a DEQ of 4N + 2 units that is the steep function by construction, without training, on a grid that "
    "is fine in the steep part as well. It falls like 1/(2N) however steep the function is; the squares are the paper's values."
)


def sawtooth_drawings(records: Sequence[Record]) -> list[Drawing]:
    pieces = {int(r.config["pieces_log2"]): int(r.values["pieces"]) for r in constructed(records)}
    if not pieces:
        return []
    figure, axes = panels(1, 2, 5.4, 4.4)
    _curves(axes[0, 0], [m for m in _CURVES if m <= max(pieces)])
    _pieces(axes[0, 1], dict(sorted(pieces.items())))
    return [Drawing("W1-construction", _pieces_caption(constructed(records)), figure)]


def _curves(axes: Axes, units: Sequence[int]) -> None:
    """One above the other, each at its kinks, so that the lines are exact."""
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


def _pieces(axes: Axes, pieces: dict[int, int]) -> None:
    axes.set_yscale("log", base=2)
    every = range(1, max(pieces) + 1)
    axes.plot(
        every, [max_pieces_deq(m) for m in every], color=DEQ, linewidth=6, label="most of any DEQ, 2ᵐ", gid="bound"
    )
    for hidden, (colour, dash) in _BOUNDS.items():
        # Where the units share out evenly.
        there = {m: max_pieces_fnn(hidden + 1, m // hidden) for m in every if m % hidden == 0}
        text = f"most with {hidden} hidden layer{'s' * (hidden > 1)}"
        axes.plot(list(there), list(there.values()), color=colour, linestyle=dash, label=text, gid=f"bound-{hidden}")
    axes.plot(
        list(pieces), list(pieces.values()), "o", color="black", ms=5, label="the construction, counted", gid="counted"
    )
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
    errors = {(int(r.config["dimension"]), int(r.config["N"])): float(r.values["error"]) for r in constructed(records)}
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
        panel.plot(
            list(own),
            list(own.values()),
            f"{marker}-",
            color=DEQ,
            lw=4,
            ms=11,
            label=f"ours, d = {d}",
            gid=f"error-{d}",
        )
    if _PAPER_DIMENSION in dimensions:
        theirs = {N: error for N, error in PAPER_ERRORS.items() if (_PAPER_DIMENSION, N) in errors}
        text = f"the paper's, d = {_PAPER_DIMENSION}"
        panel.plot(
            list(theirs), list(theirs.values()), "s", color="black", mfc="none", mew=1.5, label=text, gid="paper"
        )
    sample_axis(panel, sizes, most=8)
    plain_log(panel.yaxis)
    panel.yaxis.set_minor_locator(NullLocator())
    panel.set(xlabel="N; the DEQ has 4N + 2 units", ylabel="largest error")
    panel.legend(loc="upper right")
    return [Drawing("W2-construction", _STEEP, figure)]
