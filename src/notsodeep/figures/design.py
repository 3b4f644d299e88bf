"""The figure of a design: spectra of the kernels, and the activations."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from notsodeep.figures.style import DEQ, EXPLICIT, UNDESIGNED, style
from notsodeep.matching.result import Design

_BINS = 60


def design_figure(design: Design, spectra: dict[str, torch.Tensor], gap: float | None = None) -> Figure:
    """Spectra on the left, activations of the DEQ and of the designed network on the right.

    Args:
        design: the design.
        spectra: eigenvalues of the kernels of the DEQ ("deq"), the designed ("explicit") and the "undesigned" network.
        gap: the gap between the first two kernels; None for the one that the design measured.

    Returns:
        The figure.
    """
    with style():
        figure = Figure(figsize=(11, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        if gap is None:
            assert design.measured is not None
            gap = design.measured.gap
        _draw_spectra(left, spectra, f"{design.match} kernel, n = {len(spectra['deq'])}: gap {gap:.1e}")
        _draw_activations(right, design)
        title = rf"{design.net.phi} DEQ, $\sigma_a^2$ = {design.net.var_a:g}, $\sigma_b^2$ = {design.net.var_b:g}"
        figure.suptitle(title, fontsize=13)
    return figure


def _draw_spectra(axes: Axes, spectra: dict[str, torch.Tensor], title: str) -> None:
    values = {name: spectrum.cpu().numpy() for name, spectrum in spectra.items()}
    smallest = 1e-12 * max(v.max() for v in values.values())
    values = {name: np.maximum(v, smallest) for name, v in values.items()}
    low, high = min(v.min() for v in values.values()), max(v.max() for v in values.values())
    bins = np.geomspace(low * 0.95, high * 1.05, _BINS).tolist()
    axes.hist(values["deq"], bins, color=DEQ, label="DEQ")
    axes.hist(values["explicit"], bins, histtype="step", color=EXPLICIT, linewidth=1.8, label="designed")
    axes.hist(values["undesigned"], bins, histtype="step", color=UNDESIGNED, linewidth=1.2, linestyle="--", label="undesigned")
    axes.set(xscale="log", yscale="log", xlabel="eigenvalue", ylabel="how many", ylim=(0.7, None))
    axes.set_title(title)
    axes.legend()


def _draw_activations(axes: Axes, design: Design) -> None:
    reach = 3.0 * design.target.tau
    x = torch.linspace(-reach, reach, 601, dtype=torch.float64)
    phi = design.net.centred(design.tau0).phi
    axes.plot(x, phi(x), color=DEQ, linewidth=5, label="DEQ: φ, centred")
    for (name, sigma), dash in zip(design.explicit.curves.items(), cycle(("-", "--", ":", "-.")), strict=False):
        axes.plot(x, sigma(x), color=EXPLICIT, linestyle=dash, label=f"designed, {name}")
    axes.set(xlabel="pre-activation", xlim=(-reach, reach))
    axes.set_title(f"{design.family}, {design.explicit.depth} hidden layer{'s' * (design.explicit.depth > 1)}")
    axes.legend()
