"""A study as the parts of the page."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
import torch

from notsodeep.app.state import NAMED, State
from notsodeep.app.study import Refused, Study
from notsodeep.app.uploads import Uploaded
from notsodeep.errors import NotSoDeepError
from notsodeep.figures.design import design_figure
from notsodeep.figures.explorer import activations_figure, boundaries_figure, spectra_figure
from notsodeep.figures.style import style
from notsodeep.models.enn import ENN
from notsodeep.theory.admissible import boundaries
from notsodeep.theory.scalars import Scalars

_SURPASSED = " Here the undesigned network comes closer."
_SYMBOLS = {"gamma": "γ", "kappa": "κ", "tau0": "τ0", "tau": "τ*"} | {
    f"{name}{k}": f"{letter}{k}" for name, letter in (("alpha", "α"), ("beta", "β")) for k in (1, 2, 3)
}
_LETTERS = {"conjugate": "the conjugate kernel", "tangent": "the tangent kernel"}
WIDTH = 256
_SEED = 0


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


def python_of(state: State, uploaded: Uploaded | None = None, found: str = "", nearest: bool = False) -> str:
    """Lines that print the table of the page; `uploaded` is the visitor's file. `found` is the family that was: the length of
    a Hermite series depends on the samples that it is tried on. `nearest`: the page shows the member that comes closest."""
    family = found if found.startswith("hermite") else state.family
    var_b = "" if state.var_b is None else f", {state.var_b:g}"
    kernel = f"nsd.{state.kernel}_kernel"
    lines = [
        "import torch",
        "",
        "import notsodeep as nsd",
        "from notsodeep.data.sources import load" + (", standardised" if state.data == "upload" else ""),
        "",
        *_data(state, uploaded),
        f"net = nsd.Implicit({state.activation!r}, {state.var_a:g}{var_b})",
        *_design(f"nsd.design(net, x, family={family!r}, match={state.kernel!r})", nearest),
        "",
        f"deq, twin = {kernel}(net, x), {kernel}(explicit, x)",
        'print(f"gap {nsd.relative_gap(deq, twin):.2g}")',
        "print(torch.linalg.eigvalsh(deq)[-3:], torch.linalg.eigvalsh(twin)[-3:])",
    ]
    return "\n".join(lines) + "\n"


def _design(call: str, nearest: bool) -> list[str]:
    if not nearest:
        return [f"found = {call}", "print(found.summary())", "explicit = found.explicit"]
    return [
        "try:",
        f"    {call}",
        "except nsd.NoMatch as error:  # which has the nearest",
        "    explicit = error.explicit",
    ]


def _data(state: State, uploaded: Uploaded | None) -> list[str]:
    """The rows of a file are drawn before they are scaled, as on the page."""
    if state.data != "upload":
        return [f"x = load({state.spec!r}).x"]
    name = "your.csv" if uploaded is None else uploaded.name
    labels = "" if uploaded is None or uploaded.y is None else f", labels={uploaded.x.shape[1]}"
    return [
        f"x = load({name!r}, standardise=False{labels}).x",
        f"rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:{state.n}]",
        "x = standardised(x[rows])",
    ]


def network_file(study: Study, kind: str) -> bytes:
    """A network of the designed activations, `WIDTH` wide, with fresh weights: "onnx", or "py", text that needs torch alone."""
    classes = 1 if study.data.y is None else int(study.data.y.max()) + 1
    enn = ENN(
        study.explicit,
        in_features=study.data.x.shape[1],
        width=WIDTH,
        out_features=max(classes, 1),
        generator=torch.Generator().manual_seed(_SEED),
    )
    try:
        if kind == "py":
            return enn.to_source().encode()
        with tempfile.TemporaryDirectory() as folder:
            return enn.to_onnx(Path(folder) / "network.onnx").read_bytes()
    except (NotSoDeepError, ImportError) as error:
        raise Refused("download", str(error)) from error


def figure_file(study: Study) -> bytes:
    """The spectra and the activations as on the page, drawn for paper: a PNG."""
    spectra = {
        "deq": study.spectra["deq"],
        "explicit": study.spectra["designed"],
        "undesigned": study.spectra["undesigned"],
    }
    memory = io.BytesIO()
    with style():
        design_figure(study.as_design(), spectra, study.gap).savefig(memory, format="png", dpi=150)
    return memory.getvalue()
