"""The layout of the page: controls on the left, results on the right. Ids are the names of a state's fields."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from notsodeep.app.state import DATA, FAMILY_NAMES, KERNELS, NAMED, RANGES, State
from notsodeep.app.uploads import LIMITS

FIELDS = (
    "activation", "expression", "var_a", "linked", "var_b", "data", "separation", "spread", "n", "p", "family", "kernel",
)  # fmt: skip
"""Controls; `expression` is the activation where that is "expression", `linked` means σ_b² = 1 − σ_a²."""
MESSAGES = ("activation", "var_a", "var_b", "data", "upload", "n", "family", "download", "link")
TYPED = "expression"
HIDDEN, SHOWN = {"display": "none"}, {"display": "block"}
_INTRODUCTION = (
    "A deep equilibrium model (DEQ) applies one layer to its own output until nothing changes any more. A very wide one is "
    "known by its kernel, a table of how alike it finds every two samples: of their last features (CK), or for training by "
    "gradient descent (NTK). On data of many features that kernel depends on a handful of numbers only; so an ordinary network "
    "of one or two layers, with an activation designed to have the same numbers, can take the DEQ's place. Move σ_a² and watch "
    "the red line stay with the blue area."
)
_TABLE = (
    "γ and α1 … α3 decide the conjugate kernel, κ and β1 … β3 the tangent kernel: in high dimension kernels agree where they "
    "do. τ0 is the samples' root mean square norm, τ* the deviation of a pre-activation at the equilibrium. Undesigned is a "
    "network of the same depth with the DEQ's own activation."
)
GAPS = {
    True: "‖DEQ's kernel − designed‖ / ‖DEQ's kernel‖, as n and p of a mixture grow together: the theorem has n^(−½).",
    False: "‖DEQ's kernel − designed‖ / ‖DEQ's kernel‖, on parts of the samples. p stays, so that it need not fall.",
}
"""Caption of the gap against n, for a mixture or not."""
_HEIGHTS = {"spectra": 330, "activations": 330, "gaps": 460, "map": 460}
_QUIET: Any = {"displayModeBar": False, "responsive": True}


def page() -> Any:
    """The whole layout, for `app.layout`."""
    return dmc.MantineProvider(
        dmc.AppShell(
            [
                dcc.Location(id="url", refresh=False),
                dcc.Store(id="state"),
                dcc.Store(id="asked"),
                dcc.Store(id="asking", data=False),
                dcc.Store(id="rested"),
                dcc.Store(id="token", data=""),
                dcc.Store(id="sent"),
                dcc.Download(id="file"),
                dmc.AppShellHeader(_header(), px="md"),
                dmc.AppShellMain(dmc.Grid([_controls(), _answers()], gutter="lg")),
            ],
            header={"height": 56},
            padding="md",
        ),
        defaultColorScheme="auto",
        theme={"primaryColor": "blue", "fontFamily": "system-ui, sans-serif"},
    )


def _header() -> Any:
    subtitle = dmc.Text("a DEQ and its explicit twin", c="dimmed", visibleFrom="sm")
    busy = dmc.Badge("computing …", id="busy", variant="light", color="orange", tt="none", style=HIDDEN)
    named: Any = {"id": "scheme", "aria-label": "light or dark"}
    scheme = dmc.ColorSchemeToggle(lightIcon="☀", darkIcon="☾", variant="default", size="lg", **named)
    return dmc.Group(
        [
            dmc.Group([dmc.Title("notsodeep", order=3), subtitle], gap="sm"),
            dmc.Group([busy, dmc.Badge("…", id="took", variant="light", tt="none"), scheme], gap="sm"),
        ],
        justify="space-between",
        h="100%",
    )


def _controls() -> Any:
    mixture = [_slider("separation", "distance of the classes' means"), _slider("spread", "difference of their covariances")]
    parts = [
        _choice("activation", "Activation φ of the DEQ", [*NAMED, {"value": TYPED, "label": "an expression in x …"}]),
        dmc.TextInput(
            id="expression", placeholder="x*tanh(x)", value="", debounce=400, style=HIDDEN, **{"aria-label": "expression in x"}
        ),
        _message("activation"),
        _slider("var_a", "σ_a²: weight of the feedback"),
        _message("var_a"),
        dmc.Switch(id="linked", label="σ_b² = 1 − σ_a²", checked=True, size="sm"),
        _slider("var_b", "σ_b²: weight of the input", start=0.8),
        _message("var_b"),
        _choice("data", "Data", [{"value": key, "label": label} for key, label in DATA.items()]),
        _message("data"),
        html.Div(dmc.Stack(mixture, gap="xs"), id="mixture"),
        html.Div(_upload(), id="file-field", style=HIDDEN),
        _slider("n", "samples n"),
        _message("n"),
        html.Div(_slider("p", "features p"), id="p-field"),
        _choice("family", "Family of the explicit network", list(FAMILY_NAMES)),
        _message("family"),
        dmc.SegmentedControl(
            id="kernel",
            data=[{"value": key, "label": label} for key, label in KERNELS.items()],
            value=State.kernel,
            fullWidth=True,
        ),
    ]
    return dmc.GridCol(dmc.Paper(dmc.Stack(parts, gap="xs"), withBorder=True, p="md"), span={"base": 12, "md": 4, "lg": 3})


def _choice(name: str, label: str, data: list[Any]) -> Any:
    return dmc.Select(
        id=name, label=label, data=data, value=getattr(State, name), searchable=name == "activation", allowDeselect=False
    )


def _slider(name: str, label: str, start: float | None = None) -> Any:
    allowed = RANGES[name]
    value = getattr(State(), name) if start is None else start
    title = [dmc.Text(label, size="sm"), dmc.Text("", size="sm", fw=600, id=f"{name}-value")]
    return html.Div(
        [
            dmc.Group(title, justify="space-between"),
            dmc.Slider(
                id=name,
                min=allowed.low,
                max=allowed.high,
                step=allowed.step,
                value=value,
                precision=2,
                label=None,
                updatemode="drag",
                thumbLabel=label,
                size="sm",
            ),
        ]
    )


def _upload() -> list[Any]:
    size = f"{LIMITS.bytes >> 20} MiB, {LIMITS.rows} rows"
    return [
        dcc.Upload(
            dmc.Button("Choose a .csv or .npy file", variant="default", fullWidth=True, id="choose"),
            id="upload",
            multiple=False,  # no `accept` and no `max_size`: a file that they refuse is dropped without a word
        ),
        dmc.Text(f"At most {size}; one sample per row. It stays in the memory of this server.", size="xs", c="dimmed"),
        dmc.Text("", id="upload-read", size="xs", style={"overflowWrap": "anywhere"}),
        _message("upload"),
    ]


def _answers() -> Any:
    cards = [
        _card(
            "Spectra",
            "spectra",
            "How many eigenvalues of each size. Kernels that agree have the red line on the blue area; the gap says how far.",
        ),
        _card("Activations", "activations", "What the explicit network uses in place of a fixed point."),
        _card("Gap against n", "gaps", GAPS[True]),
        _card(
            "How far σ_a² may go", "map", "Green: networks contract. Amber: the kernel is stable. Red: it exists; not beyond."
        ),
    ]
    table = html.Div(id="table", style={"overflowX": "auto"})
    scalars = [dmc.Text(id="summary", mb="xs"), dmc.Text(_TABLE, size="xs", c="dimmed"), table]
    results = [
        dmc.Paper(scalars, withBorder=True, p="md", mb="md"),
        dmc.SimpleGrid(cards, cols={"base": 1, "lg": 2}, spacing="md"),
        dmc.Paper(_take_home(), withBorder=True, p="md", mt="md"),
    ]
    return dmc.GridCol(
        [
            dmc.Alert(id="trouble", color="red", title="Nothing can be shown for this choice", mb="md", style=HIDDEN),
            dmc.Text(_INTRODUCTION, size="sm", c="dimmed", mb="md", maw=1000),
            html.Div(results, id="results"),
        ],
        span={"base": 12, "md": 8, "lg": 9},
    )


def _card(title: str, name: str, caption: str) -> Any:
    graph = dcc.Graph(id=name, config=_QUIET, style={"width": "100%", "height": _HEIGHTS[name]}, figure=empty())
    return dmc.Paper(
        [dmc.Text(title, fw=600), dmc.Text(caption, id=f"{name}-caption", size="xs", c="dimmed"), graph],
        withBorder=True,
        p="md",
        style={"minWidth": 0},
    )


def empty() -> dict[str, Any]:
    """A figure before its first answer: axes without numbers, on no background."""
    axis, clear = {"visible": False}, "rgba(0,0,0,0)"
    layout = {"xaxis": axis, "yaxis": axis, "paper_bgcolor": clear, "plot_bgcolor": clear}
    return {"data": [], "layout": layout}


def _take_home() -> list[Any]:
    buttons = [("onnx", "Network, ONNX"), ("source", "Network, Python"), ("png", "Figure, PNG")]
    return [
        dmc.Group([dmc.Button(label, id=f"get-{name}", variant="light", n_clicks=0) for name, label in buttons], mb="xs"),
        _message("download"),
        dmc.Text("The Python that gives this state:", size="sm", fw=600),
        dmc.CodeHighlight(id="python", code="", language="python", copyLabel="copy", copiedLabel="copied"),
        dmc.Text("The address of this page carries the whole state: copy it to share it.", size="xs", c="dimmed", mt="xs"),
        _message("link"),
    ]


def _message(name: str) -> Any:
    return dmc.Text("", id=f"{name}-message", size="xs", c="orange", style={"overflowWrap": "anywhere"})
