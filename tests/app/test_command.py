"""The command that starts the explorer, and the connections that it holds."""

import http.client
import json
import socket
import threading
import time
import urllib.request
from types import SimpleNamespace

import pytest

pytest.importorskip("dash")
pytest.importorskip("dash_mantine_components")
pytest.importorskip("waitress")

from notsodeep.app.explorer import Explorer
from notsodeep.app.server import make_app
from notsodeep.app.worker import Departed
from notsodeep.cli import explore
from tests.app.inline import Inline
from tests.cli.conftest import notsodeep  # noqa: F401 (a fixture)


def test_the_command_without_its_packages(notsodeep, monkeypatch):  # noqa: F811
    monkeypatch.setattr(explore.importlib.util, "find_spec", lambda name: None if name in ("dash", "waitress") else name)
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
        "inputs": [{"id": "asked", "property": "data", "value": {"query": "?n=100", "wrong": {}}}],
        "changedPropIds": ["asked.data"],
    }
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    line.request("POST", "/_dash-update-component", json.dumps(body), {"Content-Type": "application/json"})
    assert pool.begun.wait(60)
    assert not pool.noticed.is_set()
    line.close()
    assert pool.noticed.wait(60)
