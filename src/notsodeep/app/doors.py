"""Admission of requests: host names, security headers, and which visitors still wait."""

from __future__ import annotations

import ipaddress
import itertools
import logging
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from dash import Dash
from flask import Response, abort, request
from werkzeug.exceptions import HTTPException

log = logging.getLogger("notsodeep.explore")
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERYWHERE = ("0.0.0.0", "::", "")
_PAGES = 1000  # whose latest questions are remembered
_UPDATE = "/_dash-update-component"
_PARTS: dict[str, tuple[type, ...]] = {"output": (str,), "outputs": (list, dict), "inputs": (list,), "changedPropIds": (list,)}
_HEADERS = {
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self' {inline}",  # the scripts that Dash writes into the page
    "style-src": "'self' 'unsafe-inline'",  # Mantine and plotly style what they draw
    "img-src": "'self' data: blob:",
    "font-src": "'self' data:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


@dataclass(frozen=True)
class Names:
    """Host names that a server answers to, as in a browser's Host header.

    Without this check a page under another name that resolves to this machine could read the explorer.
    """

    names: frozenset[str] = _LOCAL
    port: int | None = None
    """port that goes with these names; None is any"""
    addresses: bool = False
    """whether every numeric address is admitted: nobody owns those, and a machine has several"""
    others: frozenset[str] = frozenset()
    """further names, with any port or with their own: "lab.example:80" """

    @classmethod
    def of(cls, host: str, port: int, others: Iterable[str] = ()) -> Names:
        """Names of a server started for `host`; for all addresses, the names of this machine."""
        everywhere = host in _EVERYWHERE
        own = (socket.gethostname(), socket.getfqdn()) if everywhere else (host,)
        return cls(_LOCAL | {name.lower() for name in own}, port, everywhere, frozenset(map(str.lower, others)))

    def admit(self, header: str) -> bool:
        """Whether a Host header names one of them."""
        header = header.lower()
        try:
            parts = urlsplit(f"//{header}")
            name, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        if parts.netloc != header or "@" in header:
            return False
        if name in self.others or header in self.others:
            return True
        known = name in self.names or (self.addresses and _is_address(name))
        return known and self.port in (None, port)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def guard(app: Dash, names: Names) -> None:
    """Admit requests for one of the names and an existing resource; call it after all callbacks are added to `app`.

    Answers carry a policy that lets the page load and run only what comes from here, and forbids framing it. A request that no
    page of ours sends gets status 400 and one line in the log.
    """
    inline = " ".join(app.csp_hashes())
    policy = "; ".join(f"{name} {sources.format(inline=inline)}" for name, sources in _POLICY.items())

    def admit() -> Response | None:
        host = request.headers.get("Host", "")
        if not names.admit(host):
            sentence = f"This explorer does not answer to the name {host[:100]!r}. To let it in: notsodeep explore --name NAME"
            return Response(f"{sentence}\n", 421, content_type="text/plain; charset=utf-8")
        if request.url_rule is not None and request.url_rule.rule == "/<path:path>":  # for which Dash shows the page
            abort(404)
        if request.path == _UPDATE and request.method == "POST":
            body = request.get_json(silent=True)
            if not isinstance(body, dict) or not all(isinstance(body.get(k), kind) for k, kind in _PARTS.items()):
                abort(400)
        return None

    def protect(response: Response) -> Response:
        response.headers.update({**_HEADERS, "Content-Security-Policy": policy})
        return response

    def strange(error: Exception) -> Response | HTTPException:
        """Callbacks answer the errors they expect; the rest is a request that no page of ours sends, or a bug."""
        if isinstance(error, HTTPException):
            return error
        log.warning("%s %s: %s: %s", request.method, request.path[:100], type(error).__name__, str(error)[:200])
        log.debug("where it was", exc_info=error)
        return Response("This request is none of the page's.\n", 400, content_type="text/plain; charset=utf-8")

    app.server.before_request(admit)
    app.server.after_request(protect)
    app.server.register_error_handler(Exception, strange)


class Visits:
    """The latest question of each page: a newer one makes the answer to an older one needless."""

    def __init__(self) -> None:
        self._latest: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._numbers, self._lock = itertools.count(), threading.Lock()

    def gone(self, environ: Mapping[str, Any], page: str = "", question: str = "", turn: Any = None) -> Callable[[], bool]:
        """A function: whether the request's connection was closed, or its page, if named, has asked this question again.

        `turn` counts the page's questions, which may arrive in another order; that of arrival by default.
        waitress puts a test of the connection into the environment; it works if `channel_request_lookahead` is positive.
        """
        closed: Callable[[], bool] = environ.get("waitress.client_disconnected", lambda: False)
        if not page:
            return closed
        key, number = (page[:64], question), turn if isinstance(turn, int) else next(self._numbers)
        with self._lock:
            self._latest[key] = max(self._latest.get(key, number), number)
            self._latest.move_to_end(key)
            while len(self._latest) > _PAGES:
                self._latest.popitem(last=False)
        return lambda: closed() or self._latest.get(key, number) != number
