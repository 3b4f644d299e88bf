"""The Dash application of the explorer: one callback per group of controls."""

from __future__ import annotations

import logging
import math
import secrets
from dataclasses import dataclass, replace
from typing import Any

from dash import Dash, Input, Output, State as Given, ctx, no_update
from dash.dcc.express import send_bytes
from dash.exceptions import PreventUpdate
from flask import request

from notsodeep.app.answers import python_of
from notsodeep.app.doors import Names, Visits, guard
from notsodeep.app.explorer import Explorer
from notsodeep.app.page import FIELDS, GAPS, HIDDEN, MESSAGES, SHOWN, TYPED, empty, page
from notsodeep.app.state import NAMED, RANGES, State, checked, parse
from notsodeep.app.study import Refused
from notsodeep.app.uploads import LIMITS, decode, read_upload
from notsodeep.app.worker import Departed
from notsodeep.errors import NotSoDeepError
from notsodeep.figures.explorer import gap_figure

log = logging.getLogger("notsodeep.explore")
_OLD = {"opacity": 0.35}  # style of results that do not belong to the present choices
_FILES = {"get-onnx": ("onnx", "network.onnx"), "get-source": ("py", "network.py"), "get-png": ("png", "notsodeep.png")}
_BODY = 2 * LIMITS.bytes  # of a request: an upload in base64 and the rest of the page
_SENT = """function(contents, name) {
    const same = dash_clientside.no_update;
    if (!contents) return [same, same, same];
    const size = Math.floor(3 * (contents.length - contents.indexOf(",") - 1) / 4);
    if (size <= MOST) return [{name: name, contents: contents}, "…", null];
    return [same, `'${name}' has ${size} bytes; at most MOST (${MOST / 2 ** 20} MiB) are taken. Use a part of it.`, null];
}"""
_REST = 300  # milliseconds without a move after which a slider rests
_ASKED = """function(state, asking, rested) {
    const same = dash_clientside.no_update;
    clearTimeout(window.resting);
    if (!state) return same;
    const chosen = JSON.stringify(state), moving = state.moving && rested !== chosen;
    if (moving) window.resting = setTimeout(() => dash_clientside.set_props("rested", {data: chosen}), REST);
    const wanted = {...state, moving: moving}, asked = JSON.stringify(wanted);
    if (moving && asking || asked === window.asked) return same;
    window.asked = asked;
    window.turn = (window.turn ?? 0) + 1;
    return {...wanted, turn: window.turn};
}"""
"""While a slider moves, a state is asked for when the answer before it has come: a new question would have that dropped, and
nothing be seen. The state that it rests at is asked for at once, as a whole. What counts is the present state, not what called
nor what it was when the timer was set: the end of an answer, a rest and a new choice may come in one call."""
_ROUGHLY = " That is rough, while the slider moves: of fewer samples, and without a fit."
_DERIVED = ("activation", "expression", "linked", "var_b")  # controls that are not a field of a state as they are


def make_app(explorer: Explorer, names: Names = Names()) -> Dash:  # noqa: B008 (a frozen value)
    """The Dash application, answering to `names`; its `server` is a WSGI one and serves all that a browser loads."""
    app = Dash("notsodeep", title="notsodeep", update_title="notsodeep …", serve_locally=True, assets_folder="none")
    app.layout = page()
    app.server.config["MAX_CONTENT_LENGTH"] = _BODY
    visits = Visits()
    _chosen(app, explorer)
    _uploaded(app, explorer)
    _answered(app, explorer, visits)
    _gaps(app, explorer, visits)
    _taken_home(app, explorer, visits)
    guard(app, names)
    return app


def _chosen(app: Dash, explorer: Explorer) -> None:
    """Controls → state and link; a link → state and controls. One callback, as the two depend on each other."""

    @app.callback(
        Output("state", "data"),
        Output("url", "search"),
        Output("token", "data", allow_duplicate=True),
        *[Output(name, "checked" if name == "linked" else "value") for name in FIELDS],
        *[Output(f"{name}-value", "children") for name in RANGES],
        *[Output(name, "style") for name in ("expression", "mixture", "file-field", "p-field")],
        Output("var_b", "disabled"),
        Output("n", "max"),
        Output("n", "disabled"),
        Output("link-message", "children"),
        Input("url", "search"),
        Input("token", "data"),
        *[Input(name, "checked" if name == "linked" else "value") for name in FIELDS],
        Given("state", "data"),
        prevent_initial_call="initial_duplicate",
    )
    def choose(search: str, token: str, *values: Any) -> tuple[Any, ...]:
        *chosen, before = values
        linked = ctx.triggered_id in (None, "url")
        given = dict(zip(FIELDS, chosen, strict=True))
        choice = _Choice.of_link(explorer, search or "") if linked else _Choice.of_controls(explorer, given, token)
        return choice.outputs((before or {}).get("page") or secrets.token_hex(8), moving=ctx.triggered_id in RANGES)

    app.clientside_callback(
        _ASKED.replace("REST", str(_REST)),
        Output("asked", "data"),
        Input("state", "data"),
        Input("asking", "data"),
        Input("rested", "data"),
        prevent_initial_call=True,
    )


@dataclass(frozen=True)
class _Choice:
    """A state, the controls that show it, and a sentence for each field that is wrong."""

    state: State
    given: dict[str, Any]
    wrong: dict[str, str]
    rows: float
    """samples of an uploaded file, else infinite"""
    most: int
    """largest n of the slider"""
    kept: bool = False
    """whether the last results stay, as a wrong control does; a wrong part of a link gets its default instead"""

    @classmethod
    def of_link(cls, explorer: Explorer, search: str) -> _Choice:
        state, wrong = parse(search)
        wrong = {name: f"Of the link: {sentence} Left as the page opens." for name, sentence in wrong.items()}
        rows, most = _samples(explorer, state.data, state.upload)
        state = replace(state, n=min(state.n, most))
        return cls(state, _controls(state), wrong, rows, most)

    @classmethod
    def of_controls(cls, explorer: Explorer, given: dict[str, Any], token: str) -> _Choice:
        rows, most = _samples(explorer, given["data"], token)
        given = given | {"n": min(given["n"], most)}
        state, wrong = checked(_fields(given, token))
        if given["linked"]:  # the other slider follows
            given["var_b"] = _one_less(given["var_a"])
        return cls(state, given, wrong, rows, most, kept=bool(wrong))

    def outputs(self, page: str, moving: bool = False) -> tuple[Any, ...]:
        """The outputs of the callback, in its order; `moving` says that a slider was moved just now."""
        given, query = self.given, self.state.query
        here = {name: text for name, text in self.wrong.items() if name in MESSAGES}
        mixture = SHOWN if given["data"] == "mixture" else HIDDEN
        numbers = self._numbers()
        return (
            {"query": query, "wrong": here, "kept": self.kept, "page": page, "moving": moving and not self.kept},
            no_update if self.kept else query,
            no_update if self.kept else self.state.upload,
            *(given[name] for name in FIELDS),
            *(numbers[name] for name in RANGES),
            SHOWN if given["activation"] == TYPED else HIDDEN,
            mixture,
            SHOWN if given["data"] == "upload" else HIDDEN,
            mixture,
            bool(given["linked"]),
            self.most,
            self.most <= RANGES["n"].low,
            " ".join(text for name, text in self.wrong.items() if name not in MESSAGES),
        )

    def _numbers(self) -> dict[str, str]:
        """The number next to each slider."""
        shown = {name: f"{self.given[name]:g}" for name in RANGES}
        if self.given["linked"]:
            shown["var_b"] = f"{max(1.0 - self.given['var_a'], 0.0):g}"
        if self.rows <= self.given["n"]:
            shown["n"] = f"{self.rows}, all"
        return shown


def _fields(given: dict[str, Any], token: str) -> dict[str, Any]:
    """The fields of a state from the controls of a page."""
    typed = given["activation"] == TYPED
    return {
        **{name: given[name] for name in FIELDS if name not in _DERIVED},
        "activation": given["expression"] if typed else given["activation"],
        "var_b": None if given["linked"] else given["var_b"],
        "upload": token if given["data"] == "upload" else "",
    }


def _controls(state: State) -> dict[str, Any]:
    """The controls of a page from the fields of a state."""
    named = state.activation in NAMED
    return {
        "activation": state.activation if named else TYPED,
        "expression": "" if named else state.activation,
        "linked": state.var_b is None,
        "var_b": _one_less(state.var_a) if state.var_b is None else state.var_b,
        **{name: getattr(state, name) for name in FIELDS if name not in _DERIVED},
    }


def _samples(explorer: Explorer, data: str, token: str) -> tuple[float, int]:
    """Number of samples of a file (else infinite), and the first step of the slider that takes them all."""
    allowed, rows = RANGES["n"], explorer.rows(token) if data == "upload" else None
    if rows is None:
        return math.inf, int(allowed.high)
    steps = math.ceil((rows - allowed.low) / allowed.step)
    return rows, int(min(max(allowed.low + steps * allowed.step, allowed.low), allowed.high))


def _one_less(var_a: float) -> float:
    """1 − σ_a² within the range of the slider of σ_b²."""
    return round(max(1.0 - var_a, RANGES["var_b"].low), 2)


def _uploaded(app: Dash, explorer: Explorer) -> None:
    """The browser reports a file that is too large without sending it; the field is emptied to take the same file again."""
    app.clientside_callback(
        _SENT.replace("MOST", str(LIMITS.bytes)),
        Output("sent", "data"),
        Output("upload-message", "children", allow_duplicate=True),
        Output("upload", "contents"),
        Input("upload", "contents"),
        Given("upload", "filename"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output("token", "data"),
        Output("upload-message", "children", allow_duplicate=True),
        Output("upload-read", "children", allow_duplicate=True),
        Output("choose", "children"),
        Input("sent", "data"),
        prevent_initial_call=True,
    )
    def upload(sent: dict[str, str]) -> tuple[Any, ...]:
        try:
            held = read_upload(sent["name"], decode(sent["contents"]))
            return explorer.shelf.put(held), "", f"Read: {held.description}.", held.name
        except NotSoDeepError as error:
            return no_update, str(error), no_update, no_update


def _answered(app: Dash, explorer: Explorer, visits: Visits) -> None:
    """A state → its results. A choice that cannot be shown gets a sentence at its field; the rest stays as it was."""

    @app.callback(
        *[Output(name, "figure") for name in ("spectra", "activations", "map")],
        Output("table", "children"),
        Output("summary", "children"),
        Output("python", "code"),
        Output("took", "children"),
        Output("trouble", "children"),
        Output("trouble", "style"),
        Output("results", "style"),
        Output("upload-read", "children"),
        *[Output(f"{name}-message", "children") for name in MESSAGES if name != "link"],
        Input("asked", "data"),
        prevent_initial_call=True,
        running=[(Output("busy", "style"), SHOWN, HIDDEN), (Output("asking", "data"), True, False)],
    )
    def answer(given: dict[str, Any]) -> tuple[Any, ...]:
        state, _ = parse(given["query"])
        messages = dict.fromkeys((name for name in MESSAGES if name != "link"), "") | given["wrong"]

        def refused_as(sentence: str) -> tuple[Any, ...]:
            return (*(no_update,) * 7, sentence, SHOWN, _OLD, no_update, *messages.values())

        if given.get("kept"):
            return refused_as("Correct the choices marked at the controls.")
        try:
            gone = visits.gone(request.environ, given.get("page", ""), "answer", given.get("turn"))
            shown = explorer.answer(state, gone, moving=bool(given.get("moving")))
        except Departed:
            raise PreventUpdate from None
        except Refused as refused:
            messages[refused.field] = refused.sentence
            return refused_as("The reason is shown at the control.")
        except Exception as error:
            log.exception("%s", state)
            return refused_as(f"{type(error).__name__}: {error}. This is a bug of ours; other choices still work.")
        found, held = shown.study, explorer.shelf.get(state.upload)
        read = "" if held is None else f"Read: {held.description}."
        messages |= {name: text for name, text in found.notes.items() if not messages[name]}
        roughly = found.state != state
        python = python_of(state, held, "" if roughly else found.design.family, nearest="family" in found.notes)
        took = f"{'roughly ' * roughly}computed in {1e3 * found.seconds:.0f} ms"
        seen = (*shown.figures, shown.table, shown.summary + _ROUGHLY * roughly, python, took)
        return (*seen, "", HIDDEN, {}, read, *messages.values())


def _gaps(app: Dash, explorer: Explorer, visits: Visits) -> None:
    """The gap against n, in a request of its own: the rest does not wait for it."""

    @app.callback(
        Output("gaps", "figure"), Output("gaps-caption", "children"), Input("asked", "data"), prevent_initial_call=True
    )
    def gaps(given: dict[str, Any]) -> tuple[Any, Any]:
        state, _ = parse(given["query"])
        if given.get("kept") or given.get("moving"):
            return no_update, no_update
        try:
            gone = visits.gone(request.environ, given.get("page", ""), "gaps", given.get("turn"))
            points = explorer.gaps(state, gone)
        except Departed:
            raise PreventUpdate from None
        except Refused as refused:  # the other callback shows the rest
            return (empty(), refused.sentence) if refused.field == "gaps" else (no_update, no_update)
        except NotSoDeepError:
            return no_update, no_update
        mixture = state.data == "mixture"
        return gap_figure([(point.n, point.gap) for point in points], mixture), GAPS[mixture]


def _taken_home(app: Dash, explorer: Explorer, visits: Visits) -> None:
    @app.callback(
        Output("file", "data"),
        Output("download-message", "children", allow_duplicate=True),
        *[Input(button, "n_clicks") for button in _FILES],
        Given("state", "data"),
        prevent_initial_call=True,
    )
    def take(*given: Any) -> tuple[Any, str]:
        state, _ = parse(given[-1]["query"])
        if given[-1].get("kept"):
            return no_update, "A choice cannot be shown: correct it first, so that the file is what you see."
        kind, name = _FILES[str(ctx.triggered_id)]
        try:
            return send_bytes(explorer.file(state, kind, visits.gone(request.environ)), name), ""
        except Departed:
            raise PreventUpdate from None
        except Refused as refused:
            return no_update, refused.sentence
        except Exception as error:
            log.exception("%s", state)
            return no_update, f"{type(error).__name__}: {error}. This is a bug of ours."
