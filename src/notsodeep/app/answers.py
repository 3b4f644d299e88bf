"""Answers to a state, computed in a worker: the parts of the page, the gap against n, and files to download.

What the server holds comes with the question, and a study goes back without its samples, so any worker can go on with it.
"""

from __future__ import annotations

import io
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
import torch

from notsodeep.app import study as studies
from notsodeep.app.state import NAMED, State
from notsodeep.app.study import GapPoint, Lengths, Refused, Study, gaps_against_n, samples_of, study
from notsodeep.app.uploads import Shelf, Uploaded
from notsodeep.data.sources import Dataset
from notsodeep.errors import NotSoDeepError
from notsodeep.figures.design import design_figure
from notsodeep.figures.explorer import activations_figure, boundaries_figure, spectra_figure
from notsodeep.figures.style import style
from notsodeep.models.enn import ENN
from notsodeep.theory.admissible import boundaries

WIDTH = 256
_SEED = 0
_NOTHING = Shelf()
_SURPASSED = " Here the undesigned network comes closer."
_SYMBOLS = {"gamma": "γ", "kappa": "κ", "tau0": "τ0", "tau": "τ*"} | {
    f"{name}{k}": f"{letter}{k}" for name, letter in (("alpha", "α"), ("beta", "β")) for k in (1, 2, 3)
}


@dataclass(frozen=True, eq=False)
class Answer:
    """A study, without its samples, and the parts of the page that show it."""

    study: Study
    figures: tuple[Any, Any, Any]
    table: Any
    summary: str


def answered(state: State, sent: Dataset | None, lengths: Lengths) -> tuple[Answer, Lengths]:
    """The answer to a state, and the lengths found on the way; `sent` are the samples of an upload."""
    studies.LENGTHS.update(lengths)
    found = study(state, _samples(state, sent))
    figures = (spectra(found), activations(found), admissible(found))
    nothing = found.data.x.new_empty((0, found.data.x.shape[1]))  # a slice would be sent with all of its storage
    without = replace(found, data=replace(found.data, x=nothing, y=None))
    return Answer(without, figures, table(found), summary(found)), _news(lengths)


def gaps(state: State, sent: Dataset | None, lengths: Lengths, known: Study) -> tuple[list[GapPoint], Lengths]:
    """The gap against n of an answer's study, and the lengths found on the way."""
    studies.LENGTHS.update(lengths)
    points = gaps_against_n(replace(known, data=_samples(state, sent)))
    return points, _news(lengths)


def ahead(state: State, sent: Dataset | None, lengths: Lengths, known: Study) -> Lengths:
    """The lengths that the next moves of a slider will ask for."""
    studies.LENGTHS.update(lengths)
    studies.look_ahead(replace(known, data=_samples(state, sent)))
    return _news(lengths)


def file(state: State, sent: Dataset | None, known: Study, kind: str) -> bytes:
    """A download of an answer's study: "onnx", "py" or "png"."""
    whole = replace(known, data=_samples(state, sent))
    return figure_file(whole) if kind == "png" else network_file(whole, kind)


def _samples(state: State, sent: Dataset | None) -> Dataset:
    return samples_of(state, _NOTHING) if sent is None else sent


def _news(lengths: Lengths) -> Lengths:
    return {key: length for key, length in studies.LENGTHS.items() if key not in lengths}


def spectra(study: Study) -> Any:
    """The figure of all networks' eigenvalues."""
    return spectra_figure(study.spectra, f"the {study.state.shown} kernel")


def activations(study: Study) -> Any:
    """The figure of φ and of the designed activations."""
    return activations_figure(study.phi, study.design.explicit.curves, study.design.target.tau)


def admissible(study: Study) -> Any:
    """The map of σ_a² for the named activations and the chosen one."""
    own = study.state.activation
    names = NAMED if own in NAMED else (own, *NAMED)
    found = boundaries(names, study.design.net.var_b * study.design.tau0**2)
    return boundaries_figure([(b.name, b.contracts, b.stable, b.exists) for b in found], own, study.state.var_a)


def summary(study: Study) -> str:
    """The study in two sentences."""
    design, depth = study.design, study.design.explicit.depth
    layers = f"{depth} hidden layer{'s' * (depth > 1)}"
    if design.explicit.has_gains:
        layers += f", gains in training {', '.join(f'{gain:.3g}' for gain in design.explicit.gains)}"
    also = "" if study.conjugate_gap is None else f", its conjugate one {study.conjugate_gap:.2g}"
    return (
        f"{design.net.phi} DEQ on {study.data.description}. Designed: {design.family}, {layers}; "
        f"its {study.state.shown} kernel is {study.gap:.2g} away from the DEQ's{also}; that of the same depth undesigned "
        f"{study.plain_gap:.2g}, or {study.scaled_gap:.2g} times its least-squares factor."
        + _SURPASSED
        * (study.plain_gap < study.gap)
    )


def table(study: Study) -> Any:
    """The scalars that decide the kernel, of both networks, and τ0 and τ* of the DEQ."""
    target, matched = study.design.target, study.design.comparisons
    shown = [(c.name, f"{c.target:.6f}", f"{c.reached:.6f}", f"{c.gap:.1e}") for c in matched]
    others = [name for name in ("tau0", "tau") if name not in {c.name for c in matched} and hasattr(target, name)]
    shown += [(name, f"{getattr(target, name):.6f}", "", "") for name in others]
    head = dmc.TableThead(dmc.TableTr([dmc.TableTh(text) for text in ("scalar", "DEQ", "designed", "gap")]))
    rows = [dmc.TableTr([dmc.TableTd(cell) for cell in (_SYMBOLS[name], *cells)]) for name, *cells in shown]
    return dmc.Table([head, dmc.TableTbody(rows)], striped=True, verticalSpacing=2, **{"aria-label": "scalars"})


def python_of(state: State, uploaded: Uploaded | None = None, found: str = "", nearest: bool = False) -> str:
    """Python lines that print the table of the page.

    Args:
        state: What is shown.
        uploaded: The visitor's file, if the data are.
        found: The family that was found: the length of a Hermite series depends on the samples it is tried on.
        nearest: Whether the page shows the nearest member of a family without a match.
    """
    family = found if found.startswith("hermite") else state.family
    var_b = "" if state.var_b is None else f", {state.var_b:g}"
    lines = [
        "import torch",
        "",
        "import notsodeep as nsd",
        "from notsodeep.data.sources import load" + (", standardised" if state.data == "upload" else ""),
        "",
        *_data(state, uploaded),
        f"net = nsd.Implicit({state.activation!r}, {state.var_a:g}{var_b})",
        *_design(f"nsd.design(net, x, family={family!r}, match={state.kernel!r})", nearest),
        *(line for kernel in state.match.kernels for line in _comparison(f"nsd.{kernel}_kernel")),
    ]
    return "\n".join(lines) + "\n"


def _comparison(kernel: str) -> list[str]:
    return [
        "",
        f"deq, twin = {kernel}(net, x), {kernel}(explicit, x)",
        'print(f"gap {nsd.relative_gap(deq, twin):.2g}")',
        "print(torch.linalg.eigvalsh(deq)[-3:], torch.linalg.eigvalsh(twin)[-3:])",
    ]


def _design(call: str, nearest: bool) -> list[str]:
    if not nearest:
        return [f"found = {call}", "print(found.summary())", "explicit = found.explicit"]
    return ["try:", f"    {call}", "except nsd.NoMatch as error:  # which has the nearest", "    explicit = error.explicit"]


def _data(state: State, uploaded: Uploaded | None) -> list[str]:
    """Lines that read x; rows of a file are drawn before they are scaled, as on the page."""
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
    random = torch.Generator().manual_seed(_SEED)
    enn = ENN(study.design.explicit, study.data.x.shape[1], WIDTH, max(classes, 1), generator=random)
    try:
        if kind == "py":
            return enn.to_source().encode()
        with tempfile.TemporaryDirectory() as folder:
            return enn.to_onnx(Path(folder) / "network.onnx").read_bytes()
    except (NotSoDeepError, ImportError) as error:
        raise Refused("download", str(error)) from error


def figure_file(study: Study) -> bytes:
    """The spectra and the activations of the page, drawn for paper: a PNG."""
    names = {"deq": "deq", "explicit": "designed", "undesigned": "undesigned"}
    spectra = {ours: study.spectra[theirs] for ours, theirs in names.items()}
    memory = io.BytesIO()
    with style():
        design_figure(study.design, spectra, study.gap).savefig(memory, format="png", dpi=150)
    return memory.getvalue()
