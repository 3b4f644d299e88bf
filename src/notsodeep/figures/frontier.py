"""The figure of a frontier: what each way to answer costs, and what it keeps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter

from notsodeep.figures.style import DEQ_LINE, EXPLICIT, REFERENCE, UNDESIGNED, style
from notsodeep.models.compiler.frontier import Frontier, Way

_LEAST_LOST = 1e-4  # of the answers: what is drawn where nothing is lost


def frontier_figure(frontier: Frontier) -> Figure:
    """Cost against the answers that are lost on the left and, with y, against the score on the right; optimal ways are named.

    Args:
        frontier: the frontier.

    Returns:
        The figure.
    """
    scored = frontier.measure is not None
    with style():
        figure = Figure(figsize=(12 if scored else 7, 5), layout="constrained")
        panels = figure.subplots(1, 2 if scored else 1, squeeze=False)[0]
        _draw_kept(panels[0], frontier)
        if scored:
            _draw_scores(panels[1], frontier)
        for axes in panels:
            axes.set(xscale="log", xlabel="MFLOP per sample")
            axes.margins(0.12)
        panels[-1].legend(loc="best")
    return figure


def _draw_kept(axes: Axes, frontier: Frontier) -> None:
    ways = [way for way in frontier.ways if not way.plain]
    least = min(_LEAST_LOST, 0.5 / frontier.samples)
    _draw(axes, ways, [max(1.0 - way.kept, least) for way in ways], _best(ways, [way.kept for way in ways]), frontier.faithful)
    axes.axhline(1.0 - frontier.keep, color=REFERENCE, linestyle=":", linewidth=1.2)
    what = "different answers" if ways[0].agreement is not None else "variance of the outputs lost"
    axes.set(yscale="log", ylabel=f"{what} on {frontier.samples} samples")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: "none" if share <= least else f"{share:.1%}"))
    axes.set_title(f"Kept of the DEQ (asked: {frontier.keep:.1%})")


def _draw_scores(axes: Axes, frontier: Frontier) -> None:
    ways, scores = list(frontier.ways), [way.score or 0.0 for way in frontier.ways]
    _draw(axes, ways, scores, _best(ways, scores), frontier.chosen)
    # A cut that answers at random would leave the others in one line.
    low = min(score for way, score in zip(ways, scores, strict=True) if way.plain or way.kept > 0.8)
    axes.set(ylabel=f"{frontier.measure} on y", ylim=(low - 0.1 * (max(scores) - low) - 1e-3, None))
    axes.set_title(f"{(frontier.measure or '').capitalize()}")


def _draw(axes: Axes, ways: Sequence[Way], heights: Sequence[float], best: Sequence[bool], chosen: Way) -> None:
    kinds = (
        ("the DEQ, solved", DEQ_LINE, "s", lambda way: way.iterates),
        ("no iterations", EXPLICIT, "o", lambda way: not way.iterates and not way.plain),
        ("trained on y alone", UNDESIGNED, "^", lambda way: way.plain),
    )
    for label, colour, marker, belongs in kinds:
        costs, values = _columns((way.mflop, height) for way, height in zip(ways, heights, strict=True) if belongs(way))
        if costs:
            axes.scatter(costs, values, color=colour, marker=marker, s=42, label=label, zorder=3)
    costs, values = _columns((way.mflop, height) for way, height, on in zip(ways, heights, best, strict=True) if on)
    axes.plot(costs, values, color=REFERENCE, linewidth=1.2, zorder=2)
    shown = [k for k, way in enumerate(ways) if best[k] or way is chosen or k == 0]
    for turn, k in enumerate(sorted(shown, key=lambda k: (ways[k].mflop, heights[k]))):
        axes.annotate(
            ways[k].name,
            (ways[k].mflop, heights[k]),
            (6, (6, -14)[turn % 2]),  # in turn above and below: neighbours may be close
            textcoords="offset points",
            fontsize=9,
            fontweight="bold" if ways[k] is chosen else "normal",
            path_effects=[withStroke(linewidth=3, foreground="white")],
            zorder=4,
        )


def _columns(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """The points' costs and heights, the cheapest first."""
    ordered = sorted(points)
    return [cost for cost, _ in ordered], [height for _, height in ordered]


def _best(ways: Sequence[Way], merits: Sequence[float]) -> list[bool]:
    """Which ways are better than every cheaper one, the first of equal ones."""
    best, most = [False] * len(ways), -math.inf
    for number in sorted(range(len(ways)), key=lambda k: (ways[k].mflop, -merits[k], k)):
        if merits[number] > most:
            best[number], most = True, merits[number]
    return best
