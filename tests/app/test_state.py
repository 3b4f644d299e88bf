"""Links: what they carry comes back; what is wrong with one is said, and the rest is taken."""

import math
from dataclasses import fields, replace

import pytest
from hypothesis import given, strategies as st

from notsodeep.app.state import DATA, FAMILY_NAMES, KERNELS, NAMED, RANGES, State, checked, parse

NUMBERS = {name: st.floats(allowed.low, allowed.high) for name, allowed in RANGES.items()}
STATES = st.builds(
    State,
    activation=st.sampled_from(NAMED) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).map(str.strip),
    var_a=st.floats(RANGES["var_a"].low, 0.99),
    var_b=st.none() | NUMBERS["var_b"],
    data=st.sampled_from(list(DATA)),
    separation=NUMBERS["separation"],
    spread=NUMBERS["spread"],
    n=st.integers(100, 1000),
    p=st.integers(50, 1000),
    family=st.sampled_from(FAMILY_NAMES),
    kernel=st.sampled_from(list(KERNELS)),
    upload=st.text("abcXYZ019-_", max_size=40),
).filter(lambda state: state.activation)


@given(STATES)
def test_a_link_gives_its_state_back(state):
    assert state.query.isascii()
    assert parse(state.query) == (state, {})
    assert parse(state.query.removeprefix("?")) == (state, {})


def test_a_link_is_as_short_as_it_can_be():
    assert State().query == ""
    assert State(activation="tanh", var_a=0.1).query == "?activation=tanh&var_a=0.1"
    assert parse("") == parse("?") == (State(), {})


@given(STATES)
def test_controls_that_are_allowed_are_taken_as_they_are(state):
    values = {f.name: getattr(state, f.name) for f in fields(State)}
    assert checked(values) == (state, {})


def test_counts_are_whole_numbers():
    state, wrong = parse("?n=250.4&p=99.6")
    assert (state.n, state.p, wrong) == (250, 100, {})
    assert isinstance(state.n, int)


REFUSED = [
    *[
        (name, value)
        for name in RANGES
        for value in ("nan", "inf", "-inf", "1e999", "-1e999", "-5", "99999", "two", "0x10", "1,5", "∞", "1\x00", "[200]")
    ],
    *[(name, "") for name in RANGES if name != "var_b"],
    ("activation", ""),
    ("activation", "  \n "),
    ("data", "/etc/passwd"),
    ("data", ""),
    ("data", "Mixture"),
    ("family", "hermite:9999999"),
    ("family", "🙂" * 1000),
    ("kernel", "neither"),
    ("kernel", "\x1b[2J"),
]


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=repr)
def test_what_is_refused_says_so_and_leaves_the_rest(name, value):
    good = {"activation": "tanh", "var_b": "0.5", "data": "digits", "n": "300", "family": "hermite", "kernel": "tangent"}
    state, wrong = checked({**good, name: value})
    expected, none_wrong = checked({k: v for k, v in good.items() if k != name})
    assert none_wrong == {}
    assert state == expected
    assert list(wrong) == [name]
    assert wrong[name].endswith(".")
    assert 20 < len(wrong[name]) < 300
    if name in RANGES:
        assert f"between {RANGES[name].low:g} and {RANGES[name].high:g}" in wrong[name]


@pytest.mark.parametrize("value", [[], [1, 2], {}, {"a": 1}, True, object(), math.nan, 10**400])
@pytest.mark.parametrize("name", ["var_a", "n", "data", "kernel"])
def test_what_no_page_sends(name, value):
    state, wrong = checked({name: value, "spread": 3.0})
    assert list(wrong) == [name]
    assert len(wrong[name]) < 300
    assert state == State(spread=3.0)


def test_two_things_wrong_are_two_sentences():
    state, wrong = parse("?n=1&kernel=x&var_a=0.3&data=nothing")
    assert sorted(wrong) == ["data", "kernel", "n"]
    assert state == State(var_a=0.3)


def test_no_weight_is_left_for_the_input():
    state, wrong = parse("?var_a=1.2&n=300")
    assert state == State(n=300)
    assert list(wrong) == ["var_a"]
    assert "-0.2 must be positive" in wrong["var_a"]
    assert parse("?var_a=1.2&var_b=0.5") == (State(var_a=1.2, var_b=0.5), {})
    assert "var_a" in parse("?var_a=1")[1]


def test_the_last_of_two_counts_and_strangers_do_not():
    assert parse("?n=200&n=300") == (State(n=300), {})
    state, wrong = parse("?n=200&n=nan")
    assert (state, list(wrong)) == (State(), ["n"])
    assert parse("?__class__=x&query=y&seed=3&n=200&&==&a") == (State(n=200), {})


@pytest.mark.parametrize(
    "query",
    ["?" + "x" * 10**5, "?n=200&activation=" + "x" * 10**5, "?" + "&" * 10**5, "?" + "n=200&" * 10**5, "?n=" + "9" * 10**5],
    ids=["a word", "an activation", "signs", "again and again", "a number"],
)
def test_a_link_without_end(query):
    state, wrong = parse(query)
    assert len(state.activation) < 2000
    assert all(len(sentence) < 300 for sentence in wrong.values())
    assert state == replace(State(), activation=state.activation, n=state.n)


@given(st.text(max_size=200))
def test_no_text_is_too_strange(text):
    for query in (text, f"?activation={text}", f"?n={text}&var_a=0.3"):
        state, wrong = parse(query)
        assert checked({f.name: getattr(state, f.name) for f in fields(State)})[0] == state
        assert set(wrong) <= {f.name for f in fields(State)}


@pytest.mark.parametrize("escaped", ["%00", "%FF%FE", "%", "%zz", "%F0%9F%99%82", "%0a%0d", "+", "%E2%80%AE"])
def test_escapes(escaped):
    state, wrong = parse(f"?n=300&kernel={escaped}")
    assert state == State(n=300)
    assert list(wrong) == ["kernel"]
