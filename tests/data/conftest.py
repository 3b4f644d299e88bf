"""What the tests of stored data share: folders of their own, a small server, the real files where there are any."""

import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A data folder and a cache folder, both empty, and no network but the test's own server."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    monkeypatch.setenv("NOTSODEEP_DATA", str(data))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("NOTSODEEP_OFFLINE", raising=False)
    return data, cache / "notsodeep"


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("NOTSODEEP_OFFLINE", "1")


class Server:
    """Answers GET with `answers[path]`: (status, body, declared length or None)."""

    def __init__(self):
        self.answers, self.asked = {}, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append(self.path)
                status, body, length = outer.answers.get(self.path, (404, b"", 0))
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", body.decode())
                elif length is not None:
                    self.send_header("Content-Length", str(length))
                self.end_headers()
                if status != 302:
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def serve(self, path, body, length=-1, status=200):
        self.answers[path] = (status, body, len(body) if length == -1 else length)
        return self.url(path)

    def url(self, path):
        return f"http://127.0.0.1:{self.http.server_port}{path}"


@pytest.fixture
def server():
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


def md5(content):
    return hashlib.md5(content).hexdigest()


def real(path):
    """The real file, or a skip that says which one is not there."""
    for folder in filter(None, os.environ.get("NOTSODEEP_DATA", "").split(os.pathsep)):
        if (Path(folder) / path).is_file():
            return Path(folder) / path
    return pytest.skip(f"no {path} in $NOTSODEEP_DATA")


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
