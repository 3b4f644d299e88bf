"""What a browser hands over, and uploads kept between its calls."""

import base64
import threading
import tracemalloc

import pytest
import torch

from notsodeep.app.uploads import Limits, Shelf, Uploaded, decode
from notsodeep.errors import BadInput


def url(content, kind="text/csv"):
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


@pytest.mark.parametrize(
    "kind", ["text/csv", "application/vnd.ms-excel", "application/octet-stream", "text/csv;charset=utf-8", ""]
)
def test_what_browsers_send(kind):
    for content in (b"1,2\n3,4\n", bytes(range(256)), b""):
        assert decode(url(content, kind)) == content


@pytest.mark.parametrize(
    "text",
    [
        "",
        "data:",
        "1,2\n3,4",
        "data:text/csv,1,2",
        "http://localhost/t.csv",
        "file:///etc/passwd;base64,MSwy",
        " data:text/csv;base64,MSwy",
        "data:" + "x" * 10**6 + ";base64,MSwy",
        "data:text/csv;base64,MSw",
        "data:text/csv;base64,MSwy\n",
        "data:text/csv;base64,MS wy",
        "data:text/csv;base64,MSwy=",
        "data:text/csv;base64,MSwy====",
        "data:text/csv;base64,M===",
        "data:text/csv;base64,MQ==MQ==",
        "data:text/csv;base64,MS-_",
        "data:text/csv;base64,MSẃy",
        "data:text/csv;base64,%4D",
        None,
        ["data:text/csv;base64,MSwy"],
        b"data:text/csv;base64,MSwy",
    ],
    ids=lambda text: repr(text)[:60],
)
def test_what_browsers_do_not_send(text):
    with pytest.raises(BadInput, match=r"The upload (did not arrive|arrived damaged)"):
        decode(text)


def test_too_much_is_refused_before_it_is_decoded():
    limits = Limits(bytes=99)
    assert decode(url(bytes(99)), limits) == bytes(99)
    with pytest.raises(BadInput, match="at most 99 "):
        decode(url(bytes(100)), limits)
    text = url(b"") + "!" * 10**7  # no base64 either, but that is not looked at
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match="7500000 bytes; at most 99 "):
            decode(text, limits)
        assert tracemalloc.get_traced_memory()[1] < 2**16
    finally:
        tracemalloc.stop()


def upload(numbers=8):
    return Uploaded(torch.zeros(numbers, 1, dtype=torch.float64), None, "", "t.csv")


def test_a_shelf_gives_back_what_it_was_given():
    shelf, first, second = Shelf(), upload(), upload()
    tokens = [shelf.put(first), shelf.put(second), shelf.put(first)]
    assert len(set(tokens)) == 3
    assert min(map(len, tokens)) >= 32
    assert [shelf.get(token) for token in tokens] == [first, second, first]
    for token in ("", tokens[0][:-1], "t.csv", None, [], {}, 0):
        assert shelf.get(token) is None


def test_a_shelf_forgets_what_was_not_used_for_longest():
    shelf = Shelf(most=3)
    a, b, c = (shelf.put(upload()) for _ in range(3))
    assert shelf.get(a) is not None
    d = shelf.put(upload())
    assert [shelf.get(token) is not None for token in (a, b, c, d)] == [True, False, True, True]


def test_a_shelf_holds_so_many_bytes():
    shelf = Shelf(most_bytes=240)
    tokens = [shelf.put(upload(10)) for _ in range(4)]
    assert [shelf.get(token) is not None for token in tokens] == [False, True, True, True]
    large = shelf.put(upload(30))
    assert [shelf.get(token) is not None for token in [*tokens, large]] == [False] * 4 + [True]
    with pytest.raises(BadInput, match="248 bytes; at most 240"):
        shelf.put(upload(31))
    assert shelf.get(large) is not None


def test_a_shelf_is_shared_by_threads():
    shelf, wrong = Shelf(most=4), []

    def visit():
        for _ in range(200):
            mine = upload()
            found = shelf.get(shelf.put(mine))
            if found is not None and found is not mine:
                wrong.append(found)

    visitors = [threading.Thread(target=visit) for _ in range(4)]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()
    tokens = [shelf.put(upload()) for _ in range(4)]
    assert wrong == []
    assert all(shelf.get(token) is not None for token in tokens)
