"""The explorer's figures, for a browser: plotly, on no background, in colours that stand on light and on dark."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch

from notsodeep.activations import Activation
from notsodeep.figures.style import DEQ_LINE, RESCALED

DEQ, DESIGNED, UNDESIGNED = DEQ_LINE, "#d9534f", "#8a8a8a"
_TEXT, _GRID = "#808080", "rgba(128, 128, 128, 0.25)"
_BINS = 50
_ZONES = {"contracts": "#4c9f70", "stable": RESCALED, "exists": "#c26a4a"}
_ROUND_OFF = 1e-16
_MOST_SHOWN = 3.2  # σ_a², on the map


def spectra_figure(spectra: dict[str, torch.Tensor], letter: str) -> go.Figure:
    """How many eigenvalues lie in each of equal bins of their logarithm: the DEQ's filled, the networks' as lines on it."""
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
        figure.add_trace(go.Scatter(x=x, y=y, mode="lines", hoverinfo="skip", **look))
    figure.update_yaxes(range=[math.log10(0.5), math.log10(2.0 * len(values["deq"]))], dtick=1)
    return figure


def activations_figure(phi: Activation, layers: tuple[Activation, ...], tau: float) -> go.Figure:
    """φ of the DEQ, centred, under the activations of the designed network, over three deviations of a pre-activation."""
    x = torch.linspace(-3.0 * tau, 3.0 * tau, 301, dtype=torch.float64)
    figure = _figure("pre-activation", "activation")
    figure.add_trace(_curve(x, phi(x), "DEQ: φ", {"color": DEQ, "width": 6}))
    for depth, (layer, dash) in enumerate(zip(layers, ("solid", "dash", "dot", "dashdot"), strict=False), 1):
        figure.add_trace(_curve(x, layer(x), f"designed, layer {depth}", {"color": DESIGNED, "width": 2, "dash": dash}))
    return figure


def gap_figure(points: list[tuple[int, float]]) -> go.Figure:
    """The gap against n on log-log axes, beside the slope −½ of the theorem."""
    figure = _figure("samples n", "gap", x_log=True, y_log=True)
    n, gap = [n for n, _ in points], [max(gap, _ROUND_OFF) for _, gap in points]
    figure.add_trace(
        go.Scatter(x=n, y=gap, mode="lines+markers", name="designed", line={"color": DESIGNED}, marker={"size": 8})
    )
    guide = [gap[0] * math.sqrt(n[0] / k) for k in n]
    figure.add_trace(
        go.Scatter(
            x=n, y=guide, mode="lines", name="∝ n^(−½)", line={"color": UNDESIGNED, "dash": "dot"}, hoverinfo="skip"
        )
    )
    figure.update_xaxes(tickvals=n, ticktext=[str(k) for k in n])
    ends = [min(gap + guide), max(gap + guide)]
    figure.update_yaxes(range=[math.log10(0.5 * ends[0]), math.log10(2.0 * ends[1])], dtick="D2")
    return figure


def boundaries_figure(rows: list[tuple[str, float, float, float]], chosen: str, var_a: float) -> go.Figure:
    """One bar for each activation, of three parts: networks contract; the kernel is stable; it exists. A line at σ_a²."""
    figure = _figure(f"σ_a² (the line: {var_a:g})", "")
    names = [name for name, *_ in rows]
    before = np.zeros(len(rows))
    labels = {"contracts": "networks contract", "stable": "kernel stable", "exists": "kernel exists"}
    for index, (zone, label) in enumerate(labels.items(), start=1):
        end = np.maximum(np.minimum([row[index] for row in rows], _MOST_SHOWN), before)
        hover = [f"{row[0]}: up to {row[index]:.4g}" for row in rows]
        figure.add_trace(
            go.Bar(
                y=names, x=end - before, base=before, orientation="h", name=label, marker={"color": _ZONES[zone]},
                hovertext=hover, hoverinfo="text", opacity=0.85,
            )
        )  # fmt: skip
        before = end
    figure.update_layout(barmode="overlay", bargap=0.35)
    figure.update_xaxes(range=[0.0, _MOST_SHOWN])
    bold = [f"<b>{name} ◂</b>" if name == chosen else name for name in names]
    figure.update_yaxes(type="category", autorange="reversed", tickvals=names, ticktext=bold, automargin=True)
    figure.add_vline(x=var_a, line={"color": DESIGNED, "width": 2})
    return figure


def _curve(x: torch.Tensor, y: torch.Tensor, name: str, line: dict[str, Any]) -> go.Scatter:
    return go.Scatter(x=x.numpy(), y=y.numpy(), mode="lines", name=name, line=line)


def _figure(x: str, y: str, x_log: bool = False, y_log: bool = False) -> go.Figure:
    figure = go.Figure()
    axis = {"gridcolor": _GRID, "zerolinecolor": _GRID, "linecolor": _TEXT, "automargin": True, "fixedrange": True}
    power = {"exponentformat": "power", "showexponent": "all"}
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": _TEXT, "size": 13},
        margin={"l": 10, "r": 10, "t": 10, "b": 10},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        xaxis={**axis, "title": x, "type": "log" if x_log else "linear", **(power if x_log else {})},
        yaxis={**axis, "title": y, "type": "log" if y_log else "linear", **(power if y_log else {})},
    )
    return figure
