"""The explorer's server without a browser, and the command that starts it."""

import base64
import http.client
import json
import re
import socket
import threading
import time
import urllib.request
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from urllib.parse import quote, urljoin, urlsplit

import pytest

pytest.importorskip("dash")
pytest.importorskip("dash_mantine_components")
pytest.importorskip("waitress")

import dash_mantine_components  # noqa: F401 (before the application, as it registers what a page loads)

from notsodeep.app import explorer, server, work
from notsodeep.app.budget import Budget, Departed
from notsodeep.app.explorer import Explorer
from notsodeep.app.server import make_app
from notsodeep.app.state import State
from notsodeep.app.uploads import LIMITS
from notsodeep.cli import explore
from notsodeep.errors import NumericsWarning
from tests.app.inline import Inline
from tests.cli.conftest import notsodeep  # noqa: F401 (a fixture)

HERE = "http://localhost/"


@pytest.fixture(scope="module")
def app():
    return make_app(Explorer(Inline()))


@pytest.fixture
def client(app):
    return app.server.test_client()


def ask(client, output, inputs, changed, given=()):
    """What a page posts when `changed` has changed: the callback whose outputs begin with `output`."""
    described = json.loads(client.get("/_dash-dependencies").data)
    (callback,) = [each for each in described if each["output"].strip(".").startswith(output)]
    outputs = [
        dict(zip(("id", "property"), part.split("@")[0].rsplit(".", 1), strict=True))
        for part in callback["output"].strip(".").split("...")
    ]
    body = {
        "output": callback["output"],
        "outputs": outputs if callback["output"].startswith("..") else outputs[0],
        "inputs": [
            {"id": i["id"], "property": i["property"], "value": inputs.get(i["id"])} for i in callback["inputs"]
        ],
        "state": [
            {"id": i["id"], "property": i["property"], "value": dict(given).get(i["id"])} for i in callback["state"]
        ],
        "changedPropIds": [changed],
    }
    return client.post("/_dash-update-component", json=body)


def answer(client, query, wrong=None):
    return ask(client, "spectra.figure", {"state": {"query": query, "wrong": wrong or {}}}, "state.data")


def test_the_page_and_its_layout(client):
    assert client.get("/").status_code == 200
    layout = client.get("/_dash-layout")
    assert layout.status_code == 200
    ids = set(re.findall(r'"id":\s*"([\w-]+)"', layout.text))
    assert {"activation", "var_a", "var_b", "data", "upload", "family", "kernel", "table", "spectra", "url"} <= ids
    used = json.loads(client.get("/_dash-dependencies").data)
    named = {each["id"] for callback in used for each in (*callback["inputs"], *callback["state"])}
    assert named <= ids


def test_everything_that_it_loads_is_here(client):
    index = client.get("/").text
    loaded = re.findall(r'(?:src|href)="([^"]+)"', index)
    assert len(loaded) > 5
    for address in loaded:
        assert urlsplit(urljoin(HERE, address)).netloc == "localhost", address
        assert client.get(address).status_code == 200, address
    assert not re.search(r"<(?:script|link|img|iframe)[^>]*https?://", index)
    for sheet in (address for address in loaded if ".css" in address):
        text = client.get(sheet).text
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", text), sheet


def test_too_large_a_request(client):
    body = b"x" * (server._BODY + 1)
    refused = client.post("/_dash-update-component", data=body, content_type="application/json")
    assert refused.status_code == 413
    assert 4 * (LIMITS.bytes + 2) // 3 < server._BODY
    assert client.get("/").status_code == 200


def test_an_answer(client):
    found = answer(client, "?n=100&p=50&activation=tanh")
    assert found.status_code == 200
    response = found.json["response"]
    assert len(response["spectra"]["figure"]["data"]) == 3
    assert "tanh" in response["summary"]["children"]
    assert "nsd.Implicit('tanh'" in response["python"]["code"]
    assert response["trouble"]["style"] == {"display": "none"}
    assert "NaN" not in found.text
    assert "Infinity" not in found.text


def test_a_refused_choice_leaves_the_rest(client):
    response = answer(client, "?n=100&p=50&activation=__import__(x)", {"var_b": "beside it"}).json["response"]
    assert "figure" not in response.get("spectra", {})
    assert "table" not in response
    assert "'__import__(x)' calls a function that is unknown" in response["activation-message"]["children"]
    assert response["trouble"]["children"] == "The reason is beside the control."
    assert response["var_b-message"]["children"] == "beside it"
    assert response["trouble"]["style"] == {"display": "block"}
    assert response["results"]["style"]["opacity"] < 0.5  # what is seen is not of this choice


def test_an_answer_is_in_full_strength(client):
    response = answer(client, "?n=100&p=50").json["response"]
    assert response["results"]["style"] == {}
    assert response["trouble"]["style"] == {"display": "none"}
    assert "with its best factor" in response["summary"]["children"]


CONTROLS = {
    "activation": "relu", "expression": "", "var_a": 0.2, "linked": True, "var_b": 0.8, "data": "mixture",
    "separation": 8.0, "spread": 8.0, "n": 500, "p": 500, "family": "auto", "kernel": "conjugate",
}  # fmt: skip


def chosen(client, changed, search="", **controls):
    given = {**CONTROLS, **controls, "url": search, "token": ""}
    return ask(client, "state.data", given, changed).json["response"]


def test_the_weight_of_the_input_follows_that_of_the_feedback(client):
    followed = chosen(client, "var_a.value", var_a=0.74)
    assert followed["var_b"] == {"value": 0.26, "disabled": True}
    assert followed["var_b-value"]["children"] == "0.26"
    assert "var_b" not in followed["url"]["search"]
    let_go = chosen(client, "linked.checked", var_a=0.74, var_b=0.26, linked=False)
    assert let_go["var_b"] == {"value": 0.26, "disabled": False}
    assert "var_b=0.26" in let_go["url"]["search"]


def test_what_a_link_asks_for_in_vain_is_told_as_the_links(client):
    opened = chosen(client, "url.search", search="?n=200&var_a=1.2")
    assert opened["n"]["value"] == 200
    assert opened["var_a"]["value"] == 0.2
    (sentence,) = opened["state"]["data"]["wrong"].values()
    assert sentence.startswith("Of the link: ")
    assert "Left as the page opens." in sentence


@pytest.mark.parametrize(
    ("query", "traces", "words"), [("?n=100&p=100", 2, "p of a mixture"), ("?n=100&data=digits", 1, "p stays")]
)
def test_the_gap_is_drawn_beside_the_theorem_where_that_speaks(client, query, traces, words):
    found = ask(client, "gaps.figure", {"state": {"query": query, "wrong": {}}}, "state.data").json["response"]
    assert len(found["gaps"]["figure"]["data"]) == traces
    assert words in found["gaps-caption"]["children"]


def test_what_nobody_foresaw_is_told_and_logged(client, monkeypatch, caplog):
    def broken(*_):
        raise ZeroDivisionError("of a test")

    monkeypatch.setattr(work, "study", broken)
    found = answer(client, "?n=105&p=55")
    assert found.status_code == 200
    assert "ZeroDivisionError: of a test" in found.json["response"]["trouble"]["children"]
    assert "of a test" in caplog.text


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"\x00", b'{"output": "none.there", "inputs": [], "outputs": [], "changedPropIds": []}'],
)
def test_a_hostile_request_is_told_in_a_line(client, body, caplog):
    assert client.post("/_dash-update-component", data=body, content_type="application/json").status_code == 400
    assert len(caplog.records) <= 1
    assert "Traceback" not in caplog.text
    assert client.get("/").status_code == 200


def test_the_slider_of_samples_ends_with_those_of_a_file(client):
    rows = "\n".join(f"{k},{k * k % 7}" for k in range(120))
    sent = {"name": "a.csv", "contents": f"data:text/csv;base64,{base64.b64encode(rows.encode()).decode()}"}
    token = ask(client, "token.data", {"sent": sent}, "sent.data").json["response"]["token"]["data"]
    given = {**CONTROLS, "data": "upload", "token": token, "url": ""}
    found = ask(client, "state.data", given, "token.data").json["response"]
    assert found["n"] == {"value": 150, "max": 150, "disabled": False}
    assert found["n-value"]["children"] == "120, all"
    assert "n=150" in found["url"]["search"]
    assert chosen(client, "data.value")["n"] == {"value": 500, "max": 1000, "disabled": False}


def test_a_page_keeps_its_name(client):
    first = chosen(client, "var_a.value")["state"]["data"]
    given = {**CONTROLS, "url": "", "token": ""}
    second = ask(client, "state.data", given, "var_a.value", {"state": first}.items()).json["response"]
    assert second["state"]["data"]["page"] == first["page"] != chosen(client, "var_a.value")["state"]["data"]["page"]


@pytest.mark.parametrize(("activation", "field"), [("relu", "n"), ("x*tanh(x)", "activation")])
def test_over_the_budget_is_told_beside_the_control(activation, field):
    class Spent(Inline):
        def run(self, *_, **__):
            raise Budget(seconds=7).too_long

    spent = make_app(Explorer(Spent())).server.test_client()
    response = answer(spent, f"?n=300&activation={quote(activation)}").json["response"]
    sentence = response[f"{field}-message"]["children"]
    assert "longer than the 7 s" in sentence
    assert "n = 300" in sentence
    assert "--seconds" in sentence


def test_who_has_left_gets_nothing():
    class Left(Inline):
        def run(self, *_, departed, **__):
            assert departed()
            raise Departed

    left = make_app(Explorer(Left())).server
    environ = {"waitress.client_disconnected": lambda: True}
    body = {"state": {"query": "?n=100&p=50", "wrong": {}}}
    visitor = left.test_client()
    visitor.environ_base.update(environ)
    assert ask(visitor, "spectra.figure", body, "state.data").status_code == 204
    assert ask(visitor, "gaps.figure", body, "state.data").status_code == 204


def test_files_to_take_home(client):
    given = {"state": {"query": "?n=100&p=50", "wrong": {}}}
    found = ask(
        client, "file.data", {"get-onnx": 0, "get-source": 1, "get-png": 0}, "get-source.n_clicks", given.items()
    )
    data = found.json["response"]["file"]["data"]
    assert data["filename"] == "network.py"
    assert data["base64"] is True
    found = ask(client, "file.data", {"get-png": 1}, "get-png.n_clicks", given.items())
    assert found.json["response"]["file"]["data"]["filename"] == "notsodeep.png"


def test_nothing_to_take_home(client):
    given = {"state": {"query": "?activation=1/x", "wrong": {}}}
    response = ask(client, "file.data", {"get-png": 1}, "get-png.n_clicks", given.items()).json["response"]
    assert "file" not in response
    assert "not finite" in response["download-message"]["children"]


def test_several_visitors_get_their_own_answers(app):
    chosen = ["relu", "tanh", "erf", "sin"] * 2

    def visit(name):
        found = answer(app.server.test_client(), f"?n=100&p=50&activation={name}")
        return found.json["response"]["summary"]["children"]

    with ThreadPoolExecutor(len(chosen)) as pool:
        summaries = list(pool.map(visit, chosen))
    for name, summary in zip(chosen, summaries, strict=True):
        assert summary.startswith(f"{name} DEQ"), summary
    assert summaries[:4] == summaries[4:]


def test_nobody_waits_for_another(app, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    real = work.study

    def slow(state, data):
        if state.activation == "arctan":
            begun.set()
            assert go_on.wait(60)
        return real(state, data)

    monkeypatch.setattr(work, "study", slow)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(answer, app.server.test_client(), "?n=100&p=50&activation=arctan")
        try:
            assert begun.wait(60)
            assert answer(app.server.test_client(), "?n=100&p=50&activation=erf").status_code == 200
            assert not waiting.done()
        finally:
            go_on.set()
        assert waiting.result().json["response"]["summary"]["children"].startswith("arctan DEQ")


def test_answers_are_made_once_and_forgotten():
    pool = Inline()
    one, first = Explorer(pool), State(n=101, p=50)
    assert one.answer(first, lambda: False) is one.answer(State(n=101, p=50), lambda: False)
    one.gaps(first, lambda: False)
    assert [call.__name__ for call, _ in pool.calls] == ["answered", "gaps"]
    explorer_most = explorer._ANSWERS
    one._answers.update({State(n=n): one.answer(first, lambda: False) for n in range(200, 199 + explorer_most)})
    one.answer(State(n=103, p=50), lambda: False)
    assert len(one._answers) == explorer_most
    one.answer(first, lambda: False)
    assert [state.n for call, (state, *_) in pool.calls if call is work.answered] == [101, 103, 101]


def test_lengths_found_by_one_worker_are_known_to_the_next(monkeypatch):
    pool = Inline()
    one = Explorer(pool)
    monkeypatch.setattr(work.studies, "LENGTHS", {})
    warnings.simplefilter("ignore", NumericsWarning)
    one.answer(State(activation="elu", var_a=0.25, n=100, p=50), lambda: False)
    assert {state.var_a for state, _ in one._lengths} == {
        0.1,
        0.2,
        0.3,
    }  # the neighbours were found while nobody waited
    monkeypatch.setattr(work.studies, "LENGTHS", {})
    one.answer(State(activation="elu", var_a=0.33, n=100, p=50), lambda: False)
    _, (_, _, given) = next(call for call in reversed(pool.calls) if call[0] is work.answered)
    assert {state.var_a for state, _ in given} == {0.1, 0.2, 0.3}


def test_the_command_without_its_packages(notsodeep, monkeypatch):  # noqa: F811
    monkeypatch.setattr(
        explore.importlib.util, "find_spec", lambda name: None if name in ("dash", "waitress") else name
    )
    ran = notsodeep("explore", "--no-browser")
    assert ran.returncode == 2
    assert ran.stderr == "error: The explorer needs dash, waitress: pip install 'notsodeep[app]'.\n"
    assert ran.stdout == ""


def test_a_port_that_is_taken(notsodeep):  # noqa: F811
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = notsodeep("explore", "--no-browser", "--port", str(port))
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"error: Cannot serve on 127.0.0.1:{port}: ")
    assert ran.stderr.count("\n") == 1


def test_a_host_that_is_none(notsodeep):  # noqa: F811
    ran = notsodeep("explore", "--no-browser", "--port", "0", "--host", "256.0.0.1")
    assert ran.returncode == 2
    assert "Cannot serve on 256.0.0.1:0" in ran.stderr
    assert ran.stderr.count("\n") == 1


class Served(Exception):
    """Ends the command where it would serve for ever."""


class Server:
    def __init__(self, application, sockets, **_):
        self.application, self.place = application, sockets[0]
        self.task_dispatcher = SimpleNamespace(active_count=0)

    def run(self):
        with self.place:
            raise Served(self.place.getsockname(), self.application)


@pytest.mark.parametrize("browser", [True, False])
def test_the_command_serves_this_machine_alone(monkeypatch, browser, capsys):
    opened, addresses = threading.Event(), []
    monkeypatch.setattr("waitress.server.create_server", Server)
    monkeypatch.setattr("notsodeep.app.pool.Pool", Inline)
    monkeypatch.setattr(explore.webbrowser, "open", lambda address: (addresses.append(address), opened.set()))
    with pytest.raises(Served) as served:
        explore.explore_command(port=0, browser=browser)
    (host, port), application = served.value.args
    assert host == "127.0.0.1"
    assert f"http://127.0.0.1:{port}/" in capsys.readouterr().out
    for name in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"):
        assert application.test_client().get("/", headers={"Host": name}).status_code == 200
    assert application.test_client().get("/", headers={"Host": f"attacker.example:{port}"}).status_code == 421
    assert opened.wait(60 if browser else 0) is browser
    assert addresses == [f"http://127.0.0.1:{port}/"] * browser


class Watching(Inline):
    """Computes for as long as the visitor is there."""

    def __init__(self):
        super().__init__()
        self.begun, self.noticed = threading.Event(), threading.Event()

    def run(self, *_, departed, **__):
        self.begun.set()
        for _ in range(6000):
            if departed():
                self.noticed.set()
                raise Departed
            time.sleep(0.01)
        raise AssertionError("nobody left")


@pytest.fixture(scope="module")
def served():
    """The page under the settings of the command, and what is asked of its computations."""
    from waitress.server import create_server

    pool = Watching()
    serving = create_server(make_app(Explorer(pool)).server, host="127.0.0.1", port=0, **explore._settings())
    threading.Thread(target=serving.run, daemon=True).start()
    yield pool, serving.effective_port
    serving.close()


def test_it_is_served_beside_idle_connections(served):
    _, port = served
    silent = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(150)]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as page:
            assert b"notsodeep" in page.read()
            assert page.headers["Server"] == "notsodeep"
    finally:
        for each in silent:
            each.close()


def test_who_closes_the_connection_is_noticed(served):
    pool, port = served
    body = {
        "output": "..gaps.figure...gaps-caption.children..",
        "outputs": [{"id": "gaps", "property": "figure"}, {"id": "gaps-caption", "property": "children"}],
        "inputs": [{"id": "state", "property": "data", "value": {"query": "?n=100", "wrong": {}}}],
        "changedPropIds": ["state.data"],
    }
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    line.request("POST", "/_dash-update-component", json.dumps(body), {"Content-Type": "application/json"})
    assert pool.begun.wait(60)
    assert not pool.noticed.is_set()
    line.close()
    assert pool.noticed.wait(60)
