"""Downloads: a whole file with the right sum, or nothing at all."""

import pytest

import notsodeep as nsd
from notsodeep.data import cache as download
from notsodeep.data.cache import fetch
from tests.data.conftest import files_below, md5

BODY = bytes(range(256)) * 1000

pytestmark = pytest.mark.usefixtures("folders")  # no proxy


def test_a_good_file_arrives_whole(server, tmp_path):
    target = tmp_path / "in" / "file.gz"
    assert fetch([server.serve("/a", BODY)], target, md5(BODY)) == target
    assert target.read_bytes() == BODY
    assert files_below(target.parent) == ["file.gz"]


def test_a_file_without_a_declared_length(server, tmp_path):
    fetch([server.serve("/a", BODY, length=None)], tmp_path / "in" / "f", md5(BODY), progress=False)
    assert (tmp_path / "in" / "f").read_bytes() == BODY


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, BODY[:-1], len(BODY)), "after 255999 of 256000 bytes"),
        ((200, BODY[:-1], None), f"{md5(BODY[:-1])}, expected {md5(BODY)}"),
        ((200, BODY[:-1] + b"x", len(BODY)), md5(BODY[:-1] + b"x")),
        ((404, b"", 0), "HTTP error 404"),
        ((500, BODY, len(BODY)), "HTTP error 500"),
        ((302, b"file:///etc/hostname", 0), "302"),
        ((302, b"ftp://127.0.0.1/x", 0), "unknown url type: ftp"),
    ],
)
def test_a_bad_answer_leaves_nothing(server, tmp_path, answer, message):
    server.answers["/a"] = answer
    with pytest.raises(nsd.BadInput, match=message):
        fetch([server.url("/a")], tmp_path / "in" / "file.gz", md5(BODY))
    assert files_below(tmp_path / "in") == []


def test_a_bad_answer_leaves_an_older_file_alone(server, tmp_path):
    (tmp_path / "file").write_bytes(b"older")
    with pytest.raises(nsd.BadInput):
        fetch([server.serve("/a", BODY[:9])], tmp_path / "file", md5(BODY))
    assert (tmp_path / "file").read_bytes() == b"older"


def test_the_next_address_is_tried(server, tmp_path):
    urls = [server.url("/nothing"), server.serve("/short", BODY[:5], len(BODY)), server.serve("/good", BODY)]
    fetch(urls, tmp_path / "file", md5(BODY))
    assert server.asked == ["/nothing", "/short", "/good"]
    assert (tmp_path / "file").read_bytes() == BODY


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "/etc/hostname"])
def test_only_http(url, tmp_path):
    with pytest.raises(nsd.BadInput, match="only http and https"):
        fetch([url], tmp_path / "file", md5(BODY))


def test_no_server(tmp_path):
    with pytest.raises(nsd.BadInput, match="refused"):
        fetch(["http://127.0.0.1:9/x"], tmp_path / "file", md5(BODY))


def test_no_end_of_bytes(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "_LARGEST", 1000)
    with pytest.raises(nsd.BadInput, match="more than 1000 bytes"):
        fetch([server.serve("/a", BODY)], tmp_path / "in" / "file", md5(BODY))
    assert files_below(tmp_path / "in") == []


def test_an_interruption_leaves_nothing(server, tmp_path, monkeypatch):
    def interrupted(_):
        assert len(files_below(tmp_path / "in")) == 1  # the temporary file
        raise KeyboardInterrupt

    monkeypatch.setattr(download, "_block", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch([server.serve("/a", BODY)], tmp_path / "in" / "file", md5(BODY))
    assert files_below(tmp_path / "in") == []


def test_the_bar_goes_to_the_error_stream(server, tmp_path, capsys):
    fetch([server.serve("/a", BODY)], tmp_path / "file", md5(BODY))
    assert capsys.readouterr().out == ""
