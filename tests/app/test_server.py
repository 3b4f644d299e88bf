"""The explorer's server without a browser."""

import base64
import json
import re
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, urljoin, urlsplit

import pytest

pytest.importorskip("dash")
pytest.importorskip("dash_mantine_components")
pytest.importorskip("waitress")

import dash_mantine_components  # noqa: F401 (before the application, as it registers what a page loads)

from notsodeep.app import answers, explorer, server
from notsodeep.app.explorer import Explorer
from notsodeep.app.server import make_app
from notsodeep.app.state import State
from notsodeep.app.uploads import LIMITS
from notsodeep.app.worker import Budget, Departed
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
        "inputs": [{"id": i["id"], "property": i["property"], "value": inputs.get(i["id"])} for i in callback["inputs"]],
        "state": [{"id": i["id"], "property": i["property"], "value": dict(given).get(i["id"])} for i in callback["state"]],
        "changedPropIds": [changed],
    }
    return client.post("/_dash-update-component", json=body)


def answer(client, query, wrong=None):
    return ask(client, "spectra.figure", {"asked": {"query": query, "wrong": wrong or {}}}, "asked.data")


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
    assert response["trouble"]["children"] == "The reason is shown at the control."
    assert response["var_b-message"]["children"] == "beside it"
    assert response["trouble"]["style"] == {"display": "block"}
    assert response["results"]["style"]["opacity"] < 0.5  # what is seen is not of this choice


def test_an_answer_is_in_full_strength(client):
    response = answer(client, "?n=100&p=50").json["response"]
    assert response["results"]["style"] == {}
    assert response["trouble"]["style"] == {"display": "none"}
    assert "times its least-squares factor" in response["summary"]["children"]


CONTROLS = {
    "activation": "relu", "expression": "", "var_a": 0.2, "linked": True, "var_b": 0.8, "data": "mixture",
    "separation": 8.0, "spread": 8.0, "n": 500, "p": 500, "family": "matched", "kernel": "conjugate",
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
    found = ask(client, "gaps.figure", {"asked": {"query": query, "wrong": {}}}, "asked.data").json["response"]
    assert len(found["gaps"]["figure"]["data"]) == traces
    assert words in found["gaps-caption"]["children"]


def test_what_nobody_foresaw_is_told_and_logged(client, monkeypatch, caplog):
    def broken(*_):
        raise ZeroDivisionError("of a test")

    monkeypatch.setattr(answers, "study", broken)
    found = answer(client, "?n=105&p=55")
    assert found.status_code == 200
    assert "ZeroDivisionError: of a test" in found.json["response"]["trouble"]["children"]
    assert "of a test" in caplog.text


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"\x00", b'{"output": "none.there", "inputs": [], "outputs": [], "changedPropIds": []}']
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
    body = {"asked": {"query": "?n=100&p=50", "wrong": {}}}
    visitor = left.test_client()
    visitor.environ_base.update(environ)
    assert ask(visitor, "spectra.figure", body, "asked.data").status_code == 204
    assert ask(visitor, "gaps.figure", body, "asked.data").status_code == 204


def test_files_to_take_home(client):
    given = {"state": {"query": "?n=100&p=50", "wrong": {}}}
    found = ask(client, "file.data", {"get-onnx": 0, "get-source": 1, "get-png": 0}, "get-source.n_clicks", given.items())
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
    real = answers.study

    def slow(state, data):
        if state.activation == "arctan":
            begun.set()
            assert go_on.wait(60)
        return real(state, data)

    monkeypatch.setattr(answers, "study", slow)
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
    assert [state.n for call, (state, *_) in pool.calls if call is answers.answered] == [101, 103, 101]


def test_a_moving_slider_is_answered_roughly_until_it_rests():
    pool = Inline()
    client = make_app(Explorer(pool)).server.test_client()
    query = "?activation=tanh&family=fitted%3A2&n=400&p=50"

    def shown(moving):
        asked = {"asked": {"query": query, "wrong": {}, "moving": moving}}
        gaps = ask(client, "gaps.figure", asked, "asked.data") if moving else None
        return ask(client, "spectra.figure", asked, "asked.data").json["response"], gaps

    rough, gaps = shown(True)
    assert rough["took"]["children"].startswith("roughly computed in")
    assert "Designed: rescaled" in rough["summary"]["children"]
    assert "while the slider moves" in rough["summary"]["children"]
    assert "n=400" in rough["python"]["code"]
    assert "family='fitted:2'" in rough["python"]["code"]
    assert "figure" not in gaps.text  # which waits for the whole answer
    whole, _ = shown(False)
    assert whole["took"]["children"].startswith("computed in")
    assert "Designed: fitted:2" in whole["summary"]["children"]
    assert shown(True)[0]["summary"] == whole["summary"]  # which is known by now
    assert [state.n for call, (state, *_) in pool.calls if call is answers.answered] == [300, 400]


def test_only_sliders_move(client):
    controls = {"activation": "relu", "expression": "", "var_a": 0.3, "linked": True, "var_b": 0.7, "data": "mixture"}
    controls |= {"separation": 8.0, "spread": 8.0, "n": 100, "p": 50, "family": "matched", "kernel": "conjugate"}
    for changed, moving in (("var_a.value", True), ("family.value", False), ("url.search", False)):
        found = ask(client, "state.data", controls | {"url": "", "token": ""}, changed).json["response"]
        assert found["state"]["data"]["moving"] is moving


def test_lengths_found_by_one_worker_are_known_to_the_next(monkeypatch):
    pool = Inline()
    one = Explorer(pool)
    monkeypatch.setattr(answers.studies, "LENGTHS", {})
    warnings.simplefilter("ignore", NumericsWarning)
    one.answer(State(activation="elu", var_a=0.25, n=100, p=50), lambda: False)
    assert {state.var_a for state, _ in one._lengths} == {0.1, 0.2, 0.3}  # the neighbours were found while nobody waited
    monkeypatch.setattr(answers.studies, "LENGTHS", {})
    one.answer(State(activation="elu", var_a=0.33, n=100, p=50), lambda: False)
    _, (_, _, given) = next(call for call in reversed(pool.calls) if call[0] is answers.answered)
    assert {state.var_a for state, _ in given} == {0.1, 0.2, 0.3}
