"""A study as the parts of the page."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc

from notsodeep.app.state import NAMED
from notsodeep.app.study import Study
from notsodeep.figures.explorer import activations_figure, boundaries_figure, spectra_figure
from notsodeep.theory.admissible import boundaries
from notsodeep.theory.scalars import Scalars

_SURPASSED = " Here the undesigned network comes closer."
_SYMBOLS = {"gamma": "γ", "kappa": "κ", "tau0": "τ0", "tau": "τ*"} | {
    f"{name}{k}": f"{letter}{k}" for name, letter in (("alpha", "α"), ("beta", "β")) for k in (1, 2, 3)
}
_LETTERS = {"conjugate": "the conjugate kernel", "tangent": "the tangent kernel"}


def spectra(study: Study) -> Any:
    return spectra_figure(study.spectra, _LETTERS[study.state.kernel])


def activations(study: Study) -> Any:
    return activations_figure(study.phi, tuple(study.explicit.layers), study.target.tau)


def admissible(study: Study) -> Any:
    """The map of σ_a², with the chosen activation in it, if it has a name or not."""
    own = study.state.activation
    names = NAMED if own in NAMED else (own, *NAMED)
    found = boundaries(names, study.net.var_b * study.tau0**2)
    return boundaries_figure([(b.name, b.contracts, b.stable, b.exists) for b in found], own, study.state.var_a)


def summary(study: Study) -> str:
    depth = study.explicit.depth
    return (
        f"{study.net.phi} DEQ on {study.data.description}. Designed: {study.family}, {depth} hidden layer{'s' * (depth > 1)}; "
        f"its kernel is {study.gap:.2g} away from the DEQ's, that of the same depth undesigned {study.plain_gap:.2g}, "
        f"or {study.scaled_gap:.2g} with its best factor." + _SURPASSED * (study.plain_gap < study.gap)
    )


def table(study: Study) -> Any:
    """The scalars that decide the kernel, of both networks, and the other numbers of the DEQ."""
    matched = [(_SYMBOLS[c.name], f"{c.target:.6f}", f"{c.reached:.6f}", f"{c.gap:.1e}") for c in study.comparisons]
    head = dmc.TableThead(dmc.TableTr([dmc.TableTh(text) for text in ("scalar", "DEQ", "designed", "gap")]))
    others = [(_SYMBOLS[name], f"{getattr(study.target, name):.6f}", "", "") for name in _others(study.target, study)]
    rows = [dmc.TableTr([dmc.TableTd(cell) for cell in row]) for row in (*matched, *others)]
    return dmc.Table([head, dmc.TableTbody(rows)], striped=True, verticalSpacing=2, **{"aria-label": "scalars"})


def _others(target: Scalars, study: Study) -> list[str]:
    shown = {c.name for c in study.comparisons}
    return [name for name in ("tau0", "tau") if name not in shown and hasattr(target, name)]
