"""Which requests are let in, and what every answer tells the browser."""

import pytest

pytest.importorskip("dash")
pytest.importorskip("dash_mantine_components")

from notsodeep.app.doors import Names, Visits
from notsodeep.app.explorer import Explorer
from notsodeep.app.server import make_app
from tests.app.inline import Inline


@pytest.fixture(scope="module")
def client():
    return make_app(Explorer(Inline()), Names.of("127.0.0.1", 8050)).server.test_client()


@pytest.mark.parametrize(
    ("host", "others", "good", "bad"),
    [
        (
            "127.0.0.1",
            (),
            ("localhost:8050", "LOCALHOST:8050", "127.0.0.1:8050", "[::1]:8050"),
            ("localhost", "localhost:80", "attacker.example:8050", "10.0.0.7:8050", "", "localhost:x", "a@localhost:8050"),
        ),
        ("lab.example", (), ("lab.example:8050", "localhost:8050"), ("lab.example", "other.example:8050")),
        ("0.0.0.0", (), ("10.0.0.7:8050", "[fe80::1]:8050", "localhost:8050"), ("10.0.0.7", "attacker.example:8050")),
        (
            "127.0.0.1",
            ("lab.example", "b.example:80"),
            ("lab.example", "lab.example:443", "b.example:80"),
            ("b.example:8050", "c.example"),
        ),
    ],
)
def test_only_the_names_it_was_started_for(host, others, good, bad):
    names = Names.of(host, 8050, others)
    assert [header for header in good if not names.admit(header)] == []
    assert [header for header in bad if names.admit(header)] == []


def test_another_name_is_refused_whatever_is_asked(client):
    for path in ("/", "/_dash-layout", "/nothing"):
        refused = client.get(path, headers={"Host": "attacker.example:8050"})
        assert refused.status_code == 421
        assert "attacker.example" in refused.text
        assert "--name" in refused.text


def test_no_page_where_there_is_none(client):
    here = {"Host": "localhost:8050"}
    assert client.get("/", headers=here).status_code == 200
    for path in ("/admin", "/index.html", "/a/b"):
        assert client.get(path, headers=here).status_code == 404


@pytest.mark.parametrize("path", ["/", "/_dash-layout", "/nothing"])
def test_every_answer_has_its_policies(client, path):
    told = client.get(path, headers={"Host": "localhost:8050"}).headers
    policy = dict(rule.split(" ", 1) for rule in told["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"].startswith("'self' 'sha256-")
    assert "unsafe" not in policy["script-src"]
    assert "http" not in told["Content-Security-Policy"]
    assert told["X-Frame-Options"] == "DENY"
    assert told["X-Content-Type-Options"] == "nosniff"
    assert told["Referrer-Policy"] == "no-referrer"


def test_who_asks_again_does_not_wait_for_the_first_answer():
    visits, open_line = Visits(), {"waitress.client_disconnected": lambda: False}
    first, other = visits.gone(open_line, "a", "answer"), visits.gone(open_line, "b", "answer")
    assert not first()
    second = visits.gone(open_line, "a", "answer")
    assert [first(), second(), other()] == [True, False, False]
    assert visits.gone({"waitress.client_disconnected": lambda: True})()
    assert not visits.gone({})()


def test_questions_may_arrive_in_another_order():
    visits = Visits()
    later, earlier = visits.gone({}, "a", "answer", 8), visits.gone({}, "a", "answer", 7)
    assert earlier()
    assert not later()
    assert not visits.gone({}, "a", "gaps", 7)()
    assert not visits.gone({}, "b", "answer", "a word instead of a number")()
