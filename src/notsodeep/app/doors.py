"""Who is let in, and what every answer tells the browser."""

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

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERYWHERE = ("0.0.0.0", "::", "")
_UPDATE = "/_dash-update-component"
_PARTS: dict[str, tuple[type, ...]] = {
    "output": (str,),
    "outputs": (list, dict),
    "inputs": (list,),
    "changedPropIds": (list,),
}
log = logging.getLogger("notsodeep.explore")
_PAGES = 1000


@dataclass(frozen=True)
class Names:
    """The host names that a server answers to, as a browser's Host header has them. A page of another name that is made to
    resolve to this machine would else read what is here."""

    names: frozenset[str] = _LOCAL
    port: int | None = None
    """with these names; None is any"""
    addresses: bool = False
    """Whether every address in numbers will do: those are nobody's name, and a machine has several."""
    others: frozenset[str] = frozenset()
    """with any port, or with their own: "lab.example:80" """

    @classmethod
    def of(cls, host: str, port: int, others: Iterable[str] = ()) -> Names:
        """Of a server that was started for this host: this machine's own names, where that is every address it has."""
        everywhere = host in _EVERYWHERE
        own = (socket.gethostname(), socket.getfqdn()) if everywhere else (host,)
        return cls(_LOCAL | {name.lower() for name in own}, port, everywhere, frozenset(map(str.lower, others)))

    def admit(self, header: str) -> bool:
        """Whether a Host header is one of them."""
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
    """Let in what asks for one of the names and for something that is there; after all callbacks are known to `app`.

    Answers carry a policy under which the page loads and runs what comes from here alone, and stands in no other page. What no
    page of ours sends gets status 400 and one line in the log.
    """
    inline = " ".join(app.csp_hashes())  # the scripts that Dash writes into the page
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' {inline}",
            "style-src 'self' 'unsafe-inline'",  # Mantine and plotly style what they draw
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )

    def admit() -> Response | None:
        if not names.admit(request.headers.get("Host", "")):
            asked = request.headers.get("Host", "")[:100]
            return Response(
                f"This explorer does not answer to the name {asked!r}. To let it in: notsodeep explore --name NAME\n",
                421,
                content_type="text/plain; charset=utf-8",
            )
        if (
            request.url_rule is not None and request.url_rule.rule == "/<path:path>"
        ):  # Dash shows the page for all of these
            abort(404)
        if request.path == _UPDATE and request.method == "POST":
            body = request.get_json(silent=True)
            if not isinstance(body, dict) or not all(isinstance(body.get(k), kind) for k, kind in _PARTS.items()):
                abort(400)
        return None

    def tell(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Frame-Options"] = "DENY"
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        return response

    def strange(error: Exception) -> Response | HTTPException:
        """What a callback foresees it answers itself: here is what no page of ours sends, or a mistake of ours."""
        if isinstance(error, HTTPException):
            return error
        log.warning("%s %s: %s: %s", request.method, request.path[:100], type(error).__name__, str(error)[:200])
        log.debug("where it was", exc_info=error)
        return Response("This request is none of the page's.\n", 400, content_type="text/plain; charset=utf-8")

    app.server.before_request(admit)
    app.server.after_request(tell)
    app.server.register_error_handler(Exception, strange)


class Visits:
    """The latest question of each page: who asks again does not wait for the answer to what was asked before."""

    def __init__(self) -> None:
        self._latest: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._numbers, self._lock = itertools.count(), threading.Lock()

    def gone(self, environ: Mapping[str, Any], page: str = "", question: str = "") -> Callable[[], bool]:
        """Tells whether the connection of a request was closed, or its page, if it has a name, has asked this question again.

        The server puts into a request's environment what knows of its connection (waitress does so, and looks at a connection
        whose request is at work if its `channel_request_lookahead` is positive)."""
        closed: Callable[[], bool] = environ.get("waitress.client_disconnected", lambda: False)
        if not page:
            return closed
        key, number = (page[:64], question), next(self._numbers)
        with self._lock:
            self._latest[key] = number
            self._latest.move_to_end(key)
            while len(self._latest) > _PAGES:
                self._latest.popitem(last=False)
        return lambda: closed() or self._latest.get(key, number) != number
