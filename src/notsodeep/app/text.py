"""A state as the Python that gives it."""

from __future__ import annotations

from notsodeep.app.state import State
from notsodeep.app.uploads import Uploaded


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
