"""The explorer's figures for a browser: without a background, in colours that are clear on light and on dark.

They are plotly's, as plain dictionaries: plotly's own classes check every field, which takes longer than the kernels.
"""

from __future__ import annotations

import math
from itertools import cycle
from typing import Any

import numpy as np
import torch

from notsodeep.activations import Activation
from notsodeep.figures.style import DEQ_LINE, RESCALED

DEQ, DESIGNED, UNDESIGNED = DEQ_LINE, "#d9534f", "#8a8a8a"
_TEXT, _GRID = "#808080", "rgba(128, 128, 128, 0.25)"
_BINS = 50
Trace = dict[str, Any]
Figure = dict[str, Any]
_ZONES = {"contracts": "#4c9f70", "stable": RESCALED, "exists": "#c26a4a"}
_ROUND_OFF = 1e-16
_MOST_SHOWN = 3.2  # σ_a², on the map


def spectra_figure(spectra: dict[str, torch.Tensor], letter: str) -> Figure:
    """Histograms of the eigenvalues in bins of equal logarithmic width: the DEQ's filled, the networks' as lines on it."""
    values = {name: spectrum.numpy() for name, spectrum in spectra.items()}
    top = max(v.max() for v in values.values())
    values = {name: np.maximum(v, 1e-12 * top) for name, v in values.items()}
    low = min(v.min() for v in values.values())
    edges = np.geomspace(0.95 * low, 1.05 * top, _BINS)
    figure = _figure(f"eigenvalues of {letter}", "how many", x_log=True, y_log=True)
    looks: dict[str, dict[str, Any]] = {
        "deq": {"name": "DEQ", "line": {"color": DEQ, "width": 0}, "fill": "tozeroy"},
        "designed": {"name": "designed", "line": {"color": DESIGNED, "width": 2}},
        "undesigned": {"name": "undesigned", "line": {"color": UNDESIGNED, "width": 1.5, "dash": "dash"}},
    }
    for name, look in looks.items():
        counts, _ = np.histogram(values[name], edges)
        x, y = np.repeat(edges, 2)[1:-1], np.repeat(np.maximum(counts, 0.5), 2)
        figure["data"].append(_scatter(x, y, hoverinfo="skip", **look))
    figure["layout"]["yaxis"] |= {"range": [math.log10(0.5), math.log10(2.0 * len(values["deq"]))], "dtick": 1}
    figure["layout"]["xaxis"]["range"] = [math.log10(0.7 * low), math.log10(1.5 * top)]
    return figure


def activations_figure(phi: Activation, curves: dict[str, Activation], tau: float) -> Figure:
    """The DEQ's centred φ and the designed network's activations on it, over three deviations of a pre-activation."""
    x = torch.linspace(-3.0 * tau, 3.0 * tau, 301, dtype=torch.float64)
    figure = _figure("pre-activation", "activation")
    figure["data"].append(_scatter(x, phi(x), name="DEQ: φ", line={"color": DEQ, "width": 6}))
    for (name, sigma), dash in zip(curves.items(), cycle(("solid", "dash", "dot", "dashdot")), strict=False):
        line = {"color": DESIGNED, "width": 2, "dash": dash}
        figure["data"].append(_scatter(x, sigma(x), name=f"designed, {name}", line=line))
    return figure


def gap_figure(points: list[tuple[int, float]], guided: bool = True) -> Figure:
    """The gap against n on log-log axes, with a line of the theorem's slope −½ if `guided`."""
    figure = _figure("samples n", "gap", x_log=True, y_log=True)
    n, gap = [n for n, _ in points], [max(gap, _ROUND_OFF) for _, gap in points]
    guide = [gap[0] * math.sqrt(n[0] / k) for k in n]
    dots = {"color": UNDESIGNED, "dash": "dot"}
    look: dict[str, Any] = {"name": "designed", "line": {"color": DESIGNED}, "marker": {"size": 8}, "showlegend": True}
    figure["data"].append(_scatter(n, gap, mode="lines+markers", **look))
    if guided:
        figure["data"].append(_scatter(n, guide, name="∝ n^(−½)", line=dots, hoverinfo="skip"))
    figure["layout"]["xaxis"] |= {"tickvals": n, "ticktext": [str(k) for k in n]}
    ends = math.log10(0.5 * min(gap + guide)), math.log10(2.0 * max(gap + guide))
    figure["layout"]["yaxis"] |= {"range": ends, "dtick": "D2"}
    return figure


def boundaries_figure(rows: list[tuple[str, float, float, float]], chosen: str, var_a: float) -> Figure:
    """A bar for each activation, up to where networks contract, the kernel is stable, and it exists; a line at σ_a²."""
    figure = _figure(f"σ_a² (the line: {var_a:g})", "")
    names = [name for name, *_ in rows]
    before = np.zeros(len(rows))
    labels = {"contracts": "networks contract", "stable": "kernel stable", "exists": "kernel exists"}
    for index, (zone, label) in enumerate(labels.items(), start=1):
        end = np.maximum(np.minimum([row[index] for row in rows], _MOST_SHOWN), before)
        bar = {"type": "bar", "orientation": "h", "name": label, "marker": {"color": _ZONES[zone]}, "opacity": 0.85}
        hover = {"hovertext": [f"{row[0]}: up to {row[index]:.4g}" for row in rows], "hoverinfo": "text"}
        figure["data"].append(bar | hover | {"y": names, "x": (end - before).tolist(), "base": before.tolist()})
        before = end
    bold = [f"<b>{name} ◂</b>" if name == chosen else name for name in names]
    layout = figure["layout"]
    layout["xaxis"]["range"] = [0.0, _MOST_SHOWN]
    layout["yaxis"] |= {"type": "category", "autorange": "reversed", "tickvals": names, "ticktext": bold}
    line = {"type": "line", "x0": var_a, "x1": var_a, "y0": 0, "y1": 1, "yref": "paper"}
    layout |= {"barmode": "overlay", "bargap": 0.35, "shapes": [line | {"line": {"color": DESIGNED, "width": 2}}]}
    return figure


def _scatter(x: Any, y: Any, mode: str = "lines", **look: Any) -> Trace:
    return {"type": "scatter", "mode": mode, "x": np.asarray(x).tolist(), "y": np.asarray(y).tolist(), **look}


def _figure(x: str, y: str, x_log: bool = False, y_log: bool = False) -> Figure:
    axis = {"gridcolor": _GRID, "zerolinecolor": _GRID, "linecolor": _TEXT, "automargin": True, "fixedrange": True}
    log = {"type": "log", "exponentformat": "power", "showexponent": "all"}
    layout = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": _TEXT, "size": 13},
        "margin": {"l": 10, "r": 10, "t": 10, "b": 10},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "xaxis": {**axis, "title": {"text": x}, **(log if x_log else {"type": "linear"})},
        "yaxis": {**axis, "title": {"text": y}, **(log if y_log else {"type": "linear"})},
    }
    return {"data": [], "layout": layout}
